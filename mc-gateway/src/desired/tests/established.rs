//! Newcomers with addresses in an established prefix of another cluster.

use mc_gateway_common::abi::{self, CLUSTER_LOCAL, PrefixKey};

use super::*;
use crate::cidr::{abi_prefix_len, to_abi_addr};

/// Contents of the maps after a reconcile.
fn in_maps(desired: &DesiredState) -> Established {
    let entries = desired.prefixes.iter();
    established(entries.map(|(net, route)| (route.cluster, *net)))
}

fn established(prefixes: impl IntoIterator<Item = (u64, IpNet)>) -> Established {
    let entries = prefixes.into_iter().map(|(cluster, net)| {
        let key = PrefixKey {
            len: abi_prefix_len(net),
            addr: to_abi_addr(net.network()),
        };
        let prefix = abi::Prefix {
            cluster,
            ..abi::Prefix::default()
        };
        (key, prefix)
    });
    Established::new(LocalNode::default().cluster_id_key, entries.collect())
}

/// Name, change of the objects, and beginning of the error.
type Newcomer = (&'static str, fn(&mut Objects), &'static str);

/// Each changes one object that a kubelet or another cluster writes, and names the object and the value rejected.
fn newcomers() -> Vec<Newcomer> {
    vec![
        (
            "InternalIP",
            |objects| objects.nodes.push(node("c", "10.2.0.7", "10.1.2.0/24")),
            "Node c: status.addresses[InternalIP][0]: \"10.2.0.7\" is an address in 10.2.0.0/16 of ClusterInfoImport west-clusterinfo",
        ),
        (
            "address of the Node among Pods",
            |objects| {
                let annotation = "mc-gateway.io/host-ipv4";
                objects.nodes[1]
                    .host_addresses
                    .push((annotation, "10.2.3.4".into()));
            },
            "Node b: metadata.annotations[mc-gateway.io/host-ipv4]: \"10.2.3.4\" is an address in 10.2.0.0/16 of",
        ),
        (
            "podCIDR",
            |objects| objects.nodes.push(node("c", "192.0.2.3", "10.2.0.0/24")),
            "Node c: spec.podCIDRs[0]: \"10.2.0.0/24\" overlaps 10.2.0.0/16 of ClusterInfoImport west-clusterinfo",
        ),
        (
            "Gateway",
            |objects| {
                let gateway = GatewayInfo {
                    name: "c".into(),
                    gateway_ip: "10.97.0.7".into(),
                    ..objects.gateways[0].clone()
                };
                objects.gateways.push(gateway);
            },
            "Gateway c: gatewayIP: \"10.97.0.7\" is an address in 10.97.0.0/16 of ClusterInfoImport west-clusterinfo",
        ),
        (
            "Pod",
            |objects| {
                objects.pods.push(
                    PodInfo {
                        name: "ns/p".into(),
                        node: "b".into(),
                        ips: vec!["10.2.9.9".into()],
                        ..PodInfo::default()
                    }
                    .into(),
                );
            },
            "Pod ns/p: status.podIPs[0]: \"10.2.9.9\" is an address in 10.2.0.0/16 of ClusterInfoImport west-clusterinfo",
        ),
        (
            "another cluster of the same age, first by name",
            |objects| {
                objects.remotes.push(remote(
                    "a-evil",
                    None,
                    "203.0.113.66",
                    "10.66.0.0/16",
                    &["10.2.0.0/16"],
                ));
            },
            "ClusterInfoImport a-evil-clusterinfo: spec.podCIDRs[0]: \"10.2.0.0/16\" overlaps 10.2.0.0/16 of",
        ),
        (
            "a gateway of another cluster",
            |objects| {
                objects.remotes.push(remote(
                    "a-evil",
                    None,
                    "10.2.0.66",
                    "10.66.0.0/16",
                    &["10.67.0.0/16"],
                ));
            },
            "ClusterInfoImport a-evil-clusterinfo: spec.gatewayInfos[0].gatewayIP: \"10.2.0.66\" is an address in 10.2.0.0/16 of",
        ),
    ]
}

/// A kubelet ended the routing of another cluster's prefix on every Node: its packets left unencapsulated.
#[test]
fn a_newcomer_is_rejected_instead_of_an_established_prefix() {
    for own in ["a", "b"] {
        let before = on_established(own, &objects(), &Established::default()).0;
        let established = in_maps(&before);
        for (name, change, expected) in newcomers() {
            let mut changed = objects();
            change(&mut changed);
            let (desired, rejected) = on_established(own, &changed, &established);
            for net in before.routes.iter() {
                assert!(
                    desired.routes.contains(net),
                    "{name} on {own}: {net} is not routed"
                );
                assert_eq!(
                    desired.prefixes.get(net),
                    before.prefixes.get(net),
                    "{name} on {own}"
                );
            }
            let texts: Vec<String> = rejected.iter().map(ToString::to_string).collect();
            assert!(
                texts.iter().any(|text| text.starts_with(expected)),
                "{name} on {own}: {texts:#?}"
            );
            // Without the established prefixes the newcomer wins.
            let (lost, _) = on_established(own, &changed, &Established::default());
            let all = before
                .routes
                .iter()
                .all(|net| lost.prefixes.get(net) == before.prefixes.get(net));
            assert!(!all, "{name} on {own}: no conflict");
        }
    }
}

#[test]
fn a_prefix_that_no_cluster_states_any_more_is_free() {
    let before = on_established("a", &objects(), &Established::default()).0;
    let mut changed = objects();
    changed.remotes.clear();
    changed.nodes.push(node("c", "10.2.0.7", "10.97.0.0/24"));
    let (desired, rejected) = on_established("a", &changed, &in_maps(&before));
    assert_eq!(rejected, []);
    let pods = desired.prefixes[&net("10.97.0.0/24")];
    assert_eq!(pods.cluster, CLUSTER_LOCAL);
}

/// An import of the own cluster must not displace its own prefixes.
#[test]
fn the_own_cluster_has_no_established_prefixes() {
    let mut changed = objects();
    changed.remotes.push(remote(
        "east",
        None,
        "203.0.113.1",
        "10.96.0.0/16",
        &["10.1.0.0/16"],
    ));
    let own = ["10.1.0.0/16", "10.96.0.0/16"].map(|text| (id("east"), net(text)));
    let (desired, _) = on_established("a", &changed, &established(own));
    let plain = on_established("a", &changed, &Established::default()).0;
    assert_eq!(desired, plain);
    assert!(desired.prefixes.contains_key(&net("10.1.0.0/24")));
}
