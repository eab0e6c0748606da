//! The statement that the leader has all exports of a cluster.

use mc_api::{
    condition::Condition as ApiCondition,
    resource_export::{FAILURE, ResourceExportStatus, SUCCEEDED},
};

use super::*;
use crate::{plan::Kind, snapshot::fake::delete};

const EXPORT: &str = "east-importfailures";

/// A member that exports Service `web` and has an announce with a UID.
fn member() -> MemberSnapshot {
    let mut snapshot = exporting();
    join(&mut snapshot, "joined");
    snapshot
}

/// The label of the export.
fn stated(snapshot: &MemberSnapshot) -> Option<&str> {
    let label = export(snapshot, EXPORT)?
        .labels()
        .get(names::LABEL_EXPORTS_COMPLETE)?;
    Some(label.as_str())
}

/// The leader writes the status of this cluster's export.
fn process(snapshot: &mut MemberSnapshot, name: &str, type_: &str, status: &str) {
    let mut processed = export(snapshot, name).unwrap().as_ref().clone();
    processed.status = Some(ResourceExportStatus {
        conditions: vec![ApiCondition::new(type_, status, "", "")],
    });
    insert(&mut leader(snapshot).exports, processed);
}

fn offer(snapshot: &mut MemberSnapshot) {
    insert(&mut leader(snapshot).imports, import_service("shop", "web"));
    let endpoints = import_endpoints("shop", "web", &[("east", vec!["10.11.0.5".into()])]);
    insert(&mut leader(snapshot).imports, endpoints);
}

#[test]
fn exports_are_complete_once_the_leader_has_processed_all() {
    let mut snapshot = member();
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), None, "the leader has processed none");
    process(&mut snapshot, "east-shop-web-service", SUCCEEDED, "True");
    process(&mut snapshot, "east-shop-web-endpoints", SUCCEEDED, "True");
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), None, "it offers no import");
    offer(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), Some("joined"));
}

#[test]
fn a_refused_export_is_processed() {
    let mut snapshot = member();
    settle(&mut snapshot);
    process(&mut snapshot, "east-shop-web-service", FAILURE, "False");
    assert_eq!(stated(&snapshot), None);
    process(&mut snapshot, "east-shop-web-endpoints", FAILURE, "False");
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), Some("joined"));
}

/// Other clusters export the Service, too: its import exists.
#[test]
fn an_export_without_a_status_is_not_processed() {
    let mut snapshot = member();
    offer(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), None);
}

#[test]
fn later_exports_do_not_take_it_back_and_a_new_leader_does() {
    let mut snapshot = member();
    settle(&mut snapshot);
    offer(&mut snapshot);
    for kind in ["service", "endpoints"] {
        process(&mut snapshot, &format!("east-shop-web-{kind}"), SUCCEEDED, "True");
    }
    settle(&mut snapshot);
    delete(
        &mut leader(&mut snapshot).exports,
        &NamespacedName::new(LEADER_NS, "east-shop-web-service"),
    );
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), Some("joined"));
    leader(&mut snapshot).exports = ObjectMap::default();
    join(&mut snapshot, "anew");
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), None);
}

#[test]
fn nothing_is_complete_without_the_service_cidr() {
    let mut snapshot = member();
    snapshot.service_cidrs.clear();
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), None);
}

/// A new leader has no export that could be kept for the configured time.
#[test]
fn a_service_that_has_just_lost_its_endpoints_is_awaited() {
    let mut snapshot = member();
    let after = snapshot.config.withdraw_after.as_secs();
    insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", false)]));
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), None);
    advance(&mut snapshot, after);
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), Some("joined"), "it is withdrawn");
}

#[test]
fn an_export_that_the_leaders_server_rejects_is_not_awaited() {
    let mut snapshot = member();
    for write in plan(&snapshot).writes {
        if write.target.kind == Kind::ResourceExport {
            snapshot
                .persistent_failures
                .insert(write.target, "too large".to_owned());
        }
    }
    let mut local = plan(&snapshot).writes;
    local.retain(|write| write.target.side == ApiServer::Local);
    apply_writes(&mut snapshot, &local);
    let next = plan(&snapshot);
    let labelled = next.writes.iter().any(|write| write.target.name == EXPORT);
    assert!(labelled, "{:?}", next.writes);
}

#[test]
fn the_label_of_a_former_announce_is_removed() {
    let mut snapshot = snapshot();
    join(&mut snapshot, "former");
    insert(&mut leader(&mut snapshot).imports, import_service("books", "web"));
    settle(&mut snapshot);
    assert_eq!(stated(&snapshot), Some("former"));
    join(&mut snapshot, "joined");
    snapshot.service_cidrs.clear();
    settle(&mut snapshot);
    assert!(export(&snapshot, EXPORT).is_some(), "with the failure");
    assert_eq!(stated(&snapshot), None);
}
