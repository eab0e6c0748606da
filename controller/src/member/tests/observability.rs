//! Events and metrics of a member.

use mc_metrics::MetricsSource as _;

use super::*;
use crate::metrics::{Metrics, ObjectGauges, Role, object_gauges};

fn events(snapshot: &MemberSnapshot) -> Vec<(String, String, String)> {
    let warning_events = plan(snapshot).warning_events.into_iter();
    warning_events
        .map(|r| (r.object.to_string(), r.reason, r.message))
        .collect()
}

fn one(about: &str, reason: &str, message: &str) -> Vec<(String, String, String)> {
    vec![(about.to_owned(), reason.to_owned(), message.to_owned())]
}

/// [`exporting`], with these conditions of the leader on the export.
fn with_leader_status(conditions: &Value) -> MemberSnapshot {
    let mut snapshot = exporting();
    settle(&mut snapshot);
    let mut export = export(&snapshot, "east-shop-web-service")
        .unwrap()
        .as_ref()
        .clone();
    export.status = Some(object(json!({ "conditions": conditions })));
    insert(&mut leader(&mut snapshot).exports, export);
    settle(&mut snapshot);
    snapshot
}

#[test]
fn an_invalid_export_has_an_event_with_the_reason_of_its_condition() {
    let mut snapshot = exporting();
    settle(&mut snapshot);
    assert_eq!(events(&snapshot), [], "no issue");
    snapshot.services = ObjectMap::default();
    let missing = one(
        "ServiceExport shop/web",
        "ServiceNotFound",
        "Service does not exist",
    );
    assert_eq!(events(&snapshot), missing);
    settle(&mut snapshot);
    assert_eq!(valid(&snapshot), ("False".to_owned(), missing[0].1.clone()));
    assert_eq!(events(&snapshot), missing, "equal while it lasts");
    let counts = object_gauges::MemberGauges::from_snapshot(&snapshot);
    assert_eq!(
        (counts.exports, counts.ready, counts.invalid),
        (1, 0, [("ServiceNotFound".to_owned(), 1)].into())
    );
    // Without a ClusterSet.
    snapshot.leader = None;
    snapshot.cluster_sets = ObjectMap::default();
    assert_eq!(events(&snapshot), [], "no ClusterSet, no Event");
}

#[test]
fn a_conflict_event_has_the_leaders_message() {
    let snapshot = with_leader_status(&json!([
        { "type": "Succeeded", "status": "True" },
        { "type": "Conflict", "status": "True", "reason": "PortConflict", "message": "port 80" },
    ]));
    assert_eq!(
        events(&snapshot),
        one("ServiceExport shop/web", "PortConflict", "port 80")
    );
    assert_eq!(
        object_gauges::MemberGauges::from_snapshot(&snapshot).conflicting,
        [("PortConflict".to_owned(), 1)].into()
    );
    let snapshot = with_leader_status(&json!([{ "type": "Succeeded", "status": "True" }]));
    assert_eq!(events(&snapshot), []);
}

#[test]
fn a_rejection_by_the_leaders_api_server_is_an_event() {
    let mut snapshot = exporting();
    let writes = plan(&snapshot).writes.into_iter().map(|a| a.target);
    let rejected = writes.filter(|t| t.name == "east-shop-web-service");
    snapshot.persistent_failures = rejected.map(|target| (target, "denied".to_owned())).collect();
    let message = "The leader cluster rejects ResourceExport east-shop-web-service: denied";
    assert_eq!(
        events(&snapshot),
        one("ServiceExport shop/web", "Failed", message)
    );
}

#[test]
fn a_service_that_blocks_an_import_has_an_event() {
    let mut snapshot = snapshot();
    let own = service(
        "antrea-mc-web",
        &json!({ "clusterIP": "10.20.0.9", "ports": [{ "port": 1 }] }),
    );
    insert(&mut snapshot.services, own);
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    assert_eq!(
        events(&snapshot),
        one(
            "Service shop/antrea-mc-web",
            "ServiceImportFailed",
            "exists and is not an import: Service shop/web of the ClusterSet cannot be imported"
        )
    );
    // Without the Namespace there is no object for the Event.
    leader(&mut snapshot).imports = ObjectMap::default();
    insert(
        &mut leader(&mut snapshot).imports,
        import_service("nowhere", "web"),
    );
    assert_eq!(events(&snapshot), []);
}

#[test]
fn a_rejected_change_of_an_import_is_an_event_of_the_service() {
    let mut snapshot = snapshot();
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    settle(&mut snapshot);
    assert_eq!(events(&snapshot), []);
    let mut changed = import_service("shop", "web");
    changed.spec.service_import.as_mut().unwrap().spec.ports[0].port = 81;
    insert(&mut leader(&mut snapshot).imports, changed);
    let change = plan(&snapshot).writes[0].target.clone();
    assert_eq!(change.to_string(), "Service shop/antrea-mc-web");
    assert_eq!(events(&snapshot), [], "before the first attempt");
    snapshot.persistent_failures = [(change, "denied by policy".to_owned())].into();
    assert_eq!(
        events(&snapshot),
        one(
            "Service shop/antrea-mc-web",
            "ServiceImportFailed",
            "cannot be updated to the spec of the ClusterSet: denied by policy"
        )
    );
}

#[test]
fn an_import_of_an_unsupported_family_has_an_event() {
    for (families, reason, begin) in [
        (
            json!(["IPv6"]),
            "IPFamilyNotSupported",
            "This cluster has no IPv6: its",
        ),
        (json!(["IPv4"]), "Pending", "The"),
        (json!(["IPv4", "IPv6"]), "Pending", "The"),
    ] {
        let mut snapshot = snapshot();
        settle(&mut snapshot);
        let mut offered = import_service("shop", "web");
        let payload = offered.spec.service_import.as_mut().unwrap();
        payload.spec.ip_families = object(families);
        insert(&mut leader(&mut snapshot).imports, offered);
        let creation = plan(&snapshot).writes.remove(0);
        assert_eq!(creation.target.to_string(), "Service shop/antrea-mc-web");
        assert_eq!(plan(&snapshot).writes.len(), 1, "before the first attempt");
        snapshot.persistent_failures = [(creation.target.clone(), "not configured".to_owned())].into();
        for _ in 0..3 {
            for action in plan(&snapshot).writes {
                apply_write(&mut snapshot.service_imports, &action);
            }
        }
        let mut writes = plan(&snapshot).writes;
        // The exporters get the failure.
        writes.retain(|write| write.target.side == ApiServer::Local);
        assert_eq!(writes, [creation], "only a retry");
        let import = snapshot.service_imports.values().next().unwrap();
        let status = import.status.as_ref().unwrap();
        let ready = &status.conditions[0];
        let message = format!("{begin} API server rejects Service antrea-mc-web: not configured");
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str(), &ready.message),
            ("False", reason, &message)
        );
        assert!(import.spec.ips.is_empty() && import.spec.ip_families.is_empty());
        assert_eq!(status.endpoint_slice_objects, "Absent");
        let about = "ServiceImport shop/web";
        assert_eq!(events(&snapshot), one(about, "ServiceImportFailed", &message));
        // The issue ends with the Service, or with the import.
        let mut gone = snapshot.clone();
        leader(&mut gone).imports = ObjectMap::default();
        settle(&mut gone);
        assert!(gone.service_imports.is_empty());
        snapshot.persistent_failures.clear();
        settle(&mut snapshot);
        let import = snapshot.service_imports.values().next().unwrap();
        assert_eq!(import.status.as_ref().unwrap().conditions[0].status, "True");
        assert!(!import.spec.ips.is_empty());
        assert_eq!(events(&snapshot), []);
    }
}

#[test]
fn metrics_have_the_state_of_the_leader_connection() {
    let mut snapshot = exporting();
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "db"));
    settle(&mut snapshot);
    advance(&mut snapshot, 4);
    let counts = object_gauges::MemberGauges::from_snapshot(&snapshot);
    assert_eq!(
        counts,
        object_gauges::MemberGauges {
            joined: true,
            connected: true,
            accepted: true,
            heartbeat: Some(NOW.parse().unwrap()),
            exports: 1,
            ready: 1,
            offered: 1,
            imported: 1,
            label_identities: Some(0),
            ..object_gauges::MemberGauges::default()
        }
    );
    snapshot.connection = LeaderConnectionState::Down {
        error: "refused".to_owned(),
    };
    snapshot.label_identities = OptionalKind::Absent;
    let away = object_gauges::MemberGauges::from_snapshot(&snapshot);
    assert_eq!(
        (away.connected, away.accepted, away.label_identities),
        (false, true, None)
    );

    let metrics = Metrics::new(Role::Member);
    metrics.reconciled(
        std::time::Duration::from_millis(2),
        snapshot.now,
        &plan(&snapshot),
        ObjectGauges::Member(away),
    );
    let text = metrics.metrics().unwrap();
    for line in [
        "mccontroller_leader_connected 0",
        "mccontroller_leader_accepted 1",
        "mccontroller_service_exports 1",
        "mccontroller_ready_service_exports 1",
        "mccontroller_imported_services 1",
        "mccontroller_events_total{server=\"leader\",result=\"published\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    // Relative to the clock of this machine.
    assert!(text.contains("mccontroller_heartbeat_age_seconds "), "{text}");
    assert!(!text.contains("mccontroller_label_identities"), "{text}");

    snapshot.cluster_sets = ObjectMap::default();
    snapshot.leader = None;
    let alone = object_gauges::MemberGauges::from_snapshot(&snapshot);
    assert!(!alone.joined && alone.heartbeat.is_none() && alone.exports == 1);
}
