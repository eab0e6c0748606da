//! Stale members: kept as not Ready or, with `staleMemberPolicy: Remove`, removed after a timeout.
//!
//! Pure. Guarantees: with `Keep` no member is removed for missing heartbeats. With `Remove` a member is removed only if
//! its heartbeat equals that of its stale marker and the marker is older than the timeout by the leader's clock. The
//! marker is an annotation, so it outlives the controller. A concurrent heartbeat makes the deletion fail.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use mc_api::{config::StaleMemberPolicy, member_cluster_announce::MemberClusterAnnounce, names};

use super::heartbeat::HEARTBEAT_TIMEOUT;
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, api_time},
};

/// The treatment of an accepted member.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum StaleDecision {
    /// The member stays, with this stale marker.
    Keep(Option<String>),
    /// The member is removed.
    Remove,
}

/// The stale marker: the time at which the member was found stale and its last heartbeat.
fn format_marker(at: Timestamp, announce: &MemberClusterAnnounce) -> String {
    format!("{} after {}", api_time(at).0, heartbeat_prefix(announce))
}

/// The heartbeat, truncated: its length is up to the member.
fn heartbeat_prefix(announce: &MemberClusterAnnounce) -> String {
    announce.heartbeat().chars().take(64).collect()
}

/// The time of the stale marker, unless there was a heartbeat since.
fn stale_since(announce: &MemberClusterAnnounce, now: Timestamp) -> Option<Timestamp> {
    let marker = names::ANNOTATION_STALE_SINCE.get(announce)?;
    let (at, heartbeat) = marker.split_once(" after ")?;
    // A future time means that the leader's clock was set back.
    let at = at.parse().ok().filter(|at| *at <= now)?;
    (heartbeat == heartbeat_prefix(announce)).then_some(at)
}

/// Decides on an accepted member.
pub fn evaluate(snapshot: &LeaderSnapshot, announce: &MemberClusterAnnounce) -> StaleDecision {
    if snapshot.config.stale_member_policy == StaleMemberPolicy::Keep {
        return StaleDecision::Keep(None);
    }
    let last = snapshot
        .heartbeats
        .get(&announce.name_any())
        .map_or(snapshot.now, |h| h.seen_at);
    // After a restart `last` is the time of the start, so no member is stale before the heartbeat timeout.
    let is_stale = snapshot.now.duration_since(last) > HEARTBEAT_TIMEOUT;
    let timeout = snapshot.config.stale_member_timeout;
    match stale_since(announce, snapshot.now) {
        Some(at) if is_stale && snapshot.now.duration_since(at) >= timeout => StaleDecision::Remove,
        Some(_) => StaleDecision::Keep(names::ANNOTATION_STALE_SINCE.get(announce).map(str::to_owned)),
        None => StaleDecision::Keep(is_stale.then(|| format_marker(snapshot.now, announce))),
    }
}

/// Removes a member; its exports are deleted as if it had left.
pub fn remove(announce: &MemberClusterAnnounce, timeout: SignedDuration, plan: &mut Plan) {
    plan.issue(
        IssueCode::MemberRemoved,
        format!("MemberClusterAnnounce {}", announce.name_any()),
        format!(
            "removed with all its exports: no heartbeat for more than {timeout:#} (staleMemberPolicy: Remove, staleMemberTimeout)"
        ),
    );
    plan.delete_unchanged(ApiServer::Local, announce);
}

/// Requeues at the timeout of a stale member. A timeout in the past waits for something else: the heartbeat timeout
/// after a restart, or a response of the API server.
pub fn requeue(snapshot: &LeaderSnapshot, announce: &MemberClusterAnnounce, plan: &mut Plan) {
    if snapshot.config.stale_member_policy == StaleMemberPolicy::Keep {
        return;
    }
    let due = stale_since(announce, snapshot.now)
        .and_then(|at| at.checked_add(snapshot.config.stale_member_timeout).ok());
    if let Some(due) = due.filter(|due| *due > snapshot.now) {
        plan.requeue_at(due);
    }
}
