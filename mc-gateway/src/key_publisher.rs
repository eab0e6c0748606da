//! Publication of this Node's public key.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use mc_api::node_key::NodeKey;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::config::{self, ObjectSource};
use crate::peer_secret::PublicKey;
use crate::source::kubernetes::client;

/// Delay between two attempts.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The public key was not published.
#[derive(Debug, Error)]
enum PublishError {
    /// No client for the API server.
    #[error(transparent)]
    Source(#[from] crate::source::SourceError),
    /// An error of the API server.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

/// Publishes the key whenever `wanted` is true; requires an API server.
pub fn start(config: &config::Config, key: PublicKey, wanted: watch::Receiver<bool>) {
    let ObjectSource::Kubernetes {
        namespace,
        kubeconfig,
    } = &config.source
    else {
        return;
    };
    let (namespace, kubeconfig, node) = (namespace.clone(), kubeconfig.clone(), config.node_name.clone());
    tokio::spawn(async move { run(&namespace, kubeconfig.as_deref(), &node, key, wanted).await });
}

async fn run(
    namespace: &str,
    kubeconfig: Option<&Path>,
    node: &str,
    key: PublicKey,
    mut wanted: watch::Receiver<bool>,
) {
    let mut logged = String::new();
    while wanted.wait_for(|wanted| *wanted).await.is_ok() {
        let result = create(namespace, kubeconfig, node, key).await;
        let state = result.map_or_else(
            |error| crate::error_chain(&error),
            |created| {
                if created {
                    String::new()
                } else {
                    "exists".to_owned()
                }
            },
        );
        if state.is_empty() {
            info!(namespace, nodekey = node, %key, "public key published");
        } else if state != logged {
            warn!(namespace, nodekey = node, %key, %state, "public key not published");
        }
        logged = state;
        // The watch of NodeKeys delivers the object.
        tokio::select! {
            done = wanted.wait_for(|wanted| !*wanted) => if done.is_err() {
                return;
            },
            () = sleep(RETRY_DELAY) => {}
        }
    }
}

/// Creates the `NodeKey`; false if it exists.
async fn create(
    namespace: &str,
    kubeconfig: Option<&Path>,
    node: &str,
    key: PublicKey,
) -> Result<bool, PublishError> {
    let client: Client = client(kubeconfig).await?;
    let found = Api::<Node>::all(client.clone()).get(node).await?;
    let object = NodeKey::of_node(node, &found.metadata.uid.unwrap_or_default(), key.to_string());
    let by = PostParams {
        field_manager: Some("mc-gateway".to_owned()),
        ..PostParams::default()
    };
    match Api::<NodeKey>::namespaced(client, namespace)
        .create(&by, &object)
        .await
    {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
        Err(error) => Err(error.into()),
    }
}
