//! The end of a membership whose `ClusterSet` was deleted.

use super::*;
use crate::{
    member::without_cluster_set::{MembershipPhase, phase},
    plan::{Kind, WriteOp},
    snapshot::{DeregistrationState, Membership},
};

/// A member with an imported Service, a gateway and another cluster's networks.
fn member() -> MemberSnapshot {
    let mut snapshot = snapshot();
    insert(&mut snapshot.nodes, candidate("a", true, "172.18.0.2"));
    let imports = &mut leader(&mut snapshot).imports;
    insert(imports, import_service("shop", "web"));
    insert(imports, import_info("west", "10.30.0.0/16", &["172.18.0.9"]));
    settle(&mut snapshot);
    assert_eq!(own_objects(&snapshot), (1, 1, 1, 1));
    snapshot
}

/// Imported Services, `ServiceImport`s, Gateways and `ClusterInfoImport`s.
fn own_objects(snapshot: &MemberSnapshot) -> (usize, usize, usize, usize) {
    (
        snapshot.services.len(),
        snapshot.service_imports.len(),
        snapshot.gateways.len(),
        snapshot.cluster_infos.len(),
    )
}

fn delete_set(snapshot: &mut MemberSnapshot) {
    snapshot.cluster_sets = ObjectMap::default();
}

fn deletions(writes: &[Write]) -> Vec<Kind> {
    let deletions = writes.iter().filter(|w| matches!(w.op, WriteOp::Delete { .. }));
    deletions.map(|w| w.target.kind).collect()
}

#[test]
fn a_replaced_cluster_set_changes_nothing() {
    let mut snapshot = member();
    let before = snapshot.clone();
    delete_set(&mut snapshot);
    settle(&mut snapshot);
    advance(&mut snapshot, GRACE_PERIOD.as_secs() - 1);
    // A controller that starts in this time has no connection.
    let leader = snapshot.leader.take();
    let kept = plan(&snapshot);
    assert_eq!(kept.writes, []);
    assert_issue(
        &kept,
        "ClusterSet: there is none: imports, exports and gateways are kept until",
    );
    assert_eq!(
        kept.next_requeue,
        snapshot.now.checked_add(SignedDuration::from_secs(1)).ok()
    );
    snapshot.leader = leader;
    insert(&mut snapshot.cluster_sets, cluster_set("set"));
    let writes = reconcile(&mut snapshot);
    assert_eq!(deletions(&writes), []);
    settle(&mut snapshot);
    assert_eq!(snapshot.memberships, before.memberships, "the time is not kept");
    assert_eq!(snapshot.services, before.services);
    assert_eq!(snapshot.gateways, before.gateways);
}

#[test]
fn each_absence_has_its_own_grace_period() {
    let mut snapshot = member();
    for _ in 0..3 {
        delete_set(&mut snapshot);
        settle(&mut snapshot);
        advance(&mut snapshot, GRACE_PERIOD.as_secs() - 1);
        insert(&mut snapshot.cluster_sets, cluster_set("set"));
        settle(&mut snapshot);
    }
    assert_eq!(own_objects(&snapshot), (1, 1, 1, 1));
}

#[test]
fn after_the_grace_period_everything_is_withdrawn() {
    let mut snapshot = member();
    leave(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(own_objects(&snapshot), (0, 0, 0, 0));
}

/// The steps of an uninstallation: exports and annotations of gateways are deleted before the `ClusterSet`.
#[test]
fn without_exports_and_annotated_nodes_everything_is_withdrawn_at_once() {
    let mut snapshot = member();
    insert(&mut snapshot.service_exports, service_export());
    insert(&mut snapshot.nodes, node("a", true, &[], &[]));
    settle(&mut snapshot);
    let mut exporting = snapshot.clone();
    delete_set(&mut exporting);
    settle(&mut exporting);
    assert_eq!(own_objects(&exporting).0, 1);
    snapshot.service_exports = ObjectMap::default();
    settle(&mut snapshot);
    delete_set(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(own_objects(&snapshot), (0, 0, 0, 0));
}

#[test]
fn a_kept_membership_replaces_a_gateway_that_is_not_ready() {
    let mut snapshot = member();
    delete_set(&mut snapshot);
    insert(&mut snapshot.nodes, candidate("a", false, "172.18.0.2"));
    insert(&mut snapshot.nodes, candidate("b", true, "172.18.0.3"));
    settle(&mut snapshot);
    assert!(gateway_names(&snapshot).contains(&"b".to_owned()));
}

/// A second controller elsewhere, or one with a lost record, does not own the imports it finds.
#[test]
fn without_a_record_only_objects_of_the_own_namespace_are_deleted() {
    let mut snapshot = member();
    snapshot.memberships = ObjectMap::default();
    delete_set(&mut snapshot);
    assert_eq!(phase(&snapshot), MembershipPhase::NotRecorded);
    advance(&mut snapshot, 2 * GRACE_PERIOD.as_secs());
    settle(&mut snapshot);
    assert_eq!(own_objects(&snapshot), (1, 1, 0, 0));
    assert!(snapshot.memberships.is_empty());
}

#[test]
fn the_record_outlasts_the_imports() {
    let mut snapshot = member();
    leave(&mut snapshot);
    let membership = Membership::from_cluster_set(&cluster_set("set")).unwrap();
    let confirmed = DeregistrationState::Confirmed;
    snapshot.deregistrations.insert(membership, confirmed);
    let first = reconcile(&mut snapshot);
    assert!(deletions(&first).contains(&Kind::Service));
    assert!(!deletions(&first).contains(&Kind::ConfigMap));
    settle(&mut snapshot);
    assert!(snapshot.memberships.is_empty());
}

#[test]
fn a_clock_set_back_begins_the_grace_period_again() {
    let mut snapshot = member();
    delete_set(&mut snapshot);
    settle(&mut snapshot);
    advance(&mut snapshot, -3600);
    settle(&mut snapshot);
    assert_eq!(own_objects(&snapshot), (1, 1, 1, 1));
    advance(&mut snapshot, GRACE_PERIOD.as_secs());
    settle(&mut snapshot);
    assert_eq!(own_objects(&snapshot), (0, 0, 0, 0));
}
