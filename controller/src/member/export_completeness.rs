//! Whether the leader has all exports of a cluster: other members conclude that an import it lacks was withdrawn.
//!
//! A leader that was installed anew gets the exports of its members one by one. Each member labels its export of kind
//! `ImportFailures` once the leader has processed all of its others.

use kube::ResourceExt;
use mc_api::{
    condition, names,
    resource_export::{ResourceExport, kind},
};

use super::{ActiveMembership, resource_exports::existing_export, withdrawal};
use crate::{
    plan::{ApiServer, Kind, Plan, WriteOp},
    snapshot::{MemberSnapshot, get},
};

/// The label of the export, if the leader has all exports of this cluster: those in `plan` are all that change.
pub(super) fn label(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    plan: &Plan,
) -> Option<(String, String)> {
    let key = names::LABEL_EXPORTS_COMPLETE;
    let joined = membership.announce.metadata.uid.as_ref()?;
    let name = names::import_failures_export(membership.cluster_id);
    let old = existing_export(membership, &name);
    // Later exports do not take it back: other clusters need it for imports from before this cluster joined.
    let is_labelled = old.is_some_and(|old| old.labels().get(key) == Some(joined));
    (is_labelled || is_complete(snapshot, membership, plan)).then(|| (key.to_owned(), joined.clone()))
}

/// Whether the leader has each export of this cluster and has processed it. Label identities do not count: a new leader
/// numbers them anew, and members do not keep those of the former one.
fn is_complete(snapshot: &MemberSnapshot, membership: &ActiveMembership<'_>, plan: &Plan) -> bool {
    // Without the Service CIDR no Service is exported.
    if snapshot.service_cidrs.is_empty() {
        return false;
    }
    // A new leader gets no export of a Service that has just lost its endpoints; a few seconds later it may have some.
    let mut service_exports = snapshot.service_exports.values();
    let evaluates = plan
        .writes
        .iter()
        .any(|write| write.target.kind == Kind::ServiceExport);
    if evaluates || service_exports.any(|export| withdrawal::is_kept(snapshot, export)) {
        return false;
    }
    let creates = plan.writes.iter().any(|write| {
        write.target.side == ApiServer::Leader
            && write.target.kind == Kind::ResourceExport
            && !matches!(write.op, WriteOp::Delete { .. })
            && !snapshot.persistent_failures.contains_key(&write.target)
            && existing_export(membership, &write.target.name).is_none()
    });
    let exports = membership.leader.exports.values();
    let mut own = exports.filter(|export| export.spec.cluster_id == membership.cluster_id);
    !creates && own.all(|export| is_processed(membership, export))
}

/// Whether the leader offers the import of an export, or has refused it. An export that is being deleted may be created
/// again.
fn is_processed(membership: &ActiveMembership<'_>, export: &ResourceExport) -> bool {
    if export.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let spec = &export.spec;
    let import = match spec.kind.as_str() {
        kind::SERVICE => names::service_import(&spec.namespace, &spec.name),
        kind::ENDPOINTS => names::endpoints_import(&spec.namespace, &spec.name),
        kind::CLUSTER_INFO => names::cluster_info(&spec.cluster_id),
        _ => return true,
    };
    let conditions = || export.status.iter().flat_map(|status| &status.conditions);
    if conditions().any(|c| c.status == condition::FALSE) {
        return true;
    }
    let imports = &membership.leader.imports;
    let is_offered = get(imports, membership.leader_namespace, &import).is_some();
    // The import of a Service may be that of other clusters.
    is_offered && (spec.kind == kind::CLUSTER_INFO || conditions().next().is_some())
}
