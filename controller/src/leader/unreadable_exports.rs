//! Keeps the `ResourceImport`s made from `ResourceExport`s that this version cannot decode.

use crate::{
    issue_code::IssueCode,
    plan::{Kind, Plan, WriteOp},
    snapshot::LeaderSnapshot,
    unreadable::never_read,
};

/// Removes deletions of `ResourceImport`s which a `ResourceExport` that cannot be decoded may be part of. Updates are
/// not held: they would freeze the exports of other clusters.
pub(super) fn keep_resource_imports(snapshot: &LeaderSnapshot, plan: &mut Plan) {
    let never = never_read(&snapshot.unreadable_exports, &snapshot.exports);
    for name in &never {
        plan.issue(
            IssueCode::Undecodable,
            format!("ResourceExport {name}"),
            "cannot be decoded: not merged, and imports that it may be part of are not deleted",
        );
    }
    // The name of an export is that of the import, mostly after the cluster's ID.
    let is_part_of = |export: &String, import: &str| {
        export
            .strip_suffix(import)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('-'))
    };
    plan.writes.retain(|write| {
        let deletes = matches!(write.op, WriteOp::Delete { .. }) && write.target.kind == Kind::ResourceImport;
        !deletes || !never.iter().any(|export| is_part_of(export, &write.target.name))
    });
}
