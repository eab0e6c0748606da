//! Reservation of an address for a Node that has none other clusters can reply to: the cluster IPs of a Service without
//! Pods, one per Node.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::config::{self, ObjectSource};
use crate::reservation_service::{service, service_name};
use crate::source::kubernetes::client;

/// Time a Node must need an address before it is reserved: a starting CNI may still assign one.
const RESERVE_DELAY: Duration = Duration::from_secs(10);

/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// The Service was not created.
#[derive(Debug, Error)]
enum ReserveError {
    /// No client for the API server.
    #[error(transparent)]
    Source(#[from] crate::source::SourceError),
    /// An error of the API server.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// An invalid manifest.
    #[error(transparent)]
    Manifest(#[from] serde_json::Error),
}

/// Reserves addresses once `wanted` has been true for `RESERVE_DELAY`; requires an API server.
pub fn start(config: &config::Config, wanted: watch::Receiver<bool>) {
    let ObjectSource::Kubernetes {
        namespace,
        kubeconfig,
    } = &config.source
    else {
        return;
    };
    let (namespace, kubeconfig, node) = (namespace.clone(), kubeconfig.clone(), config.node_name.clone());
    tokio::spawn(async move { run(&namespace, kubeconfig.as_deref(), &node, wanted).await });
}

async fn run(namespace: &str, kubeconfig: Option<&Path>, node: &str, mut wanted: watch::Receiver<bool>) {
    let service = service_name(node);
    let mut logged = String::new();
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        tokio::select! {
            left = wanted.wait_for(|wanted| !*wanted) => match left {
                Ok(_) => continue,
                Err(_) => return,
            },
            () = sleep(RESERVE_DELAY) => {}
        }
        let result = reserve(namespace, kubeconfig, node).await;
        let state = match &result {
            Ok(true) => "created".to_owned(),
            Ok(false) => "exists".to_owned(),
            Err(error) => format!("failed: {}", crate::error_chain(error)),
        };
        if state != logged {
            if result.is_ok() {
                info!(namespace, service, %state, "address reserved for this Node");
            } else {
                warn!(namespace, service, %state, "no address reserved for this Node");
            }
            logged = state;
        }
        // The watch of Services delivers the addresses.
        sleep(RETRY_DELAY).await;
    }
}

/// Creates the Service; false if it exists.
async fn reserve(namespace: &str, kubeconfig: Option<&Path>, node: &str) -> Result<bool, ReserveError> {
    let client: Client = client(kubeconfig).await?;
    let found = Api::<Node>::all(client.clone()).get(node).await?;
    let service = service(node, &found.metadata.uid.unwrap_or_default())?;
    let by = PostParams {
        field_manager: Some("mc-gateway".to_owned()),
        ..PostParams::default()
    };
    match Api::namespaced(client, namespace).create(&by, &service).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
        Err(error) => Err(error.into()),
    }
}
