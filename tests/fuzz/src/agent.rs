//! What the agent reads of others: documents, cluster information, prefixes, sampled packets.
//!
//! *Properties*: no panic; what is refused is named; what is accepted breaks none of the data path's rules,
//! whatever it says and in whatever order it comes.

use std::collections::BTreeSet;

use ipnet::IpNet;
use mc_gateway::{
    cidr::{self, CidrError, overlaps, parse_address, parse_prefix},
    config::PodLookup,
    desired::{Desired, DesiredError, Identity, desired},
    objects::{GatewayInfo, NodeInfo, Objects, RemoteCluster, RemoteGateway},
    samples,
    source::manifests::objects_of,
};
use mc_gateway_common::abi::GROUP_MEMBERS;

/// Most bytes of a document: longer ones find nothing new.
const MOST: usize = 16_384;

/// A file of YAML or JSON documents.
pub fn manifests(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if text.len() > MOST {
        return;
    }
    let (objects, errors) = objects_of(text);
    for error in errors {
        assert!(!error.reason.is_empty(), "refused without a reason");
    }
    for node in objects.nodes.iter().map(|node| node.name.clone()) {
        judge(&objects, &node, BTreeSet::new());
    }
}

/// One remote cluster after the other, a field a line: id, Service CIDR, Pod CIDRs, gateways. Lists are
/// separated by blanks, clusters by an empty line.
pub fn cluster_info(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if text.len() > MOST {
        return;
    }
    let mut objects = local();
    for (number, block) in text.split("\n\n").take(40).enumerate() {
        let mut lines = block.split('\n');
        let mut next = || lines.next().unwrap_or_default().to_owned();
        let (cluster_id, service_cidr, pods, gateways) = (next(), next(), next(), next());
        objects.remotes.push(RemoteCluster {
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
                })
                .collect(),
        });
    }
    for name in ["gateway", "node"] {
        judge(&objects, name, BTreeSet::new());
        let all = objects.remotes.iter().map(|remote| remote.cluster_id.clone());
        judge(&objects, name, all.collect());
    }
}

/// The cluster that others send their information to: a gateway and a regular Node.
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

/// What is desired on a Node, and the same from objects in reverse order.
fn judge(objects: &Objects, node: &str, antrea: BTreeSet<String>) {
    let me = Identity {
        node_name: node.to_owned(),
        cluster_id: Some("east".to_owned()),
        pod_lookup: PodLookup::Auto,
        antrea,
    };
    let result = desired(objects, &me);
    let mut reversed = objects.clone();
    reversed.nodes.reverse();
    reversed.gateways.reverse();
    reversed.remotes.reverse();
    reversed.pods.reverse();
    // Names are unique where objects come from; where they are not, order is all that tells two apart.
    if names_are_unique(objects) {
        assert_eq!(result, desired(&reversed, &me), "order matters");
    }
    match result {
        Ok((desired, refusals)) => {
            for refusal in refusals {
                assert!(
                    !refusal.reason.is_empty() && !refusal.object.is_empty(),
                    "{refusal:?}"
                );
            }
            sound(&desired);
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

/// What no document may talk an agent into.
fn sound(desired: &Desired) {
    for (id, group) in &desired.groups {
        assert!(group.members.len() <= GROUP_MEMBERS, "group {id}");
        for member in &group.members {
            assert!(desired.members.contains_key(member), "member {member} of {id}");
        }
    }
    let mut remote: Vec<IpNet> = Vec::new();
    let mut local: Vec<IpNet> = Vec::new();
    for (prefix, route) in &desired.prefixes {
        assert_eq!(
            parse_prefix(&prefix.to_string()),
            Ok(*prefix),
            "accepted, and not usable"
        );
        assert!(
            route.deliver || desired.groups.contains_key(&route.group),
            "{prefix} leads nowhere"
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
                "{prefix} of another cluster takes {own}"
            );
        }
        for addr in desired.peers.keys() {
            assert!(!prefix.contains(addr), "{prefix} contains the peer {addr}");
        }
    }
    for net in &desired.routes {
        assert!(remote.contains(net), "{net} is routed and belongs to nobody");
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
            assert_eq!(parse_prefix(&net.to_string()), Ok(net), "written and read again");
            assert_eq!(text.parse::<IpNet>(), Ok(net), "as everybody reads it");
            assert_eq!(net.trunc(), net, "host bits");
            assert!(cidr::mapped_len(net) <= 128 && cidr::mapped_len(net) > 0);
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
    let decoded = samples::can_be_decoded(data);
    assert!(!decoded || data.len() >= 32, "a record without a head");
}
