//! Stale members under the policy `Remove`.

use jiff::SignedDuration;
use mc_api::{config::StaleMemberPolicy, names, resource_export::ResourceExport};
use proptest::prelude::*;
use serde_json::json;

use super::{NS, announce, leader_snapshot, make_plan, reconcile, service, settle};
use crate::snapshot::NamespacedName;
use crate::{
    plan::WriteOp,
    snapshot::{
        LeaderSnapshot,
        fake::{insert, object},
    },
};

const TIMEOUT: SignedDuration = SignedDuration::from_hours(24);

/// Members east and west, each with a Service, and a policy of an administrator.
fn with_removal() -> LeaderSnapshot {
    let mut snapshot = leader_snapshot();
    snapshot.config.stale_member_policy = StaleMemberPolicy::Remove;
    for id in ["east", "west"] {
        insert(&mut snapshot.announces, announce(id, "set", "north"));
        insert(
            &mut snapshot.exports,
            service(id, "prod", "web", 80, "2026-01-01T00:00:00Z"),
        );
    }
    let policy = json!({
        "metadata": { "name": "strict", "namespace": NS },
        "spec": { "kind": "AntreaClusterNetworkPolicy", "name": "strict", "clusterNetworkPolicy": { "priority": 1 } },
    });
    insert(&mut snapshot.exports, object::<ResourceExport>(policy));
    settle(&mut snapshot);
    snapshot
}

fn add_time(snapshot: &mut LeaderSnapshot, by: SignedDuration) {
    snapshot.now = snapshot.now.checked_add(by).unwrap();
}

/// A heartbeat; its timestamp is unrelated to the leader's clock.
fn heartbeat(snapshot: &mut LeaderSnapshot, id: &str, touch: u64) {
    let key = NamespacedName::new(NS, names::member_announce(id));
    let Some(seen) = snapshot.announces.get(&key) else {
        return;
    };
    let mut announce = seen.as_ref().clone();
    let annotations = announce.metadata.annotations.get_or_insert_default();
    annotations.insert(
        names::ANNOTATION_TOUCH_TS.to_owned(),
        format!("heartbeat {touch}"),
    );
    insert(&mut snapshot.announces, announce);
}

fn members(snapshot: &LeaderSnapshot) -> Vec<&str> {
    snapshot
        .announces
        .values()
        .map(|a| a.cluster_id.as_str())
        .collect()
}

fn stale_since(snapshot: &LeaderSnapshot, id: &str) -> Option<String> {
    let key = NamespacedName::new(NS, names::member_announce(id));
    let announce = snapshot.announces.get(&key)?;
    names::ANNOTATION_STALE_SINCE
        .get(announce.as_ref())
        .map(str::to_owned)
}

/// Lets time pass with heartbeats of west only.
fn advance(snapshot: &mut LeaderSnapshot, mut time: SignedDuration) {
    let mut touch = snapshot.now.as_second().unsigned_abs();
    while time.is_positive() {
        let step = time.min(SignedDuration::from_mins(30));
        add_time(snapshot, step);
        time = time.checked_sub(step).unwrap();
        touch += 1;
        heartbeat(snapshot, "west", touch);
        settle(snapshot);
    }
}

#[test]
fn a_stale_member_is_removed_with_its_exports_after_the_timeout() {
    let mut snapshot = with_removal();
    advance(&mut snapshot, SignedDuration::from_secs(31));
    let first = stale_since(&snapshot, "east").expect("an annotation");
    assert_eq!(first, "2026-01-01T12:00:31Z after 2026-01-01T12:00:00Z");
    advance(
        &mut snapshot,
        TIMEOUT.checked_sub(SignedDuration::from_secs(1)).unwrap(),
    );
    assert_eq!(members(&snapshot), ["east", "west"]);
    assert_eq!(
        stale_since(&snapshot, "east"),
        Some(first),
        "the timeout began once"
    );
    let requeue = make_plan(&mut snapshot).next_requeue.expect("a requeue");
    assert!(requeue <= snapshot.now.checked_add(SignedDuration::from_secs(1)).unwrap());
    advance(&mut snapshot, SignedDuration::from_secs(1));
    assert_eq!(members(&snapshot), ["west"]);
    let left: Vec<_> = snapshot
        .exports
        .values()
        .map(|e| e.spec.cluster_id.as_str())
        .collect();
    assert_eq!(left, ["", "west"], "the administrator's and the one of west");
    // East rejoins.
    insert(&mut snapshot.announces, announce("east", "set", "north"));
    insert(
        &mut snapshot.exports,
        service("east", "prod", "web", 80, "2026-01-03T00:00:00Z"),
    );
    settle(&mut snapshot);
    assert_eq!(members(&snapshot), ["east", "west"]);
    assert_eq!(snapshot.exports.len(), 3);
}

#[test]
fn the_timeout_continues_after_a_restart_of_the_leader() {
    let mut snapshot = with_removal();
    advance(&mut snapshot, SignedDuration::from_secs(31));
    advance(&mut snapshot, SignedDuration::from_hours(23));
    snapshot.heartbeats.clear();
    settle(&mut snapshot);
    add_time(&mut snapshot, SignedDuration::from_hours(1));
    snapshot.heartbeats.clear();
    settle(&mut snapshot);
    assert_eq!(
        members(&snapshot),
        ["east", "west"],
        "a heartbeat is still possible"
    );
    // The removal was due already, and the leader requeued without a delay.
    let requeue = make_plan(&mut snapshot).next_requeue.expect("a requeue");
    assert!(requeue > snapshot.now, "{requeue}");
    advance(&mut snapshot, SignedDuration::from_secs(31));
    assert_eq!(members(&snapshot), ["west"]);
}

#[test]
fn a_heartbeat_resets_the_timeout() {
    let mut snapshot = with_removal();
    advance(&mut snapshot, SignedDuration::from_hours(23));
    heartbeat(&mut snapshot, "east", 1);
    settle(&mut snapshot);
    assert_eq!(stale_since(&snapshot, "east"), None);
    advance(&mut snapshot, SignedDuration::from_hours(23));
    assert_eq!(members(&snapshot), ["east", "west"]);
    // The other policy removes the annotation.
    assert!(stale_since(&snapshot, "east").is_some());
    snapshot.config.stale_member_policy = StaleMemberPolicy::Keep;
    settle(&mut snapshot);
    assert_eq!(stale_since(&snapshot, "east"), None);
    advance(&mut snapshot, SignedDuration::from_hours(100));
    assert_eq!(members(&snapshot), ["east", "west"]);
}

#[test]
fn a_clock_jump_removes_no_member_with_heartbeats() {
    let mut snapshot = with_removal();
    for hours in [100_000, -50_000, 10, -300] {
        add_time(&mut snapshot, SignedDuration::from_hours(hours));
        settle(&mut snapshot);
        assert_eq!(members(&snapshot), ["east", "west"], "{hours} h");
        for id in ["east", "west"] {
            heartbeat(&mut snapshot, id, hours.unsigned_abs());
        }
        settle(&mut snapshot);
    }
}

#[test]
fn a_removal_requires_the_version_of_the_last_heartbeat() {
    let mut snapshot = with_removal();
    advance(&mut snapshot, SignedDuration::from_secs(31));
    let key = NamespacedName::new(NS, names::member_announce("east"));
    let mut announce = snapshot.announces[&key].as_ref().clone();
    announce.metadata.resource_version = Some("7".to_owned());
    insert(&mut snapshot.announces, announce);
    add_time(&mut snapshot, TIMEOUT);
    heartbeat(&mut snapshot, "west", 1);
    let plan = make_plan(&mut snapshot);
    let deletes: Vec<_> = plan
        .writes
        .iter()
        .filter_map(|a| match &a.op {
            WriteOp::Delete { version, .. } => Some((a.target.name.as_str(), version.as_deref())),
            _ => None,
        })
        .collect();
    assert_eq!(deletes, [("member-announce-from-east", Some("7"))]);
    assert!(
        plan.issues
            .iter()
            .any(|n| n.message.contains("no heartbeat for more than 24h")),
        "{:?}",
        plan.issues
    );
}

#[test]
fn a_rejected_announce_is_never_removed() {
    let mut snapshot = with_removal();
    insert(&mut snapshot.announces, announce("south", "other", "north"));
    settle(&mut snapshot);
    for _ in 0..3 {
        advance(&mut snapshot, TIMEOUT);
    }
    assert_eq!(members(&snapshot), ["south", "west"]);
    assert_eq!(stale_since(&snapshot, "south"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// A removed member had no heartbeat for the whole timeout, and every such member is removed; `Keep` removes none.
    #[test]
    fn only_stale_members_are_removed(keep: bool, events in prop::collection::vec((0u8..4, 1i64..40_000), 1..40)) {
        let mut snapshot = with_removal();
        if keep {
            snapshot.config.stale_member_policy = StaleMemberPolicy::Keep;
        }
        let mut last_heartbeats = [snapshot.now; 2];
        let is_member = |snapshot: &LeaderSnapshot, id: &str| members(snapshot).contains(&id);
        for (touch, (event, seconds)) in (1u64..).zip(events) {
            match event {
                0 | 1 => {
                    let (i, id) = [(0, "east"), (1, "west")][usize::from(event)];
                    if is_member(&snapshot, id) {
                        heartbeat(&mut snapshot, id, touch);
                        last_heartbeats[i] = snapshot.now;
                    }
                }
                2 => snapshot.heartbeats.clear(),
                _ => add_time(&mut snapshot, SignedDuration::from_secs(seconds)),
            }
            let before: Vec<String> = members(&snapshot).into_iter().map(str::to_owned).collect();
            while !reconcile(&mut snapshot).is_empty() {}
            for id in before {
                let i = usize::from(id == "west");
                if !is_member(&snapshot, &id) {
                    prop_assert!(!keep && snapshot.now.duration_since(last_heartbeats[i]) >= TIMEOUT);
                    let left = snapshot.exports.values().any(|e| e.spec.cluster_id == id);
                    prop_assert!(!left, "exports of {id} remain");
                }
            }
        }
        for time in [SignedDuration::from_secs(31), TIMEOUT] {
            add_time(&mut snapshot, time);
            settle(&mut snapshot);
        }
        prop_assert_eq!(members(&snapshot).len(), if keep { 2 } else { 0 });
        let exports = snapshot.exports.len();
        prop_assert_eq!(exports, if keep { 3 } else { 1 });
    }
}
