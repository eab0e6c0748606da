//! The brake on mass deletion: imports that a leader lacks because it was replaced, restored or emptied.
//!
//! Pure. Guarantee: of the imports that are absent from a new list of the leader - after a relist, on a new connection,
//! hence also of another leader - more than the larger of [`MAX_UNBRAKED`] and a tenth of all are deleted only with a
//! permission. The condition [`HELD`] of the `ClusterSet` records that they are held: then all missing imports are,
//! until none is missing, because they return one by one. Imports that were in the list and whose deletion a watch
//! reported are deleted at once.

use std::collections::BTreeSet;

use jiff::Timestamp;
use kube::ResourceExt;
use mc_api::{
    cluster_set::ClusterSet,
    condition::{self, Condition},
    names,
};

use super::{
    ActiveMembership,
    import_owner::is_own,
    imported_objects::{deletes_import, source_imports},
    imported_service::is_own_import,
    is_managed,
    policies::is_own_policy,
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Kind, ObjectRef, Plan},
    snapshot::{MemberSnapshot, api_time},
};

/// Imports that are deleted without a permission.
pub const MAX_UNBRAKED: usize = 20;
/// The reciprocal of the share of all imports that is deleted without a permission.
const SHARE: usize = 10;
/// The condition of the `ClusterSet` while deletions are held.
pub const HELD: &str = "DeletionsHeld";
/// The reason of the condition, and of the Event.
const REASON: &str = "AbsentFromLeader";

/// Removes the deletions of missing imports from the plan if they are too many.
pub(super) fn brake(
    snapshot: &MemberSnapshot,
    set: &ClusterSet,
    membership: &ActiveMembership<'_>,
    plan: &mut Plan,
) {
    let permission = permission(snapshot, set, plan);
    let listed = &membership.leader.listed_imports;
    let missing: BTreeSet<ObjectRef> = plan
        .writes
        .iter()
        .filter(|write| deletes_import(write))
        .map(|write| &write.target)
        .filter(|target| is_missing(snapshot, target, listed))
        .cloned()
        .collect();
    if missing.is_empty() {
        return write_condition(snapshot, set, None, plan);
    }
    let count = missing.iter().filter(|target| is_import(target.kind)).count();
    let all = import_count(snapshot);
    let threshold = MAX_UNBRAKED.max(all.checked_div(SHARE).unwrap_or_default());
    let is_held = count > threshold || holds(set);
    if let (true, Some(until)) = (is_held, permission) {
        plan.requeue_at(until);
    }
    if !is_held || permission.is_some() {
        return write_condition(snapshot, set, None, plan);
    }
    plan.writes
        .retain(|write| !(deletes_import(write) && missing.contains(&write.target)));
    let message = format!(
        "{} objects are kept although the leader's list lacks their imports ({count} of {all}): the leader may be new or \
         restored. To delete them, set the annotation {:?} to a time until which that is permitted",
        missing.len(),
        names::ANNOTATION_MASS_DELETION_UNTIL
    );
    plan.warning_event(ApiServer::Local, set, REASON, message.as_str());
    plan.issue(
        IssueCode::DeletionsHeld,
        format!("ClusterSet {}", set.name_any()),
        message.as_str(),
    );
    write_condition(snapshot, set, Some(message), plan);
}

/// Whether an object is deleted because the leader's list lacks an import, rather than because of a deletion that was
/// seen: a Service without its import, a slice also without that of the endpoints.
fn is_missing(snapshot: &MemberSnapshot, target: &ObjectRef, listed: &BTreeSet<String>) -> bool {
    let sources = source_imports(snapshot, target);
    let needed = if target.kind == Kind::EndpointSlice { 2 } else { 1 };
    sources.iter().take(needed).any(|name| !listed.contains(name))
}

/// Whether deletions were held when the condition was written.
fn holds(set: &ClusterSet) -> bool {
    let conditions = set.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|c| c.type_ == HELD && c.is_true())
}

/// Writes the condition with this message, or removes it.
fn write_condition(snapshot: &MemberSnapshot, set: &ClusterSet, message: Option<String>, plan: &mut Plan) {
    let old = set.status.clone().unwrap_or_default();
    let mut new = old.clone();
    match message {
        Some(message) => {
            let held = Condition::new(HELD, condition::TRUE, REASON, message);
            condition::upsert(&mut new.conditions, held, &api_time(snapshot.now));
        }
        None => new.conditions.retain(|c| c.type_ != HELD),
    }
    if new == old {
        return;
    }
    // A status in this plan has the other conditions; the next plan adds this one to them.
    let target = ObjectRef::new(ApiServer::Local, set);
    if plan.writes.iter().all(|write| write.target != target) {
        plan.status(ApiServer::Local, set, &new);
    }
}

/// Whether one object of this kind stands for an import.
fn is_import(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::ClusterInfoImport | Kind::ClusterNetworkPolicy | Kind::LabelIdentity | Kind::Service
    )
}

/// The imports of this cluster.
fn import_count(snapshot: &MemberSnapshot) -> usize {
    let services = snapshot.services.values();
    let services = services.filter(|s| is_own_import(snapshot, s)).count();
    let infos = snapshot.cluster_infos.values();
    let infos = infos.filter(|info| is_managed(info.as_ref())).count();
    let identities = snapshot.label_identities.objects().into_iter();
    let identities = identities.flat_map(|all| all.values());
    let identities = identities
        .filter(|label| is_own(snapshot, label.as_ref()))
        .count();
    let policies = snapshot.policies.objects().into_iter();
    let policies = policies.flat_map(|all| all.values());
    let policies = policies.filter(|p| is_own_policy(snapshot, p)).count();
    [services, infos, identities, policies].iter().sum()
}

/// The time until which an administrator permits mass deletion.
fn permission(snapshot: &MemberSnapshot, set: &ClusterSet, plan: &mut Plan) -> Option<Timestamp> {
    let key = names::ANNOTATION_MASS_DELETION_UNTIL;
    let text = set.annotations().get(key)?;
    match text.parse::<Timestamp>() {
        Ok(until) => Some(until).filter(|until| *until > snapshot.now),
        Err(error) => {
            plan.issue(
                IssueCode::InvalidAnnotation,
                format!("ClusterSet {}", set.name_any()),
                format!("annotation {key:?}: {text:?}: {error}; not a time as in RFC 3339"),
            );
            None
        }
    }
}
