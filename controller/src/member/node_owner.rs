//! Ownership of the agents' reports by their Nodes.

use k8s_openapi::api::core::v1::Node;
use kube::core::ObjectMeta;

/// Whether the Node owns the report with its name. An earlier Node of the same name does not.
pub(super) fn owns(node: &Node, report: &ObjectMeta) -> bool {
    let mut owners = report.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "Node" && Some(&owner.uid) == node.metadata.uid.as_ref())
}
