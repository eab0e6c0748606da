//! Membership: admission of announces, departure of members, status of the `ClusterSet`.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use kube::ResourceExt;
use mc_api::{
    cluster_set::{ClusterSet, ClusterSetStatus, ClusterStatus},
    condition::{self, Condition},
    member_cluster_announce::MemberClusterAnnounce,
    names,
    resource_export::ResourceExport,
};
use serde_json::{Value, json};

use super::{
    account_bindings::AccountBindings,
    eviction::evicted,
    heartbeat::HEARTBEAT_TIMEOUT,
    resources::is_active,
    stale::{self, StaleDecision},
};
use crate::{
    cluster_id,
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, MemberPolicies, api_time},
};

/// The reason of Events on rejected announces.
pub const MEMBER_REFUSED: &str = "MemberRefused";

/// The condition of a leader's `ClusterSet`: admission policies restrict the writes of members.
pub const MEMBERS_RESTRICTED: &str = "MembersRestricted";
/// The reason of that condition, and of Events, where policies are missing.
pub const POLICIES_MISSING: &str = "PoliciesMissing";

/// The `ClusterSet` in force: the oldest.
#[must_use]
pub fn current_cluster_set(snapshot: &LeaderSnapshot) -> Option<&ClusterSet> {
    snapshot
        .cluster_sets
        .values()
        .min_by_key(|s| (s.creation_timestamp(), s.name_any()))
        .map(AsRef::as_ref)
}

/// Admits or rejects announces, deregisters leaving members, maintains the status of the `ClusterSet`. Missing
/// heartbeats do not end a membership, unless configured ([`stale`]): exports stay until the member leaves or an
/// administrator deletes its announce. A cluster is admitted after its account is bound.
pub fn plan(snapshot: &LeaderSnapshot, bindings: &AccountBindings, plan: &mut Plan) {
    let set = current_cluster_set(snapshot);
    for announce in snapshot.announces.values() {
        if announce.metadata.deletion_timestamp.is_some() {
            deregister(snapshot.exports.values().map(AsRef::as_ref), announce, plan);
        } else {
            admit(snapshot, announce, rejection(set, announce), bindings, plan);
        }
    }
    let Some(set) = set else { return };
    let status = status(snapshot, set, plan);
    if set.status.as_ref() != Some(&status) {
        plan.status(ApiServer::Local, set, &status);
    }
    let name = set.name_any();
    for other in snapshot.cluster_sets.values().filter(|s| s.name_any() != name) {
        plan.issue(
            IssueCode::SecondClusterSet,
            format!("ClusterSet {}", other.name_any()),
            format!("ignored: ClusterSet {name:?} is already in this Namespace"),
        );
    }
}

/// The clusters with an accepted announce.
#[must_use]
pub fn accepted(snapshot: &LeaderSnapshot) -> BTreeSet<&str> {
    let announces = accepted_announces(snapshot, current_cluster_set(snapshot));
    announces.map(|announce| announce.cluster_id.as_str()).collect()
}

/// The announces without a reason to reject them. Those that are not [admitted](is_admitted) join.
pub(super) fn accepted_announces<'a>(
    snapshot: &'a LeaderSnapshot,
    set: Option<&'a ClusterSet>,
) -> impl Iterator<Item = &'a MemberClusterAnnounce> {
    let announces = snapshot.announces.values().map(AsRef::as_ref);
    announces.filter(move |announce: &&MemberClusterAnnounce| {
        announce.metadata.deletion_timestamp.is_none() && rejection(set, announce).is_none()
    })
}

/// Whether the leader has accepted an announce: its finalizer is set.
pub(super) fn is_admitted(announce: &MemberClusterAnnounce) -> bool {
    let finalizer = names::member_announce_finalizer(&announce.cluster_id);
    announce.finalizers().contains(&finalizer)
}

/// The reason to reject an announce, if any.
fn rejection(set: Option<&ClusterSet>, announce: &MemberClusterAnnounce) -> Option<String> {
    let Some(set) = set else {
        return Some("the leader cluster has no ClusterSet yet".to_owned());
    };
    let (name, id) = (set.name_any(), announce.cluster_id.as_str());
    if announce.cluster_set_id != name {
        return Some(format!(
            "ClusterSet name {:?} is not that of the leader's ClusterSet, {name:?}",
            announce.cluster_set_id
        ));
    }
    if announce.name_any() != names::member_announce(id) {
        return Some(format!(
            "clusterID {id:?} does not match the name {:?}",
            announce.name_any()
        ));
    }
    if evicted(set).contains(id) {
        return Some(format!(
            "the cluster is evicted (annotation {} of ClusterSet {name:?})",
            names::ANNOTATION_EVICTED_CLUSTERS
        ));
    }
    let leader = set.spec.leaders.first().map_or("", |l| l.cluster_id.as_str());
    if !leader.is_empty() && announce.leader_cluster_id != leader {
        return Some(format!(
            "leaders[0].clusterID {:?} is not that of the leader, {leader:?}",
            announce.leader_cluster_id
        ));
    }
    None
}

fn admit(
    snapshot: &LeaderSnapshot,
    announce: &MemberClusterAnnounce,
    rejection: Option<String>,
    bindings: &AccountBindings,
    plan: &mut Plan,
) {
    let is_admitted = is_admitted(announce);
    // Without the finalizer the exports of a deleted member would remain.
    let stale_marker = match stale::evaluate(snapshot, announce) {
        StaleDecision::Remove if is_admitted => {
            return stale::remove(announce, snapshot.config.stale_member_timeout, plan);
        }
        StaleDecision::Keep(marker) if is_admitted => marker,
        StaleDecision::Remove | StaleDecision::Keep(_) => None,
    };
    stale::requeue(snapshot, announce, plan);
    let mut metadata = serde_json::Map::new();
    let annotations: serde_json::Map<_, _> = [
        (names::ANNOTATION_REJECTED_REASON, &rejection),
        (names::ANNOTATION_STALE_SINCE, &stale_marker),
    ]
    .into_iter()
    .flat_map(|(annotation, wanted)| annotation.changes(announce, wanted.as_deref()))
    .map(|(key, value)| (key.to_owned(), json!(value)))
    .chain(bound_account(snapshot, bindings, announce))
    .collect();
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
    }
    if rejection.is_none() && !is_admitted && !bindings.unrecorded.contains(&announce.cluster_id) {
        let finalizer = names::member_announce_finalizer(&announce.cluster_id);
        let finalizers: Vec<_> = announce.finalizers().iter().cloned().chain([finalizer]).collect();
        metadata.insert("finalizers".to_owned(), json!(finalizers));
    }
    if let Some(reason) = rejection {
        let subject = format!("MemberClusterAnnounce {}", announce.name_any());
        report_rejection(announce, subject, &reason, plan);
    }
    if !metadata.is_empty() {
        let patch = json!({ "metadata": Value::Object(metadata) });
        plan.patch(ApiServer::Local, announce, patch);
    }
}

/// Reports a rejected announce as an Event, and in the log as `subject`.
pub(super) fn report_rejection(
    announce: &MemberClusterAnnounce,
    subject: String,
    reason: &str,
    plan: &mut Plan,
) {
    plan.warning_event(ApiServer::Local, announce, MEMBER_REFUSED, reason);
    plan.issue(IssueCode::MemberRefused, subject, format!("rejected: {reason}"));
}

/// The annotation with the account of the announce's cluster, if it lacks that. It remains as evidence of the binding.
/// Accounts in the Namespace of a single member are bound by that.
fn bound_account(
    snapshot: &LeaderSnapshot,
    bindings: &AccountBindings,
    announce: &MemberClusterAnnounce,
) -> Option<(String, Value)> {
    if !snapshot.is_in_common(announce) {
        return None;
    }
    let account = bindings.bound_account(announce)?;
    let key = names::ANNOTATION_BOUND_ACCOUNT;
    let is_known = announce
        .annotations()
        .get(key)
        .is_some_and(|known| known == account);
    (!is_known).then(|| (key.to_owned(), json!(account)))
}

/// Deletes the exports of a leaving member, then releases its announce.
pub(super) fn deregister<'a>(
    exports: impl Iterator<Item = &'a ResourceExport>,
    announce: &MemberClusterAnnounce,
    plan: &mut Plan,
) {
    let mut exports = exports
        .filter(|e| e.spec.cluster_id == announce.cluster_id && is_active(e))
        .peekable();
    let finalizer = names::member_announce_finalizer(&announce.cluster_id);
    let has_exports = exports.peek().is_some();
    for export in exports {
        plan.delete(ApiServer::Local, export);
    }
    if !has_exports && announce.finalizers().contains(&finalizer) {
        let finalizers = announce.finalizers().iter();
        let keep: Vec<_> = finalizers.filter(|f| **f != finalizer).collect();
        let patch = json!({ "metadata": { "finalizers": keep } });
        plan.patch(ApiServer::Local, announce, patch);
    }
}

fn status(snapshot: &LeaderSnapshot, set: &ClusterSet, plan: &mut Plan) -> ClusterSetStatus {
    let mut status = set.status.clone().unwrap_or_default();
    let members: Vec<_> = accepted_announces(snapshot, Some(set)).collect();
    status
        .cluster_statuses
        .retain(|s| members.iter().any(|m| m.cluster_id == s.cluster_id));
    for member in &members {
        let ready = readiness(snapshot, member, plan);
        match status
            .cluster_statuses
            .iter_mut()
            .find(|s| s.cluster_id == member.cluster_id)
        {
            Some(known) => condition::upsert(&mut known.conditions, ready, &api_time(snapshot.now)),
            None => status.cluster_statuses.push(ClusterStatus {
                cluster_id: member.cluster_id.clone(),
                conditions: vec![ready.with_transition_time(&api_time(snapshot.now))],
            }),
        }
    }
    let ready = status
        .cluster_statuses
        .iter()
        .filter(|s| s.conditions.iter().any(Condition::is_true))
        .count();
    status.total_clusters = i32::try_from(members.len()).unwrap_or(i32::MAX);
    status.ready_clusters = i32::try_from(ready).unwrap_or(i32::MAX);
    status.observed_generation = set.metadata.generation;
    let overall = if let Some(error) = cluster_set_error(snapshot, set) {
        plan.issue(
            IssueCode::InvalidClusterSet,
            format!("ClusterSet {}", set.name_any()),
            &error,
        );
        Condition::new("Ready", condition::FALSE, "InvalidClusterSet", error)
    } else if ready == members.len() {
        Condition::new("Ready", condition::TRUE, "", "")
    } else {
        Condition::new("Ready", condition::FALSE, "NoReadyCluster", "")
    };
    condition::upsert(&mut status.conditions, overall, &api_time(snapshot.now));
    if let Some(restricted) = restriction(snapshot, set, plan) {
        condition::upsert(&mut status.conditions, restricted, &api_time(snapshot.now));
    }
    status
}

/// Whether admission policies restrict the writes of members; `None` while that is unknown.
fn restriction(snapshot: &LeaderSnapshot, set: &ClusterSet, plan: &mut Plan) -> Option<Condition> {
    match &snapshot.member_policies {
        MemberPolicies::Unknown => None,
        MemberPolicies::Installed => {
            let message = "Admission policies restrict each member to its own objects";
            Some(Condition::new(
                MEMBERS_RESTRICTED,
                condition::TRUE,
                "PoliciesInstalled",
                message,
            ))
        }
        MemberPolicies::Missing { name } => {
            let consequence = if name.starts_with(names::MEMBER_TOKENS_POLICY) {
                "a bootstrap account can request tokens that outlast its Secret"
            } else {
                "any member can write objects of another"
            };
            let message = format!(
                "ValidatingAdmissionPolicy or its binding {name} is not in force: {consequence}. Apply the leader's \
                 manifests, with Kubernetes 1.30 or newer"
            );
            plan.warning_event(ApiServer::Local, set, POLICIES_MISSING, message.as_str());
            plan.issue(
                IssueCode::PoliciesMissing,
                format!("ClusterSet {}", set.name_any()),
                message.as_str(),
            );
            Some(Condition::new(
                MEMBERS_RESTRICTED,
                condition::FALSE,
                POLICIES_MISSING,
                message,
            ))
        }
    }
}

/// An inconsistency of the leader's own IDs; it does not affect the members.
fn cluster_set_error(snapshot: &LeaderSnapshot, set: &ClusterSet) -> Option<String> {
    if let Some(error) = cluster_id::error(set, &snapshot.cluster_claims).filter(|e| !e.is_transient()) {
        return Some(error.to_string());
    }
    let (own, leader) = (&set.spec.cluster_id, &set.spec.leaders.first()?.cluster_id);
    (!own.is_empty() && !leader.is_empty() && own != leader)
        .then(|| format!("spec.clusterID: {own:?} is not spec.leaders[0].clusterID, {leader:?}"))
}

fn readiness(snapshot: &LeaderSnapshot, member: &MemberClusterAnnounce, plan: &mut Plan) -> Condition {
    let last = snapshot
        .heartbeats
        .get(&member.name_any())
        .map_or(snapshot.now, |h| h.seen_at);
    if snapshot.now.duration_since(last) <= HEARTBEAT_TIMEOUT {
        if let Ok(end) = last.checked_add(HEARTBEAT_TIMEOUT + SignedDuration::from_millis(100)) {
            plan.requeue_at(end);
        }
        Condition::new("Ready", condition::TRUE, "Connected", "Member Connected")
    } else {
        let last = last.strftime("%a %b %e %H:%M:%S UTC %Y");
        let message = format!("No MemberClusterAnnounce update after {last}");
        Condition::new("Ready", condition::FALSE, "Disconnected", message)
    }
}
