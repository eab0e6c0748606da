//! Endpoints of clusters that the gateways do not reach.

use mc_api::node_reachability::{NodeReachability, NodeReachabilitySpec};

use super::*;

const WEST: &str = "10.30.0.9";
const SOUTH: &str = "10.40.0.9";

/// Two gateways, and a Service of two other clusters with these addresses.
fn two_exporters(west: &str, south: &str) -> MemberSnapshot {
    let mut snapshot = snapshot();
    for (name, ip) in [("node-a", "172.18.0.1"), ("node-bb", "172.18.0.2")] {
        let mut node = candidate(name, true, ip);
        node.metadata.uid = Some(format!("uid-{name}"));
        insert(&mut snapshot.nodes, node);
    }
    import(&mut snapshot, &[("west", west), ("south", south)]);
    snapshot
}

fn import(snapshot: &mut MemberSnapshot, clusters: &[(&str, &str)]) {
    insert(&mut leader(snapshot).imports, import_service("shop", "web"));
    let clusters: Vec<_> = clusters
        .iter()
        .map(|(cluster, ip)| (*cluster, vec![(*ip).to_owned()]))
        .collect();
    insert(
        &mut leader(snapshot).imports,
        import_endpoints("shop", "web", &clusters),
    );
    settle(snapshot);
}

/// The report of a gateway Node.
fn report(snapshot: &mut MemberSnapshot, node: &str, uid: &str, unreachable: &[&str]) {
    let clusters = ["south", "west"].map(|cluster| (cluster.to_owned(), !unreachable.contains(&cluster)));
    let mut report = NodeReachability::of_node(node, uid, NodeReachabilitySpec::new(clusters));
    report.metadata.namespace = Some(NS.to_owned());
    insert(present(&mut snapshot.node_reachabilities), report);
}

/// The same report of both gateways.
fn report_all(snapshot: &mut MemberSnapshot, unreachable: &[&str]) {
    for node in ["node-a", "node-bb"] {
        report(snapshot, node, &format!("uid-{node}"), unreachable);
    }
    settle(snapshot);
}

/// The addresses of imported endpoints that are ready.
fn ready(snapshot: &MemberSnapshot) -> BTreeSet<String> {
    let imported = snapshot
        .endpoint_slices
        .values()
        .filter(|slice| slice.name_any() != "web-1");
    let endpoints = imported.flat_map(|slice| &slice.endpoints);
    endpoints
        .filter(|endpoint| endpoint.conditions.as_ref().unwrap().ready == Some(true))
        .map(|endpoint| endpoint.addresses[0].clone())
        .collect()
}

fn assert_ready(snapshot: &MemberSnapshot, wanted: &[&str]) {
    assert_eq!(
        ready(snapshot),
        wanted.iter().map(|ip| (*ip).to_owned()).collect()
    );
}

#[test]
fn endpoints_of_an_unreachable_cluster_are_not_ready_until_it_is_back() {
    let mut snapshot = two_exporters(WEST, SOUTH);
    report_all(&mut snapshot, &[]);
    assert_ready(&snapshot, &[WEST, SOUTH]);
    report_all(&mut snapshot, &["west"]);
    assert_ready(&snapshot, &[SOUTH]);
    assert_eq!(imported_ips(&snapshot)["west"], [WEST], "they stay in the slice");
    report_all(&mut snapshot, &[]);
    assert_ready(&snapshot, &[WEST, SOUTH]);
}

#[test]
fn one_gateway_alone_closes_no_cluster() {
    let mut snapshot = two_exporters(WEST, SOUTH);
    report(&mut snapshot, "node-a", "uid-node-a", &["west"]);
    settle(&mut snapshot);
    assert_ready(&snapshot, &[WEST, SOUTH]);
    report(&mut snapshot, "node-bb", "uid-node-bb", &[]);
    settle(&mut snapshot);
    assert_ready(&snapshot, &[WEST, SOUTH]);
    // A report of an earlier Node of the same name.
    report(&mut snapshot, "node-bb", "uid-of-another", &["west"]);
    settle(&mut snapshot);
    assert_ready(&snapshot, &[WEST, SOUTH]);
}

#[test]
fn nodes_that_are_not_ready_and_draining_gateways_do_not_count() {
    let mut snapshot = two_exporters(WEST, SOUTH);
    report_all(&mut snapshot, &["west"]);
    report(&mut snapshot, "node-bb", "uid-node-bb", &[]);
    let mut dead = candidate("node-bb", false, "172.18.0.2");
    dead.metadata.uid = Some("uid-node-bb".to_owned());
    insert(&mut snapshot.nodes, dead);
    settle(&mut snapshot);
    assert_ready(&snapshot, &[SOUTH]);
    let mut removed = node("node-bb", true, &[], &[("InternalIP", "172.18.0.2")]);
    removed.metadata.uid = Some("uid-node-bb".to_owned());
    insert(&mut snapshot.nodes, removed);
    settle(&mut snapshot);
    assert_ready(&snapshot, &[SOUTH]);
    snapshot.gateways = ObjectMap::default();
    snapshot.nodes = ObjectMap::default();
    settle(&mut snapshot);
    assert_ready(&snapshot, &[WEST, SOUTH]);
}

#[test]
fn the_last_endpoints_of_a_port_and_of_an_ip_family_stay_ready() {
    let mut snapshot = two_exporters(WEST, SOUTH);
    report_all(&mut snapshot, &["south", "west"]);
    assert_ready(&snapshot, &[WEST, SOUTH]);
    import(&mut snapshot, &[("west", WEST)]);
    report_all(&mut snapshot, &["west"]);
    assert_ready(&snapshot, &[WEST]);
    import(&mut snapshot, &[("west", WEST), ("south", "fd00::9")]);
    assert_ready(&snapshot, &[WEST, "fd00::9"]);
    import(&mut snapshot, &[("west", WEST), ("south", SOUTH)]);
    assert_ready(&snapshot, &[SOUTH]);
    let mut other_port = import_endpoints(
        "shop",
        "web",
        &[("west", vec![WEST.to_owned()]), ("south", vec![SOUTH.to_owned()])],
    );
    let clusters = &mut other_port.spec.endpoints.as_mut().unwrap().clusters;
    clusters[1].subsets[0].ports.as_mut().unwrap()[0].name = Some("admin".to_owned());
    insert(&mut leader(&mut snapshot).imports, other_port);
    settle(&mut snapshot);
    assert_ready(&snapshot, &[WEST, SOUTH]);
}

#[test]
fn local_pods_replace_those_of_an_unreachable_cluster() {
    let mut snapshot = two_exporters(WEST, SOUTH);
    insert(&mut snapshot.services, web());
    insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", true)]));
    import(&mut snapshot, &[("east", "10.20.0.5"), ("west", WEST)]);
    report_all(&mut snapshot, &["west"]);
    assert_ready(&snapshot, &["10.11.0.5"]);
    // Without a ready Pod of its own the cluster does not serve.
    insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", false)]));
    settle(&mut snapshot);
    assert_ready(&snapshot, &[WEST]);
}

#[test]
fn a_restarted_controller_keeps_the_readiness_until_it_has_the_reports() {
    let mut snapshot = two_exporters(WEST, SOUTH);
    report_all(&mut snapshot, &["west"]);
    let reports = std::mem::replace(&mut snapshot.node_reachabilities, OptionalKind::Pending);
    settle(&mut snapshot);
    assert_ready(&snapshot, &[SOUTH]);
    snapshot.node_reachabilities = reports;
    settle(&mut snapshot);
    assert_ready(&snapshot, &[SOUTH]);
    snapshot.node_reachabilities = OptionalKind::Absent;
    settle(&mut snapshot);
    assert_ready(&snapshot, &[WEST, SOUTH]);
}

/// The condition of west's data path in the status of the `ClusterSet`: status, reason, message.
fn data_path(snapshot: &MemberSnapshot) -> Option<(String, String, String)> {
    let set = snapshot.cluster_sets.values().next().unwrap();
    let clusters = &set.status.as_ref().unwrap().cluster_statuses;
    assert_eq!(
        clusters[0].cluster_id, "north",
        "the leader is the first: {clusters:?}"
    );
    let west = clusters.iter().find(|cluster| cluster.cluster_id == "west")?;
    let condition = west.conditions.iter().find(|c| c.type_ == "DataPathReady")?;
    Some((
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    ))
}

fn assert_data_path(snapshot: &MemberSnapshot, status: &str, reason: &str, message: &str) {
    let wanted = (status.to_owned(), reason.to_owned(), message.to_owned());
    assert_eq!(data_path(snapshot), Some(wanted));
}

/// Two gateways, and the network of west.
fn two_gateways() -> MemberSnapshot {
    let mut snapshot = two_exporters(WEST, SOUTH);
    insert(
        &mut leader(&mut snapshot).imports,
        import_info("west", "10.30.0.0/16", &["172.18.0.9"]),
    );
    settle(&mut snapshot);
    snapshot
}

#[test]
fn the_cluster_set_states_whether_packets_reach_each_cluster() {
    let mut snapshot = two_gateways();
    let message = "0 of 2 gateways on Ready Nodes reach the cluster, 0 do not";
    assert_data_path(&snapshot, "Unknown", "NotReported", message);
    report_all(&mut snapshot, &[]);
    let message = "2 of 2 gateways on Ready Nodes reach the cluster, 0 do not";
    assert_data_path(&snapshot, "True", "Reachable", message);
    report(&mut snapshot, "node-a", "uid-node-a", &["west"]);
    settle(&mut snapshot);
    let message = "1 of 2 gateways on Ready Nodes reach the cluster, 1 do not";
    assert_data_path(&snapshot, "True", "Reachable", message);
    report_all(&mut snapshot, &["west"]);
    let message = "0 of 2 gateways on Ready Nodes reach the cluster, 2 do not";
    assert_data_path(&snapshot, "False", "Unreachable", message);
    // A report of an earlier Node of that name.
    report(&mut snapshot, "node-a", "uid-of-another", &["west"]);
    settle(&mut snapshot);
    let message = "0 of 2 gateways on Ready Nodes reach the cluster, 1 do not";
    assert_data_path(&snapshot, "Unknown", "NotReported", message);
    for name in ["node-a", "node-bb"] {
        insert(&mut snapshot.nodes, candidate(name, false, "172.18.0.9"));
    }
    settle(&mut snapshot);
    let message = "0 of 0 gateways on Ready Nodes reach the cluster, 0 do not";
    assert_data_path(&snapshot, "False", "NoGateway", message);
    // The cluster has left.
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    assert_eq!(data_path(&snapshot), None);
}

#[test]
fn a_restarted_controller_keeps_the_state_of_data_paths_until_it_has_the_reports() {
    let mut snapshot = two_gateways();
    report_all(&mut snapshot, &["west"]);
    let before = data_path(&snapshot);
    assert_eq!(before.as_ref().unwrap().0, "False");
    snapshot.node_reachabilities = OptionalKind::Pending;
    settle(&mut snapshot);
    assert_eq!(data_path(&snapshot), before);
}

#[test]
fn the_leader_has_the_state_of_its_data_path_beside_its_own() {
    let mut snapshot = two_gateways();
    insert(
        &mut leader(&mut snapshot).imports,
        import_info("north", "10.50.0.0/16", &["172.18.0.5"]),
    );
    report_all(&mut snapshot, &[]);
    let set = snapshot.cluster_sets.values().next().unwrap();
    let status = set.status.as_ref().unwrap();
    let types = |i: usize| -> Vec<&str> {
        let conditions = status.cluster_statuses[i].conditions.iter();
        conditions.map(|condition| condition.type_.as_str()).collect()
    };
    assert_eq!(types(0), ["Ready", "IsLeader", "DataPathReady"]);
    assert_eq!(types(1), ["DataPathReady"]);
    assert_eq!(
        (status.total_clusters, status.ready_clusters),
        (1, 1),
        "as in Antrea"
    );
    assert!(plan(&snapshot).writes.is_empty());
}
