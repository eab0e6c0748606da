//! The leader's plan on made-up worlds.

mod label_identities;
mod legacy_api;
mod observability;
mod policies;
mod services;
mod stale;

use std::collections::BTreeMap;

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
        LeaderSnapshot, NamespacedName, ObjectMap, OptionalKind,
        fake::{NOW, apply_write, delete, insert, object},
    },
};

const NS: &str = "antrea-multicluster";

fn world() -> LeaderSnapshot {
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
        announces: ObjectMap::default(),
        exports: ObjectMap::default(),
        imports: ObjectMap::default(),
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
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
        "metadata": {
            "name": names::cluster_info(cluster), "namespace": NS, "creationTimestamp": NOW,
            "finalizers": [names::FINALIZER_RESOURCE_EXPORT_LEGACY],
        },
        "spec": {
            "clusterID": cluster, "namespace": "kube-system", "name": cluster, "kind": "ClusterInfo",
            "clusterInfo": { "clusterID": cluster, "serviceCIDR": "10.20.0.0/16" },
        },
    }))
}

fn step(world: &mut LeaderSnapshot) -> Vec<Write> {
    let plan = look(world);
    for action in &plan.writes {
        apply_write(&mut world.cluster_sets, action);
        apply_write(&mut world.service_account_bindings, action);
        apply_write(&mut world.announces, action);
        apply_write(&mut world.exports, action);
        apply_write(&mut world.imports, action);
        if let Some(records) = &mut world.label_id_shards {
            apply_write(records, action);
        }
    }
    plan.writes
}

fn look(world: &mut LeaderSnapshot) -> Plan {
    let all: Vec<_> = world.announces.values().map(AsRef::as_ref).collect();
    heartbeat::record_heartbeats(&mut world.heartbeats, &all, world.now);
    plan(world)
}

/// Steps until nothing is left to do.
fn settle(world: &mut LeaderSnapshot) {
    let quiet = (0..8).any(|_| step(world).is_empty());
    assert!(quiet, "still to do after 8 rounds: {:#?}", look(world).writes);
}

fn import(world: &LeaderSnapshot, name: &str) -> serde_json::Value {
    let found = world.imports.get(&NamespacedName::new(NS, name));
    found.map_or(serde_json::Value::Null, |i| {
        serde_json::to_value(&i.spec).unwrap()
    })
}

#[test]
fn a_member_is_accepted_and_counted() {
    let mut world = world();
    insert(&mut world.announces, announce("east", "set", "north"));
    settle(&mut world);
    let last = look(&mut world);
    let announce = world.announces.values().next().unwrap();
    assert_eq!(
        announce.metadata.finalizers.as_ref().unwrap()[..],
        [names::member_announce_finalizer("east")]
    );
    let status = world
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
        "the end of its readiness is waited for"
    );
}

#[test]
fn silence_makes_a_member_unready_by_our_clock() {
    let mut world = world();
    let mut east = announce("east", "set", "north");
    // Its clock is a year off; that alone means nothing.
    east.metadata.annotations = Some([("touch-ts".to_owned(), "2025-01-01T00:00:00Z".to_owned())].into());
    insert(&mut world.announces, east);
    settle(&mut world);
    assert_eq!(
        world
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
    world.now = world.now.checked_add(SignedDuration::from_secs(31)).unwrap();
    world.announces = ObjectMap::default();
    insert(&mut world.announces, announce("east", "set", "north"));
    settle(&mut world);
    assert_eq!(
        world
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
    world.now = world.now.checked_add(SignedDuration::from_secs(31)).unwrap();
    settle(&mut world);
    let status = world
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

/// A member whose clock was two days behind lost its exports when nothing was heard of it for 31 s.
#[test]
fn silence_removes_no_member() {
    let mut world = world();
    let mut east = announce("east", "set", "north");
    east.metadata.annotations = Some([("touch-ts".to_owned(), "2025-01-01T00:00:00Z".to_owned())].into());
    insert(&mut world.announces, east);
    insert(
        &mut world.exports,
        service("east", "prod", "web", 80, "2026-01-01T00:00:00Z"),
    );
    settle(&mut world);
    for hours in [1, 25, 10_000] {
        world.now = world.now.checked_add(SignedDuration::from_hours(hours)).unwrap();
        settle(&mut world);
        assert_eq!((world.announces.len(), world.exports.len()), (1, 1), "{hours} h");
    }
}

#[test]
fn a_wrong_cluster_set_name_is_refused_with_both_names() {
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
        let mut world = world();
        insert(&mut world.announces, bad);
        settle(&mut world);
        let plan = look(&mut world);
        let announce = world.announces.values().next().unwrap();
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
            world
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
fn a_refusal_is_taken_back() {
    let mut world = world();
    let sets = std::mem::take(&mut world.cluster_sets);
    insert(&mut world.announces, announce("east", "set", "north"));
    settle(&mut world);
    let refused = |w: &LeaderSnapshot| {
        let announce = w.announces.values().next().unwrap().clone();
        names::ANNOTATION_REJECTED_REASON.get(announce.as_ref()).is_some()
    };
    assert!(refused(&world));
    world.cluster_sets = sets;
    settle(&mut world);
    assert!(!refused(&world));
}

#[test]
fn a_leaver_takes_its_exports_along() {
    let mut world = world();
    insert(&mut world.announces, announce("east", "set", "north"));
    insert(&mut world.announces, announce("west", "set", "north"));
    for cluster in ["east", "west"] {
        insert(&mut world.exports, service(cluster, "shop", "web", 80, NOW));
        insert(&mut world.exports, endpoints(cluster, "shop", "web", "10.0.0.1"));
        insert(&mut world.exports, cluster_info(cluster));
    }
    settle(&mut world);
    assert_eq!(world.imports.len(), 4);
    delete(
        &mut world.announces,
        &NamespacedName::new(NS, names::member_announce("east")),
    );
    settle(&mut world);
    assert_eq!(world.announces.len(), 1);
    assert!(
        world.exports.values().all(|e| e.spec.cluster_id == "west"),
        "{:?}",
        world.exports.keys()
    );
    assert_eq!(world.imports.len(), 3);
    let clusters = &import(&world, "shop-web-endpoints")["endpoints"]["clusters"];
    assert_eq!(clusters.as_array().unwrap().len(), 1);
}

#[test]
fn a_leaver_takes_nothing_of_a_cluster_whose_id_begins_alike() {
    let mut world = world();
    for cluster in ["east", "east-2"] {
        insert(&mut world.announces, announce(cluster, "set", "north"));
        insert(&mut world.exports, service(cluster, "shop", "web", 80, NOW));
        insert(&mut world.exports, cluster_info(cluster));
    }
    settle(&mut world);
    delete(
        &mut world.announces,
        &NamespacedName::new(NS, names::member_announce("east")),
    );
    settle(&mut world);
    let left: Vec<_> = world
        .exports
        .values()
        .map(|e| e.spec.cluster_id.as_str())
        .collect();
    assert_eq!(left, ["east-2", "east-2"]);
    assert_eq!(world.announces.len(), 1);
}

#[test]
fn what_others_wait_for_stays_when_an_export_is_let_go() {
    let mut world = world();
    let mut export = cluster_info("east");
    let hold = "example.com/hold".to_owned();
    export
        .metadata
        .finalizers
        .get_or_insert_default()
        .push(hold.clone());
    insert(&mut world.exports, export);
    settle(&mut world);
    delete(&mut world.exports, &NamespacedName::new(NS, "east-clusterinfo"));
    settle(&mut world);
    let left = world.exports.values().next().expect("it is held");
    assert_eq!(left.metadata.finalizers, Some(vec![hold]));
}

#[test]
fn endpoints_are_kept_by_cluster_and_in_one_list() {
    let mut world = world();
    for (cluster, ip) in [("west", "10.2.0.1"), ("east", "10.1.0.1")] {
        insert(&mut world.exports, service(cluster, "shop", "web", 80, NOW));
        insert(&mut world.exports, endpoints(cluster, "shop", "web", ip));
    }
    settle(&mut world);
    let spec = import(&world, "shop-web-endpoints");
    assert_eq!(spec["endpoints"]["clusters"][0]["clusterID"], "east");
    assert_eq!(spec["endpoints"]["clusters"][1]["clusterID"], "west");
    assert_eq!(spec["endpoints"]["subsets"][0]["addresses"][0]["ip"], "10.1.0.1");
    assert_eq!(spec["endpoints"]["subsets"][1]["addresses"][0]["ip"], "10.2.0.1");
    let spec = import(&world, "shop-web-service");
    assert_eq!(
        spec["serviceImport"]["metadata"],
        json!({ "name": "web", "namespace": "shop" })
    );
    assert_eq!(spec["serviceImport"]["spec"]["type"], "ClusterSetIP");
    let statuses: Vec<_> = world
        .exports
        .values()
        .map(|e| e.status.clone().unwrap().conditions[0].type_.clone())
        .collect();
    assert_eq!(statuses, ["Succeeded"; 4]);
}

#[test]
fn the_first_writer_of_ports_wins_until_it_leaves() {
    let mut world = world();
    insert(
        &mut world.exports,
        service("west", "shop", "web", 80, "2026-01-01T11:00:00Z"),
    );
    insert(&mut world.exports, endpoints("west", "shop", "web", "10.2.0.1"));
    settle(&mut world);
    // Of the same second and first by name, yet later: what is offered already stays.
    insert(
        &mut world.exports,
        service("east", "shop", "web", 81, "2026-01-01T11:00:00Z"),
    );
    insert(&mut world.exports, endpoints("east", "shop", "web", "10.1.0.1"));
    settle(&mut world);
    let plan = look(&mut world);
    let ports = |w: &LeaderSnapshot| {
        import(w, "shop-web-service")["serviceImport"]["spec"]["ports"][0]["port"].clone()
    };
    assert_eq!(ports(&world), 80);
    assert_eq!(
        import(&world, "shop-web-endpoints")["endpoints"]["clusters"]
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
    let status = world.exports[&NamespacedName::new(NS, "east-shop-web-service")]
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
        delete(&mut world.exports, &NamespacedName::new(NS, name));
    }
    settle(&mut world);
    assert_eq!(ports(&world), 81);
    assert_eq!(
        import(&world, "shop-web-endpoints")["endpoints"]["clusters"][0]["clusterID"],
        "east"
    );
}

#[test]
fn which_account_is_which_cluster_is_written_down() {
    let mut world = world();
    let account = |name: &str, id: Option<&str>| -> ServiceAccount {
        let annotations: BTreeMap<_, _> = id
            .map(|id| (names::ANNOTATION_CLUSTER_ID, id))
            .into_iter()
            .collect();
        object(json!({ "metadata": { "name": name, "namespace": NS, "annotations": annotations } }))
    };
    let identities = |world: &LeaderSnapshot| {
        let map = world
            .service_account_bindings
            .get(&NamespacedName::new(NS, names::SERVICE_ACCOUNT_BINDINGS));
        json!(map.expect("a ConfigMap").data)
    };
    settle(&mut world);
    assert_eq!(identities(&world), json!(null), "nobody is bound");
    insert(&mut world.service_accounts, account("member-east", Some("east")));
    insert(&mut world.service_accounts, account("default", None));
    insert(
        &mut world.service_accounts,
        account("member-odd", Some("Odd One")),
    );
    let plan = look(&mut world);
    assert!(
        plan.issues
            .iter()
            .any(|n| n.subject == "ServiceAccount member-odd" && n.message.contains("\"Odd One\"")),
        "{:?}",
        plan.issues
    );
    settle(&mut world);
    assert_eq!(
        identities(&world),
        json!({ "member-east": "east", "member-odd": "" })
    );
    insert(
        &mut world.service_accounts,
        account("member-east", Some("east-2")),
    );
    settle(&mut world);
    assert_eq!(
        identities(&world),
        json!({ "member-east": "east-2", "member-odd": "" })
    );
    // Somebody who writes into it does not get far.
    let map = json!({ "metadata": { "name": names::SERVICE_ACCOUNT_BINDINGS, "namespace": NS }, "data": { "default": "east" } });
    insert(&mut world.service_account_bindings, object::<ConfigMap>(map));
    settle(&mut world);
    assert_eq!(
        identities(&world),
        json!({ "member-east": "east-2", "member-odd": "" })
    );
}

#[test]
fn two_services_that_want_one_name_do_not_mix() {
    let mut world = world();
    insert(
        &mut world.exports,
        service("west", "prod", "web-api", 80, "2026-01-01T11:00:00Z"),
    );
    insert(
        &mut world.exports,
        service("east", "prod-web", "api", 80, "2026-01-01T11:30:00Z"),
    );
    settle(&mut world);
    let plan = look(&mut world);
    assert_eq!(import(&world, "prod-web-api-service")["namespace"], "prod");
    assert!(
        plan.issues
            .iter()
            .any(|n| n.message.contains("taken by Service prod/web-api")),
        "{:?}",
        plan.issues
    );
    delete(
        &mut world.exports,
        &NamespacedName::new(NS, "west-prod-web-api-service"),
    );
    settle(&mut world);
    assert_eq!(import(&world, "prod-web-api-service")["namespace"], "prod-web");
}

#[test]
fn an_export_goes_only_after_its_import() {
    let mut world = world();
    insert(&mut world.exports, cluster_info("east"));
    settle(&mut world);
    delete(&mut world.exports, &NamespacedName::new(NS, "east-clusterinfo"));
    let first = step(&mut world);
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(world.imports.is_empty() && world.exports.len() == 1);
    settle(&mut world);
    assert!(world.exports.is_empty());
}

#[derive(Clone, Debug)]
struct Draw {
    cluster: usize,
    service: usize,
    port: u16,
    age: u8,
    with_endpoints: bool,
    deleted: bool,
}

fn draws() -> impl Strategy<Value = Vec<Draw>> {
    let one = (
        0usize..3,
        0usize..3,
        80u16..82,
        0u8..5,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(cluster, service, port, age, with_endpoints, deleted)| Draw {
            cluster,
            service,
            port,
            age,
            with_endpoints,
            deleted,
        });
    proptest::collection::vec(one, 0..12)
}

proptest! {
    /// Whatever is exported: the plan comes to rest, nothing deleted lingers, an import has only endpoints whose
    /// exporter agrees on the ports, and every import has a live export.
    #[test]
    fn plans_come_to_rest_and_agree(draws in draws()) {
        let mut world = world();
        for d in &draws {
            let cluster = ["a", "b", "c"][d.cluster];
            let (ns, name) = [("prod", "web-api"), ("prod-web", "api"), ("x", "y")][d.service];
            let created = format!("2026-01-01T0{}:00:00Z", d.age);
            insert(&mut world.exports, service(cluster, ns, name, d.port, &created));
            if d.with_endpoints {
                insert(&mut world.exports, endpoints(cluster, ns, name, "10.0.0.1"));
            }
        }
        settle(&mut world);
        for d in draws.iter().filter(|d| d.deleted) {
            let (ns, name) = [("prod", "web-api"), ("prod-web", "api"), ("x", "y")][d.service];
            let export = names::service_export(["a", "b", "c"][d.cluster], ns, name);
            delete(&mut world.exports, &NamespacedName::new(NS, export));
        }
        settle(&mut world);
        for export in world.exports.values() {
            prop_assert!(export.metadata.deletion_timestamp.is_none(), "{export:?}");
        }
        for import in world.imports.values() {
            let tuple = (&import.spec.namespace, &import.spec.name);
            let of = |kind: &str| {
                world.exports.values()
                    .filter(|e| e.spec.kind == kind && (&e.spec.namespace, &e.spec.name) == tuple)
                    .cloned().collect::<Vec<_>>()
            };
            prop_assert!(!of("Service").is_empty(), "{import:?}");
            let service = world.imports[&NamespacedName::new(NS, names::service_import(tuple.0, tuple.1))].clone();
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
fn what_is_heard_is_timed_by_our_clock() {
    let (t0, t1): (Timestamp, Timestamp) = (NOW.parse().unwrap(), "2026-01-01T12:00:10Z".parse().unwrap());
    let mut heard = BTreeMap::new();
    let mut east = announce("east", "set", "north");
    // Its clock is a year ahead: that means nothing.
    let touch = (
        names::ANNOTATION_TOUCH_TS.to_owned(),
        "2027-01-01T12:00:00Z".to_owned(),
    );
    east.metadata.annotations = Some([touch].into());
    heartbeat::record_heartbeats(&mut heard, &[&east], t0);
    heartbeat::record_heartbeats(&mut heard, &[&east], t1);
    assert_eq!(
        heard["member-announce-from-east"].seen_at, t0,
        "no change, no sign of life"
    );
    heartbeat::record_heartbeats(&mut heard, &[], t1);
    assert!(heard.is_empty());
}
