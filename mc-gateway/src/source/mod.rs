//! Where desired objects come from.
//!
//! *Guarantees* of every source: nothing is sent before everything was read once; what cannot be read
//! or understood is reported and keeps its last good state; silence never deletes anything.

pub mod convert;
pub mod kubernetes;
pub mod manifests;
pub mod pod;

use std::path::PathBuf;

use thiserror::Error;
use tokio::sync::watch;

use crate::config::{Config, ObjectSource};
use crate::objects::Objects;

/// What the sources send: none until everything was read once.
pub type Receiver = watch::Receiver<Option<Objects>>;

/// Why a source cannot be started.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The directory cannot be read or watched.
    #[error("--manifests {}: {what}", .dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The kubeconfig file, or the Pod's service account.
    #[error("Kubernetes client: {0}")]
    Client(#[from] mc_kube::ClientError),
    /// The task that reads objects is gone.
    #[error("the source of objects ended")]
    Ended,
}

/// Starts reading objects in a task of its own.
pub async fn start(config: &Config) -> Result<Receiver, SourceError> {
    match &config.source {
        ObjectSource::Manifests(dir) => manifests::start(dir),
        ObjectSource::Kubernetes {
            namespace,
            kubeconfig,
        } => kubernetes::start(namespace, kubeconfig.as_deref(), config).await,
    }
}
