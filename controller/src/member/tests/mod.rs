//! The member's plan on made-up worlds: the worlds.

mod collisions;
mod drain;
mod exports;
mod gateways;
mod imports;
mod labels;
mod membership;
mod parting;
mod policies;
mod seeing;

use std::{collections::BTreeMap, sync::Arc};

use jiff::SignedDuration;
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{Namespace, Node, Secret, Service},
        discovery::v1::EndpointSlice,
    },
};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::plan;
use crate::{
    api::{
        cluster_set::ClusterSet, condition::Condition, config::Config,
        member_cluster_announce::MemberClusterAnnounce, names, resource_export::ResourceExport,
        resource_import::ResourceImport, service_export::ServiceExport,
    },
    plan::{Action, Plan, Side},
    world::{
        LeaderView, Link, MemberWorld, Objects, Optional, SecretSeen,
        fake::{NOW, carry_out, insert, object},
    },
};

const NS: &str = "kube-system";
const LEADER_NS: &str = "antrea-multicluster";

/// A member "east" in good standing, with nothing exported or imported yet.
fn world() -> MemberWorld {
    let mut world = MemberWorld {
        now: NOW.parse().unwrap(),
        namespace: NS.to_owned(),
        config: Config::default(),
        service_cidrs: vec!["10.20.0.0/16".parse().unwrap()],
        cluster_sets: Objects::default(),
        claims: Optional::Absent,
        memberships: Objects::default(),
        goodbyes: BTreeMap::new(),
        nodes: Objects::default(),
        namespaces: Objects::default(),
        services: Objects::default(),
        slices: Objects::default(),
        service_exports: Objects::default(),
        service_imports: Objects::default(),
        gateways: Objects::default(),
        cluster_infos: Objects::default(),
        pod_labels: None,
        label_identities: Optional::Present(Objects::default()),
        policies: Optional::Absent,
        tiers: Optional::Absent,
        failing: BTreeMap::new(),
        secret: secret(&[("ca.crt", "-----BEGIN CERTIFICATE-----\n"), ("token", "t\n")]),
        link: Link::Up,
        leader: Some(LeaderView {
            synced: true,
            ..LeaderView::default()
        }),
    };
    insert(&mut world.cluster_sets, cluster_set("set"));
    insert(&mut leader(&mut world).announces, announce("set"));
    insert(
        &mut world.namespaces,
        object::<Namespace>(json!({ "metadata": { "name": "shop" } })),
    );
    world
}

fn leader(world: &mut MemberWorld) -> &mut LeaderView {
    world.leader.as_mut().unwrap()
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

fn secret(data: &[(&str, &str)]) -> SecretSeen {
    let mut secret: Secret = object(json!({ "metadata": { "name": "member-east-token", "namespace": NS } }));
    let data = data
        .iter()
        .map(|(k, v)| ((*k).to_owned(), ByteString((*v).into())));
    secret.data = Some(data.collect());
    SecretSeen::Present(Arc::new(secret))
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

fn gateway_names(world: &MemberWorld) -> Vec<String> {
    world.gateways.values().map(|g| g.name_any()).collect()
}

/// Addresses and weights of the gateways, as the other clusters are told.
fn announced(world: &MemberWorld) -> Vec<(String, u32)> {
    let export = export(world, "east-clusterinfo").filter(|e| e.metadata.deletion_timestamp.is_none());
    let info = export.and_then(|e| e.spec.cluster_info.clone());
    info.into_iter()
        .flat_map(|info| info.gateway_infos)
        .map(|g| (g.gateway_ip.clone(), g.weight()))
        .collect()
}

fn pass(world: &mut MemberWorld, seconds: i64) {
    world.now = world.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
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

fn step(world: &mut MemberWorld) -> Vec<Action> {
    let plan = plan(world);
    for action in &plan.actions {
        match action.target.side {
            Side::Local => {
                carry_out(&mut world.cluster_sets, action);
                carry_out(&mut world.memberships, action);
                carry_out(&mut world.services, action);
                carry_out(&mut world.slices, action);
                carry_out(&mut world.service_exports, action);
                carry_out(&mut world.service_imports, action);
                carry_out(&mut world.gateways, action);
                carry_out(&mut world.cluster_infos, action);
                if let Optional::Present(objects) = &mut world.label_identities {
                    carry_out(objects, action);
                }
                if let Optional::Present(objects) = &mut world.policies {
                    carry_out(objects, action);
                }
            }
            Side::Leader => {
                carry_out(&mut leader(world).announces, action);
                carry_out(&mut leader(world).exports, action);
            }
        }
    }
    plan.actions
}

/// Steps until nothing is left to do.
fn settle(world: &mut MemberWorld) {
    let quiet = (0..8).any(|_| step(world).is_empty());
    assert!(quiet, "still to do after 8 rounds: {:#?}", plan(world).actions);
}

fn says(plan: &Plan, text: &str) {
    let found = plan
        .notices
        .iter()
        .any(|n| format!("{}: {}", n.subject, n.message).contains(text));
    assert!(found, "{text:?} not in {:#?}", plan.notices);
}

fn ready(world: &MemberWorld) -> (String, String, String) {
    let set = world.cluster_sets.values().next().unwrap();
    let ready = set.status.as_ref().unwrap().conditions[0].clone();
    (ready.status, ready.reason, ready.message)
}

fn export<'a>(world: &'a MemberWorld, name: &str) -> Option<&'a Arc<ResourceExport>> {
    world
        .leader
        .as_ref()
        .unwrap()
        .exports
        .get(&(LEADER_NS.to_owned(), name.to_owned()))
}

/// [`world`] with Service `web`, one ready Pod behind it, and a `ServiceExport`.
fn exporting() -> MemberWorld {
    let mut world = world();
    insert(&mut world.services, web());
    insert(&mut world.slices, slice(&[("10.11.0.5", true)]));
    insert(&mut world.service_exports, service_export());
    world
}

/// The conditions of the only `ServiceExport`.
fn conditions(world: &MemberWorld) -> Vec<Condition> {
    let export = world.service_exports.values().next().unwrap();
    export.status.clone().unwrap().conditions
}

fn valid(world: &MemberWorld) -> (String, String) {
    let condition = conditions(world)[0].clone();
    assert_eq!(condition.type_, "Valid");
    (condition.status, condition.reason)
}

fn imported_ips(world: &MemberWorld) -> BTreeMap<String, Vec<String>> {
    let ours = world
        .slices
        .values()
        .filter(|s| s.labels().contains_key(names::LABEL_MCS_SERVICE_NAME));
    let mut ips: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for slice in ours {
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
