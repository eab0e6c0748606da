//! Clusters with Antrea gateways.

use mc_gateway_common::abi::PEER_ANTREA;

use super::*;

/// Nodes a and c are gateways, b is a regular Node; west has an Antrea gateway.
fn on(node_name: &str, change: impl FnOnce(&mut Objects)) -> (DesiredState, Vec<FieldError>) {
    let mut objects = objects();
    objects.nodes.push(node("c", "192.0.2.3", "10.1.2.0/24"));
    objects.gateways.push(GatewayInfo {
        name: "c".into(),
        gateway_ip: "203.0.113.3".into(),
        internal_ip: "192.0.2.3".into(),
        service_cidr: "10.96.0.0/16".into(),
        weight: 1,
        created: None,
        primary: false,
    });
    west(&mut objects).gateways.push(peer_gateway("203.0.113.10"));
    change(&mut objects);
    let me = LocalNode {
        node_name: node_name.into(),
        cluster_id: Some("east".into()),
        antrea_clusters: ["west".to_owned()].into(),
        ..LocalNode::default()
    };
    first(&objects, &me).unwrap()
}

fn next_hops(desired: &DesiredState, prefix: &str) -> Vec<String> {
    let group = desired.prefixes[&net(prefix)].group;
    let ids = &desired.groups[&group].next_hops;
    ids.iter()
        .map(|id| desired.next_hops[id].addr.to_string())
        .collect()
}

#[test]
fn the_primary_gateway_serves_an_antrea_cluster_and_its_first_gateway_only() {
    let (desired, rejected) = on("a", |_| {});
    assert_eq!(rejected, []);
    for prefix in ["10.97.0.0/16", "10.2.0.0/16", "10.97.0.0/32"] {
        assert_eq!(next_hops(&desired, prefix), ["203.0.113.9"], "{prefix}");
    }
    let west = desired.peers[&"203.0.113.9".parse::<IpAddr>().unwrap()];
    assert_eq!(
        (west.flags, west.alias),
        (PEER_REMOTE_GATEWAY | PEER_ANTREA, Some([10, 97, 0, 0].into()))
    );
    assert!(
        !desired
            .peers
            .contains_key(&"203.0.113.10".parse::<IpAddr>().unwrap())
    );
    let antrea = &desired.masquerade.antrea;
    assert_eq!(antrea.source, Some([203, 0, 113, 1].into()));
    assert_eq!(antrea.prefixes, [net("10.2.0.0/16"), net("10.97.0.0/16")].into());
    assert_eq!(antrea.local_prefixes, [net("10.1.0.0/24")].into());
    assert!(desired.prefixes[&net("203.0.113.1/32")].deliver);
    // Only the cluster's prefixes are routed.
    assert!(desired.routes.iter().eq(&antrea.prefixes));
}

#[test]
fn other_nodes_send_to_the_primary_gateway() {
    for name in ["b", "c"] {
        let (desired, rejected) = on(name, |_| {});
        assert_eq!(rejected, []);
        assert_eq!(next_hops(&desired, "10.97.0.0/16"), ["192.0.2.1"], "{name}");
        assert_eq!(desired.masquerade.antrea, AntreaInterop::default(), "{name}");
        assert!(!desired.prefixes.contains_key(&net("10.97.0.0/32")), "{name}");
    }
    // A former primary may still receive packets.
    let (desired, _) = on("c", |_| {});
    assert!(
        desired.peers[&"203.0.113.9".parse::<IpAddr>().unwrap()]
            .alias
            .is_some()
    );
}

#[test]
fn clusters_without_antrea_gateways_are_unaffected() {
    let north = remote("north", None, "203.0.113.20", "10.98.0.0/16", &["10.3.0.0/16"]);
    let (desired, _) = on("b", |objects| objects.remotes.push(north));
    let both = next_hops(&desired, "10.98.0.0/16");
    assert_eq!(both.len(), 2, "{both:?}");
}

#[test]
fn the_primary_is_the_oldest_gateway_that_is_not_drained() {
    let serves = |change: fn(&mut Objects)| next_hops(&on("b", change).0, "10.97.0.0/16");
    assert_eq!(serves(|objects| objects.gateways[0].weight = 0), ["192.0.2.3"]);
    assert_eq!(
        serves(|objects| {
            objects.gateways[0].created = Some("2026-01-02T00:00:00Z".into());
            objects.gateways[1].created = Some("2026-01-01T00:00:00Z".into());
        }),
        ["192.0.2.3"]
    );
    assert_eq!(
        serves(|objects| objects.gateways[1].primary = true),
        ["192.0.2.3"]
    );
    assert_eq!(serves(|objects| objects.gateways.reverse()), ["192.0.2.1"]);
    let none: Vec<String> = Vec::new();
    assert_eq!(serves(|objects| objects.gateways.clear()), none);
}

#[test]
fn without_an_ipv4_service_range_clients_of_an_antrea_cluster_are_rejected() {
    let (desired, rejected) = on("a", |objects| west(objects).service_cidr.clear());
    assert_eq!(rejected.len(), 1);
    assert!(
        rejected[0].to_string().starts_with(
            "ClusterInfoImport west-clusterinfo: spec.serviceCIDR: \"\" has no usable IPv4 range"
        ),
        "{}",
        rejected[0]
    );
    let west = desired.peers[&"203.0.113.9".parse::<IpAddr>().unwrap()];
    assert_eq!((west.flags & PEER_ANTREA, west.alias), (PEER_ANTREA, None));
    assert_eq!(next_hops(&desired, "10.2.0.0/16"), ["203.0.113.9"]);
}
