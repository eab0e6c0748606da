//! Truncates the resolved state to the capacity of the maps. Pure.
//!
//! *Guarantees*: the selection is deterministic; entries left out are counted in one error
//! for each map. A packet to a destination left out is dropped and counted, because its route stays.

use std::collections::{BTreeMap, BTreeSet};

use mc_gateway_common::abi::{self, MAX_NEXT_HOP_GROUPS, MAX_NEXT_HOPS, MAX_PEERS, MAX_PREFIXES};

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

/// Truncates `resolved` to the capacity.
pub fn truncate_to_capacity(resolved: &mut ResolvedState, capacity: Capacity) -> Vec<FieldError> {
    let mut rejected = Vec::new();
    // Short prefixes first: a network serves many Pods, an address one.
    let keep = first(resolved.prefixes.keys().copied(), capacity.prefixes);
    rejected.extend(retain(abi::PREFIXES, &mut resolved.prefixes, keep.as_ref()));
    let keep = first(resolved.groups.keys().copied(), capacity.groups);
    rejected.extend(retain(abi::NEXT_HOP_GROUPS, &mut resolved.groups, keep.as_ref()));
    let keep = first(resolved.next_hops.keys().copied(), capacity.next_hops);
    rejected.extend(retain(abi::NEXT_HOPS, &mut resolved.next_hops, keep.as_ref()));
    for next_hops in resolved.groups.values_mut() {
        next_hops.retain(|id| resolved.next_hops.contains_key(id));
    }
    let keep = first(resolved.peers.keys().copied(), capacity.peers);
    rejected.extend(retain(abi::PEERS, &mut resolved.peers, keep.as_ref()));
    rejected
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
    let left_out = needed.saturating_sub(keep.len());
    Some(FieldError {
        object: "this Node".to_owned(),
        field: format!("map {map}"),
        value: needed.to_string(),
        reason: format!(
            "entries exceed the capacity of {}: {left_out} are left out",
            keep.len()
        ),
    })
}

#[cfg(test)]
mod tests {
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
        assert_eq!(truncate_to_capacity(&mut fitted, Capacity::default()), []);
        assert_eq!(fitted, resolved());
    }

    #[test]
    fn entries_beyond_the_capacity_are_left_out_and_counted() {
        let mut fitted = resolved();
        let rejected = truncate_to_capacity(&mut fitted, SMALL);
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
        assert_eq!(truncate_to_capacity(&mut fitted, SMALL), []);
    }
}
