//! Counter slots of peers.

use std::collections::{BTreeMap, BTreeSet};

use mc_gateway_common::abi::{self, Addr, MAX_PEER_STATS};

/// Counter slots by peer. A peer keeps its slot while it exists; the peer map records the assignment.
#[derive(Debug, Default)]
pub(super) struct CounterSlots {
    by_peer: BTreeMap<Addr, u32>,
    exhausted: bool,
}

impl CounterSlots {
    /// Keeps the slot of every peer that has one and assigns free slots to the others; without a free slot, peers
    /// share slot 0. A slot released by a plan is not reused by the same plan: a program may still be counting in
    /// it.
    pub(super) fn assign<'a>(
        observed: &BTreeMap<Addr, abi::Peer>,
        wanted: impl Iterator<Item = &'a Addr>,
    ) -> Self {
        Self::assign_within(MAX_PEER_STATS, observed, wanted)
    }

    fn assign_within<'a>(
        size: u32,
        observed: &BTreeMap<Addr, abi::Peer>,
        wanted: impl Iterator<Item = &'a Addr>,
    ) -> Self {
        let wanted: BTreeSet<&Addr> = wanted.collect();
        let mut counters = Self::default();
        let mut used = BTreeSet::new();
        let mut left = false;
        for (addr, peer) in observed {
            let fresh = peer.stats != 0 && peer.stats < size && used.insert(peer.stats);
            if fresh && wanted.contains(addr) {
                counters.by_peer.insert(*addr, peer.stats);
            }
            left |= fresh && !wanted.contains(addr);
        }
        let mut free = (1..size).filter(|slot| !used.contains(slot));
        for addr in wanted {
            if counters.by_peer.contains_key(addr) {
                continue;
            }
            match free.next() {
                Some(slot) => {
                    counters.by_peer.insert(*addr, slot);
                }
                // Slots released by this plan are free in the next one.
                None => counters.exhausted = left,
            }
        }
        counters
    }

    /// The slot of a peer; 0 if shared or unknown.
    pub(super) fn slot(&self, addr: &Addr) -> u32 {
        self.by_peer.get(addr).copied().unwrap_or_default()
    }

    /// Whether peers share slot 0 only until the next plan.
    pub(super) fn exhausted(&self) -> bool {
        self.exhausted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assign(observed: &[(u8, u32)], wanted: &[u8]) -> (Vec<u32>, bool) {
        let observed = observed.iter().map(|(last, traffic)| {
            let peer = abi::Peer {
                stats: *traffic,
                ..abi::Peer::default()
            };
            ([*last; 16], peer)
        });
        let wanted: Vec<Addr> = wanted.iter().map(|last| [*last; 16]).collect();
        let counters = CounterSlots::assign_within(4, &observed.collect(), wanted.iter());
        let slots = wanted.iter().map(|addr| counters.slot(addr)).collect();
        (slots, counters.exhausted())
    }

    #[test]
    fn a_peer_keeps_its_slot() {
        assert_eq!(assign(&[(1, 2), (2, 1)], &[1, 2, 3]), (vec![2, 1, 3], false));
    }

    #[test]
    fn a_released_slot_is_not_reused_by_the_same_plan() {
        assert_eq!(assign(&[(1, 1), (2, 2)], &[2, 3]), (vec![2, 3], false));
        assert_eq!(assign(&[(2, 2), (3, 3)], &[2, 3, 4]), (vec![2, 3, 1], false));
    }

    #[test]
    fn two_peers_never_share_a_kept_slot() {
        assert_eq!(assign(&[(1, 2), (2, 2)], &[1, 2]), (vec![2, 1], false));
    }

    #[test]
    fn peers_beyond_the_capacity_share_slot_0() {
        assert_eq!(assign(&[], &[1, 2, 3, 4, 5]), (vec![1, 2, 3, 0, 0], false));
        let (slots, short) = assign(&[(1, 1), (2, 2), (3, 3)], &[1, 2, 4]);
        assert_eq!(
            (slots, short),
            (vec![1, 2, 0], true),
            "the next plan has a slot for it"
        );
        assert_eq!(
            assign(&[(1, 1), (2, 2), (4, 0)], &[1, 2, 4]),
            (vec![1, 2, 3], false)
        );
    }

    #[test]
    fn invalid_slots_are_not_kept() {
        assert_eq!(assign(&[(1, 4), (2, 9)], &[1, 2]), (vec![1, 2], false));
    }
}
