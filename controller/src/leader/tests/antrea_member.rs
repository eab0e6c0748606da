//! A member of Antrea 2.7 with our leader, object by object: its documents as it writes them, and the answers that it
//! reads.
//!
//! The documents have the fields that Antrea's member controller writes
//! (`multicluster/controllers/multicluster/member`), and no field of ours.

use serde_json::Value;

use super::*;

/// An object of Antrea's member, with the API server's creation time.
fn written<K: serde::de::DeserializeOwned>(kind: &str, metadata: Value, rest: &Value) -> K {
    let mut document = json!({ "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": kind });
    document["metadata"] = metadata;
    document["metadata"]["namespace"] = json!(NS);
    document["metadata"]["creationTimestamp"] = json!(NOW);
    let fields = rest.as_object().unwrap().clone();
    document.as_object_mut().unwrap().extend(fields);
    object(document)
}

/// The announce as created; its heartbeats add `touch-ts`.
fn announce_of(cluster: &str) -> MemberClusterAnnounce {
    written(
        "MemberClusterAnnounce",
        json!({ "name": format!("member-announce-from-{cluster}") }),
        &json!({ "clusterID": cluster, "clusterSetID": "set", "leaderClusterID": "north" }),
    )
}

fn export_of(cluster: &str, kind: &str, name: &str, spec: &Value) -> ResourceExport {
    let mut labels = json!({ "sourceClusterID": cluster, "sourceKind": kind });
    if spec["namespace"] == "prod" {
        labels["sourceName"] = spec["name"].clone();
        labels["sourceNamespace"] = spec["namespace"].clone();
    }
    let mut metadata = json!({ "name": name, "labels": labels });
    if kind != "LabelIdentity" {
        metadata["finalizers"] = json!(["resourceexport.antrea.io/finalizer"]);
    }
    let mut all = json!({ "clusterID": cluster, "kind": kind });
    let fields = spec.as_object().unwrap().clone();
    all.as_object_mut().unwrap().extend(fields);
    written("ResourceExport", metadata, &json!({ "spec": all }))
}

fn service_of(cluster: &str, port: u16) -> ResourceExport {
    export_of(
        cluster,
        "Service",
        &format!("{cluster}-prod-web-service"),
        &json!({ "namespace": "prod", "name": "web", "service": { "serviceSpec": { "ports": [
            { "name": "http", "protocol": "TCP", "port": port, "targetPort": 8080, "nodePort": 30080 },
        ] } } }),
    )
}

fn subsets(ip: &str) -> Value {
    json!([{ "addresses": [{ "ip": ip }], "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] }])
}

fn endpoints_of(cluster: &str, ip: &str) -> ResourceExport {
    export_of(
        cluster,
        "Endpoints",
        &format!("{cluster}-prod-web-endpoints"),
        &json!({ "namespace": "prod", "name": "web", "endpoints": { "subsets": subsets(ip) } }),
    )
}

/// Exports the Service `prod/web` with one endpoint.
fn export_web(snapshot: &mut LeaderSnapshot, cluster: &str, ip: &str) {
    insert(&mut snapshot.exports, service_of(cluster, 80));
    insert(&mut snapshot.exports, endpoints_of(cluster, ip));
}

/// A leader with two members of Antrea, which have joined.
fn two_members() -> LeaderSnapshot {
    let mut snapshot = without_members();
    snapshot.label_id_shards = Some(ObjectMap::default());
    snapshot.config.stretched_network_policy = true;
    for cluster in ["east", "west"] {
        insert(&mut snapshot.announces, announce_of(cluster));
    }
    settle(&mut snapshot);
    snapshot
}

/// The parts of an import that Antrea's member reads: name, and spec with its field names.
fn assert_import(snapshot: &LeaderSnapshot, name: &str, wanted: &Value) {
    let found = import(snapshot, name);
    for (field, value) in wanted.as_object().unwrap() {
        assert_eq!(found[field], *value, "{field} of {name}: {found}");
    }
}

fn conditions(snapshot: &LeaderSnapshot, export: &str) -> Vec<(String, String, String)> {
    let export = &snapshot.exports[&NamespacedName::new(NS, export)];
    let conditions = export.status.iter().flat_map(|status| &status.conditions);
    conditions
        .map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone()))
        .collect()
}

fn condition(type_: &str, status: &str, reason: &str) -> Vec<(String, String, String)> {
    vec![(type_.to_owned(), status.to_owned(), reason.to_owned())]
}

#[test]
fn an_announce_gets_the_finalizer_and_keeps_its_heartbeat() {
    let mut snapshot = two_members();
    let name = NamespacedName::new(NS, "member-announce-from-east");
    let east = snapshot.announces[&name].as_ref().clone();
    assert_eq!(
        east.metadata.finalizers.clone().unwrap(),
        ["memberclusterannounce.finalizer.antrea.io/east"]
    );
    // Antrea updates the whole object as it has read it.
    let mut beat = east;
    let annotations = beat.metadata.annotations.get_or_insert_default();
    annotations.insert("touch-ts".to_owned(), "2026-01-01T12:00:10Z".to_owned());
    insert(&mut snapshot.announces, beat.clone());
    settle(&mut snapshot);
    assert_eq!(*snapshot.announces[&name], beat);
    let set = snapshot.cluster_sets.values().next().unwrap();
    let status = set.status.as_ref().unwrap();
    assert_eq!((status.total_clusters, status.ready_clusters), (2, 2));
    let ready = &status.cluster_statuses[0].conditions;
    let ready: Vec<_> = ready
        .iter()
        .map(|c| (c.type_.as_str(), c.reason.as_str(), c.message.as_str()))
        .collect();
    assert_eq!(ready, [("Ready", "Connected", "Member Connected")]);
}

#[test]
fn exports_of_a_service_become_the_imports_that_the_member_reads() {
    let mut snapshot = two_members();
    export_web(&mut snapshot, "east", "10.11.0.5");
    settle(&mut snapshot);
    assert_import(
        &snapshot,
        "prod-web-service",
        &json!({ "kind": "ServiceImport", "namespace": "prod", "name": "web" }),
    );
    let embedded = import(&snapshot, "prod-web-service")["serviceImport"].take();
    assert_eq!(embedded["spec"]["type"], "ClusterSetIP");
    let port = &embedded["spec"]["ports"];
    assert_eq!(*port, json!([{ "name": "http", "port": 80, "protocol": "TCP" }]));
    assert_import(
        &snapshot,
        "prod-web-endpoints",
        &json!({ "kind": "Endpoints", "namespace": "prod", "name": "web" }),
    );
    assert_eq!(
        import(&snapshot, "prod-web-endpoints")["endpoints"]["subsets"],
        subsets("10.11.0.5")
    );
    for export in ["east-prod-web-service", "east-prod-web-endpoints"] {
        assert_eq!(conditions(&snapshot, export), condition("Succeeded", "True", ""));
    }
}

#[test]
fn another_port_is_a_failure_as_the_member_knows_it() {
    let mut snapshot = two_members();
    export_web(&mut snapshot, "east", "10.11.0.5");
    settle(&mut snapshot);
    insert(&mut snapshot.exports, service_of("west", 81));
    settle(&mut snapshot);
    let failure = condition("Failure", "False", "ConvergeFailure");
    // Antrea reads the first condition; ours of the MCS API follows.
    assert_eq!(conditions(&snapshot, "west-prod-web-service")[..1], failure);
    let ports = &import(&snapshot, "prod-web-service")["serviceImport"]["spec"]["ports"];
    assert_eq!(ports[0]["port"], 80, "that of the first exporter");
}

#[test]
fn withdrawn_exports_are_released_after_their_imports() {
    let mut snapshot = two_members();
    for (cluster, ip) in [("east", "10.11.0.5"), ("west", "10.12.0.5")] {
        export_web(&mut snapshot, cluster, ip);
    }
    settle(&mut snapshot);
    let addresses = |snapshot: &LeaderSnapshot| -> BTreeSet<String> {
        let subsets = import(snapshot, "prod-web-endpoints")["endpoints"]["subsets"].take();
        let addresses = subsets.as_array().into_iter().flatten();
        addresses.map(|s| s["addresses"][0]["ip"].to_string()).collect()
    };
    assert_eq!(addresses(&snapshot).len(), 2);
    // Antrea's member deletes both exports; the finalizer keeps them.
    for kind in ["endpoints", "service"] {
        let name = NamespacedName::new(NS, format!("east-prod-web-{kind}"));
        delete(&mut snapshot.exports, &name);
        assert!(snapshot.exports.contains_key(&name));
    }
    settle(&mut snapshot);
    assert_eq!(addresses(&snapshot), ["\"10.12.0.5\"".to_owned()].into());
    let names: Vec<_> = snapshot.exports.keys().map(|key| key.name.clone()).collect();
    assert_eq!(names, ["west-prod-web-endpoints", "west-prod-web-service"]);
}

#[test]
fn a_network_is_distributed_under_its_name_without_a_status() {
    let mut snapshot = two_members();
    let info = json!({
        "clusterID": "east", "serviceCIDR": "10.20.0.0/16", "gatewayInfos": [{ "gatewayIP": "172.18.0.1" }],
    });
    let network = export_of(
        "east",
        "ClusterInfo",
        "east-clusterinfo",
        &json!({ "namespace": "kube-system", "name": "east", "clusterInfo": info }),
    );
    insert(&mut snapshot.exports, network);
    settle(&mut snapshot);
    assert_import(
        &snapshot,
        "east-clusterinfo",
        &json!({ "kind": "ClusterInfo", "namespace": NS, "name": "east-clusterinfo", "clusterinfo": info }),
    );
    assert!(conditions(&snapshot, "east-clusterinfo").is_empty());
}

#[test]
fn a_label_identity_has_its_hash_as_name_and_a_number_that_fits_a_vni() {
    let mut snapshot = two_members();
    // The test vector of Antrea's documentation.
    let label = "ns:kubernetes.io/metadata.name=us-west-1,purpose=test&pod:app=client";
    let export = export_of(
        "east",
        "LabelIdentity",
        "east-c5d961e1f6175a5a",
        &json!({ "namespace": "kube-system", "name": "c5d961e1f6175a5a",
            "labelIdentity": { "normalizedLabel": label } }),
    );
    insert(&mut snapshot.exports, export);
    settle(&mut snapshot);
    let identity = import(&snapshot, "c5d961e1f6175a5a");
    assert_eq!(identity["labelIdentity"]["label"], label);
    let id = identity["labelIdentity"]["id"].as_u64().unwrap();
    assert!((1..=0x00ff_fffe).contains(&id), "{id}");
    assert!(conditions(&snapshot, "east-c5d961e1f6175a5a").is_empty());
}

#[test]
fn a_policy_of_an_administrator_is_distributed_under_antreas_name() {
    let mut snapshot = two_members();
    let policy = json!({ "priority": 1.0, "tier": "securityops",
        "appliedTo": [{ "namespaceSelector": {} }], "ingress": [{ "action": "Drop" }] });
    // Administrators write no labels: Antrea's webhook adds them, and neither a cluster ID.
    let export = written(
        "ResourceExport",
        json!({ "name": "strict-export" }),
        &json!({ "spec": { "kind": "AntreaClusterNetworkPolicy", "name": "strict", "clusterNetworkPolicy": policy } }),
    );
    insert::<ResourceExport>(&mut snapshot.exports, export);
    settle(&mut snapshot);
    let found = import(&snapshot, "strict-antreaclusternetworkpolicy");
    assert_eq!(found["kind"], "AntreaClusterNetworkPolicy");
    assert_eq!(found["name"], "strict");
    assert_eq!(found["clusternetworkpolicy"]["tier"], "securityops");
    assert_eq!(
        conditions(&snapshot, "strict-export"),
        condition("Succeeded", "True", "")
    );
}

#[test]
fn a_member_that_leaves_deletes_its_announce_and_the_leader_the_rest() {
    let mut snapshot = two_members();
    export_web(&mut snapshot, "east", "10.11.0.5");
    settle(&mut snapshot);
    delete(
        &mut snapshot.announces,
        &NamespacedName::new(NS, "member-announce-from-east"),
    );
    settle(&mut snapshot);
    assert!(snapshot.exports.is_empty() && snapshot.imports.is_empty());
    let names: Vec<_> = snapshot.announces.keys().map(|key| key.name.clone()).collect();
    assert_eq!(names, ["member-announce-from-west"]);
}
