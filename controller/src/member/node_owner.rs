//! Ownership of the agents' reports by their Nodes.

use k8s_openapi::api::core::v1::Node;
use kube::core::ObjectMeta;

use crate::snapshot::{MemberSnapshot, get};

/// The Node of a report's name, if it owns the report: a report of an earlier Node of the same name has another owner.
pub(super) fn owning_node<'a>(snapshot: &'a MemberSnapshot, report: &ObjectMeta) -> Option<&'a Node> {
    let node = get(&snapshot.nodes, "", report.name.as_deref()?)?;
    let mut owners = report.owner_references.iter().flatten();
    let is_owned = owners.any(|owner| owner.kind == "Node" && Some(&owner.uid) == node.metadata.uid.as_ref());
    is_owned.then_some(node.as_ref())
}
