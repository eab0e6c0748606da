//! `NodeReachability`: the remote clusters that the probes of a gateway Node reach. Superset: Antrea's gateways send no
//! probes.
//!
//! The agent writes the object of its own Node while it is a gateway. The member's controller takes a cluster as
//! unreachable once the gateways of all Ready Nodes report that. The object is owned by its Node, so that Kubernetes
//! deletes it with the Node.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::node_key::owned_by_node;

/// Most clusters of each list; further ones are left out, and so count as neither.
pub const MAX_CLUSTERS: usize = 1_000;

/// The remote clusters that the probes of a gateway Node reach. The object has the Node's name.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[kube(
    group = "mc-gateway.io",
    version = "v1alpha1",
    kind = "NodeReachability",
    plural = "nodereachabilities",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    doc = "The remote clusters that the probes of a gateway Node reach.",
    printcolumn = r#"{"name":"Reachable","type":"string","jsonPath":".spec.reachable","description":"Clusters with a gateway that answers probes"}"#,
    printcolumn = r#"{"name":"Unreachable","type":"string","jsonPath":".spec.unreachable","description":"Clusters without one"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeReachabilitySpec {
    /// IDs of the clusters with a gateway that answers probes, sorted; 1,000 at most.
    pub reachable: Vec<String>,
    /// IDs of the clusters of which no gateway answers probes, sorted; 1,000 at most. A cluster with a gateway that
    /// receives no probes (Antrea's do not answer) is in neither list.
    pub unreachable: Vec<String>,
}

// === impl NodeReachability ===

impl NodeReachability {
    /// The object for a Node with this UID.
    #[must_use]
    pub fn of_node(node: &str, uid: &str, spec: NodeReachabilitySpec) -> Self {
        owned_by_node(Self::new(node, spec), node, uid)
    }
}

// === impl NodeReachabilitySpec ===

impl NodeReachabilitySpec {
    /// The lists from clusters with their reachability, within [`MAX_CLUSTERS`].
    #[must_use]
    pub fn new(clusters: impl IntoIterator<Item = (String, bool)>) -> Self {
        let mut spec = Self::default();
        for (cluster, is_reachable) in clusters {
            if is_reachable {
                spec.reachable.push(cluster);
            } else {
                spec.unreachable.push(cluster);
            }
        }
        for list in [&mut spec.reachable, &mut spec.unreachable] {
            list.sort_unstable();
            list.truncate(MAX_CLUSTERS);
        }
        spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_sorted_and_bounded() {
        let clusters = (0..MAX_CLUSTERS + 5).map(|number| (format!("c{number:04}"), number != 7));
        let spec = NodeReachabilitySpec::new(clusters.rev());
        assert_eq!(spec.reachable.len(), MAX_CLUSTERS);
        assert!(spec.reachable.is_sorted());
        assert_eq!(spec.unreachable, ["c0007"]);
    }

    #[test]
    fn the_object_belongs_to_its_node() {
        let object = NodeReachability::of_node("n1", "1-2-3", NodeReachabilitySpec::default());
        let [owner] = &object.metadata.owner_references.unwrap()[..] else {
            panic!()
        };
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "1-2-3"));
    }
}
