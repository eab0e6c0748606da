//! Exported endpoints outside the ranges of their cluster (finding S2).

use super::*;

/// Service `web` of cluster `west`, which announces its Pods, beside `east`, which does not.
fn two_networks(west: &[&str]) -> LeaderSnapshot {
    let mut snapshot = leader_snapshot();
    insert(
        &mut snapshot.exports,
        network_export("west", "10.1.0.0/16", &["10.2.0.0/16"]),
    );
    insert(&mut snapshot.exports, network_export("east", "10.3.0.0/16", &[]));
    export_endpoints(&mut snapshot, "west", west);
    snapshot
}

fn export_endpoints(snapshot: &mut LeaderSnapshot, cluster: &str, ips: &[&str]) {
    insert(&mut snapshot.exports, service(cluster, "shop", "web", 80, NOW));
    let mut export = endpoints(cluster, "shop", "web", "");
    let addresses: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
    export.spec.endpoints = Some(object(json!({ "subsets": [{
        "addresses": addresses, "ports": [{ "name": "http", "port": 80 }],
    }]})));
    insert(&mut snapshot.exports, export);
}

/// The addresses that the leader distributes, by cluster.
fn distributed(snapshot: &LeaderSnapshot) -> BTreeMap<String, Vec<String>> {
    let name = NamespacedName::new(NS, "shop-web-endpoints");
    let import = snapshot.imports.get(&name);
    let clusters = import
        .and_then(|i| i.spec.endpoints.as_ref())
        .map(|e| &e.clusters);
    let addresses =
        |subset: &k8s_openapi::api::core::v1::EndpointSubset| subset.addresses.clone().unwrap_or_default();
    clusters
        .into_iter()
        .flatten()
        .map(|c| {
            let all = c.subsets.iter().flat_map(addresses).map(|a| a.ip);
            (c.cluster_id.clone(), all.collect())
        })
        .collect()
}

#[test]
fn an_address_outside_the_ranges_is_left_out_alone() {
    let mut snapshot = two_networks(&["10.1.0.7", "10.3.0.9", "10.2.4.4", "192.0.2.10"]);
    settle(&mut snapshot);
    assert_eq!(distributed(&snapshot)["west"], ["10.1.0.7", "10.2.4.4"]);
    let why = failure(&snapshot, "west-shop-web-endpoints").unwrap();
    let expected = "spec.endpoints.subsets[0].addresses[1].ip: 10.3.0.9 is outside the Service and Pod CIDRs that \
                    cluster \"west\" announces; left out, and 1 more addresses";
    assert!(why.contains(expected), "{why}");
    // Once the cluster announces the range the address is distributed; a range of another cluster is none of its own.
    let wide = network_export(
        "west",
        "10.1.0.0/16",
        &["10.2.0.0/16", "10.3.0.9/32", "192.0.2.0/24"],
    );
    insert(&mut snapshot.exports, wide);
    settle(&mut snapshot);
    assert_eq!(
        distributed(&snapshot)["west"],
        ["10.1.0.7", "10.2.4.4", "192.0.2.10"]
    );
    assert!(
        failure(&snapshot, "west-shop-web-endpoints")
            .unwrap()
            .ends_with("left out")
    );
}

#[test]
fn a_cluster_with_foreign_endpoints_alone_has_none() {
    let mut snapshot = two_networks(&["192.0.2.10"]);
    settle(&mut snapshot);
    assert_eq!(distributed(&snapshot), BTreeMap::new());
    assert!(failure(&snapshot, "west-shop-web-endpoints").is_some());
    // An administrator accepts the addresses of Nodes.
    snapshot.config.additional_endpoint_cidrs = vec!["192.0.2.0/24".parse().unwrap()];
    settle(&mut snapshot);
    assert_eq!(distributed(&snapshot)["west"], ["192.0.2.10"]);
}

#[test]
fn a_cluster_without_pod_cidrs_exports_no_address_of_another_one() {
    let mut snapshot = two_networks(&["10.1.0.7"]);
    export_endpoints(&mut snapshot, "east", &["10.2.0.8", "10.1.0.7", "198.51.100.7"]);
    settle(&mut snapshot);
    assert_eq!(distributed(&snapshot)["east"], ["198.51.100.7"]);
    let why = failure(&snapshot, "east-shop-web-endpoints").unwrap();
    let expected = "addresses[0].ip: 10.2.0.8 is in 10.2.0.0/16 of cluster \"west\"";
    assert!(why.contains(expected), "{why}");
}

/// The ranges of a member without gateways are in the record alone.
#[test]
fn recorded_ranges_are_those_of_their_cluster_without_an_announcement() {
    let mut snapshot = two_networks(&["10.1.0.7"]);
    settle(&mut snapshot);
    delete(
        &mut snapshot.exports,
        &NamespacedName::new(NS, names::cluster_info("west")),
    );
    export_endpoints(&mut snapshot, "east", &["10.2.0.8", "198.51.100.7"]);
    settle(&mut snapshot);
    assert_eq!(distributed(&snapshot)["east"], ["198.51.100.7"]);
    assert_eq!(distributed(&snapshot)["west"], ["10.1.0.7"]);
    let why = failure(&snapshot, "east-shop-web-endpoints").unwrap();
    assert!(
        why.contains("10.2.0.8 is in 10.2.0.0/16 of cluster \"west\""),
        "{why}"
    );
}

/// The content of a `ClusterInfo` names the cluster whose ranges it has.
#[test]
fn a_network_with_the_id_of_another_cluster_is_ignored() {
    let mut snapshot = two_networks(&["10.1.0.7"]);
    let mut forged = network_export("east", "10.3.0.0/16", &["10.0.0.0/8"]);
    forged.spec.cluster_info.as_mut().unwrap().cluster_id = "west".to_owned();
    insert(&mut snapshot.exports, forged);
    assert_issue(
        &mut snapshot,
        "spec.clusterInfo.clusterID \"west\" is not spec.clusterID, \"east\"",
    );
    settle(&mut snapshot);
    assert!(
        !snapshot
            .imports
            .contains_key(&NamespacedName::new(NS, "east-clusterinfo"))
    );
}
