//! The addresses of Pods: complete before agents use them, withdrawn in the reverse order.

use mc_api::{
    address_group_slice::COMPLETE_NAME,
    node_policy_status::{Enforcement, NodePolicyStatusSpec},
};

use super::*;
use crate::{
    member::address_groups,
    plan::{Kind, WriteOp},
    snapshot::PodAttributes,
};

/// A Node whose agent enforces every rule, in a cluster with this number of Pods.
fn enforcing(count: u8) -> MemberSnapshot {
    let mut snapshot = snapshot();
    snapshot.address_group_slices = OptionalKind::Present(ObjectMap::default());
    snapshot.node_policy_statuses = OptionalKind::Present(ObjectMap::default());
    let node = json!({ "metadata": { "name": "a", "uid": "uid-a" } });
    insert(&mut snapshot.nodes, object::<Node>(node));
    report(&mut snapshot, Enforcement::All);
    set_pods(&mut snapshot, count, "web");
    snapshot
}

fn report(snapshot: &mut MemberSnapshot, enforcement: Enforcement) {
    let spec = NodePolicyStatusSpec {
        enforcement,
        ..NodePolicyStatusSpec::default()
    };
    insert_report(snapshot, "a", spec);
}

/// Each Pod has an address of each family.
fn set_pods(snapshot: &mut MemberSnapshot, count: u8, app: &str) {
    let attributes = Arc::new(PodAttributes {
        namespace: "shop".to_owned(),
        labels: [("app".to_owned(), app.to_owned())].into(),
        service_account: "default".to_owned(),
        ports: Vec::new(),
    });
    let addresses = (0..count).flat_map(|n| [format!("10.0.0.{n}"), format!("fd00::{n}")]);
    let addresses = addresses.map(|text| (text.parse().unwrap(), attributes.clone()));
    snapshot.pod_addresses = Some(Arc::new(addresses.collect()));
}

/// The writes of slices, with the verb and the name.
fn writes(snapshot: &MemberSnapshot) -> Vec<(&'static str, String)> {
    let mut plan = Plan::default();
    address_groups::plan(snapshot, &mut plan);
    assert!(
        plan.writes
            .iter()
            .all(|write| write.target.kind == Kind::AddressGroupSlice)
    );
    plan.writes
        .iter()
        .map(|write| (write.op.verb(), write.target.name.clone()))
        .collect()
}

fn named(verb: &'static str, names: &[&str]) -> Vec<(&'static str, String)> {
    names.iter().map(|name| (verb, (*name).to_owned())).collect()
}

/// Applies the writes of a plan.
fn step(snapshot: &mut MemberSnapshot) {
    let mut plan = Plan::default();
    address_groups::plan(snapshot, &mut plan);
    apply_writes(snapshot, &plan.writes);
}

#[test]
fn the_mark_is_written_once_every_slice_is_in_the_cache() {
    let mut snapshot = enforcing(110);
    assert_eq!(writes(&snapshot), named("apply", &["pods-0", "pods-1", "pods-2"]));
    // The API server has executed two of three writes.
    let mut plan = Plan::default();
    address_groups::plan(&snapshot, &mut plan);
    plan.writes.truncate(2);
    apply_writes(&mut snapshot, &plan.writes);
    assert_eq!(writes(&snapshot), named("apply", &["pods-2"]));
    step(&mut snapshot);
    assert_eq!(writes(&snapshot), named("apply", &[COMPLETE_NAME]));
    step(&mut snapshot);
    assert_eq!(writes(&snapshot), []);
    // A change leaves the mark.
    set_pods(&mut snapshot, 110, "api");
    assert_eq!(writes(&snapshot), named("apply", &["pods-0", "pods-1", "pods-2"]));
}

#[test]
fn the_mark_is_deleted_before_the_slices() {
    let mut snapshot = enforcing(60);
    step(&mut snapshot);
    step(&mut snapshot);
    report(&mut snapshot, Enforcement::ClusterSetOnly);
    snapshot.pod_addresses = None;
    assert!(!address_groups::are_needed(&snapshot));
    assert_eq!(writes(&snapshot), named("delete", &[COMPLETE_NAME]));
    step(&mut snapshot);
    assert_eq!(writes(&snapshot), named("delete", &["pods-0", "pods-1"]));
    step(&mut snapshot);
    assert_eq!(writes(&snapshot), []);
}

/// A new replica has listed neither the Pods nor the reports yet.
#[test]
fn a_controller_that_starts_leaves_the_slices_of_its_predecessor() {
    let mut snapshot = enforcing(60);
    step(&mut snapshot);
    step(&mut snapshot);
    snapshot.pod_addresses = None;
    assert_eq!(writes(&snapshot), [], "Pods");
    snapshot.node_policy_statuses = OptionalKind::Pending;
    assert_eq!(writes(&snapshot), [], "reports");
    snapshot.address_group_slices = OptionalKind::Pending;
    assert_eq!(writes(&snapshot), [], "slices");
}

#[test]
fn a_slice_has_the_mark_of_the_controller_and_its_own_namespace() {
    let snapshot = enforcing(1);
    let mut plan = Plan::default();
    address_groups::plan(&snapshot, &mut plan);
    let [write] = &plan.writes[..] else {
        panic!("{plan:?}")
    };
    let WriteOp::Apply(body) = &write.op else {
        panic!("{write:?}")
    };
    assert_eq!(write.target.namespace, NS);
    let body = body.value();
    assert_eq!(
        body["metadata"]["labels"][names::LABEL_APP_MANAGED_BY],
        names::MANAGED_BY
    );
    assert_eq!(
        body["spec"],
        json!({ "revision": 1, "groups": [{
            "namespace": "shop", "labels": { "app": "web" }, "serviceAccount": "default",
            "addresses": ["10.0.0.0", "fd00::"],
        }] })
    );
}
