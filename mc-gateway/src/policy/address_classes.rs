//! Classes of addresses that the same peers contain.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use mc_api::label_identity::Labels;
use mc_api::network_policy::IpBlock;

use super::identity_classes::LabelPeer;
use super::numbers::Numbers;
use super::selection::LabelledPod;
use super::tables::UNKNOWN_CLASS;

/// A peer by addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressPeer<'a> {
    Block(&'a IpBlock),
    /// Pods of the own cluster.
    Pods(LabelPeer<'a>),
    /// Single addresses.
    Addrs(Vec<IpAddr>),
}

/// The classes.
#[derive(Debug, Default)]
pub(super) struct AddressClasses {
    /// By prefix; the longest one applies.
    pub(super) by_prefix: BTreeMap<IpNet, u32>,
    /// The classes of addresses in a peer, by its number.
    pub(super) by_peer: BTreeMap<u32, Vec<u32>>,
}

// === impl AddressClasses ===

impl AddressClasses {
    /// The classes for these peers and Pods.
    pub(super) fn new(
        peers: &BTreeMap<AddressPeer<'_>, u32>,
        pods: &BTreeMap<IpAddr, LabelledPod<'_>>,
    ) -> Self {
        let mut blocks: Vec<(&IpBlock, u32)> = Vec::new();
        // The peers of single addresses, by address.
        let mut by_addr = peers_of_pods(peers, pods);
        for (peer, number) in peers {
            match peer {
                AddressPeer::Block(block) => blocks.push((*block, *number)),
                AddressPeer::Pods(_) => {}
                AddressPeer::Addrs(addrs) => {
                    for addr in addrs {
                        by_addr.entry(*addr).or_default().push(*number);
                    }
                }
            }
        }
        let in_blocks = blocks
            .iter()
            .flat_map(|(block, _)| [block.cidr].into_iter().chain(block.except.iter().copied()));
        let prefixes: BTreeSet<IpNet> = in_blocks
            .chain(by_addr.keys().map(|addr| IpNet::from(*addr)))
            .collect();
        let mut classes = Numbers::beginning_with(Vec::new(), UNKNOWN_CLASS);
        let mut by_prefix = BTreeMap::new();
        // The prefixes around the present one; they precede it in the order of prefixes.
        let mut around: Vec<(IpNet, u32)> = Vec::new();
        for prefix in prefixes {
            let containing = blocks.iter().filter(|(block, _)| contains(block, &prefix));
            let mut members: Vec<u32> = containing.map(|(_, number)| *number).collect();
            if prefix.prefix_len() == prefix.max_prefix_len() {
                members.extend(by_addr.get(&prefix.addr()).into_iter().flatten());
            }
            members.sort_unstable();
            let class = classes.number(members);
            while around.pop_if(|(outer, _)| !outer.contains(&prefix)).is_some() {}
            let outer = around.last().map_or(UNKNOWN_CLASS, |(_, class)| *class);
            if class != outer {
                by_prefix.insert(prefix, class);
            }
            around.push((prefix, class));
        }
        Self {
            by_prefix,
            by_peer: classes.by_member(),
        }
    }
}

/// The peers by labels that match the Pod of an address; addresses without one are absent.
fn peers_of_pods(
    peers: &BTreeMap<AddressPeer<'_>, u32>,
    pods: &BTreeMap<IpAddr, LabelledPod<'_>>,
) -> BTreeMap<IpAddr, Vec<u32>> {
    let by_labels: Vec<_> = peers
        .iter()
        .filter_map(|(peer, number)| match peer {
            AddressPeer::Pods(peer) => Some((peer, *number)),
            AddressPeer::Block(_) | AddressPeer::Addrs(_) => None,
        })
        .collect();
    if by_labels.is_empty() {
        return BTreeMap::new();
    }
    // Pods of a workload have the same labels, which are compared once.
    let mut known: BTreeMap<(&str, &Labels, &str), Vec<u32>> = BTreeMap::new();
    let mut by_addr = BTreeMap::new();
    for (addr, LabelledPod { pod, namespace }) in pods {
        let key = (&*pod.namespace, &*pod.labels, &*pod.service_account);
        let matching = known.entry(key).or_insert_with(|| {
            let matching = by_labels
                .iter()
                .filter(|(peer, _)| peer.matches(namespace, &pod.labels, Some(&pod.service_account)));
            matching.map(|(_, number)| *number).collect()
        });
        if !matching.is_empty() {
            by_addr.insert(*addr, matching.clone());
        }
    }
    by_addr
}

/// Whether a block contains all addresses of a prefix, except those in longer prefixes with their own class.
fn contains(block: &IpBlock, prefix: &IpNet) -> bool {
    block.cidr.contains(prefix) && !block.except.iter().any(|except| except.contains(prefix))
}
