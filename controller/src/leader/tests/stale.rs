//! Members that fell silent, where an administrator wants them removed.

use jiff::SignedDuration;
use mc_api::{config::StaleMemberPolicy, names, resource_export::ResourceExport};
use proptest::prelude::*;
use serde_json::json;

use super::{NS, announce, look, service, settle, step, world};
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
fn removing() -> LeaderSnapshot {
    let mut world = world();
    world.config.stale_member_policy = StaleMemberPolicy::Remove;
    for id in ["east", "west"] {
        insert(&mut world.announces, announce(id, "set", "north"));
        insert(
            &mut world.exports,
            service(id, "prod", "web", 80, "2026-01-01T00:00:00Z"),
        );
    }
    let policy = json!({
        "metadata": { "name": "strict", "namespace": NS },
        "spec": { "kind": "AntreaClusterNetworkPolicy", "name": "strict", "clusterNetworkPolicy": { "priority": 1 } },
    });
    insert(&mut world.exports, object::<ResourceExport>(policy));
    settle(&mut world);
    world
}

fn later(world: &mut LeaderSnapshot, by: SignedDuration) {
    world.now = world.now.checked_add(by).unwrap();
}

/// A heartbeat, by the member's clock, which has nothing to do with ours.
fn beat(world: &mut LeaderSnapshot, id: &str, touch: u64) {
    let key = NamespacedName::new(NS, names::member_announce(id));
    let Some(seen) = world.announces.get(&key) else {
        return;
    };
    let mut announce = seen.as_ref().clone();
    let annotations = announce.metadata.annotations.get_or_insert_default();
    annotations.insert(names::ANNOTATION_TOUCH_TS.to_owned(), format!("beat {touch}"));
    insert(&mut world.announces, announce);
}

fn members(world: &LeaderSnapshot) -> Vec<&str> {
    world.announces.values().map(|a| a.cluster_id.as_str()).collect()
}

fn silent_since(world: &LeaderSnapshot, id: &str) -> Option<String> {
    let key = NamespacedName::new(NS, names::member_announce(id));
    let announce = world.announces.get(&key)?;
    names::ANNOTATION_STALE_SINCE
        .get(announce.as_ref())
        .map(str::to_owned)
}

/// East is silent, west is not, for so long.
fn pass(world: &mut LeaderSnapshot, mut time: SignedDuration) {
    let mut touch = world.now.as_second().unsigned_abs();
    while time.is_positive() {
        let hop = time.min(SignedDuration::from_mins(30));
        later(world, hop);
        time = time.checked_sub(hop).unwrap();
        touch += 1;
        beat(world, "west", touch);
        settle(world);
    }
}

#[test]
fn a_silent_member_is_removed_with_its_exports_after_the_timeout() {
    let mut world = removing();
    pass(&mut world, SignedDuration::from_secs(31));
    let first = silent_since(&world, "east").expect("written down");
    assert_eq!(first, "2026-01-01T12:00:31Z after 2026-01-01T12:00:00Z");
    pass(
        &mut world,
        TIMEOUT.checked_sub(SignedDuration::from_secs(1)).unwrap(),
    );
    assert_eq!(members(&world), ["east", "west"]);
    assert_eq!(
        silent_since(&world, "east"),
        Some(first),
        "it is the same silence"
    );
    let wake = look(&mut world).next_requeue.expect("a time to look again");
    assert!(wake <= world.now.checked_add(SignedDuration::from_secs(1)).unwrap());
    pass(&mut world, SignedDuration::from_secs(1));
    assert_eq!(members(&world), ["west"]);
    let left: Vec<_> = world
        .exports
        .values()
        .map(|e| e.spec.cluster_id.as_str())
        .collect();
    assert_eq!(left, ["", "west"], "the administrator's and west's");
    // It comes back: a member like any other.
    insert(&mut world.announces, announce("east", "set", "north"));
    insert(
        &mut world.exports,
        service("east", "prod", "web", 80, "2026-01-03T00:00:00Z"),
    );
    settle(&mut world);
    assert_eq!(members(&world), ["east", "west"]);
    assert_eq!(world.exports.len(), 3);
}

#[test]
fn silence_counts_on_over_a_restart_of_the_leader() {
    let mut world = removing();
    pass(&mut world, SignedDuration::from_secs(31));
    pass(&mut world, SignedDuration::from_hours(23));
    world.heartbeats.clear();
    settle(&mut world);
    later(&mut world, SignedDuration::from_hours(1));
    world.heartbeats.clear();
    settle(&mut world);
    assert_eq!(members(&world), ["east", "west"], "it may speak now");
    // It was due already, and the leader looked again and again without a pause.
    let wake = look(&mut world).next_requeue.expect("a time to look again");
    assert!(wake > world.now, "{wake}");
    pass(&mut world, SignedDuration::from_secs(31));
    assert_eq!(members(&world), ["west"]);
}

#[test]
fn a_heartbeat_ends_the_silence() {
    let mut world = removing();
    pass(&mut world, SignedDuration::from_hours(23));
    beat(&mut world, "east", 1);
    settle(&mut world);
    assert_eq!(silent_since(&world, "east"), None);
    pass(&mut world, SignedDuration::from_hours(23));
    assert_eq!(members(&world), ["east", "west"]);
    // With the other policy nothing stays written down.
    assert!(silent_since(&world, "east").is_some());
    world.config.stale_member_policy = StaleMemberPolicy::Keep;
    settle(&mut world);
    assert_eq!(silent_since(&world, "east"), None);
    pass(&mut world, SignedDuration::from_hours(100));
    assert_eq!(members(&world), ["east", "west"]);
}

#[test]
fn a_clock_that_jumps_removes_nobody_who_is_alive() {
    let mut world = removing();
    for hours in [100_000, -50_000, 10, -300] {
        later(&mut world, SignedDuration::from_hours(hours));
        settle(&mut world);
        assert_eq!(members(&world), ["east", "west"], "{hours} h");
        for id in ["east", "west"] {
            beat(&mut world, id, hours.unsigned_abs());
        }
        settle(&mut world);
    }
}

#[test]
fn a_removal_fails_when_the_member_speaks_at_that_moment() {
    let mut world = removing();
    pass(&mut world, SignedDuration::from_secs(31));
    let key = NamespacedName::new(NS, names::member_announce("east"));
    let mut announce = world.announces[&key].as_ref().clone();
    announce.metadata.resource_version = Some("7".to_owned());
    insert(&mut world.announces, announce);
    later(&mut world, TIMEOUT);
    beat(&mut world, "west", 1);
    let plan = look(&mut world);
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
fn whoever_was_never_accepted_is_left_alone() {
    let mut world = removing();
    insert(&mut world.announces, announce("south", "other", "north"));
    settle(&mut world);
    for _ in 0..3 {
        pass(&mut world, TIMEOUT);
    }
    assert_eq!(members(&world), ["south", "west"]);
    assert_eq!(silent_since(&world, "south"), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whenever a member goes it was silent for the whole timeout; one that stays silent goes; `Keep` keeps all.
    #[test]
    fn only_the_silent_go(keep: bool, events in prop::collection::vec((0u8..4, 1i64..40_000), 1..40)) {
        let mut world = removing();
        if keep {
            world.config.stale_member_policy = StaleMemberPolicy::Keep;
        }
        let mut spoke = [world.now; 2];
        let there = |world: &LeaderSnapshot, id: &str| members(world).contains(&id);
        for (touch, (event, seconds)) in (1u64..).zip(events) {
            match event {
                0 | 1 => {
                    let (i, id) = [(0, "east"), (1, "west")][usize::from(event)];
                    if there(&world, id) {
                        beat(&mut world, id, touch);
                        spoke[i] = world.now;
                    }
                }
                2 => world.heartbeats.clear(),
                _ => later(&mut world, SignedDuration::from_secs(seconds)),
            }
            let before: Vec<String> = members(&world).into_iter().map(str::to_owned).collect();
            while !step(&mut world).is_empty() {}
            for id in before {
                let i = usize::from(id == "west");
                if !there(&world, &id) {
                    prop_assert!(!keep && world.now.duration_since(spoke[i]) >= TIMEOUT);
                    let left = world.exports.values().any(|e| e.spec.cluster_id == id);
                    prop_assert!(!left, "{id} left something behind");
                }
            }
        }
        for time in [SignedDuration::from_secs(31), TIMEOUT] {
            later(&mut world, time);
            settle(&mut world);
        }
        prop_assert_eq!(members(&world).len(), if keep { 2 } else { 0 });
        let exports = world.exports.len();
        prop_assert_eq!(exports, if keep { 3 } else { 1 });
    }
}
