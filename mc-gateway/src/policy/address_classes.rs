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

/// Blocks by the prefixes at which they begin and end: a comparison of each prefix with each block takes seconds with
/// tens of thousands of them.
#[derive(Default)]
struct Blocks {
    beginning: BTreeMap<IpNet, Vec<u32>>,
    /// By the exceptions of blocks.
    ending: BTreeMap<IpNet, BTreeSet<u32>>,
}

// === impl AddressClasses ===

impl AddressClasses {
    /// The classes for these peers and Pods.
    pub(super) fn new(
        peers: &BTreeMap<AddressPeer<'_>, u32>,
        pods: &BTreeMap<IpAddr, LabelledPod<'_>>,
    ) -> Self {
        let mut blocks = Blocks::default();
        // The peers of single addresses, by address.
        let mut by_addr = peers_of_pods(peers, pods);
        for (peer, number) in peers {
            match peer {
                AddressPeer::Block(block) => blocks.insert(block, *number),
                AddressPeer::Pods(_) => {}
                AddressPeer::Addrs(addrs) => {
                    for addr in addrs {
                        by_addr.entry(*addr).or_default().push(*number);
                    }
                }
            }
        }
        let addrs = by_addr.keys().map(|addr| IpNet::from(*addr));
        let prefixes: BTreeSet<IpNet> = blocks.prefixes().chain(addrs).collect();
        let mut classes = Numbers::beginning_with(Vec::new(), UNKNOWN_CLASS);
        let mut by_prefix = BTreeMap::new();
        // The prefixes around the present one, with their class and blocks; they precede it in the order of prefixes.
        let mut around: Vec<(IpNet, u32, Vec<u32>)> = Vec::new();
        for prefix in prefixes {
            while around.pop_if(|(outer, ..)| !outer.contains(&prefix)).is_some() {}
            let (outer, containing) = around
                .last()
                .map_or((UNKNOWN_CLASS, [].as_slice()), |(_, class, blocks)| {
                    (*class, blocks)
                });
            let containing = blocks.containing(&prefix, containing);
            let mut members = containing.clone();
            if prefix.prefix_len() == prefix.max_prefix_len() {
                members.extend(by_addr.get(&prefix.addr()).into_iter().flatten());
            }
            members.sort_unstable();
            let class = classes.number(members);
            if class != outer {
                by_prefix.insert(prefix, class);
            }
            around.push((prefix, class, containing));
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

// === impl Blocks ===

impl Blocks {
    fn insert(&mut self, block: &IpBlock, number: u32) {
        // An exception around the block leaves nothing of it.
        if !block.except.iter().any(|except| except.contains(&block.cidr)) {
            self.beginning.entry(block.cidr).or_default().push(number);
        }
        for except in &block.except {
            self.ending.entry(*except).or_default().insert(number);
        }
    }

    /// The prefixes at which the containing blocks may differ from those around.
    fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        self.beginning.keys().chain(self.ending.keys()).copied()
    }

    /// The blocks that contain the addresses of a prefix, except those in longer prefixes with their own class.
    /// `around` contain those of the prefix around it.
    fn containing(&self, prefix: &IpNet, around: &[u32]) -> Vec<u32> {
        let ending = self.ending.get(prefix);
        let is_open = |number: &&u32| ending.is_none_or(|ending| !ending.contains(*number));
        let beginning = self.beginning.get(prefix).map_or(&[][..], Vec::as_slice);
        around.iter().filter(is_open).chain(beginning).copied().collect()
    }
}
