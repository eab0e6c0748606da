//! External input of the agent: documents, cluster information, prefixes, sampled packets.
//!
//! *Properties*: no panic; rejections have a reason; accepted input satisfies the data path's invariants,
//! independent of its order.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use mc_gateway::{
    cidr::{self, CidrError, overlaps, parse_address, parse_prefix},
    config::PodLookup,
    desired::{DesiredCache, DesiredError, DesiredState, Established, LocalNode, compute},
    drop_samples,
    objects::{GatewayInfo, NodeInfo, Objects, RemoteCluster, RemoteGateway},
    source::manifests::parse_objects,
};
use mc_gateway_common::abi::GROUP_NEXT_HOPS;

/// Maximum length of a document: longer ones reach no new code.
const MAX_LEN: usize = 16_384;

/// A file of YAML or JSON documents.
pub fn manifests(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if text.len() > MAX_LEN {
        return;
    }
    let (objects, errors) = parse_objects(text);
    for error in errors {
        assert!(!error.reason.is_empty(), "rejection without a reason");
    }
    for node in objects.nodes.iter().map(|node| node.name.clone()) {
        check_desired_state(&objects, &node, BTreeSet::new());
    }
}

/// Remote clusters separated by empty lines, one field per line: ID, Service CIDR, Pod CIDRs, gateways. List elements
/// are separated by blanks.
pub fn cluster_info(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if text.len() > MAX_LEN {
        return;
    }
    let mut objects = local();
    for (number, block) in text.split("\n\n").take(40).enumerate() {
        let mut lines = block.split('\n');
        let mut next = || lines.next().unwrap_or_default().to_owned();
        let (cluster_id, service_cidr, pods, gateways) = (next(), next(), next(), next());
        objects.remotes.push(Arc::new(RemoteCluster {
            name: format!("import-{number:02}"),
            created: None,
            cluster_id,
            service_cidr,
            pod_cidrs: pods.split(' ').map(ToOwned::to_owned).collect(),
            gateways: gateways
                .split(' ')
                .enumerate()
                .map(|(weight, ip)| RemoteGateway {
                    ip: ip.to_owned(),
                    weight: u32::try_from(weight).unwrap_or(0),
                    public_key: KEYS[weight % KEYS.len()].to_owned(),
                })
                .collect(),
        }));
    }
    for name in ["gateway", "node"] {
        check_desired_state(&objects, name, BTreeSet::new());
        let all = objects.remotes.iter().map(|remote| remote.cluster_id.clone());
        check_desired_state(&objects, name, all.collect());
    }
}

/// Public keys of remote gateways: valid, of low order, missing and malformed.
const KEYS: [&str; 4] = [
    "Xqt4MMzuzhTP/BBbcbBPpDQCVpcJ/AG6ewo8Ty1KZkE=",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "",
    "AAAA",
];

/// The receiving cluster: a gateway and a regular Node.
fn local() -> Objects {
    let node = |name: &str, ip: &str, pods: &str| NodeInfo {
        name: name.into(),
        internal_ips: vec![ip.into()],
        pod_cidrs: vec![pods.into()],
        ..NodeInfo::default()
    };
    Objects {
        nodes: vec![
            node("gateway", "192.0.2.1", "10.1.0.0/24"),
            node("node", "192.0.2.2", "10.1.1.0/24"),
        ],
        gateways: vec![GatewayInfo {
            name: "gateway".into(),
            gateway_ip: "203.0.113.1".into(),
            internal_ip: "192.0.2.1".into(),
            service_cidr: "10.96.0.0/16".into(),
            weight: 1,
            created: None,
            primary: false,
        }],
        ..Objects::default()
    }
}

/// Checks the desired state of a Node, also from objects in reverse order.
fn check_desired_state(objects: &Objects, node: &str, antrea: BTreeSet<String>) {
    let me = LocalNode {
        node_name: node.to_owned(),
        cluster_id: Some("east".to_owned()),
        pod_lookup: PodLookup::Auto,
        antrea_clusters: antrea,
        ..LocalNode::default()
    };
    let result = compute(
        objects,
        &me,
        &Established::default(),
        &mut DesiredCache::default(),
    );
    let mut reversed = objects.clone();
    reversed.nodes.reverse();
    reversed.gateways.reverse();
    reversed.remotes.reverse();
    reversed.pods.reverse();
    // Object names are unique in a cluster; the order decides between duplicates.
    if names_are_unique(objects) {
        assert_eq!(
            result,
            compute(
                &reversed,
                &me,
                &Established::default(),
                &mut DesiredCache::default()
            ),
            "result depends on the order"
        );
    }
    match result {
        Ok((desired, refusals)) => {
            for refusal in refusals {
                assert!(
                    !refusal.reason.is_empty() && !refusal.object.is_empty(),
                    "{refusal:?}"
                );
            }
            check_invariants(&desired);
        }
        Err(DesiredError::NoSuchNode { name, .. }) => assert_eq!(name, node),
    }
}

fn names_are_unique(objects: &Objects) -> bool {
    let names: BTreeSet<_> = objects.remotes.iter().map(|remote| &remote.name).collect();
    let nodes: BTreeSet<_> = objects.nodes.iter().map(|node| &node.name).collect();
    let gateways: BTreeSet<_> = objects.gateways.iter().map(|gateway| &gateway.name).collect();
    names.len() == objects.remotes.len()
        && nodes.len() == objects.nodes.len()
        && gateways.len() == objects.gateways.len()
}

/// Invariants of the desired state for any input.
fn check_invariants(desired: &DesiredState) {
    for (id, group) in &desired.groups {
        assert!(group.next_hops.len() <= GROUP_NEXT_HOPS, "group {id}");
        for next_hop in &group.next_hops {
            assert!(
                desired.next_hops.contains_key(next_hop),
                "next hop {next_hop} of {id}"
            );
        }
    }
    let mut remote: Vec<IpNet> = Vec::new();
    let mut local: Vec<IpNet> = Vec::new();
    for (prefix, route) in desired.prefixes.iter() {
        assert_eq!(
            parse_prefix(&prefix.to_string()),
            Ok(*prefix),
            "accepted prefix is invalid"
        );
        assert!(
            route.deliver || desired.groups.contains_key(&route.group),
            "{prefix} has no destination"
        );
        if route.cluster == 0 {
            &mut local
        } else {
            &mut remote
        }
        .push(*prefix);
    }
    for prefix in &remote {
        for own in &local {
            assert!(
                !overlaps(*own, *prefix),
                "{prefix} of another cluster overlaps {own}"
            );
        }
        for addr in desired.peers.keys() {
            assert!(!prefix.contains(addr), "{prefix} contains the peer {addr}");
        }
    }
    for net in desired.routes.iter() {
        assert!(remote.contains(net), "{net} is routed without an owner");
    }
    for addr in desired.peers.keys() {
        assert!(parse_address(&addr.to_string()).is_ok(), "peer {addr}");
    }
}

/// A prefix or an address.
pub fn cidr(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match parse_prefix(text) {
        Ok(net) => {
            assert_eq!(parse_prefix(&net.to_string()), Ok(net), "round trip");
            assert_eq!(text.parse::<IpNet>(), Ok(net), "differs from IpNet");
            assert_eq!(net.trunc(), net, "host bits");
            assert!(cidr::abi_prefix_len(net) <= 128 && cidr::abi_prefix_len(net) > 0);
        }
        Err(CidrError::HostBits(net)) => assert_eq!(net.trunc(), net),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(addr) = parse_address(text) {
        assert_eq!(parse_address(&addr.to_string()), Ok(addr));
        assert!(!addr.is_multicast() && !addr.is_loopback() && !addr.is_unspecified());
    }
}

/// A record of the ring of sampled packets.
pub fn sample(data: &[u8]) {
    let decoded = drop_samples::is_valid_record(data);
    assert!(!decoded || data.len() >= 32, "record without a header");
}
