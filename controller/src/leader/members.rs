//! Which clusters are members, and how they are.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{
    live,
    stale::{self, Fate},
};
use crate::{
    api::{
        cluster_set::{ClusterSet, ClusterSetStatus, ClusterStatus},
        condition::{self, Condition},
        member_cluster_announce::MemberClusterAnnounce,
        names,
    },
    identity,
    plan::{Plan, Side},
    world::{Heard, LeaderWorld, time},
};

/// A member that was not heard of for so long is not ready: three heartbeats.
pub const READY_FOR: SignedDuration = SignedDuration::from_secs(30);

/// The reason of Events about clusters that are not accepted.
pub const REFUSED: &str = "MemberRefused";

/// Notes which announces changed since the last look.
///
/// The member's clock is not trusted: what counts is when the heartbeat was seen to change. A controller
/// that has just started takes every member for alive.
pub fn hear(heard: &mut BTreeMap<String, Heard>, announces: &[&MemberClusterAnnounce], now: Timestamp) {
    heard.retain(|name, _| announces.iter().any(|a| a.name_any() == *name));
    for announce in announces {
        let touch = touch(announce);
        let new = heard.get(&announce.name_any()).is_none_or(|h| h.touch != touch);
        if new {
            heard.insert(
                announce.name_any(),
                Heard {
                    touch: touch.to_owned(),
                    at: now,
                },
            );
        }
    }
}

/// The `ClusterSet` that counts: the oldest.
#[must_use]
pub fn current(world: &LeaderWorld) -> Option<&ClusterSet> {
    world
        .cluster_sets
        .values()
        .min_by_key(|s| (s.creation_timestamp(), s.name_any()))
        .map(AsRef::as_ref)
}

/// Accepts or refuses announces, lets leavers go, keeps the status of the set. Silence, however long, is no
/// leaving, unless an administrator decided so ([`stale`]): what a member exported stays until it leaves or an
/// administrator deletes its announce.
pub fn plan(world: &LeaderWorld, plan: &mut Plan) {
    let set = current(world);
    for announce in world.announces.values() {
        if announce.metadata.deletion_timestamp.is_some() {
            leave(world, announce, plan);
        } else {
            judge(world, announce, refusal(set, announce), plan);
        }
    }
    if let Some(set) = set {
        let status = status(world, set, plan);
        if set.status.as_ref() != Some(&status) {
            plan.status(Side::Local, set, &status);
        }
    }
    for other in world
        .cluster_sets
        .values()
        .filter(|s| set.is_some_and(|set| s.name_any() != set.name_any()))
    {
        let set = set.map(ResourceExt::name_any).unwrap_or_default();
        plan.notice(
            format!("ClusterSet {}", other.name_any()),
            format!("ignored: ClusterSet {set:?} is already in this Namespace"),
        );
    }
}

/// Why a cluster cannot be a member, if so.
fn refusal(set: Option<&ClusterSet>, announce: &MemberClusterAnnounce) -> Option<String> {
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
            "clusterID {id:?} does not fit the name {:?}",
            announce.name_any()
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

fn judge(world: &LeaderWorld, announce: &MemberClusterAnnounce, refusal: Option<String>, plan: &mut Plan) {
    let finalizer = names::member_announce_finalizer(&announce.cluster_id);
    let accepted = announce.finalizers().contains(&finalizer);
    // Without the finalizer its exports would be left behind.
    let silent = match stale::fate(world, announce) {
        Fate::Goes if accepted => return stale::remove(announce, world.config.stale_member_timeout, plan),
        Fate::Stays(silent) if accepted => silent,
        Fate::Goes | Fate::Stays(_) => None,
    };
    stale::wake(world, announce, plan);
    let mut metadata = serde_json::Map::new();
    let annotations: serde_json::Map<_, _> = [
        (names::ANNOTATION_REFUSED, &refusal),
        (names::ANNOTATION_SILENT_SINCE, &silent),
    ]
    .into_iter()
    .filter(|(key, wanted)| announce.annotations().get(*key) != wanted.as_ref())
    .map(|(key, wanted)| (key.to_owned(), json!(wanted)))
    .collect();
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), Value::Object(annotations));
    }
    if refusal.is_none() && !accepted {
        let finalizers: Vec<_> = announce.finalizers().iter().cloned().chain([finalizer]).collect();
        metadata.insert("finalizers".to_owned(), json!(finalizers));
    }
    if let Some(why) = refusal {
        plan.remark(Side::Local, announce, REFUSED, why.as_str());
        plan.notice(subject(announce), format!("refused: {why}"));
    }
    if !metadata.is_empty() {
        plan.patch(
            Side::Local,
            announce,
            json!({ "metadata": Value::Object(metadata) }),
        );
    }
}

/// Its exports go first, then the announce itself.
fn leave(world: &LeaderWorld, announce: &MemberClusterAnnounce, plan: &mut Plan) {
    let mut theirs = world
        .exports
        .values()
        .filter(|e| e.spec.cluster_id == announce.cluster_id && live(e))
        .peekable();
    let finalizer = names::member_announce_finalizer(&announce.cluster_id);
    let waits = theirs.peek().is_some();
    for export in theirs {
        plan.delete(Side::Local, export.as_ref());
    }
    if !waits && announce.finalizers().contains(&finalizer) {
        let keep: Vec<_> = announce
            .finalizers()
            .iter()
            .filter(|f| **f != finalizer)
            .collect();
        plan.patch(
            Side::Local,
            announce,
            json!({ "metadata": { "finalizers": keep } }),
        );
    }
}

fn status(world: &LeaderWorld, set: &ClusterSet, plan: &mut Plan) -> ClusterSetStatus {
    let mut status = set.status.clone().unwrap_or_default();
    let members: Vec<_> = world
        .announces
        .values()
        .filter(|a| a.metadata.deletion_timestamp.is_none() && refusal(Some(set), a).is_none())
        .collect();
    status
        .cluster_statuses
        .retain(|s| members.iter().any(|m| m.cluster_id == s.cluster_id));
    for member in &members {
        let ready = readiness(world, member, plan);
        match status
            .cluster_statuses
            .iter_mut()
            .find(|s| s.cluster_id == member.cluster_id)
        {
            Some(known) => condition::upsert(&mut known.conditions, ready, &time(world.now)),
            None => status.cluster_statuses.push(ClusterStatus {
                cluster_id: member.cluster_id.clone(),
                conditions: vec![ready.at(&time(world.now))],
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
    let overall = if let Some(wrong) = wrong(world, set) {
        plan.notice(format!("ClusterSet {}", set.name_any()), &wrong);
        Condition::new("Ready", condition::FALSE, "InvalidClusterSet", wrong)
    } else if ready == members.len() {
        Condition::new("Ready", condition::TRUE, "", "")
    } else {
        Condition::new("Ready", condition::FALSE, "NoReadyCluster", "")
    };
    condition::upsert(&mut status.conditions, overall, &time(world.now));
    status
}

/// What is wrong with who this cluster says it is. Members go on meanwhile.
fn wrong(world: &LeaderWorld, set: &ClusterSet) -> Option<String> {
    let unknown = identity::unknown(set, &world.claims).filter(|u| !u.transient());
    if let Some(unknown) = unknown {
        return Some(unknown.to_string());
    }
    let (own, leader) = (&set.spec.cluster_id, &set.spec.leaders.first()?.cluster_id);
    (!own.is_empty() && !leader.is_empty() && own != leader)
        .then(|| format!("spec.clusterID: {own:?} is not spec.leaders[0].clusterID, {leader:?}"))
}

fn readiness(world: &LeaderWorld, member: &MemberClusterAnnounce, plan: &mut Plan) -> Condition {
    let last = world.heard.get(&member.name_any()).map_or(world.now, |h| h.at);
    if world.now.duration_since(last) <= READY_FOR {
        if let Ok(end) = last.checked_add(READY_FOR + SignedDuration::from_millis(100)) {
            plan.wake(end);
        }
        Condition::new("Ready", condition::TRUE, "Connected", "Member Connected")
    } else {
        let last = last.strftime("%a %b %e %H:%M:%S UTC %Y");
        let message = format!("No MemberClusterAnnounce update after {last}");
        Condition::new("Ready", condition::FALSE, "Disconnected", message)
    }
}

/// The heartbeat.
pub(super) fn touch(announce: &MemberClusterAnnounce) -> &str {
    announce
        .annotations()
        .get(names::ANNOTATION_TOUCH_TS)
        .map_or("", String::as_str)
}

fn subject(announce: &MemberClusterAnnounce) -> String {
    format!("MemberClusterAnnounce {}", announce.name_any())
}
