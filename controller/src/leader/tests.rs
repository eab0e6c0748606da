//! The leader's plan on constructed snapshots.

mod account_bindings;
mod admission;
mod antrea_member;
mod endpoint_ranges;
mod label_clusters;
mod label_identities;
mod legacy_api;
mod member_namespaces;
mod observability;
mod policies;
mod prefix_owners;
mod quotas;
mod services;
mod stale;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use mc_api::{
    cluster_set::ClusterSet, config::Config, member_cluster_announce::MemberClusterAnnounce, names,
    resource_export::ResourceExport,
};
use proptest::prelude::*;
use serde_json::json;

use super::{heartbeat, plan};
use crate::{
    plan::{Plan, Write},
    snapshot::{
        LeaderSnapshot, MemberNamespaces, MemberPolicies, NamespacedName, ObjectMap, OptionalKind,
        fake::{NOW, apply_write, delete, insert, object},
    },
};

const NS: &str = "antrea-multicluster";

/// A leader with the members `east` and `west`.
fn leader_snapshot() -> LeaderSnapshot {
    let mut snapshot = without_members();
    for cluster in ["east", "west"] {
        insert(&mut snapshot.announces, accepted(cluster));
    }
    snapshot
}

fn without_members() -> LeaderSnapshot {
    let mut cluster_sets = ObjectMap::default();
    let set = json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha2", "kind": "ClusterSet",
        "metadata": { "name": "set", "namespace": NS },
        "spec": { "clusterID": "north", "leaders": [{ "clusterID": "north" }] },
    });
    insert(&mut cluster_sets, object::<ClusterSet>(set));
    LeaderSnapshot {
        now: NOW.parse().unwrap(),
        namespace: NS.to_owned(),
        config: Config::default(),
        cluster_sets,
        cluster_claims: OptionalKind::Absent,
        service_accounts: ObjectMap::default(),
        service_account_bindings: ObjectMap::default(),
        prefix_owners: ObjectMap::default(),
        announces: ObjectMap::default(),
        exports: ObjectMap::default(),
        unreadable_exports: BTreeSet::new(),
        imports: ObjectMap::default(),
        member_policies: MemberPolicies::Installed,
        member_namespaces: MemberNamespaces::default(),
        label_id_shards: None,
        heartbeats: BTreeMap::new(),
    }
}

fn announce(cluster: &str, set: &str, leader: &str) -> MemberClusterAnnounce {
    object(json!({
        "metadata": {
            "name": names::member_announce(cluster), "namespace": NS, "creationTimestamp": NOW,
            "annotations": { "touch-ts": NOW },
        },
        "clusterID": cluster, "clusterSetID": set, "leaderClusterID": leader,
    }))
}

/// The announce of a member.
fn accepted(cluster: &str) -> MemberClusterAnnounce {
    let mut announce = announce(cluster, "set", "north");
    announce.metadata.finalizers = Some(vec![names::member_announce_finalizer(cluster)]);
    announce
}

fn service(cluster: &str, ns: &str, name: &str, port: u16, created: &str) -> ResourceExport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
        "metadata": {
            "name": names::service_export(cluster, ns, name), "namespace": NS, "creationTimestamp": created,
            "finalizers": [names::FINALIZER_RESOURCE_EXPORT],
        },
        "spec": {
            "clusterID": cluster, "namespace": ns, "name": name, "kind": "Service",
            "service": { "serviceSpec": { "ports": [{ "name": "http", "port": port, "protocol": "TCP" }] } },
        },
    }))
}

fn endpoints(cluster: &str, ns: &str, name: &str, ip: &str) -> ResourceExport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
        "metadata": {
            "name": names::endpoints_export(cluster, ns, name), "namespace": NS, "creationTimestamp": NOW,
            "finalizers": [names::FINALIZER_RESOURCE_EXPORT],
        },
        "spec": {
            "clusterID": cluster, "namespace": ns, "name": name, "kind": "Endpoints",
            "endpoints": { "subsets": [{ "addresses": [{ "ip": ip }], "ports": [{ "name": "http", "port": 80 }] }] },
        },
    }))
}

fn cluster_info(cluster: &str) -> ResourceExport {
    let number = cluster.bytes().fold(0_u8, u8::wrapping_add);
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
        "metadata": {
            "name": names::cluster_info(cluster), "namespace": NS, "creationTimestamp": NOW,
            "finalizers": [names::FINALIZER_RESOURCE_EXPORT_LEGACY],
        },
        "spec": {
            "clusterID": cluster, "namespace": "kube-system", "name": cluster, "kind": "ClusterInfo",
            "clusterInfo": { "clusterID": cluster, "serviceCIDR": format!("10.{number}.0.0/16") },
        },
    }))
}

/// The export of a network with these prefixes.
fn network_export(cluster: &str, service_cidr: &str, pod_cidrs: &[&str]) -> ResourceExport {
    let mut export = cluster_info(cluster);
    let info = export.spec.cluster_info.as_mut().unwrap();
    service_cidr.clone_into(&mut info.service_cidr);
    info.pod_cidrs = pod_cidrs.iter().map(|&cidr| cidr.to_owned()).collect();
    export
}

/// The message of an export's condition `Failure`.
fn failure(snapshot: &LeaderSnapshot, export: &str) -> Option<String> {
    let status = snapshot.exports[&NamespacedName::new(NS, export)].status.clone();
    let mut conditions = status.unwrap_or_default().conditions.into_iter();
    conditions.find(|c| c.type_ == "Failure").map(|c| c.message)
}

/// The issues of the next plan, each with its subject.
fn issues(snapshot: &mut LeaderSnapshot) -> Vec<String> {
    let issues = make_plan(snapshot).issues.into_iter();
    issues
        .map(|issue| format!("{}: {}", issue.subject, issue.message))
        .collect()
}

fn assert_issue(snapshot: &mut LeaderSnapshot, text: &str) {
    let issues = issues(snapshot);
    assert!(
        issues.iter().any(|issue| issue.contains(text)),
        "{text:?} not in {issues:#?}"
    );
}

/// Adds or replaces a `ServiceAccount`, with one annotation at most.
fn account(snapshot: &mut LeaderSnapshot, name: &str, annotation: Option<(&str, &str)>) {
    let mut account: ServiceAccount = object(json!({ "metadata": { "name": name, "namespace": NS } }));
    account.metadata.annotations = annotation.map(|(key, value)| [(key.to_owned(), value.to_owned())].into());
    insert(&mut snapshot.service_accounts, account);
}

/// The cluster IDs of accounts in the `ConfigMap`.
fn bound(snapshot: &LeaderSnapshot) -> serde_json::Value {
    let map = snapshot
        .service_account_bindings
        .values()
        .next()
        .expect("a ConfigMap");
    json!(map.data.clone().unwrap_or_default())
}

/// Sets the evicted clusters.
fn evict(snapshot: &mut LeaderSnapshot, clusters: &str) {
    let mut set = snapshot.cluster_sets.values().next().unwrap().as_ref().clone();
    let annotation = names::ANNOTATION_EVICTED_CLUSTERS.to_owned();
    set.metadata.annotations = Some([(annotation, clusters.to_owned())].into());
    insert(&mut snapshot.cluster_sets, set);
}

fn reconcile(snapshot: &mut LeaderSnapshot) -> Vec<Write> {
    let plan = make_plan(snapshot);
    for action in &plan.writes {
        apply_write(&mut snapshot.cluster_sets, action);
        apply_write(&mut snapshot.service_account_bindings, action);
        apply_write(&mut snapshot.prefix_owners, action);
        apply_write(&mut snapshot.announces, action);
        apply_write(&mut snapshot.exports, action);
        apply_write(&mut snapshot.imports, action);
        let shards = snapshot.label_id_shards.as_mut();
        if let Some(records) = shards.filter(|_| action.target.name != names::PREFIX_OWNERS) {
            apply_write(records, action);
        }
    }
    plan.writes
}

fn make_plan(snapshot: &mut LeaderSnapshot) -> Plan {
    let all: Vec<_> = snapshot.announces.values().map(AsRef::as_ref).collect();
    heartbeat::record_heartbeats(&mut snapshot.heartbeats, &all, snapshot.now);
    plan(snapshot)
}

/// Reconciles until the plan is empty.
fn settle(snapshot: &mut LeaderSnapshot) {
    let converged = (0..8).any(|_| reconcile(snapshot).is_empty());
    assert!(
        converged,
        "writes after 8 iterations: {:#?}",
        make_plan(snapshot).writes
    );
}

fn import(snapshot: &LeaderSnapshot, name: &str) -> serde_json::Value {
    let found = snapshot.imports.get(&NamespacedName::new(NS, name));
    found.map_or(serde_json::Value::Null, |i| {
        serde_json::to_value(&i.spec).unwrap()
    })
}

#[test]
fn a_member_is_accepted_and_counted() {
    let mut snapshot = without_members();
    insert(&mut snapshot.announces, announce("east", "set", "north"));
    settle(&mut snapshot);
    let last = make_plan(&mut snapshot);
    let announce = snapshot.announces.values().next().unwrap();
    assert_eq!(
        announce.metadata.finalizers.as_ref().unwrap()[..],
        [names::member_announce_finalizer("east")]
    );
    let status = snapshot
        .cluster_sets
        .values()
        .next()
        .unwrap()
        .status
        .clone()
        .unwrap();
    assert_eq!((status.total_clusters, status.ready_clusters), (1, 1));
    assert_eq!(
        status.cluster_statuses[0].conditions[0].message,
        "Member Connected"
    );
    assert!(
        last.next_requeue.is_some(),
        "a requeue at the end of its readiness"
    );
}

#[test]
fn a_member_without_heartbeats_is_unready_by_the_leaders_clock() {
    let mut snapshot = without_members();
    let mut east = announce("east", "set", "north");
    // The member's clock is a year off, which has no effect.
    east.metadata.annotations = Some([("touch-ts".to_owned(), "2025-01-01T00:00:00Z".to_owned())].into());
    insert(&mut snapshot.announces, east);
    settle(&mut snapshot);
    assert_eq!(
        snapshot
            .cluster_sets
            .values()
            .next()
            .unwrap()
            .status
            .as_ref()
            .unwrap()
            .ready_clusters,
        1
    );
    snapshot.now = snapshot.now.checked_add(SignedDuration::from_secs(31)).unwrap();
    snapshot.announces = ObjectMap::default();
    insert(&mut snapshot.announces, announce("east", "set", "north"));
    settle(&mut snapshot);
    assert_eq!(
        snapshot
            .cluster_sets
            .values()
            .next()
            .unwrap()
            .status
            .as_ref()
            .unwrap()
            .ready_clusters,
        1
    );
    snapshot.now = snapshot.now.checked_add(SignedDuration::from_secs(31)).unwrap();
    settle(&mut snapshot);
    let status = snapshot
        .cluster_sets
        .values()
        .next()
        .unwrap()
        .status
        .clone()
        .unwrap();
    assert_eq!((status.total_clusters, status.ready_clusters), (1, 0));
    assert!(
        status.cluster_statuses[0].conditions[0]
            .message
            .starts_with("No MemberClusterAnnounce update after")
    );
}

/// A member with a clock two days behind lost its exports after 31 s without a heartbeat.
#[test]
fn a_member_that_is_silent_is_not_removed() {
    let mut snapshot = without_members();
    let mut east = announce("east", "set", "north");
    east.metadata.annotations = Some([("touch-ts".to_owned(), "2025-01-01T00:00:00Z".to_owned())].into());
    insert(&mut snapshot.announces, east);
    insert(
        &mut snapshot.exports,
        service("east", "prod", "web", 80, "2026-01-01T00:00:00Z"),
    );
    settle(&mut snapshot);
    for hours in [1, 25, 10_000] {
        snapshot.now = snapshot
            .now
            .checked_add(SignedDuration::from_hours(hours))
            .unwrap();
        settle(&mut snapshot);
        assert_eq!(
            (snapshot.announces.len(), snapshot.exports.len()),
            (1, 1),
            "{hours} h"
        );
    }
}

#[test]
fn a_wrong_cluster_set_name_is_rejected_with_both_names() {
    for (bad, wanted) in [
        (
            announce("east", "other", "north"),
            "ClusterSet name \"other\" is not that of the leader's ClusterSet, \"set\"",
        ),
        (
            announce("east", "set", "south"),
            "leaders[0].clusterID \"south\" is not that of the leader, \"north\"",
        ),
    ] {
        let mut snapshot = without_members();
        insert(&mut snapshot.announces, bad);
        settle(&mut snapshot);
        let plan = make_plan(&mut snapshot);
        let announce = snapshot.announces.values().next().unwrap();
        assert_eq!(
            announce.metadata.annotations.as_ref().unwrap()[names::ANNOTATION_REJECTED_REASON.key],
            wanted
        );
        assert_eq!(announce.metadata.finalizers, None);
        assert!(
            plan.issues.iter().any(|n| n.message.contains(wanted)),
            "{:?}",
            plan.issues
        );
        assert_eq!(
            snapshot
                .cluster_sets
                .values()
                .next()
                .unwrap()
                .status
                .as_ref()
                .unwrap()
                .total_clusters,
            0
        );
    }
}

#[test]
fn a_rejection_ends_with_its_cause() {
    let mut snapshot = leader_snapshot();
    let sets = std::mem::take(&mut snapshot.cluster_sets);
    insert(&mut snapshot.announces, announce("east", "set", "north"));
    settle(&mut snapshot);
    let rejected = |w: &LeaderSnapshot| {
        let announce = w.announces.values().next().unwrap().clone();
        names::ANNOTATION_REJECTED_REASON.get(announce.as_ref()).is_some()
    };
    assert!(rejected(&snapshot));
    snapshot.cluster_sets = sets;
    settle(&mut snapshot);
    assert!(!rejected(&snapshot));
}

#[test]
fn exports_of_a_deregistered_member_are_deleted() {
    let mut snapshot = leader_snapshot();
    insert(&mut snapshot.announces, announce("east", "set", "north"));
    insert(&mut snapshot.announces, announce("west", "set", "north"));
    for cluster in ["east", "west"] {
        insert(&mut snapshot.exports, service(cluster, "shop", "web", 80, NOW));
        insert(
            &mut snapshot.exports,
            endpoints(cluster, "shop", "web", "10.0.0.1"),
        );
        insert(&mut snapshot.exports, cluster_info(cluster));
    }
    settle(&mut snapshot);
    assert_eq!(snapshot.imports.len(), 4);
    delete(
        &mut snapshot.announces,
        &NamespacedName::new(NS, names::member_announce("east")),
    );
    settle(&mut snapshot);
    assert_eq!(snapshot.announces.len(), 1);
    assert!(
        snapshot.exports.values().all(|e| e.spec.cluster_id == "west"),
        "{:?}",
        snapshot.exports.keys()
    );
    assert_eq!(snapshot.imports.len(), 3);
    let clusters = &import(&snapshot, "shop-web-endpoints")["endpoints"]["clusters"];
    assert_eq!(clusters.as_array().unwrap().len(), 1);
}

#[test]
fn exports_of_a_cluster_with_the_same_id_prefix_are_kept() {
    let mut snapshot = without_members();
    for cluster in ["east", "east-2"] {
        insert(&mut snapshot.announces, announce(cluster, "set", "north"));
        insert(&mut snapshot.exports, service(cluster, "shop", "web", 80, NOW));
        insert(&mut snapshot.exports, cluster_info(cluster));
    }
    settle(&mut snapshot);
    delete(
        &mut snapshot.announces,
        &NamespacedName::new(NS, names::member_announce("east")),
    );
    settle(&mut snapshot);
    let left: Vec<_> = snapshot
        .exports
        .values()
        .map(|e| e.spec.cluster_id.as_str())
        .collect();
    assert_eq!(left, ["east-2", "east-2"]);
    assert_eq!(snapshot.announces.len(), 1);
}

#[test]
fn foreign_finalizers_are_kept_when_an_export_is_released() {
    let mut snapshot = leader_snapshot();
    let mut export = cluster_info("east");
    let hold = "example.com/hold".to_owned();
    export
        .metadata
        .finalizers
        .get_or_insert_default()
        .push(hold.clone());
    insert(&mut snapshot.exports, export);
    settle(&mut snapshot);
    delete(
        &mut snapshot.exports,
        &NamespacedName::new(NS, "east-clusterinfo"),
    );
    settle(&mut snapshot);
    let left = snapshot
        .exports
        .values()
        .next()
        .expect("a foreign finalizer holds it");
    assert_eq!(left.metadata.finalizers, Some(vec![hold]));
}

#[test]
fn endpoints_are_listed_by_cluster_and_together() {
    let mut snapshot = leader_snapshot();
    for (cluster, ip) in [("west", "10.2.0.1"), ("east", "10.1.0.1")] {
        insert(&mut snapshot.exports, service(cluster, "shop", "web", 80, NOW));
        insert(&mut snapshot.exports, endpoints(cluster, "shop", "web", ip));
    }
    settle(&mut snapshot);
    let spec = import(&snapshot, "shop-web-endpoints");
    assert_eq!(spec["endpoints"]["clusters"][0]["clusterID"], "east");
    assert_eq!(spec["endpoints"]["clusters"][1]["clusterID"], "west");
    assert_eq!(spec["endpoints"]["subsets"][0]["addresses"][0]["ip"], "10.1.0.1");
    assert_eq!(spec["endpoints"]["subsets"][1]["addresses"][0]["ip"], "10.2.0.1");
    let spec = import(&snapshot, "shop-web-service");
    assert_eq!(
        spec["serviceImport"]["metadata"],
        json!({ "name": "web", "namespace": "shop" })
    );
    assert_eq!(spec["serviceImport"]["spec"]["type"], "ClusterSetIP");
    let statuses: Vec<_> = snapshot
        .exports
        .values()
        .map(|e| e.status.clone().unwrap().conditions[0].type_.clone())
        .collect();
    assert_eq!(statuses, ["Succeeded"; 4]);
}

#[test]
fn the_first_exporter_decides_the_ports_until_it_withdraws() {
    let mut snapshot = leader_snapshot();
    insert(
        &mut snapshot.exports,
        service("west", "shop", "web", 80, "2026-01-01T11:00:00Z"),
    );
    insert(
        &mut snapshot.exports,
        endpoints("west", "shop", "web", "10.2.0.1"),
    );
    settle(&mut snapshot);
    // Of the same second and first by name, but later: the exported ports stay.
    insert(
        &mut snapshot.exports,
        service("east", "shop", "web", 81, "2026-01-01T11:00:00Z"),
    );
    insert(
        &mut snapshot.exports,
        endpoints("east", "shop", "web", "10.1.0.1"),
    );
    settle(&mut snapshot);
    let plan = make_plan(&mut snapshot);
    let ports = |w: &LeaderSnapshot| {
        import(w, "shop-web-service")["serviceImport"]["spec"]["ports"][0]["port"].clone()
    };
    assert_eq!(ports(&snapshot), 80);
    assert_eq!(
        import(&snapshot, "shop-web-endpoints")["endpoints"]["clusters"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert!(
        plan.issues
            .iter()
            .any(|n| n.subject.contains("east-shop-web-service"))
    );
    let status = snapshot.exports[&NamespacedName::new(NS, "east-shop-web-service")]
        .status
        .clone()
        .unwrap();
    assert_eq!(
        (
            status.conditions[0].type_.as_str(),
            status.conditions[0].status.as_str()
        ),
        ("Failure", "False")
    );
    for name in ["west-shop-web-service", "west-shop-web-endpoints"] {
        delete(&mut snapshot.exports, &NamespacedName::new(NS, name));
    }
    settle(&mut snapshot);
    assert_eq!(ports(&snapshot), 81);
    assert_eq!(
        import(&snapshot, "shop-web-endpoints")["endpoints"]["clusters"][0]["clusterID"],
        "east"
    );
}

#[test]
fn service_accounts_are_bound_to_clusters() {
    let mut snapshot = leader_snapshot();
    let account = |name: &str, id: Option<&str>| -> ServiceAccount {
        let annotations: BTreeMap<_, _> = id
            .map(|id| (names::ANNOTATION_CLUSTER_ID, id))
            .into_iter()
            .collect();
        object(json!({ "metadata": { "name": name, "namespace": NS, "annotations": annotations } }))
    };
    let identities = |snapshot: &LeaderSnapshot| {
        let map = snapshot
            .service_account_bindings
            .get(&NamespacedName::new(NS, names::SERVICE_ACCOUNT_BINDINGS));
        json!(map.expect("a ConfigMap").data)
    };
    settle(&mut snapshot);
    assert_eq!(identities(&snapshot), json!({}), "no account is bound");
    insert(
        &mut snapshot.service_accounts,
        account("member-east", Some("east")),
    );
    insert(&mut snapshot.service_accounts, account("default", None));
    insert(
        &mut snapshot.service_accounts,
        account("member-odd", Some("Odd One")),
    );
    let plan = make_plan(&mut snapshot);
    assert!(
        plan.issues
            .iter()
            .any(|n| n.subject == "ServiceAccount member-odd" && n.message.contains("\"Odd One\"")),
        "{:?}",
        plan.issues
    );
    settle(&mut snapshot);
    assert_eq!(
        identities(&snapshot),
        json!({ "member-east": "east", "member-odd": "" })
    );
    insert(
        &mut snapshot.service_accounts,
        account("member-east", Some("eastern")),
    );
    settle(&mut snapshot);
    assert_eq!(
        identities(&snapshot),
        json!({ "member-east": "eastern", "member-odd": "" })
    );
    // A foreign change of bindings by an administrator is reverted.
    let data = json!({ "member-east": "west", "member-odd": "east" });
    let map =
        json!({ "metadata": { "name": names::SERVICE_ACCOUNT_BINDINGS, "namespace": NS }, "data": data });
    insert(&mut snapshot.service_account_bindings, object::<ConfigMap>(map));
    settle(&mut snapshot);
    assert_eq!(
        identities(&snapshot),
        json!({ "member-east": "eastern", "member-odd": "" })
    );
}

#[test]
fn two_services_with_the_same_derived_name_are_not_merged() {
    let mut snapshot = leader_snapshot();
    insert(
        &mut snapshot.exports,
        service("west", "prod", "web-api", 80, "2026-01-01T11:00:00Z"),
    );
    insert(
        &mut snapshot.exports,
        service("east", "prod-web", "api", 80, "2026-01-01T11:30:00Z"),
    );
    settle(&mut snapshot);
    let plan = make_plan(&mut snapshot);
    assert_eq!(import(&snapshot, "prod-web-api-service")["namespace"], "prod");
    assert!(
        plan.issues
            .iter()
            .any(|n| n.message.contains("taken by Service prod/web-api")),
        "{:?}",
        plan.issues
    );
    delete(
        &mut snapshot.exports,
        &NamespacedName::new(NS, "west-prod-web-api-service"),
    );
    settle(&mut snapshot);
    assert_eq!(import(&snapshot, "prod-web-api-service")["namespace"], "prod-web");
}

#[test]
fn an_export_is_deleted_after_its_import() {
    let mut snapshot = leader_snapshot();
    insert(&mut snapshot.exports, cluster_info("east"));
    settle(&mut snapshot);
    delete(
        &mut snapshot.exports,
        &NamespacedName::new(NS, "east-clusterinfo"),
    );
    let first = reconcile(&mut snapshot);
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(snapshot.imports.is_empty() && snapshot.exports.len() == 1);
    settle(&mut snapshot);
    assert!(snapshot.exports.is_empty());
}

#[derive(Clone, Debug)]
struct AnyExport {
    cluster: usize,
    service: usize,
    port: u16,
    age: u8,
    with_endpoints: bool,
    deleted: bool,
}

fn any_exports() -> impl Strategy<Value = Vec<AnyExport>> {
    let one = (
        0usize..3,
        0usize..3,
        80u16..82,
        0u8..5,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(cluster, service, port, age, with_endpoints, deleted)| AnyExport {
                cluster,
                service,
                port,
                age,
                with_endpoints,
                deleted,
            },
        );
    proptest::collection::vec(one, 0..12)
}

proptest! {
    /// For any exports: plans converge, no deleted export remains, an import has only endpoints of exporters with its
    /// ports, and every import has an active export.
    #[test]
    fn plans_converge_and_are_consistent(exports in any_exports()) {
        let mut snapshot = leader_snapshot();
        for export in &exports {
            let cluster = ["a", "b", "c"][export.cluster];
            let (ns, name) = [("prod", "web-api"), ("prod-web", "api"), ("x", "y")][export.service];
            let created = format!("2026-01-01T0{}:00:00Z", export.age);
            insert(&mut snapshot.exports, service(cluster, ns, name, export.port, &created));
            if export.with_endpoints {
                insert(&mut snapshot.exports, endpoints(cluster, ns, name, "10.0.0.1"));
            }
        }
        settle(&mut snapshot);
        for export in exports.iter().filter(|export| export.deleted) {
            let (ns, name) = [("prod", "web-api"), ("prod-web", "api"), ("x", "y")][export.service];
            let export = names::service_export(["a", "b", "c"][export.cluster], ns, name);
            delete(&mut snapshot.exports, &NamespacedName::new(NS, export));
        }
        settle(&mut snapshot);
        for export in snapshot.exports.values() {
            prop_assert!(export.metadata.deletion_timestamp.is_none(), "{export:?}");
        }
        for import in snapshot.imports.values() {
            let tuple = (&import.spec.namespace, &import.spec.name);
            let of = |kind: &str| {
                snapshot.exports.values()
                    .filter(|e| e.spec.kind == kind && (&e.spec.namespace, &e.spec.name) == tuple)
                    .cloned().collect::<Vec<_>>()
            };
            prop_assert!(!of("Service").is_empty(), "{import:?}");
            let service = snapshot.imports[&NamespacedName::new(NS, names::service_import(tuple.0, tuple.1))].clone();
            let port = service.spec.service_import.as_ref().unwrap().spec.ports[0].port;
            for cluster in import.spec.endpoints.iter().flat_map(|e| &e.clusters) {
                let agrees = of("Service").iter().any(|e| {
                    e.spec.cluster_id == cluster.cluster_id
                        && e.spec.service.as_ref().unwrap().service_spec.ports.as_ref().unwrap()[0].port == port
                });
                prop_assert!(agrees, "{cluster:?} in {import:?}");
            }
        }
    }
}

#[test]
fn heartbeats_are_timed_by_the_leaders_clock() {
    let (t0, t1): (Timestamp, Timestamp) = (NOW.parse().unwrap(), "2026-01-01T12:00:10Z".parse().unwrap());
    let mut heartbeats = BTreeMap::new();
    let mut east = announce("east", "set", "north");
    // The member's clock is a year ahead, which has no effect.
    let touch = (
        names::ANNOTATION_TOUCH_TS.to_owned(),
        "2027-01-01T12:00:00Z".to_owned(),
    );
    east.metadata.annotations = Some([touch].into());
    heartbeat::record_heartbeats(&mut heartbeats, &[&east], t0);
    heartbeat::record_heartbeats(&mut heartbeats, &[&east], t1);
    assert_eq!(
        heartbeats["member-announce-from-east"].seen_at, t0,
        "an unchanged timestamp is no heartbeat"
    );
    heartbeat::record_heartbeats(&mut heartbeats, &[], t1);
    assert!(heartbeats.is_empty());
}
