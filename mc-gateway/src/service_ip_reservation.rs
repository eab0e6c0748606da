//! Reservation of an address for a Node that has none other clusters can reply to: the cluster IPs of a Service without
//! Pods, one per Node.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::config::{self, ObjectSource};
use crate::ids::stable_id;
use crate::source::kubernetes::client;

/// Label of such a Service, with its value.
pub const LABEL: (&str, &str) = ("mc-gateway.io/reserved-for", "node");

/// Annotation with the full name of the Node.
const NODE_ANNOTATION: &str = "mc-gateway.io/node";

/// Name prefix of such Services.
const NAME_PREFIX: &str = "mc-node-";

/// A Service requires a port: "discard" (RFC 863), without a listener.
const PORT: u16 = 9;

/// Longest name of a Service (RFC 1035 section 2.3.1).
const MAX_NAME: usize = 63;

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

/// Name of the Service that reserves addresses for a Node: prefix and Node name, shortened if necessary.
#[must_use]
pub fn service_name(node: &str) -> String {
    let name = format!("{NAME_PREFIX}{node}");
    if name.len() <= MAX_NAME && !node.contains('.') {
        return name;
    }
    let number = format!("-{:08x}", stable_id(node));
    let room = MAX_NAME.saturating_sub(number.len());
    let mut name: String = name.replace('.', "-").chars().take(room).collect();
    name.push_str(&number);
    name
}

/// The Service that reserves addresses for a Node. Kubernetes deletes it with the Node.
fn service(node: &str, uid: &str) -> Result<Service, serde_json::Error> {
    let (label, value) = LABEL;
    serde_json::from_value(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service_name(node),
            "labels": {label: value},
            "annotations": {NODE_ANNOTATION: node},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}],
        },
        "spec": {
            "type": "ClusterIP",
            "ipFamilyPolicy": "PreferDualStack",
            "ports": [{"name": "reserved", "port": PORT, "protocol": "TCP"}],
        },
    }))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_names_contain_the_node_name() {
        assert_eq!(service_name("east-n2"), "mc-node-east-n2");
        let dots = service_name("ip-10-0-0-1.eu.internal");
        assert!(dots.starts_with("mc-node-ip-10-0-0-1-eu-internal-"), "{dots}");
        assert_ne!(dots, service_name("ip-10-0-0-1-eu.internal"));
        let long = ["a".repeat(70), "a".repeat(71)].map(|node| service_name(&node));
        assert_ne!(long[0], long[1]);
        for name in [&dots, &long[0]] {
            let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            assert!(name.len() <= MAX_NAME && name.bytes().all(allowed), "{name}");
        }
    }

    #[test]
    fn the_service_has_no_selector_and_is_owned_by_its_node() {
        let service = service("east-n2", "1-2-3").unwrap();
        let info = crate::source::convert::service(&service);
        assert!(info.reserves && info.cluster_ips.is_empty());
        let owners = service.metadata.owner_references.unwrap();
        assert_eq!(
            (owners[0].kind.as_str(), owners[0].uid.as_str()),
            ("Node", "1-2-3")
        );
        let spec = service.spec.unwrap();
        assert_eq!(
            (spec.selector, spec.ip_family_policy.as_deref()),
            (None, Some("PreferDualStack"))
        );
    }
}
