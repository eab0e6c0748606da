//! Client for the API server, from a kubeconfig file or the Pod's service account.

use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::error_chain;
use crate::source::SourceError;

pub(crate) async fn client(kubeconfig: Option<&Path>) -> Result<Client, SourceError> {
    let failed = |error: &dyn std::error::Error| SourceError::Client(error_chain(error));
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| {
                let reason = error_chain(&error);
                SourceError::Client(format!("--kubeconfig {}: {reason}", path.display()))
            })?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|error| failed(&error))?
        }
        None => Config::incluster().map_err(|error| failed(&error))?,
    };
    Client::try_from(config).map_err(|error| failed(&error))
}
