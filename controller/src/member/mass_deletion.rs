//! The brake on mass deletion: imports that a leader lacks because it was replaced, restored or emptied.
//!
//! Pure. Guarantee: of the imports that are absent from a new list of the leader - after a relist, on a new connection,
//! hence also of another leader - more than the larger of [`MAX_UNBRAKED`] and a tenth of all are deleted only with a
//! permission. The condition [`HELD`] of the `ClusterSet` records that they are held: then all missing imports are,
//! until none is missing, because they return one by one. Imports that were in the list and whose deletion a watch
//! reported are deleted at once.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt;
use mc_api::{
    cluster_set::ClusterSet,
    condition::{self as api_condition, Condition},
    label_identity::{LabelIdentity, parse_import},
    names,
    resource_import::kind,
};

use super::{
    ActiveMembership,
    awaited_exporters::{Awaited, MAX_WAIT, awaited},
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
/// The reason of the condition and of the Event if too many imports are missing.
const ABSENT: &str = "AbsentFromLeader";
/// The reason if exporters are awaited.
const AWAITED: &str = "ExportersAwaited";
/// The number of clusters that a message names.
const MAX_NAMED: usize = 5;

/// Removes the deletions of missing imports from the plan if they are too many, or if their exporters are awaited.
pub(super) fn brake(
    snapshot: &MemberSnapshot,
    set: &ClusterSet,
    membership: &ActiveMembership<'_>,
    plan: &mut Plan,
) {
    let permission = permission(snapshot, set, plan);
    let LackingIdentities {
        replaced,
        missing: identities,
    } = LackingIdentities::new(snapshot, membership, plan);
    let missing: BTreeSet<ObjectRef> = plan
        .writes
        .iter()
        .filter(|write| deletes_import(write))
        .map(|write| &write.target)
        .filter(|target| is_missing(snapshot, target, &membership.leader.listed_imports))
        .filter(|target| target.kind != Kind::LabelIdentity || !replaced.contains(&target.name))
        .cloned()
        .collect();
    let all = import_count(snapshot);
    let awaited = awaited(snapshot, set, membership, (all, &missing), plan);
    let Some((held, reason, why)) = held(snapshot, set, (all, identities), missing, awaited) else {
        return write_condition(snapshot, set, None, plan);
    };
    if let Some(until) = permission {
        plan.requeue_at(until);
        return write_condition(snapshot, set, None, plan);
    }
    if reason == AWAITED {
        let until = end_of_wait(snapshot, set);
        if until <= snapshot.now {
            // The condition has the time of the wait, and remains until all deletions have succeeded.
            return;
        }
        plan.requeue_at(until);
    }
    plan.writes
        .retain(|write| !(deletes_import(write) && held.contains(&write.target)));
    let message = format!(
        "{} objects are kept although the leader's list lacks their imports{why}. To delete them, set the annotation \
         {:?} to a time until which that is permitted",
        held.len(),
        names::ANNOTATION_MASS_DELETION_UNTIL
    );
    plan.warning_event(ApiServer::Local, set, reason, message.as_str());
    plan.issue(
        IssueCode::DeletionsHeld,
        format!("ClusterSet {}", set.name_any()),
        message.as_str(),
    );
    write_condition(snapshot, set, Some((reason, message)), plan);
}

/// The objects that are held, the reason of the condition, and the cause for people; `all` imports, of which
/// `identities` are missing label identities.
fn held(
    snapshot: &MemberSnapshot,
    set: &ClusterSet,
    (all, identities): (usize, usize),
    mut missing: BTreeSet<ObjectRef>,
    awaited: Option<Awaited>,
) -> Option<(BTreeSet<ObjectRef>, &'static str, String)> {
    let awaited = awaited.unwrap_or_default();
    missing.retain(|target| !awaited.withdrawn.contains(target));
    let others = missing.iter().map(|target| target.kind);
    let others = others.filter(|kind| is_import(*kind) && *kind != Kind::LabelIdentity);
    let count = others.count().saturating_add(identities);
    let threshold = MAX_UNBRAKED.max(all.checked_div(SHARE).unwrap_or_default());
    if count > threshold || (holds(set) && !missing.is_empty()) {
        let why = format!(" ({count} of {all}): the leader may be new or restored");
        missing.extend(awaited.targets);
        return Some((missing, ABSENT, why));
    }
    if awaited.targets.is_empty() {
        return None;
    }
    let until = end_of_wait(snapshot, set);
    let why = if awaited.clusters.is_empty() {
        format!(", until {until}")
    } else {
        let clusters = awaited.clusters.iter().take(MAX_NAMED).map(String::as_str);
        format!(
            ": this cluster has joined it anew, and not all exports of the clusters {} have arrived there. They are \
             kept until then, at most until {until}",
            clusters.collect::<Vec<_>>().join(", "),
        )
    };
    Some((awaited.targets, AWAITED, why))
}

/// The end of the wait for exporters, which begins with the condition.
fn end_of_wait(snapshot: &MemberSnapshot, set: &ClusterSet) -> Timestamp {
    let now = api_time(snapshot.now).0;
    let since = condition(set).filter(|condition| condition.reason == AWAITED);
    let since = since.and_then(|condition| condition.last_transition_time.as_ref());
    // A clock that was set back does not prolong it.
    let since = since.map_or(now, |since| since.0.min(now));
    since.checked_add(MAX_WAIT).unwrap_or(since)
}

/// The imported label identities that the leader's list lacks.
#[derive(Default)]
struct LackingIdentities {
    /// Those with numbers that the leader has given to other labels: they have no meaning now.
    replaced: BTreeSet<String>,
    /// The number of the others. A plan has a part of their deletions.
    missing: usize,
}

// === impl LackingIdentities ===

impl LackingIdentities {
    fn new(snapshot: &MemberSnapshot, membership: &ActiveMembership<'_>, plan: &Plan) -> Self {
        let mut deletions = plan.writes.iter().filter(|write| deletes_import(write));
        if !deletions.any(|write| write.target.kind == Kind::LabelIdentity) {
            return Self::default();
        }
        let offered = membership.leader.imports.values();
        let offered = offered.filter(|import| import.spec.kind == kind::LABEL_IDENTITY);
        let offered = offered.filter_map(|import| parse_import(import.spec.label_identity.as_ref()).ok());
        let numbers: BTreeSet<u32> = offered.map(|identity| identity.id).collect();
        let leader = membership.leader;
        let unreadable: BTreeSet<&str> = leader
            .unreadable_imports
            .iter()
            .map(|key| key.name.as_str())
            .collect();
        let lacking = own_identities(snapshot)
            .filter(|(name, _)| !leader.listed_imports.contains_key(*name) && !unreadable.contains(name));
        let (replaced, missing): (Vec<_>, Vec<_>) =
            lacking.partition(|(_, label)| numbers.contains(&label.spec.id));
        Self {
            replaced: replaced.into_iter().map(|(name, _)| name.to_owned()).collect(),
            missing: missing.len(),
        }
    }
}

/// The label identities of this controller, with their names.
fn own_identities(snapshot: &MemberSnapshot) -> impl Iterator<Item = (&str, &LabelIdentity)> {
    let identities = snapshot.label_identities.objects().into_iter();
    let identities = identities
        .flat_map(|all| all.iter())
        .map(|(key, label)| (key.name.as_str(), label.as_ref()));
    identities.filter(|(_, label)| is_own(snapshot, *label))
}

/// The condition, if deletions are held.
fn condition(set: &ClusterSet) -> Option<&Condition> {
    let mut conditions = set.status.iter().flat_map(|status| &status.conditions);
    conditions.find(|condition| condition.type_ == HELD && condition.is_true())
}

/// Whether an object is deleted because the leader's list lacks an import, rather than because of a deletion that was
/// seen: a Service without its import, a slice also without that of the endpoints.
fn is_missing(
    snapshot: &MemberSnapshot,
    target: &ObjectRef,
    listed: &BTreeMap<String, BTreeSet<String>>,
) -> bool {
    let sources = source_imports(snapshot, target);
    let needed = if target.kind == Kind::EndpointSlice { 2 } else { 1 };
    sources.iter().take(needed).any(|name| !listed.contains_key(name))
}

/// Whether too many imports were missing when the condition was written.
fn holds(set: &ClusterSet) -> bool {
    condition(set).is_some_and(|condition| condition.reason == ABSENT)
}

/// Writes the condition with this reason and message, or removes it.
fn write_condition(
    snapshot: &MemberSnapshot,
    set: &ClusterSet,
    held: Option<(&str, String)>,
    plan: &mut Plan,
) {
    let old = set.status.clone().unwrap_or_default();
    let mut new = old.clone();
    match held {
        Some((reason, message)) => {
            let held = Condition::new(HELD, api_condition::TRUE, reason, message);
            api_condition::upsert(&mut new.conditions, held, &api_time(snapshot.now));
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
    let identities = own_identities(snapshot).count();
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
