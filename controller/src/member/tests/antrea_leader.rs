//! Our member with a leader of Antrea 2.7, object by object: the documents that Antrea's webhooks admit and its
//! controllers read, and the imports as they write them.
//!
//! Antrea's leader knows no field of ours: it stores documents in its own CRDs, which drop unknown fields, and its
//! imports name no clusters.

use kube::Resource;
use mc_api::{label_identity::LabelIdentity, network_policy::ClusterNetworkPolicy};

use super::*;

/// An import as Antrea's leader writes it.
fn written(name: &str, spec: &Value) -> ResourceImport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
        "metadata": { "name": name, "namespace": LEADER_NS, "creationTimestamp": NOW },
        "spec": spec,
    }))
}

/// The document of an object without its metadata.
fn document<K: Resource + serde::Serialize>(object: &K) -> Value {
    let mut document = serde_json::to_value(object).unwrap();
    document.as_object_mut().unwrap().remove("metadata");
    document
}

fn exported(snapshot: &MemberSnapshot, name: &str) -> ResourceExport {
    export(snapshot, name)
        .unwrap_or_else(|| panic!("no export {name}"))
        .as_ref()
        .clone()
}

/// The rules of Antrea's validating webhook for a new export of a member with an annotated account.
fn assert_admitted(export: &ResourceExport) {
    let spec = &export.spec;
    let labels = export.labels();
    assert_eq!(spec.cluster_id, "east");
    assert_eq!(
        (labels["sourceClusterID"].as_str(), labels["sourceKind"].as_str()),
        ("east", spec.kind.as_str())
    );
    let derived = match spec.kind.as_str() {
        "Service" | "Endpoints" => {
            assert_eq!(
                (&labels["sourceName"], &labels["sourceNamespace"]),
                (&spec.name, &spec.namespace)
            );
            assert_eq!(spec.service.is_some(), spec.kind == "Service");
            assert_eq!(spec.endpoints.is_some(), spec.kind == "Endpoints");
            format!(
                "east-{}-{}-{}",
                spec.namespace,
                spec.name,
                spec.kind.to_lowercase()
            )
        }
        "ClusterInfo" => {
            assert_eq!(spec.cluster_info.as_ref().unwrap().cluster_id, "east");
            "east-clusterinfo".to_owned()
        }
        other => panic!("kind {other:?} is refused"),
    };
    assert_eq!(export.name_any(), derived);
    assert_eq!(export.finalizers(), ["resourceexport.antrea.io/finalizer"]);
}

#[test]
fn a_member_joins_by_its_announce_and_updates_its_heartbeat_alone() {
    let mut snapshot = snapshot();
    leader(&mut snapshot).announces = ObjectMap::default();
    settle(&mut snapshot);
    let mut announce = leader(&mut snapshot)
        .announces
        .values()
        .next()
        .unwrap()
        .as_ref()
        .clone();
    assert_eq!(announce.name_any(), "member-announce-from-east");
    let ids = json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "MemberClusterAnnounce",
        "clusterID": "east", "clusterSetID": "set", "leaderClusterID": "north",
    });
    assert_eq!(document(&announce), ids);
    assert_eq!(ready(&snapshot).1, "NotAccepted");
    // Antrea's leader accepts a member by its finalizer alone.
    announce.metadata.finalizers = Some(vec!["memberclusterannounce.finalizer.antrea.io/east".to_owned()]);
    insert(&mut leader(&mut snapshot).announces, announce.clone());
    settle(&mut snapshot);
    assert_eq!(ready(&snapshot).0, "True");
    snapshot.now = "2026-01-01T12:00:10Z".parse().unwrap();
    settle(&mut snapshot);
    let beat = leader(&mut snapshot)
        .announces
        .values()
        .next()
        .unwrap()
        .as_ref()
        .clone();
    assert_eq!(beat.annotations()["touch-ts"], "2026-01-01T12:00:10Z");
    assert_eq!((document(&beat), beat.finalizers()), (ids, announce.finalizers()));
}

#[test]
fn exports_pass_the_webhook_and_have_antreas_fields() {
    let mut snapshot = exporting();
    insert(&mut snapshot.nodes, candidate("node-a", true, "172.18.0.1"));
    settle(&mut snapshot);
    let names: Vec<_> = leader(&mut snapshot)
        .exports
        .keys()
        .map(|key| key.name.clone())
        .collect();
    assert_eq!(
        names,
        [
            "east-clusterinfo",
            "east-shop-web-endpoints",
            "east-shop-web-service"
        ]
    );
    for name in names {
        assert_admitted(&exported(&snapshot, &name));
    }
    let service = serde_json::to_value(exported(&snapshot, "east-shop-web-service").spec.service).unwrap();
    let port = &service["serviceSpec"]["ports"][0];
    assert_eq!(
        (&port["name"], &port["protocol"], &port["port"]),
        (&json!("http"), &json!("TCP"), &json!(80))
    );
    let endpoints =
        serde_json::to_value(exported(&snapshot, "east-shop-web-endpoints").spec.endpoints).unwrap();
    let subset = &endpoints["subsets"][0];
    assert_eq!(subset["addresses"], json!([{ "ip": "10.20.0.5" }]));
    assert_eq!(
        subset["ports"],
        json!([{ "name": "http", "port": 80, "protocol": "TCP" }])
    );
    let info = serde_json::to_value(exported(&snapshot, "east-clusterinfo").spec.cluster_info).unwrap();
    // Antrea reads the first gateway.
    assert_eq!(info["gatewayInfos"][0]["gatewayIP"], "172.18.0.1");
    assert_eq!(
        (&info["clusterID"], &info["serviceCIDR"]),
        (&json!("east"), &json!("10.20.0.0/16"))
    );
}

/// Antrea's leader reports a success and a failure with one condition each, and nothing about a `ClusterInfo`.
#[test]
fn the_status_of_exports_is_that_of_the_service_export() {
    let mut snapshot = exporting();
    settle(&mut snapshot);
    let report = |snapshot: &mut MemberSnapshot, condition: Value| {
        for kind in ["service", "endpoints"] {
            let mut answered = exported(snapshot, &format!("east-shop-web-{kind}"));
            answered.status = Some(object(json!({ "conditions": [condition] })));
            insert(&mut leader(snapshot).exports, answered);
        }
        settle(snapshot);
        let found = conditions(snapshot).into_iter();
        found.map(|c| (c.type_, c.status)).collect::<BTreeMap<_, _>>()
    };
    let succeeded = json!({ "type": "Succeeded", "status": "True", "reason": "", "message": "" });
    let found = report(&mut snapshot, succeeded);
    assert_eq!(
        (found["Valid"].as_str(), found["Ready"].as_str()),
        ("True", "True")
    );
    let failed = json!({ "type": "Failure", "status": "False", "reason": "ConvergeFailure",
        "message": "ResourceExport can't be converged to ResourceImport" });
    let found = report(&mut snapshot, failed);
    assert_eq!(
        (found["Ready"].as_str(), found["Conflict"].as_str()),
        ("False", "True")
    );
}

#[test]
fn imports_become_services_with_the_endpoints_of_all_clusters() {
    let mut snapshot = snapshot();
    let service = written(
        "shop-web-service",
        &json!({ "kind": "ServiceImport", "namespace": "shop", "name": "web", "serviceImport": {
            "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport",
            "metadata": { "name": "web", "namespace": "shop", "creationTimestamp": null },
            "spec": { "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }], "type": "ClusterSetIP" },
            "status": {},
        } }),
    );
    let of = |ip: &str| {
        json!({ "addresses": [{ "ip": ip }],
        "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] })
    };
    let endpoints = written(
        "shop-web-endpoints",
        &json!({ "kind": "Endpoints", "namespace": "shop", "name": "web",
            "endpoints": { "subsets": [of("10.30.0.9"), of("10.40.0.9")] } }),
    );
    insert(&mut leader(&mut snapshot).imports, service);
    insert(&mut leader(&mut snapshot).imports, endpoints);
    settle(&mut snapshot);
    let service = &snapshot.services[&NamespacedName::new("shop", "antrea-mc-web")];
    assert_eq!(
        service.annotations()["multicluster.antrea.io/imported-service"],
        "true"
    );
    let ips: BTreeSet<_> = snapshot
        .endpoint_slices
        .values()
        .flat_map(|slice| &slice.endpoints)
        .flat_map(|endpoint| endpoint.addresses.clone())
        .collect();
    assert_eq!(ips, ["10.30.0.9".to_owned(), "10.40.0.9".to_owned()].into());
    let import = snapshot.service_imports.values().next().unwrap();
    assert_eq!(import.name_any(), "web");
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    assert!(snapshot.services.is_empty() && snapshot.service_imports.is_empty());
}

#[test]
fn networks_of_others_are_imported_under_their_names() {
    let mut snapshot = snapshot();
    for (cluster, octet) in [("west", 30), ("east", 20)] {
        let name = format!("{cluster}-clusterinfo");
        let info = json!({ "clusterID": cluster, "serviceCIDR": format!("10.{octet}.0.0/16"),
            "gatewayInfos": [{ "gatewayIP": "172.18.0.9" }] });
        let spec =
            json!({ "kind": "ClusterInfo", "name": name, "namespace": LEADER_NS, "clusterinfo": info });
        insert(&mut leader(&mut snapshot).imports, written(&name, &spec));
    }
    settle(&mut snapshot);
    let imported: Vec<_> = snapshot
        .cluster_infos
        .values()
        .map(|import| import.name_any())
        .collect();
    assert_eq!(imported, ["west-clusterinfo"]);
}

#[test]
fn label_identities_and_policies_are_imported_under_antreas_names() {
    let mut snapshot = snapshot();
    snapshot.config.stretched_network_policy = true;
    snapshot.policies = OptionalKind::Present(ObjectMap::default());
    snapshot.tiers = OptionalKind::Present(ObjectMap::default());
    let tier = json!({ "metadata": { "name": "securityops" }, "spec": { "priority": 100 } });
    insert(present(&mut snapshot.tiers), object(tier));
    // The test vector of Antrea's documentation.
    let label = "ns:kubernetes.io/metadata.name=us-west-1,purpose=test&pod:app=client";
    let identity = json!({ "kind": "LabelIdentity", "labelIdentity": { "label": label, "id": 7 } });
    insert(
        &mut leader(&mut snapshot).imports,
        written("c5d961e1f6175a5a", &identity),
    );
    let policy = json!({ "priority": 1.0, "tier": "securityops",
        "appliedTo": [{ "namespaceSelector": {} }], "ingress": [{ "action": "Drop" }] });
    let spec =
        json!({ "kind": "AntreaClusterNetworkPolicy", "name": "strict", "clusternetworkpolicy": policy });
    let name = "strict-antreaclusternetworkpolicy";
    insert(&mut leader(&mut snapshot).imports, written(name, &spec));
    settle(&mut snapshot);
    let identities = present::<LabelIdentity>(&mut snapshot.label_identities);
    let identity = &identities[&NamespacedName::new("", "c5d961e1f6175a5a")];
    assert_eq!((identity.spec.label.as_str(), identity.spec.id), (label, 7));
    let policies = present::<ClusterNetworkPolicy>(&mut snapshot.policies);
    let policy = &policies[&NamespacedName::new("", "antrea-mc-strict")];
    assert_eq!(
        policy.annotations()["multicluster.antrea.io/imported-acnp"],
        "true"
    );
}
