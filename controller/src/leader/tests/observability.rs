//! What people of the leader cluster get to see: Events and metrics.

use mc_metrics::MetricsSource as _;

use super::*;
use crate::{
    metrics::{Metrics, ObjectGauges, Role, object_gauges},
    plan::WarningEvent,
};

fn told(warning_events: &[WarningEvent]) -> Vec<(String, String, String)> {
    let told = warning_events.iter();
    told.map(|r| (r.object.to_string(), r.reason.clone(), r.message.clone()))
        .collect()
}

/// Two clusters that contradict each other, a payload that is none, and a cluster that is no member.
fn troubled() -> LeaderSnapshot {
    let mut world = world();
    for cluster in ["east", "west"] {
        insert(&mut world.announces, announce(cluster, "set", "north"));
    }
    insert(&mut world.announces, announce("other", "another-set", "north"));
    insert(
        &mut world.exports,
        service("west", "shop", "web", 80, "2026-01-01T11:00:00Z"),
    );
    insert(
        &mut world.exports,
        service("east", "shop", "web", 81, "2026-01-01T11:00:05Z"),
    );
    insert(&mut world.exports, endpoints("east", "shop", "db", "10.1.0.1"));
    let mut bad = service("stranger", "shop", "bad", 80, "2026-01-01T11:00:05Z");
    bad.spec.service = None;
    insert(&mut world.exports, bad);
    settle(&mut world);
    world
}

#[test]
fn conflicts_and_refusals_are_told_on_the_object() {
    let mut world = troubled();
    let plan = look(&mut world);
    let told = told(&plan.warning_events);
    let on = |about: &str| -> Vec<_> {
        let about = told.iter().filter(|(a, ..)| a == about);
        about.map(|(_, reason, _)| reason.as_str()).collect()
    };
    assert_eq!(
        on("MemberClusterAnnounce antrea-multicluster/member-announce-from-other"),
        ["MemberRefused"]
    );
    assert_eq!(
        on("ResourceExport antrea-multicluster/west-shop-web-service"),
        ["PortConflict"]
    );
    // The younger one is left out for it, which says more.
    assert_eq!(
        on("ResourceExport antrea-multicluster/east-shop-web-service"),
        ["ConvergeFailure"]
    );
    assert_eq!(
        on("ResourceExport antrea-multicluster/stranger-shop-bad-service"),
        ["ConvergeFailure"]
    );
    // Its Service may be on its way.
    assert_eq!(
        on("ResourceExport antrea-multicluster/east-shop-db-endpoints"),
        Vec::<&str>::new()
    );
    assert_eq!(told.len(), 4, "{told:#?}");
    assert_eq!(
        look(&mut world).warning_events,
        plan.warning_events,
        "the same while they hold"
    );
}

#[test]
fn metrics_tell_each_member_and_its_exports() {
    let mut world = troubled();
    let start = world.now;
    world.now = start.checked_add(SignedDuration::from_secs(40)).unwrap();
    let mut east = announce("east", "set", "north");
    east.metadata.finalizers = Some(vec![names::member_announce_finalizer("east")]);
    east.metadata.annotations = Some([("touch-ts".to_owned(), "later".to_owned())].into());
    insert(&mut world.announces, east);
    let plan = look(&mut world);
    let counts = object_gauges::LeaderGauges::from_snapshot(&world);
    assert_eq!(
        counts.members,
        [("east".to_owned(), world.now), ("west".to_owned(), start)].into()
    );
    assert_eq!(counts.rejected, 1);
    let one = |cluster: &str| (cluster.to_owned(), 1);
    assert_eq!(counts.conflicting, [one("east"), one("west")].into());
    assert_eq!(
        counts.exports,
        [
            (("east".to_owned(), "Endpoints"), 1),
            (("east".to_owned(), "Service"), 1),
            (("other".to_owned(), "Service"), 1),
            (("west".to_owned(), "Service"), 1),
        ]
        .into(),
        "a cluster that is no member is no series"
    );
    assert_eq!(counts.imports, [("ServiceImport", 1)].into());

    let metrics = Metrics::new(Role::Leader);
    metrics.reconciled(
        std::time::Duration::from_millis(2),
        world.now,
        &plan,
        ObjectGauges::Leader(counts),
    );
    let text = metrics.metrics().unwrap();
    for line in [
        "mccontroller_build_info{role=\"leader\",version=\"0.1.0\"} 1",
        "mccontroller_is_leader 0",
        "mccontroller_ready 0",
        "mccontroller_reconcile_duration_seconds_count 1",
        "mccontroller_last_reconcile_timestamp_seconds 1767268840.0",
        "mccontroller_active_warning_events{kind=\"ResourceExport\",reason=\"PortConflict\"} 1",
        "mccontroller_active_warning_events{kind=\"ResourceExport\",reason=\"ConvergeFailure\"} 2",
        "mccontroller_active_warning_events{kind=\"MemberClusterAnnounce\",reason=\"MemberRefused\"} 1",
        "mccontroller_rejected_members 1",
        "mccontroller_member_connected{cluster=\"west\"} 0",
        "mccontroller_resource_exports{cluster=\"east\",kind=\"Service\"} 1",
        "mccontroller_failed_resource_exports{cluster=\"other\"} 1",
        "mccontroller_conflicting_resource_exports{cluster=\"east\"} 1",
        "mccontroller_resource_imports{kind=\"ServiceImport\"} 1",
        "mccontroller_pending_write_age_seconds{server=\"local\"} 0.0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(
        !text.contains("server=\"leader\""),
        "it talks to one API server:\n{text}"
    );
}
