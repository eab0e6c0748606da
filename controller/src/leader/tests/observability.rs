//! Events and metrics of the leader.

use mc_metrics::MetricsSource as _;

use super::*;
use crate::{
    metrics::{Metrics, ObjectGauges, Role, object_gauges},
    plan::WarningEvent,
};

fn events(warning_events: &[WarningEvent]) -> Vec<(String, String, String)> {
    let warning_events = warning_events.iter();
    warning_events
        .map(|r| (r.object.to_string(), r.reason.clone(), r.message.clone()))
        .collect()
}

/// Two clusters with conflicting exports, an invalid payload, and a cluster that is no member.
fn conflicting() -> LeaderSnapshot {
    let mut snapshot = leader_snapshot();
    for cluster in ["east", "west"] {
        insert(&mut snapshot.announces, announce(cluster, "set", "north"));
    }
    insert(&mut snapshot.announces, announce("other", "another-set", "north"));
    insert(
        &mut snapshot.exports,
        service("west", "shop", "web", 80, "2026-01-01T11:00:00Z"),
    );
    insert(
        &mut snapshot.exports,
        service("east", "shop", "web", 81, "2026-01-01T11:00:05Z"),
    );
    insert(&mut snapshot.exports, endpoints("east", "shop", "db", "10.1.0.1"));
    let mut bad = service("west", "shop", "bad", 80, "2026-01-01T11:00:05Z");
    bad.spec.service = None;
    insert(&mut snapshot.exports, bad);
    insert(&mut snapshot.exports, service("stranger", "shop", "bad", 80, NOW));
    settle(&mut snapshot);
    snapshot
}

#[test]
fn conflicts_and_rejections_are_events_of_the_object() {
    let mut snapshot = conflicting();
    let plan = make_plan(&mut snapshot);
    let events = events(&plan.warning_events);
    let on = |about: &str| -> Vec<_> {
        let about = events.iter().filter(|(a, ..)| a == about);
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
    // The younger one is not imported, which takes precedence over its conflict.
    assert_eq!(
        on("ResourceExport antrea-multicluster/east-shop-web-service"),
        ["ConvergeFailure"]
    );
    assert_eq!(
        on("ResourceExport antrea-multicluster/west-shop-bad-service"),
        ["ConvergeFailure"]
    );
    // The export of its Service may follow.
    assert_eq!(
        on("ResourceExport antrea-multicluster/east-shop-db-endpoints"),
        Vec::<&str>::new()
    );
    assert_eq!(events.len(), 4, "{events:#?}");
    assert_eq!(
        make_plan(&mut snapshot).warning_events,
        plan.warning_events,
        "equal while they last"
    );
}

#[test]
fn metrics_have_each_member_and_its_exports() {
    let mut snapshot = conflicting();
    let start = snapshot.now;
    snapshot.now = start.checked_add(SignedDuration::from_secs(40)).unwrap();
    let mut east = announce("east", "set", "north");
    east.metadata.finalizers = Some(vec![names::member_announce_finalizer("east")]);
    east.metadata.annotations = Some([("touch-ts".to_owned(), "later".to_owned())].into());
    insert(&mut snapshot.announces, east);
    let plan = make_plan(&mut snapshot);
    let counts = object_gauges::LeaderGauges::from_snapshot(&snapshot);
    assert_eq!(
        counts.members,
        [("east".to_owned(), snapshot.now), ("west".to_owned(), start)].into()
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
            (("west".to_owned(), "Service"), 2),
        ]
        .into(),
        "a cluster that is no member is no series"
    );
    assert_eq!(counts.imports, [("ServiceImport", 1)].into());

    let metrics = Metrics::new(Role::Leader);
    metrics.reconciled(
        std::time::Duration::from_millis(2),
        snapshot.now,
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
        "mccontroller_failed_resource_exports{cluster=\"west\"} 1",
        "mccontroller_conflicting_resource_exports{cluster=\"east\"} 1",
        "mccontroller_resource_imports{kind=\"ServiceImport\"} 1",
        "mccontroller_pending_write_age_seconds{server=\"local\"} 0.0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    assert!(
        !text.contains("server=\"leader\""),
        "a leader has one API server:\n{text}"
    );
}
