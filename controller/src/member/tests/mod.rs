//! The member's plan on constructed snapshots.

mod address_groups;
mod antrea_endpoints;
mod antrea_leader;
mod awaited_exporters;
mod cluster_copy;
mod collisions;
mod drain;
mod endpoint_ranges;
mod export_completeness;
mod exports;
mod failed_imports;
mod gateways;
mod group_status;
mod imports;
mod label_identities;
mod mass_deletion;
mod membership;
mod membership_record;
mod observability;
mod policies;
mod policy_status;
mod reachability;
mod selector_exports;
mod two_controllers;
mod unreadable;
mod withdrawal;
mod without_cluster_set;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::SignedDuration;
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{Namespace, Node, Secret, Service},
        discovery::v1::EndpointSlice,
    },
};
use kube::ResourceExt;
use mc_api::{
    cluster_set::ClusterSet,
    condition::Condition,
    config::Config,
    member_cluster_announce::MemberClusterAnnounce,
    names,
    node_policy_status::{NodePolicyStatus, NodePolicyStatusSpec},
    resource_export::ResourceExport,
    resource_import::ResourceImport,
    service_export::ServiceExport,
};
use serde_json::{Value, json};

use super::{plan, without_cluster_set::GRACE_PERIOD};
use crate::{
    plan::{ApiServer, Plan, Write},
    snapshot::{
        Instance, LeaderConnectionState, MemberSnapshot, NamespacedName, ObjectMap, OptionalKind,
        RemoteObjects, SecretState, StatusTimes,
        fake::{NOW, apply_write, insert, object},
    },
};

const NS: &str = "kube-system";
const LEADER_NS: &str = "antrea-multicluster";

/// An accepted member "east" without exports and imports.
fn snapshot() -> MemberSnapshot {
    let mut snapshot = MemberSnapshot {
        now: NOW.parse().unwrap(),
        namespace: NS.to_owned(),
        config: Config::default(),
        service_cidrs: vec!["10.20.0.0/16".parse().unwrap()],
        cluster_sets: ObjectMap::default(),
        unreadable_cluster_sets: BTreeSet::new(),
        cluster_claims: OptionalKind::Absent,
        memberships: ObjectMap::default(),
        node_keys: ObjectMap::default(),
        deregistrations: BTreeMap::new(),
        nodes: ObjectMap::default(),
        namespaces: ObjectMap::default(),
        services: ObjectMap::default(),
        endpoint_slices: ObjectMap::default(),
        service_exports: ObjectMap::default(),
        service_imports: ObjectMap::default(),
        gateways: ObjectMap::default(),
        cluster_infos: ObjectMap::default(),
        pod_labels: None,
        label_identities: OptionalKind::Present(ObjectMap::default()),
        policies: OptionalKind::Absent,
        network_policies: OptionalKind::Absent,
        cluster_groups: OptionalKind::Absent,
        groups: OptionalKind::Absent,
        node_policy_statuses: OptionalKind::Absent,
        node_reachabilities: OptionalKind::Present(ObjectMap::default()),
        address_group_slices: OptionalKind::Absent,
        pod_addresses: None,
        tiers: OptionalKind::Absent,
        persistent_failures: BTreeMap::new(),
        status_times: StatusTimes::default(),
        secret: secret(&[("ca.crt", "-----BEGIN CERTIFICATE-----\n"), ("token", "t\n")]),
        connection: LeaderConnectionState::Up,
        announce_unchanged_for: std::time::Duration::ZERO,
        instance: Instance {
            own: "run".to_owned(),
            ..Instance::default()
        },
        leader: Some(RemoteObjects {
            synced: true,
            ..RemoteObjects::default()
        }),
    };
    insert(&mut snapshot.cluster_sets, cluster_set("set"));
    insert(&mut leader(&mut snapshot).announces, announce("set"));
    insert(
        &mut snapshot.namespaces,
        object::<Namespace>(json!({ "metadata": { "name": "shop" } })),
    );
    snapshot
}

fn leader(snapshot: &mut MemberSnapshot) -> &mut RemoteObjects {
    snapshot.leader.as_mut().unwrap()
}

fn cluster_set(name: &str) -> ClusterSet {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha2", "kind": "ClusterSet",
        "metadata": { "name": name, "namespace": NS },
        "spec": {
            "clusterID": "east", "namespace": LEADER_NS,
            "leaders": [{ "clusterID": "north", "server": "https://172.18.0.1:6443", "secret": "member-east-token" }],
        },
    }))
}

fn announce(set: &str) -> MemberClusterAnnounce {
    object(json!({
        "metadata": {
            "name": "member-announce-from-east", "namespace": LEADER_NS, "annotations": { "touch-ts": NOW },
            "finalizers": [names::member_announce_finalizer("east")],
        },
        "clusterID": "east", "clusterSetID": set, "leaderClusterID": "north",
    }))
}

/// The leader accepts an announce with this UID.
fn join(snapshot: &mut MemberSnapshot, uid: &str) {
    let mut announce = announce("set");
    announce.metadata.uid = Some(uid.to_owned());
    insert(&mut leader(snapshot).announces, announce);
}

fn secret(data: &[(&str, &str)]) -> SecretState {
    let mut secret: Secret = object(json!({ "metadata": { "name": "member-east-token", "namespace": NS } }));
    let data = data
        .iter()
        .map(|(k, v)| ((*k).to_owned(), ByteString((*v).into())));
    secret.data = Some(data.collect());
    SecretState::Present(Arc::new(secret))
}

fn node(name: &str, ready: bool, annotations: &[(&str, &str)], addresses: &[(&str, &str)]) -> Node {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|(t, a)| json!({ "type": t, "address": a }))
        .collect();
    object(json!({
        "metadata": { "name": name, "annotations": annotations.iter().copied().collect::<BTreeMap<_, _>>() },
        "spec": { "podCIDRs": [format!("10.11.{}.0/24", name.len())] },
        "status": {
            "addresses": addresses,
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
        },
    }))
}

fn candidate(name: &str, ready: bool, ip: &str) -> Node {
    node(
        name,
        ready,
        &[(names::ANNOTATION_GATEWAY, "true")],
        &[("InternalIP", ip)],
    )
}

fn gateway_names(snapshot: &MemberSnapshot) -> Vec<String> {
    snapshot.gateways.values().map(|g| g.name_any()).collect()
}

/// Addresses and weights of the announced gateways.
fn announced(snapshot: &MemberSnapshot) -> Vec<(String, u32)> {
    let export = export(snapshot, "east-clusterinfo").filter(|e| e.metadata.deletion_timestamp.is_none());
    let info = export.and_then(|e| e.spec.cluster_info.clone());
    info.into_iter()
        .flat_map(|info| info.gateway_infos)
        .map(|g| (g.gateway_ip.clone(), g.weight()))
        .collect()
}

fn advance(snapshot: &mut MemberSnapshot, seconds: i64) {
    snapshot.now = snapshot
        .now
        .checked_add(SignedDuration::from_secs(seconds))
        .unwrap();
}

/// Deletes the `ClusterSet` of a member and lets its grace period pass.
fn leave(snapshot: &mut MemberSnapshot) {
    snapshot.cluster_sets = ObjectMap::default();
    let _ = reconcile(snapshot);
    advance(snapshot, GRACE_PERIOD.as_secs());
}

fn service(name: &str, spec: &Value) -> Service {
    object(json!({ "metadata": { "name": name, "namespace": "shop", "uid": "u" }, "spec": spec }))
}

fn web() -> Service {
    service(
        "web",
        &json!({ "clusterIP": "10.20.0.5", "clusterIPs": ["10.20.0.5"],
        "ports": [{ "name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080 }] }),
    )
}

fn slice(ips: &[(&str, bool)]) -> EndpointSlice {
    let endpoints: Vec<_> = ips
        .iter()
        .map(|(ip, ready)| json!({ "addresses": [ip], "conditions": { "ready": ready } }))
        .collect();
    object(json!({
        "metadata": { "name": "web-1", "namespace": "shop", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
    }))
}

fn service_export() -> ServiceExport {
    object(json!({ "metadata": { "name": "web", "namespace": "shop" } }))
}

fn import_service(ns: &str, name: &str) -> ResourceImport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
        "metadata": { "name": names::service_import(ns, name), "namespace": LEADER_NS },
        "spec": { "kind": "ServiceImport", "namespace": ns, "name": name, "serviceImport": {
            "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport",
            "metadata": { "name": name, "namespace": ns },
            "spec": { "type": "ClusterSetIP", "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] },
        }},
    }))
}

fn subset(ips: &[String]) -> Value {
    let addresses: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
    json!({ "addresses": addresses, "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] })
}

fn import_endpoints(ns: &str, name: &str, clusters: &[(&str, Vec<String>)]) -> ResourceImport {
    let subsets: Vec<_> = clusters.iter().map(|(_, ips)| subset(ips)).collect();
    let clusters: Vec<_> = clusters
        .iter()
        .map(|(id, ips)| json!({ "clusterID": id, "subsets": [subset(ips)] }))
        .collect();
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
        "metadata": { "name": names::endpoints_import(ns, name), "namespace": LEADER_NS },
        "spec": { "kind": "Endpoints", "namespace": ns, "name": name,
            "endpoints": { "subsets": subsets, "clusters": clusters } },
    }))
}

fn import_info(cluster: &str, service_cidr: &str, gateways: &[&str]) -> ResourceImport {
    let gateways: Vec<_> = gateways.iter().map(|g| json!({ "gatewayIP": g })).collect();
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
        "metadata": { "name": names::cluster_info(cluster), "namespace": LEADER_NS },
        "spec": { "kind": "ClusterInfo", "namespace": LEADER_NS, "name": names::cluster_info(cluster),
            "clusterinfo": { "clusterID": cluster, "serviceCIDR": service_cidr, "gatewayInfos": gateways } },
    }))
}

/// The objects of a kind that is served.
fn present<K>(kind: &mut OptionalKind<K>) -> &mut ObjectMap<K> {
    match kind {
        OptionalKind::Present(objects) => objects,
        _ => panic!("the kind is not served"),
    }
}

/// Inserts the report of a Node's agent about policies.
fn insert_report(snapshot: &mut MemberSnapshot, node: &str, spec: NodePolicyStatusSpec) {
    let mut report = NodePolicyStatus::of_node(node, &format!("uid-{node}"), spec);
    report.metadata.namespace = Some(NS.to_owned());
    insert(present(&mut snapshot.node_policy_statuses), report);
}

fn apply_writes(snapshot: &mut MemberSnapshot, writes: &[Write]) {
    for action in writes {
        match action.target.side {
            ApiServer::Local => {
                apply_write(&mut snapshot.cluster_sets, action);
                apply_write(&mut snapshot.memberships, action);
                apply_write(&mut snapshot.services, action);
                apply_write(&mut snapshot.endpoint_slices, action);
                apply_write(&mut snapshot.service_exports, action);
                apply_write(&mut snapshot.service_imports, action);
                apply_write(&mut snapshot.gateways, action);
                apply_write(&mut snapshot.cluster_infos, action);
                if let OptionalKind::Present(objects) = &mut snapshot.label_identities {
                    apply_write(objects, action);
                }
                if let OptionalKind::Present(objects) = &mut snapshot.policies {
                    apply_write(objects, action);
                }
                if let OptionalKind::Present(objects) = &mut snapshot.network_policies {
                    apply_write(objects, action);
                }
                if let OptionalKind::Present(objects) = &mut snapshot.cluster_groups {
                    apply_write(objects, action);
                }
                if let OptionalKind::Present(objects) = &mut snapshot.groups {
                    apply_write(objects, action);
                }
                if let OptionalKind::Present(objects) = &mut snapshot.address_group_slices {
                    apply_write(objects, action);
                }
                if let OptionalKind::Present(objects) = &mut snapshot.tiers {
                    apply_write(objects, action);
                }
            }
            ApiServer::Leader => {
                apply_write(&mut leader(snapshot).announces, action);
                apply_write(&mut leader(snapshot).exports, action);
            }
        }
    }
}

fn reconcile(snapshot: &mut MemberSnapshot) -> Vec<Write> {
    list_imports(snapshot);
    let plan = plan(snapshot);
    snapshot.status_times.record(&plan.writes, snapshot.now);
    apply_writes(snapshot, &plan.writes);
    plan.writes
}

/// Adds the leader's imports to those listed before, as a connection does.
fn list_imports(snapshot: &mut MemberSnapshot) {
    let Some(leader) = &mut snapshot.leader else {
        return;
    };
    let listed = Arc::make_mut(&mut leader.listed_imports);
    for (key, import) in leader.imports.iter() {
        let endpoints = import.spec.endpoints.iter();
        let clusters = endpoints.flat_map(|endpoints| &endpoints.clusters);
        let clusters = clusters.map(|cluster| cluster.cluster_id.clone());
        listed.entry(key.name.clone()).or_default().extend(clusters);
    }
}

/// Reconciles until the plan is empty.
fn settle(snapshot: &mut MemberSnapshot) {
    let converged = (0..8).any(|_| reconcile(snapshot).is_empty());
    assert!(
        converged,
        "writes after 8 iterations: {:#?}",
        plan(snapshot).writes
    );
}

fn assert_issue(plan: &Plan, text: &str) {
    let found = plan
        .issues
        .iter()
        .any(|n| format!("{}: {}", n.subject, n.message).contains(text));
    assert!(found, "{text:?} not in {:#?}", plan.issues);
}

fn ready(snapshot: &MemberSnapshot) -> (String, String, String) {
    let set = snapshot.cluster_sets.values().next().unwrap();
    let ready = set.status.as_ref().unwrap().conditions[0].clone();
    (ready.status, ready.reason, ready.message)
}

fn export<'a>(snapshot: &'a MemberSnapshot, name: &str) -> Option<&'a Arc<ResourceExport>> {
    snapshot
        .leader
        .as_ref()
        .unwrap()
        .exports
        .get(&NamespacedName::new(LEADER_NS, name))
}

/// [`snapshot`] with Service `web`, one ready Pod behind it, and a `ServiceExport`.
fn exporting() -> MemberSnapshot {
    let mut snapshot = snapshot();
    insert(&mut snapshot.services, web());
    insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", true)]));
    insert(&mut snapshot.service_exports, service_export());
    snapshot
}

/// The conditions of the only `ServiceExport`.
fn conditions(snapshot: &MemberSnapshot) -> Vec<Condition> {
    let export = snapshot.service_exports.values().next().unwrap();
    export.status.clone().unwrap().conditions
}

fn valid(snapshot: &MemberSnapshot) -> (String, String) {
    let condition = conditions(snapshot)[0].clone();
    assert_eq!(condition.type_, "Valid");
    (condition.status, condition.reason)
}

fn imported_ips(snapshot: &MemberSnapshot) -> BTreeMap<String, Vec<String>> {
    let own = snapshot
        .endpoint_slices
        .values()
        .filter(|s| s.labels().contains_key(names::LABEL_MCS_SERVICE_NAME));
    let mut ips: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for slice in own {
        let cluster = slice
            .labels()
            .get(names::LABEL_MCS_SOURCE_CLUSTER)
            .cloned()
            .unwrap_or_default();
        ips.entry(cluster)
            .or_default()
            .extend(slice.endpoints.iter().map(|e| e.addresses[0].clone()));
    }
    ips
}
