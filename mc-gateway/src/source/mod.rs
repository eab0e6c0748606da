//! Sources of objects: a directory of manifests, or an API server.
//!
//! *Guarantees* of every source: nothing is published before everything was read once; unreadable or invalid input is
//! reported and keeps its last valid state; missing answers never delete objects.

pub mod address_groups;
pub mod convert;
mod enforcement;
pub mod kubernetes;
pub mod manifests;
pub mod pod;

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::watch;

use crate::config::{Config, ObjectSource};
use crate::objects::Objects;

/// Published objects; none until everything was read once.
pub type Receiver = watch::Receiver<Option<Arc<Objects>>>;

/// A source cannot be started.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The directory cannot be read or watched.
    #[error("--manifests {}: {operation}", .dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// The failed operation.
        operation: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// No client for the API server.
    #[error("Kubernetes client: {0}")]
    Client(#[from] mc_kube::ClientError),
    /// The background task of the source exited.
    #[error("the source of objects exited")]
    Ended,
}

/// Starts reading objects in a background task.
pub async fn start(config: &Config) -> Result<Receiver, SourceError> {
    match &config.source {
        // Manifests do not show whether Antrea runs.
        ObjectSource::Manifests(dir) => {
            manifests::start(dir, enforcement::mode(config.policy_enforcement, false))
        }
        ObjectSource::Kubernetes {
            namespace,
            kubeconfig,
        } => kubernetes::start(namespace, kubeconfig.as_deref(), config).await,
    }
}
