//! Desired state of gateways and regular Nodes, and rejected values with their errors.

use std::net::IpAddr;

use ipnet::IpNet;
use mc_api::label_identity::{digest, object_name};
use mc_gateway_common::abi::{PEER_LOCAL_GATEWAY, PEER_LOCAL_NODE, PEER_REMOTE_GATEWAY};

use super::*;
use crate::identity_objects::IdentityObjects;
use crate::ids::{cluster_id, stable_id};
use crate::objects::{GatewayInfo, NodeKeyInfo, PodInfo, RemoteCluster, RemoteGateway};
use crate::peer_secret::{PeerAuth, PeerSecrets, PublicKey};
use crate::policy_objects::PolicyObjects;

mod antrea;
mod collisions;
mod established;
mod identities;
mod keys;
mod pods;
mod policies;
mod policy_bad_input;

fn node(name: &str, ip: &str, pod_cidr: &str) -> NodeInfo {
    NodeInfo {
        host_addresses: Vec::new(),
        name: name.into(),
        internal_ips: vec![ip.into()],
        external_ips: Vec::new(),
        pod_cidrs: vec![pod_cidr.into()],
    }
}

fn peer_gateway(ip: &str) -> RemoteGateway {
    RemoteGateway {
        ip: ip.into(),
        weight: 1,
        public_key: key(ip).to_string(),
    }
}

fn remote(
    name: &str,
    created: Option<&str>,
    gateway: &str,
    service: &str,
    pods: &[&str],
) -> Arc<RemoteCluster> {
    Arc::new(RemoteCluster {
        name: format!("{name}-clusterinfo"),
        created: created.map(Into::into),
        cluster_id: name.into(),
        service_cidr: service.into(),
        pod_cidrs: pods.iter().map(ToString::to_string).collect(),
        gateways: vec![peer_gateway(gateway)],
    })
}

/// The first remote cluster.
fn west(objects: &mut Objects) -> &mut RemoteCluster {
    Arc::make_mut(&mut objects.remotes[0])
}

/// Node a is the gateway, b a regular Node; west is a remote cluster.
fn objects() -> Objects {
    Objects {
        nodes: vec![
            node("a", "192.0.2.1", "10.1.0.0/24"),
            node("b", "192.0.2.2", "10.1.1.0/24"),
        ],
        gateways: vec![GatewayInfo {
            name: "a".into(),
            gateway_ip: "203.0.113.1".into(),
            internal_ip: "192.0.2.1".into(),
            service_cidr: "10.96.0.0/16".into(),
            weight: 1,
            created: None,
            primary: false,
        }],
        remotes: vec![remote(
            "west",
            None,
            "203.0.113.9",
            "10.97.0.0/16",
            &["10.2.0.0/16"],
        )],
        pods: vec![],
        address_groups: vec![],
        services: None,
        reservations: vec![],
        identities: Some(IdentityObjects::default()),
        policy_mode: None,
        policies: PolicyObjects::default(),
        node_keys: ["a", "b", "c"].map(node_key).into(),
    }
}

/// The public key of a Node, or of the agent at a gateway address.
fn key(of: &str) -> PublicKey {
    let mut private = [0; 32];
    for (byte, text) in private.iter_mut().zip(of.bytes()) {
        *byte = text;
    }
    PeerSecrets::new(private).public_key()
}

fn node_key(node: &str) -> NodeKeyInfo {
    NodeKeyInfo {
        name: node.into(),
        owned: true,
        public_key: key(node).to_string(),
    }
}

fn on(name: &str, objects: &Objects) -> (DesiredState, Vec<FieldError>) {
    on_established(name, objects, &Established::default())
}

fn on_established(
    name: &str,
    objects: &Objects,
    established: &Established,
) -> (DesiredState, Vec<FieldError>) {
    let me = LocalNode {
        node_name: name.into(),
        cluster_id: Some("east".into()),
        pod_lookup: PodLookup::Auto,
        ..LocalNode::default()
    };
    compute(objects, &me, established, &mut DesiredCache::default()).unwrap()
}

/// The first desired state of a node without established prefixes, and the rejected fields.
fn first(objects: &Objects, me: &LocalNode) -> Result<(DesiredState, Vec<FieldError>), DesiredError> {
    compute(objects, me, &Established::default(), &mut DesiredCache::default())
}

/// ID of a remote cluster in the maps.
fn id(cluster: &str) -> u64 {
    cluster_id(&LocalNode::default().cluster_id_key, cluster)
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Desired state of the gateway, and the single error as text.
fn rejected_on_gateway(change: impl FnOnce(&mut Objects)) -> (DesiredState, String) {
    let mut objects = objects();
    change(&mut objects);
    let (desired, rejected) = on("a", &objects);
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    (desired, rejected[0].to_string())
}

#[test]
fn regular_node() {
    let (desired, rejected) = on("b", &objects());
    assert_eq!(rejected, []);
    assert!(!desired.gateway);
    let gateways = stable_id("gateways");
    let west = id("west");
    let forward = PrefixRoute {
        cluster: west,
        group: gateways,
        deliver: false,
    };
    let deliver = PrefixRoute {
        cluster: 0,
        group: 0,
        deliver: true,
    };
    assert_eq!(
        desired.prefixes,
        [
            (net("10.1.1.0/24"), deliver),
            (net("10.2.0.0/16"), forward),
            (net("10.96.0.0/16"), deliver),
            (net("10.97.0.0/16"), forward)
        ]
        .into()
    );
    assert_eq!(desired.service_cidrs, [net("10.96.0.0/16")].into());
    assert_eq!(desired.services, None, "unknown Services");
    assert_eq!(desired.groups.len(), 1);
    let next_hops: Vec<_> = desired.next_hops.values().map(|m| (m.addr, m.source)).collect();
    assert_eq!(next_hops, [([192, 0, 2, 1].into(), Some([192, 0, 2, 2].into()))]);
    let peers: Vec<_> = desired
        .peers
        .iter()
        .map(|(addr, peer)| (*addr, peer.flags))
        .collect();
    assert_eq!(peers, [([192, 0, 2, 1].into(), PEER_LOCAL_GATEWAY)]);
    assert_eq!(desired.routes, [net("10.2.0.0/16"), net("10.97.0.0/16")].into());
    let pods = [net("10.1.1.0/24")].into();
    assert_eq!(
        desired.masquerade,
        Masquerade {
            pod_cidrs: pods,
            ..Masquerade::default()
        }
    );
    assert_eq!(desired.local_addrs, [IpAddr::from([192, 0, 2, 2])]);
}

#[test]
fn gateway_node() {
    let (desired, rejected) = on("a", &objects());
    assert_eq!(rejected, []);
    assert!(desired.gateway);
    let (west, to_west, to_b) = (id("west"), stable_id("cluster/west"), stable_id("node/b"));
    let route = |cluster, group, deliver| PrefixRoute {
        cluster,
        group,
        deliver,
    };
    assert_eq!(
        desired.prefixes,
        [
            (net("10.1.0.0/24"), route(0, 0, true)),
            (net("10.1.1.0/24"), route(0, to_b, false)),
            (net("10.2.0.0/16"), route(west, to_west, false)),
            (net("10.96.0.0/16"), route(0, 0, true)),
            (net("10.97.0.0/16"), route(west, to_west, false)),
        ]
        .into()
    );
    let peer = |cluster, flags, group, of| Peer {
        cluster,
        flags,
        group,
        alias: None,
        auth: PeerAuth::Required(key(of)),
    };
    assert_eq!(
        desired.peers,
        [
            ([192, 0, 2, 2].into(), peer(0, PEER_LOCAL_NODE, to_b, "b")),
            (
                [203, 0, 113, 9].into(),
                peer(west, PEER_REMOTE_GATEWAY, 0, "203.0.113.9"),
            ),
        ]
        .into()
    );
    let to_remote = desired
        .next_hops
        .values()
        .find(|m| m.addr == IpAddr::from([203, 0, 113, 9]))
        .unwrap();
    assert_eq!(
        to_remote.source,
        Some([203, 0, 113, 1].into()),
        "source is the own gatewayIP"
    );
    let to_node = desired
        .next_hops
        .values()
        .find(|m| m.addr == IpAddr::from([192, 0, 2, 2]))
        .unwrap();
    assert_eq!(
        to_node.source,
        Some([192, 0, 2, 1].into()),
        "source is the own internalIP"
    );
    assert_eq!(desired.masquerade.service_cidrs, [net("10.96.0.0/16")].into());
    assert_eq!(desired.masquerade.remote_prefixes, desired.routes);
    let local: [IpAddr; 2] = [[192, 0, 2, 1].into(), [203, 0, 113, 1].into()];
    assert_eq!(desired.local_addrs, local);
}

#[test]
fn a_node_that_is_also_a_gateway_has_both_roles() {
    let mut objects = objects();
    objects.gateways.push(GatewayInfo {
        name: "b".into(),
        gateway_ip: "203.0.113.2".into(),
        internal_ip: "192.0.2.2".into(),
        service_cidr: "10.96.0.0/16".into(),
        weight: 1,
        created: None,
        primary: false,
    });
    let (desired, rejected) = on("a", &objects);
    assert_eq!(rejected, []);
    let peer = desired.peers[&IpAddr::from([192, 0, 2, 2])];
    assert_eq!(peer.flags, PEER_LOCAL_NODE | PEER_LOCAL_GATEWAY);
    assert_eq!(peer.group, stable_id("node/b"));
}

#[test]
fn the_order_of_objects_does_not_matter() {
    let mut many = objects();
    many.remotes.push(remote(
        "north",
        None,
        "203.0.113.8",
        "10.98.0.0/16",
        &["10.2.128.0/17"],
    ));
    let mut reversed = many.clone();
    reversed.nodes.reverse();
    reversed.remotes.reverse();
    assert_eq!(on("a", &many), on("a", &reversed));
}

#[test]
fn without_the_local_node_there_is_no_desired_state() {
    let mut objects = objects();
    objects.nodes.remove(0);
    let me = LocalNode {
        node_name: "a".into(),
        ..LocalNode::default()
    };
    let error = first(&objects, &me).unwrap_err().to_string();
    assert_eq!(error, "node-name \"a\": there is no such Node; known: [\"b\"]");
}

#[test]
fn a_malformed_cidr_is_rejected_alone() {
    let (desired, error) = rejected_on_gateway(|o| west(o).pod_cidrs.push("10.300.0.0/16".into()));
    assert_eq!(
        error,
        "ClusterInfoImport west-clusterinfo: spec.podCIDRs[1]: \"10.300.0.0/16\" is not a CIDR, as 10.0.0.0/16 or fd00:10::/48"
    );
    assert!(desired.routes.contains(&net("10.2.0.0/16")));
    assert!(desired.routes.contains(&net("10.97.0.0/16")));
}

#[test]
fn every_kind_of_invalid_prefix_is_rejected_alone() {
    let bad = [
        "::ffff:10.5.0.0/112",
        "fd00::1/48",
        "fe80::/64",
        "0.0.0.0/0",
        "127.0.0.0/8",
        "224.0.0.0/4",
        "169.254.0.0/16",
        "10.5.0.1/16",
        "",
    ];
    for text in bad {
        let (desired, error) = rejected_on_gateway(|o| west(o).pod_cidrs.insert(0, text.into()));
        assert!(error.contains(&format!("spec.podCIDRs[0]: {text:?} ")), "{error}");
        assert_eq!(desired.routes.len(), 2, "{text}");
    }
}

#[test]
fn a_missing_gateway_ip_is_reported() {
    let (desired, error) = rejected_on_gateway(|o| west(o).gateways.clear());
    assert!(
        error.starts_with(
            "ClusterInfoImport west-clusterinfo: spec.gatewayInfos: \"\" has no valid gatewayIP"
        )
    );
    // The packets are dropped and counted instead of leaving unencapsulated.
    assert_eq!(desired.routes.len(), 2);
    assert!(desired.groups[&stable_id("cluster/west")].next_hops.is_empty());
}

#[test]
fn an_unparsable_gateway_ip_is_rejected_alone() {
    let (desired, error) = rejected_on_gateway(|o| {
        let gateways = &mut west(o).gateways;
        gateways.insert(0, peer_gateway("::ffff:203.0.113.7"));
    });
    assert!(error.contains("spec.gatewayInfos[0].gatewayIP: \"::ffff:203.0.113.7\" is IPv4-mapped"));
    assert_eq!(desired.groups[&stable_id("cluster/west")].next_hops.len(), 1);
}

#[test]
fn a_local_gateway_without_addresses_is_reported() {
    let mut objects = objects();
    objects.gateways[0].internal_ip = String::new();
    objects.gateways[0].gateway_ip = "nonsense".into();
    let (desired, rejected) = on("b", &objects);
    let texts: Vec<String> = rejected.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "Gateway a: gatewayIP: \"nonsense\" is not an IP address",
            "Gateway a: internalIP: \"\" is missing"
        ]
    );
    assert!(desired.next_hops.is_empty());
    assert_eq!(desired.routes.len(), 2);
}

#[test]
fn of_overlapping_clusters_the_older_keeps_the_prefix() {
    let mut objects = objects();
    objects.remotes = vec![
        remote(
            "west",
            Some("2026-01-02T00:00:00Z"),
            "203.0.113.9",
            "10.97.0.0/16",
            &["10.2.0.0/16"],
        ),
        remote(
            "north",
            Some("2026-01-01T00:00:00Z"),
            "203.0.113.8",
            "10.98.0.0/16",
            &["10.2.128.0/17"],
        ),
    ];
    let (desired, rejected) = on("a", &objects);
    assert_eq!(rejected.len(), 1);
    assert_eq!(
        rejected[0].to_string(),
        "ClusterInfoImport west-clusterinfo: spec.podCIDRs[0]: \"10.2.0.0/16\" overlaps 10.2.128.0/17 of ClusterInfoImport north-clusterinfo"
    );
    assert_eq!(desired.prefixes[&net("10.2.128.0/17")].cluster, id("north"));
    assert!(
        desired.prefixes.contains_key(&net("10.97.0.0/16")),
        "west's good prefix stays"
    );
    // Without creation times the first by name wins.
    for remote in &mut objects.remotes {
        Arc::make_mut(remote).created = None;
    }
    let (_, rejected) = on("a", &objects);
    assert!(rejected[0].object.contains("west"));
}

#[test]
fn local_prefixes_have_no_remote_owner() {
    for (own, owner) in [
        ("10.1.1.0/25", "10.1.1.0/24 of Node b"),
        ("10.1.0.0/16", "10.1.0.0/24 of Node a"),
        ("10.96.128.0/17", "10.96.0.0/16 of the local cluster"),
    ] {
        let (desired, error) = rejected_on_gateway(|o| west(o).pod_cidrs.push(own.into()));
        assert!(error.contains(&format!("\"{own}\" overlaps {owner}")), "{error}");
        assert_eq!(desired.routes.len(), 2);
    }
}

#[test]
fn underlay_addresses_are_in_no_remote_prefix() {
    for (prefix, owner) in [("192.0.2.0/24", "192.0.2.1"), ("203.0.113.0/24", "203.0.113")] {
        let (desired, error) = rejected_on_gateway(|o| west(o).pod_cidrs.push(prefix.into()));
        assert!(
            error.contains(&format!("contains the underlay address {owner}")),
            "{error}"
        );
        assert_eq!(desired.routes.len(), 2);
    }
}

#[test]
fn the_local_cluster_is_not_imported() {
    let (desired, error) = rejected_on_gateway(|o| {
        o.remotes
            .push(remote("east", None, "203.0.113.7", "10.99.0.0/16", &[]));
    });
    assert!(
        error.contains("spec.clusterID: \"east\" is the local cluster's ID"),
        "{error}"
    );
    assert!(!desired.routes.contains(&net("10.99.0.0/16")));
}

#[test]
fn cluster_ids_are_required_and_unique() {
    let (_, error) = rejected_on_gateway(|o| {
        let mut twin = remote("west", None, "203.0.113.7", "10.99.0.0/16", &[]);
        Arc::make_mut(&mut twin).name = "z".into();
        o.remotes.push(twin);
    });
    assert!(
        error.contains("\"west\" is already the ID of ClusterInfoImport west-clusterinfo"),
        "{error}"
    );
    let (_, error) = rejected_on_gateway(|o| {
        o.remotes
            .push(remote("", None, "203.0.113.7", "10.99.0.0/16", &[]));
    });
    assert!(error.contains("spec.clusterID: \"\" is missing"), "{error}");
}

#[test]
fn clusters_whose_names_have_the_same_unkeyed_hash_do_not_exclude_each_other() {
    // Two strings with the same 32-bit FNV-1a hash.
    let (one, two) = ("costarring", "liquid");
    assert_eq!(stable_id(one), stable_id(two));
    let mut objects = objects();
    objects.remotes = vec![
        remote(one, None, "203.0.113.7", "10.98.0.0/16", &[]),
        remote(two, None, "203.0.113.8", "10.99.0.0/16", &[]),
    ];
    let (desired, rejected) = on("a", &objects);
    assert_eq!(rejected, []);
    assert_eq!(desired.routes, [net("10.98.0.0/16"), net("10.99.0.0/16")].into());
    assert_ne!(id(one), id(two));
}

#[test]
fn a_gateway_address_has_one_owner() {
    let (desired, error) = rejected_on_gateway(|o| {
        o.remotes
            .push(remote("x", None, "203.0.113.9", "10.99.0.0/16", &[]));
        Arc::make_mut(&mut o.remotes[1])
            .gateways
            .push(peer_gateway("203.0.113.7"));
    });
    assert!(
        error.contains("\"203.0.113.9\" is the address of ClusterInfoImport west-clusterinfo"),
        "{error}"
    );
    assert_eq!(desired.peers[&IpAddr::from([203, 0, 113, 9])].cluster, id("west"));
    let (_, error) = rejected_on_gateway(|o| west(o).gateways.push(peer_gateway("192.0.2.2")));
    assert!(
        error.contains("\"192.0.2.2\" is the address of Node b"),
        "{error}"
    );
}

#[test]
fn the_first_16_gateways_of_a_group_are_used_in_any_order() {
    let mut objects = objects();
    west(&mut objects).gateways = (1..=20)
        .map(|n| peer_gateway(&format!("198.51.100.{n}")))
        .collect();
    let (in_order, rejected) = on("a", &objects);
    assert_eq!(rejected.len(), 4);
    assert_eq!(
        rejected[0].to_string(),
        "ClusterInfoImport west-clusterinfo: spec.gatewayInfos: \"198.51.100.17\" exceeds the 16 next hops of a group; the first 16 in order are used"
    );
    assert_eq!(in_order.groups[&stable_id("cluster/west")].next_hops.len(), 16);
    assert_eq!(
        in_order.peers.len(),
        21,
        "packets of the others are accepted all the same"
    );
    west(&mut objects).gateways.reverse();
    assert_eq!(on("a", &objects).0, in_order);
}

#[test]
fn a_drained_gateway_has_weight_0_and_is_used_last() {
    let mut objects = objects();
    west(&mut objects).gateways = (1..=17)
        .map(|n| peer_gateway(&format!("198.51.100.{n}")))
        .collect();
    west(&mut objects).gateways[0].weight = 0;
    west(&mut objects).gateways[1].weight = 1_000;
    let (desired, rejected) = on("a", &objects);
    assert_eq!(rejected.len(), 1);
    assert_eq!(rejected[0].value, "198.51.100.1");
    let weight = |n: u8| {
        let addr = IpAddr::from([198, 51, 100, n]);
        desired
            .next_hops
            .values()
            .find(|m| m.addr == addr)
            .map(|m| m.weight)
    };
    assert_eq!([weight(1), weight(2), weight(17)], [None, Some(255), Some(1)]);
    objects.gateways[0].weight = 0;
    let (node, _) = on("b", &objects);
    assert_eq!(node.next_hops.values().map(|m| m.weight).collect::<Vec<_>>(), [0]);
}

#[test]
fn the_first_16_local_gateways_by_name_are_used() {
    let mut objects = objects();
    objects.gateways = (10..30)
        .map(|n| GatewayInfo {
            name: format!("gw{n}"),
            gateway_ip: format!("203.0.113.{n}"),
            internal_ip: format!("192.0.2.{n}"),
            service_cidr: "10.96.0.0/16".into(),
            weight: 1,
            created: None,
            primary: false,
        })
        .collect();
    objects.gateways.reverse();
    objects.node_keys = (10..30).map(|n| node_key(&format!("gw{n}"))).collect();
    let (desired, rejected) = on("b", &objects);
    assert_eq!(rejected.len(), 4);
    assert_eq!(
        rejected[0].to_string(),
        "Gateway gw26: internalIP: \"192.0.2.26\" exceeds the 16 next hops of a group; the first 16 in order are used"
    );
    assert_eq!(desired.groups[&stable_id("gateways")].next_hops.len(), 16);
    assert_eq!(desired.peers.len(), 20);
}

/// Dual-stack Nodes a (the gateway) and b, and a dual-stack remote cluster.
fn dual_stack() -> Objects {
    let mut objects = objects();
    for (node, addr, pods) in [
        (0, "fd00:a::1", "fd00:1:0::/64"),
        (1, "fd00:a::2", "fd00:1:1::/64"),
    ] {
        objects.nodes[node].internal_ips.push(addr.into());
        objects.nodes[node].pod_cidrs.push(pods.into());
    }
    objects.gateways[0].service_cidr = "10.96.0.0/16,fd00:96::/108".into();
    west(&mut objects).pod_cidrs.push("fd00:2::/48".into());
    west(&mut objects).service_cidr = "10.97.0.0/16, fd00:97::/108".into();
    objects
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn both_inner_families_use_the_outer_family_of_the_gateways() {
    let mut objects = dual_stack();
    let (gateway, rejected) = on("a", &objects);
    assert_eq!(rejected, []);
    let west = ["10.2.0.0/16", "10.97.0.0/16", "fd00:2::/48", "fd00:97::/108"].map(net);
    assert_eq!(gateway.routes, west.into());
    assert_eq!(
        gateway.masquerade.service_cidrs,
        ["10.96.0.0/16", "fd00:96::/108"].map(net).into()
    );
    assert_eq!(gateway.prefixes[&net("fd00:1:1::/64")].group, stable_id("node/b"));
    assert!(gateway.prefixes[&net("fd00:1:0::/64")].deliver);
    // Node b sends over IPv4, because the Gateway's internalIP is IPv4.
    assert!(gateway.next_hops.values().all(|next_hop| next_hop.addr.is_ipv4()));
    assert_eq!(on("b", &objects).0.next_hops.len(), 1);
    // IPv6 as inner and outer family.
    objects.gateways[0].internal_ip = "fd00:a::1".into();
    let (gateway, _) = on("a", &objects);
    let to_b = gateway
        .next_hops
        .values()
        .find(|next_hop| next_hop.object == "Node b")
        .unwrap();
    assert_eq!((to_b.addr, to_b.source), (ip("fd00:a::2"), Some(ip("fd00:a::1"))));
    let (b, _) = on("b", &objects);
    let to_a = b.next_hops.values().next().unwrap();
    assert_eq!((to_a.addr, to_a.source), (ip("fd00:a::1"), Some(ip("fd00:a::2"))));
}

#[test]
fn a_peer_is_accepted_from_its_addresses_of_both_families() {
    let objects = dual_stack();
    let (b, _) = on("b", &objects);
    let sources: Vec<_> = b.peers.keys().copied().collect();
    assert_eq!(sources, [ip("192.0.2.1"), ip("fd00:a::1")]);
    let (a, _) = on("a", &objects);
    for addr in ["192.0.2.2", "fd00:a::2"].map(ip) {
        assert_eq!(a.peers[&addr].flags, PEER_LOCAL_NODE);
    }
    assert_eq!(
        a.local_addrs,
        [ip("192.0.2.1"), ip("203.0.113.1"), ip("fd00:a::1")]
    );
}

#[test]
fn an_ipv6_gateway_is_reached_from_an_ipv6_address() {
    let mut objects = dual_stack();
    west(&mut objects).gateways.push(peer_gateway("2001:db8::9"));
    let (a, rejected) = on("a", &objects);
    assert_eq!(rejected, []);
    let source = |addr| {
        let to = ip(addr);
        let next_hop = a.next_hops.values().find(|next_hop| next_hop.addr == to).unwrap();
        next_hop.source
    };
    assert_eq!(source("203.0.113.9"), Some(ip("203.0.113.1")));
    assert_eq!(source("2001:db8::9"), Some(ip("fd00:a::1")));
}
