//! The Service without Pods that reserves addresses for a Node.

use k8s_openapi::api::core::v1::Service;
use serde_json::json;

use crate::ids::stable_id;

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
pub(crate) fn service(node: &str, uid: &str) -> Result<Service, serde_json::Error> {
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
