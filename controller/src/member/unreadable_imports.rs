//! Keeps the objects made from `ResourceImport`s and of a membership that this version cannot decode.

use std::collections::BTreeSet;

use super::imported_objects::{deletes_import, source_imports};
use crate::{issue_code::IssueCode, plan::Plan, snapshot::MemberSnapshot, unreadable::never_read};

/// Whether a `ClusterSet` cannot be decoded, so that the membership is unknown.
#[must_use]
pub fn is_membership_hidden(snapshot: &MemberSnapshot) -> bool {
    !unreadable_cluster_sets(snapshot).is_empty()
}

/// Reports the `ClusterSet`s that cannot be decoded.
pub fn report_cluster_sets(snapshot: &MemberSnapshot, plan: &mut Plan) {
    for name in unreadable_cluster_sets(snapshot) {
        plan.issue(
            IssueCode::Undecodable,
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
            IssueCode::Undecodable,
            format!("ResourceImport {name}"),
            "cannot be decoded: a former import is kept as it is",
        );
    }
    if never.is_empty() {
        return;
    }
    plan.writes.retain(|write| {
        let sources = || source_imports(snapshot, &write.target);
        !deletes_import(write) || !sources().iter().any(|name| never.contains(name))
    });
}
