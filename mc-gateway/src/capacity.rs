//! Truncates the resolved state to the capacity of the maps. Pure.
//!
//! *Guarantees*: the selection does not depend on the order of the objects; entries left out are counted in one error
//! for each map. A packet to a destination left out is dropped and counted, because its route stays. A Node whose group
//! is left out has no group as a peer, and sends no packet as a Pod.

use std::collections::{BTreeMap, BTreeSet};

use mc_gateway_common::abi::{
    self, Addr, CLUSTER_LOCAL, MAX_NEXT_HOP_GROUPS, MAX_NEXT_HOPS, MAX_PEERS, MAX_PREFIXES,
    PEER_LOCAL_GATEWAY, PEER_REMOTE_GATEWAY,
};

use crate::objects::FieldError;
use crate::resolved::ResolvedState;

/// Entries per map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Entries of `mc_prefixes`.
    pub prefixes: u32,
    /// Slots of `mc_nh_groups` available.
    pub groups: u32,
    /// Slots of `mc_nexthops` available.
    pub next_hops: u32,
    /// Entries of `mc_peers`.
    pub peers: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            prefixes: MAX_PREFIXES,
            // Slot 0 means "none".
            groups: MAX_NEXT_HOP_GROUPS.saturating_sub(1),
            next_hops: MAX_NEXT_HOPS.saturating_sub(1),
            peers: MAX_PEERS,
        }
    }
}

/// Truncates `resolved` to the capacity. Of the next-hop groups those of other clusters stay first, because a cluster
/// serves many Nodes; then the `established` ones, by stable ID, whose flows would break; then the rest by ID.
pub fn truncate_to_capacity(
    resolved: &mut ResolvedState,
    capacity: Capacity,
    established: &BTreeSet<u32>,
) -> Vec<FieldError> {
    let mut rejected = Vec::new();
    rejected.extend(truncate_prefixes(resolved, capacity.prefixes));
    if exceeds(&resolved.groups, capacity.groups) || exceeds(&resolved.next_hops, capacity.next_hops) {
        rejected.extend(truncate_groups(resolved, capacity, established));
    }
    if exceeds(&resolved.peers, capacity.peers) {
        let keep = first(peer_order(resolved).into_iter(), capacity.peers);
        rejected.extend(retain(abi::PEERS, &mut resolved.peers, keep.as_ref()));
    }
    rejected
}

/// Truncates the prefixes. Short ones are first: a network serves many Pods, an address one.
fn truncate_prefixes(resolved: &mut ResolvedState, capacity: u32) -> Option<FieldError> {
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    let needed = resolved.prefixes.len();
    if needed <= capacity {
        return None;
    }
    let first = resolved.prefixes.iter().take(capacity);
    resolved.prefixes = first.map(|(key, prefix)| (*key, *prefix)).collect();
    Some(left_out(abi::PREFIXES, needed, capacity))
}

/// Truncates the groups and the next hops in their order. The next hops of groups left out are not missed.
fn truncate_groups(
    resolved: &mut ResolvedState,
    capacity: Capacity,
    established: &BTreeSet<u32>,
) -> Vec<FieldError> {
    let mut rejected = Vec::new();
    let order = group_order(resolved, established);
    let keep = first(order.iter().copied(), capacity.groups);
    rejected.extend(retain(abi::NEXT_HOP_GROUPS, &mut resolved.groups, keep.as_ref()));
    let next_hops = next_hop_order(resolved, &order);
    let used: BTreeSet<u32> = next_hops.iter().copied().collect();
    resolved.next_hops.retain(|id, _| used.contains(id));
    let keep = first(next_hops.into_iter(), capacity.next_hops);
    rejected.extend(retain(abi::NEXT_HOPS, &mut resolved.next_hops, keep.as_ref()));
    for next_hops in resolved.groups.values_mut() {
        next_hops.retain(|id| resolved.next_hops.contains_key(id));
    }
    rejected
}

fn exceeds<K, V>(entries: &BTreeMap<K, V>, capacity: u32) -> bool {
    entries.len() > usize::try_from(capacity).unwrap_or(usize::MAX)
}

fn first<K: Ord>(keys: impl ExactSizeIterator<Item = K>, capacity: u32) -> Option<BTreeSet<K>> {
    let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
    (keys.len() > capacity).then(|| keys.take(capacity).collect())
}

fn retain<K: Ord, V>(
    map: &str,
    entries: &mut BTreeMap<K, V>,
    keep: Option<&BTreeSet<K>>,
) -> Option<FieldError> {
    let keep = keep?;
    let needed = entries.len();
    entries.retain(|key, _| keep.contains(key));
    Some(left_out(map, needed, keep.len()))
}

/// The error of a map with room for `kept` of the `needed` entries.
fn left_out(map: &str, needed: usize, kept: usize) -> FieldError {
    let left_out = needed.saturating_sub(kept);
    FieldError {
        object: "this Node".to_owned(),
        field: format!("map {map}"),
        value: needed.to_string(),
        reason: format!("entries exceed the capacity of {kept}: {left_out} are left out"),
    }
}

/// IDs of all groups, the most important first.
fn group_order(resolved: &ResolvedState, established: &BTreeSet<u32>) -> Vec<u32> {
    let remote: BTreeSet<u32> = resolved
        .prefixes
        .values()
        .filter(|prefix| prefix.cluster != CLUSTER_LOCAL)
        .map(|prefix| prefix.group)
        .collect();
    let mut order: Vec<u32> = resolved.groups.keys().copied().collect();
    order.sort_by_key(|id| (!remote.contains(id), !established.contains(id), *id));
    order
}

/// IDs of the next hops of the groups in this order, without duplicates.
fn next_hop_order(resolved: &ResolvedState, groups: &[u32]) -> Vec<u32> {
    let mut seen = BTreeSet::new();
    groups
        .iter()
        .filter_map(|group| resolved.groups.get(group))
        .flatten()
        .copied()
        .filter(|id| seen.insert(*id) && resolved.next_hops.contains_key(id))
        .collect()
}

/// Addresses of all peers: gateways, which send for many Nodes, before other Nodes.
fn peer_order(resolved: &ResolvedState) -> Vec<Addr> {
    let is_gateway = |peer: &abi::Peer| peer.flags & (PEER_REMOTE_GATEWAY | PEER_LOCAL_GATEWAY) != 0;
    let mut order: Vec<(bool, Addr)> = resolved
        .peers
        .iter()
        .map(|(addr, peer)| (!is_gateway(peer), *addr))
        .collect();
    order.sort_unstable();
    order.into_iter().map(|(_, addr)| addr).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::resolved::{Prefix, PrefixKey};

    const SMALL: Capacity = Capacity {
        prefixes: 2,
        groups: 1,
        next_hops: 2,
        peers: 1,
    };

    fn resolved() -> ResolvedState {
        let prefix = |len, last, group| {
            let mut addr = [0; 16];
            addr[15] = last;
            let value = Prefix {
                cluster: 1,
                group,
                action: abi::ACTION_FORWARD,
                flags: 0,
                identity: 0,
            };
            (PrefixKey { len, addr }, value)
        };
        ResolvedState {
            prefixes: [prefix(128, 1, 5), prefix(128, 2, 5), prefix(112, 3, 6)].into(),
            groups: [(5, [7, 8, 9].into()), (6, [9].into())].into(),
            next_hops: [7, 8, 9].map(|id| (id, abi::NextHop::default())).into(),
            peers: [[1; 16], [2; 16]].map(|addr| (addr, abi::Peer::default())).into(),
            ..ResolvedState::default()
        }
    }

    #[test]
    fn entries_within_the_capacity_are_kept() {
        let mut fitted = resolved();
        assert_eq!(
            truncate_to_capacity(&mut fitted, Capacity::default(), &BTreeSet::new()),
            []
        );
        assert_eq!(fitted, resolved());
    }

    #[test]
    fn entries_beyond_the_capacity_are_left_out_and_counted() {
        let mut fitted = resolved();
        let rejected = truncate_to_capacity(&mut fitted, SMALL, &BTreeSet::new());
        let texts: Vec<String> = rejected.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "this Node: map mc_prefixes: \"3\" entries exceed the capacity of 2: 1 are left out",
                "this Node: map mc_nh_groups: \"2\" entries exceed the capacity of 1: 1 are left out",
                "this Node: map mc_nexthops: \"3\" entries exceed the capacity of 2: 1 are left out",
                "this Node: map mc_peers: \"2\" entries exceed the capacity of 1: 1 are left out",
            ]
        );
        let lengths: Vec<u32> = fitted.prefixes.keys().map(|key| key.len).collect();
        assert_eq!(lengths, [112, 128], "the network stays before the addresses");
        assert_eq!(fitted.groups, [(5, [7, 8].into())].into());
        assert_eq!(truncate_to_capacity(&mut fitted, SMALL, &BTreeSet::new()), []);
    }

    /// Two clusters and four Nodes with one next hop each. A group's number is its ID.
    const CLUSTERS: [u32; 2] = [40, 20];
    const NODES: [u32; 4] = [10, 30, 50, 60];

    fn clusters_and_nodes() -> ResolvedState {
        let prefix = |cluster, group: u32| {
            let mut addr = [0; 16];
            addr[12..].copy_from_slice(&group.to_be_bytes());
            let value = Prefix {
                cluster,
                group,
                action: abi::ACTION_FORWARD,
                flags: 0,
                identity: 0,
            };
            (PrefixKey { len: 120, addr }, value)
        };
        let clusters = CLUSTERS.iter().map(|group| prefix((*group).into(), *group));
        let nodes = NODES.iter().map(|group| prefix(CLUSTER_LOCAL, *group));
        let all = || CLUSTERS.into_iter().chain(NODES);
        ResolvedState {
            prefixes: clusters.chain(nodes).collect(),
            groups: all().map(|group| (group, [group + 1].into())).collect(),
            next_hops: all().map(|group| (group + 1, abi::NextHop::default())).collect(),
            ..ResolvedState::default()
        }
    }

    fn groups_kept(capacity: u32, established: &[u32]) -> BTreeSet<u32> {
        let mut fitted = clusters_and_nodes();
        let capacity = Capacity {
            groups: capacity,
            ..Capacity::default()
        };
        let rejected = truncate_to_capacity(&mut fitted, capacity, &established.iter().copied().collect());
        assert_eq!(rejected.len(), usize::from(capacity.groups < 6));
        let next_hops: BTreeSet<u32> = fitted.groups.keys().map(|group| group + 1).collect();
        assert!(
            fitted.next_hops.keys().eq(&next_hops),
            "next hops of the groups kept"
        );
        fitted.groups.into_keys().collect()
    }

    #[test]
    fn groups_of_other_clusters_stay_before_those_of_nodes() {
        assert_eq!(groups_kept(6, &[]).len(), 6);
        assert_eq!(groups_kept(3, &[]), [10, 20, 40].into());
        assert_eq!(groups_kept(2, &[]), [20, 40].into());
        assert_eq!(groups_kept(2, &NODES), [20, 40].into());
        assert_eq!(groups_kept(1, &[]), [20].into());
    }

    #[test]
    fn established_groups_stay_before_new_ones() {
        assert_eq!(groups_kept(4, &[60, 50]), [20, 40, 50, 60].into());
        assert_eq!(groups_kept(3, &[60]), [20, 40, 60].into());
        assert_eq!(groups_kept(1, &[40]), [40].into());
    }

    #[test]
    fn gateways_stay_before_other_peers() {
        let peer = |flags| abi::Peer {
            flags,
            ..abi::Peer::default()
        };
        let mut fitted = ResolvedState {
            peers: [
                ([1; 16], peer(abi::PEER_LOCAL_NODE)),
                ([2; 16], peer(PEER_LOCAL_GATEWAY | abi::PEER_LOCAL_NODE)),
                ([3; 16], peer(PEER_REMOTE_GATEWAY)),
            ]
            .into(),
            ..ResolvedState::default()
        };
        let capacity = Capacity {
            peers: 2,
            ..Capacity::default()
        };
        let rejected = truncate_to_capacity(&mut fitted, capacity, &BTreeSet::new());
        assert_eq!(rejected.len(), 1);
        assert!(fitted.peers.keys().eq(&[[2; 16], [3; 16]]));
    }

    proptest! {
        /// What stays is established: with it in the maps, the next selection is the same, and a new group replaces
        /// none of its kind.
        #[test]
        fn a_selection_is_stable(
            capacity in 0..8_u32,
            established in prop::collection::btree_set(prop::sample::select([&CLUSTERS[..], &NODES].concat()), 0..6),
        ) {
            let established: Vec<u32> = established.into_iter().collect();
            let kept = groups_kept(capacity, &established);
            prop_assert_eq!(kept.len(), usize::try_from(capacity).unwrap().min(6));
            let again = groups_kept(capacity, &kept.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(&again, &kept);
            let clusters = CLUSTERS.iter().filter(|group| kept.contains(group)).count();
            prop_assert_eq!(clusters, kept.len().min(2));
        }
    }
}
