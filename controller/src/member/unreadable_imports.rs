//! Keeps the objects made from `ResourceImport`s and of a membership that this version cannot decode.

use std::collections::BTreeSet;

use kube::ResourceExt;
use mc_api::names;
use mc_kube::NamespacedName;

use super::deletion_guard::IMPORTED_KINDS;
use crate::{
    plan::{ApiServer, Kind, ObjectRef, Plan, WriteOp},
    snapshot::MemberSnapshot,
    unreadable::never_read,
};

/// Whether a `ClusterSet` cannot be decoded, so that the membership is unknown.
#[must_use]
pub fn is_membership_hidden(snapshot: &MemberSnapshot) -> bool {
    !unreadable_cluster_sets(snapshot).is_empty()
}

/// Reports the `ClusterSet`s that cannot be decoded.
pub fn report_cluster_sets(snapshot: &MemberSnapshot, plan: &mut Plan) {
    for name in unreadable_cluster_sets(snapshot) {
        plan.issue(
            format!("ClusterSet {name}"),
            "cannot be decoded: nothing is exported, imported or withdrawn",
        );
    }
}

fn unreadable_cluster_sets(snapshot: &MemberSnapshot) -> BTreeSet<String> {
    never_read(&snapshot.unreadable_cluster_sets, &snapshot.cluster_sets)
}

/// Removes deletions of imports whose `ResourceImport` cannot be decoded.
pub fn keep_imports(snapshot: &MemberSnapshot, plan: &mut Plan) {
    let Some(leader) = &snapshot.leader else { return };
    let never = never_read(&leader.unreadable_imports, &leader.imports);
    for name in &never {
        plan.issue(
            format!("ResourceImport {name}"),
            "cannot be decoded: a former import is kept as it is",
        );
    }
    if never.is_empty() {
        return;
    }
    plan.writes.retain(|write| {
        let deletes = matches!(write.op, WriteOp::Delete { .. })
            && write.target.side == ApiServer::Local
            && IMPORTED_KINDS.contains(&write.target.kind);
        !deletes || !may_be_of(snapshot, &write.target, &never)
    });
}

/// Whether an imported object may have been made from one of these `ResourceImport`s.
fn may_be_of(snapshot: &MemberSnapshot, target: &ObjectRef, imports: &BTreeSet<String>) -> bool {
    let namespace = target.namespace.as_str();
    let is_of = |service: &str| {
        imports.contains(&names::service_import(namespace, service))
            || imports.contains(&names::endpoints_import(namespace, service))
    };
    match target.kind {
        Kind::Service => names::exported_service(&target.name).is_some_and(is_of),
        Kind::ServiceImport => is_of(&target.name),
        Kind::EndpointSlice => {
            let name = NamespacedName::new(namespace, target.name.as_str());
            let slice = snapshot.endpoint_slices.get(&name);
            slice
                .and_then(|slice| slice.labels().get(names::LABEL_MCS_SERVICE_NAME))
                .is_some_and(|service| is_of(service))
        }
        Kind::ClusterNetworkPolicy => names::exported_policy(&target.name)
            .is_some_and(|policy| imports.contains(&names::policy_import(policy))),
        // Other imported objects have the names of their imports.
        _ => imports.contains(&target.name),
    }
}
