//! Selection of the next hop of a flow: rendezvous hashing by flow hash and liveness.

use crate::{
    abi::{GROUP_NEXT_HOPS, NextHop, NextHopGroup},
    liveness,
    maps::{CachedMaps, Maps},
    pipeline::subprograms::MapSubprograms,
    rendezvous::{self, Candidate},
    verdict::Event,
};

/// Mixes two words into one; a bijection in `value` for every `seed` (the finaliser of `MurmurHash3`).
#[inline(always)]
#[must_use]
pub fn mix(value: u32, seed: u32) -> u32 {
    let mut hash = value ^ seed.wrapping_mul(0x9e37_79b1);
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// The next hop for a flow, of the group in slot `group`.
///
/// It is the winner by [`hrw_better`] among the live next hops. Without a live one, it is the winner among all, which
/// is counted. The result depends on IDs, weights and liveness, not on the order of the next hops, so the loss of a
/// next hop only moves its own flows. `None` if no slot contains a next hop.
#[inline(always)]
pub fn select_nexthop<M: MapSubprograms>(maps: &M, group: u32, hash: u32) -> Option<&NextHop> {
    let next_hops = maps.group(group)?;
    let (slot, first) = winner(maps, next_hops, || Some(maps.hrw_winner(group, hash, false)))?;
    // Without failures, the liveness of the winner is the only one to read.
    if !liveness::is_dead(maps, slot, first.id) {
        return Some(first);
    }
    if next_hops.len != 1 {
        let slot = maps.hrw_winner(group, hash, true);
        if let Some(alive) = maps.next_hop(slot).filter(is_set) {
            return Some(alive);
        }
    }
    maps.count(Event::AllNextHopsDead);
    Some(first)
}

/// The same next hop as that of [`select_nexthop`], if the caches have it and it is live.
#[inline(always)]
pub fn cached_nexthop<M: CachedMaps>(maps: &M, group: u32, hash: u32) -> Option<&NextHop> {
    let (slot, found) = winner(maps, maps.group(group)?, || maps.cached_hrw_winner(group, hash))?;
    (!liveness::is_dead(maps, slot, found.id)).then_some(found)
}

/// The next hop of a flow while it is live, and its slot: the only one of the group, or the one in the slot that
/// `hrw_winner` returns.
#[inline(always)]
fn winner<'m, M: Maps>(
    maps: &'m M,
    group: &NextHopGroup,
    hrw_winner: impl FnOnce() -> Option<u32>,
) -> Option<(u32, &'m NextHop)> {
    if group.len == 1 {
        return usable(maps, group, 0);
    }
    let slot = hrw_winner()?;
    Some((slot, maps.next_hop(slot).filter(is_set)?))
}

/// Slot of the winner of rendezvous hashing in the group in slot `group`, among the live next hops if `alive`, else
/// among all; 0 for none.
#[inline(always)]
pub fn hrw_winner<M: MapSubprograms>(maps: &M, group: u32, hash: u32, alive: bool) -> u32 {
    let Some(group) = maps.group(group) else {
        return 0;
    };
    let mut winner = 0;
    let mut i = 0;
    while i < GROUP_NEXT_HOPS {
        if u32::try_from(i).is_ok_and(|i| i >= group.len) {
            break;
        }
        winner = maps.hrw_better(hash, alive, winner, slot_at(group, i));
        i = i.wrapping_add(1);
    }
    winner
}

/// The slot that wins for `hash`: `slot`, if it contains a next hop (a live one, if `alive`) that wins against the one
/// in slot `best`, else `best`. Slot 0 contains none.
#[inline(always)]
pub fn hrw_better<M: MapSubprograms>(maps: &M, hash: u32, alive: bool, best: u32, slot: u32) -> u32 {
    let Some(next_hop) = maps.next_hop(slot).filter(is_set) else {
        return best;
    };
    if alive && maps.is_dead(slot, next_hop.id) {
        return best;
    }
    let Some(other) = maps.next_hop(best).filter(is_set) else {
        return slot;
    };
    if rendezvous::hrw_better(candidate(next_hop, hash), candidate(other, hash)) {
        slot
    } else {
        best
    }
}

#[inline(always)]
fn candidate(next_hop: &NextHop, hash: u32) -> Candidate {
    Candidate {
        hash: mix(hash, next_hop.id),
        weight: next_hop.weight,
    }
}

/// The slot of the next hop at index `i`; the mask proves the bound to the verifier.
#[inline(always)]
fn slot_at(group: &NextHopGroup, i: usize) -> u32 {
    group
        .next_hops
        .get(i & (GROUP_NEXT_HOPS - 1))
        .copied()
        .unwrap_or(0)
}

/// The next hop at index `i` and its slot.
#[inline(always)]
fn usable<'t, M: Maps>(maps: &'t M, group: &NextHopGroup, i: usize) -> Option<(u32, &'t NextHop)> {
    let slot = slot_at(group, i);
    Some((slot, maps.next_hop(slot).filter(is_set)?))
}

/// Whether a slot contains a next hop.
#[inline(always)]
fn is_set(next_hop: &&NextHop) -> bool {
    next_hop.ifindex != 0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        abi::{
            Config,
            liveness::{ProbeReply, ProbeSent},
        },
        maps::MemoryMaps,
    };

    const GROUP: u32 = 3;

    fn group_of(ids: &[u32]) -> (MemoryMaps, u32) {
        let mut maps = MemoryMaps::default();
        let mut group = NextHopGroup {
            id: 1,
            len: u32::try_from(ids.len()).unwrap(),
            ..NextHopGroup::default()
        };
        for (i, id) in ids.iter().enumerate() {
            let slot = u32::try_from(i + 1).unwrap();
            group.next_hops[i] = slot;
            maps.next_hops.insert(
                slot,
                NextHop {
                    id: *id,
                    ifindex: 7,
                    weight: 1,
                    ..NextHop::default()
                },
            );
        }
        maps.groups.insert(GROUP, group);
        (maps, GROUP)
    }

    fn pick(ids: &[u32], hash: u32) -> Option<u32> {
        let (maps, group) = group_of(ids);
        select_nexthop(&maps, group, hash).map(|m| m.id)
    }

    #[test]
    fn an_empty_group_has_no_next_hop() {
        assert_eq!(pick(&[], 5), None);
    }

    #[test]
    fn a_next_hop_without_a_device_is_not_chosen() {
        let (mut maps, group) = group_of(&[1, 2]);
        maps.next_hops.get_mut(&1).unwrap().ifindex = 0;
        for hash in 0..100 {
            assert_eq!(select_nexthop(&maps, group, hash).map(|m| m.id), Some(2));
        }
    }

    #[test]
    fn flows_spread_evenly() {
        let mut counts = [0_u32; 4];
        for flow in 0..40_000_u32 {
            let id = pick(&[0, 1, 2, 3], mix(flow, 99)).unwrap();
            counts[usize::try_from(id).unwrap()] += 1;
        }
        for count in counts {
            assert!((9_500..10_500).contains(&count), "{counts:?}");
        }
    }

    /// The id the flow is given, and how often all next hops were found dead.
    fn pick_of(maps: &MemoryMaps, group: u32, hash: u32) -> (Option<u32>, u64) {
        maps.events.borrow_mut().clear();
        let id = select_nexthop(maps, group, hash).map(|m| m.id);
        let events = maps.events.borrow();
        (id, events.get(&Event::AllNextHopsDead).copied().unwrap_or(0))
    }

    /// Marks the next hops with these ids dead, four probes unanswered of three allowed.
    fn kill(maps: &mut MemoryMaps, ids: &[u32]) {
        maps.config = Some(Config {
            detect: 3,
            ..Config::default()
        });
        for (slot, next_hop) in &maps.next_hops {
            let id = next_hop.id;
            if ids.contains(&id) {
                maps.health.sent.insert(*slot, ProbeSent { id, sequence: 4 });
                let seen = ProbeReply {
                    id,
                    ..ProbeReply::default()
                };
                maps.health.seen.borrow_mut().insert(*slot, seen);
            }
        }
    }

    fn weigh(maps: &mut MemoryMaps, weights: &[u32]) {
        for (next_hop, weight) in maps.next_hops.values_mut().zip(weights) {
            next_hop.weight = *weight;
        }
    }

    #[test]
    fn a_single_dead_next_hop_is_used_and_counted() {
        let (mut maps, group) = group_of(&[1]);
        assert_eq!(pick_of(&maps, group, 5), (Some(1), 0));
        kill(&mut maps, &[1]);
        assert_eq!(pick_of(&maps, group, 5), (Some(1), 1));
    }

    #[test]
    fn with_all_next_hops_dead_the_preferred_one_is_used_and_counted() {
        let (mut maps, group) = group_of(&[1, 2, 3]);
        let before: Vec<_> = (0..100).map(|hash| pick_of(&maps, group, hash).0).collect();
        kill(&mut maps, &[1, 2, 3]);
        for (hash, before) in (0..100).zip(before) {
            assert_eq!(pick_of(&maps, group, hash), (before, 1));
        }
    }

    #[test]
    fn a_drained_next_hop_is_used_only_if_no_other_is_alive() {
        let (mut maps, group) = group_of(&[1, 2, 3]);
        weigh(&mut maps, &[0, 1, 1]);
        for hash in 0..1_000 {
            assert_ne!(pick_of(&maps, group, hash).0, Some(1));
        }
        kill(&mut maps, &[2, 3]);
        for hash in 0..1_000 {
            assert_eq!(pick_of(&maps, group, hash), (Some(1), 0));
        }
        kill(&mut maps, &[1, 2, 3]);
        for hash in 0..1_000 {
            let (id, dead) = pick_of(&maps, group, hash);
            assert!(id != Some(1) && dead == 1, "a dead one, but not the drained one");
        }
    }

    #[test]
    fn next_hops_that_are_all_drained_share_the_flows() {
        let (mut maps, group) = group_of(&[1, 2]);
        weigh(&mut maps, &[0, 0]);
        let first = (0..1_000)
            .filter(|hash| pick_of(&maps, group, mix(*hash, 3)).0 == Some(1))
            .count();
        assert!((400..600).contains(&first), "{first}");
    }

    #[test]
    fn shares_follow_weights() {
        for weights in [
            [1, 1, 2, 4],
            [100, 1, 50, 49],
            [3, 3, 3, 1],
            [1 << 31, 1 << 31, 1 << 30, 1 << 30],
        ] {
            let (mut maps, group) = group_of(&[10, 11, 12, 13]);
            weigh(&mut maps, &weights);
            let mut counts = [0_u32; 4];
            for flow in 0..100_000_u32 {
                let id = pick_of(&maps, group, mix(flow, 99)).0.unwrap();
                counts[usize::try_from(id - 10).unwrap()] += 1;
            }
            let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
            for (count, weight) in counts.iter().zip(weights) {
                let expected = u64::from(weight) * 100_000 / total;
                let off = u64::from(*count).abs_diff(expected);
                assert!(off < 300 + expected / 50, "{weights:?}: {counts:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_dead_next_hop_moves_only_its_flows(ids in prop::collection::hash_set(any::<u32>(), 2..16), weights in prop::collection::vec(0..4_u32, 16), hash: u32, lost: prop::sample::Index) {
            let ids: Vec<_> = ids.into_iter().collect();
            let (mut maps, group) = group_of(&ids);
            weigh(&mut maps, &weights);
            let lost = *lost.get(&ids);
            let before = pick_of(&maps, group, hash);
            kill(&mut maps, &[lost]);
            let after = pick_of(&maps, group, hash);
            if before.0 == Some(lost) {
                prop_assert!(after.0 != Some(lost) && after.1 == 0);
            } else {
                prop_assert_eq!(after, before);
            }
            // Dead is like not there at all.
            let (mut rest, group) = group_of(&ids);
            weigh(&mut rest, &weights);
            rest.next_hops.retain(|_, next_hop| next_hop.id != lost);
            prop_assert_eq!(pick_of(&rest, group, hash).0, after.0);
        }

        #[test]
        fn more_weight_only_adds_flows_and_less_only_removes_them(ids in prop::collection::hash_set(any::<u32>(), 2..16), weights in prop::collection::vec(1..100_u32, 16), hash: u32, more in 1..100_u32) {
            let ids: Vec<_> = ids.into_iter().collect();
            let (mut maps, group) = group_of(&ids);
            weigh(&mut maps, &weights);
            let before = pick_of(&maps, group, hash).0;
            maps.next_hops.get_mut(&1).unwrap().weight += more;
            let after = pick_of(&maps, group, hash).0;
            prop_assert!(after == before || after == Some(ids[0]));
        }

        #[test]
        fn weighted_order_of_next_hops_does_not_matter(next_hops in prop::collection::btree_map(any::<u32>(), 0..5_u32, 1..16), hash: u32) {
            let pick = |next_hops: Vec<(&u32, &u32)>| {
                let (ids, weights): (Vec<u32>, Vec<u32>) = next_hops.into_iter().unzip();
                let (mut maps, group) = group_of(&ids);
                weigh(&mut maps, &weights);
                pick_of(&maps, group, hash).0
            };
            prop_assert_eq!(pick(next_hops.iter().collect()), pick(next_hops.iter().rev().collect()));
        }

        #[test]
        fn the_order_of_next_hops_does_not_matter(ids in prop::collection::hash_set(any::<u32>(), 1..16), hash: u32) {
            let forward: Vec<_> = ids.into_iter().collect();
            let backward: Vec<_> = forward.iter().rev().copied().collect();
            prop_assert_eq!(pick(&forward, hash), pick(&backward, hash));
        }

        #[test]
        fn losing_a_next_hop_moves_only_its_flows(ids in prop::collection::hash_set(any::<u32>(), 2..16), hash: u32, lost: prop::sample::Index) {
            let all: Vec<_> = ids.into_iter().collect();
            let lost = *lost.get(&all);
            let rest: Vec<_> = all.iter().copied().filter(|id| *id != lost).collect();
            let before = pick(&all, hash);
            if before != Some(lost) {
                prop_assert_eq!(pick(&rest, hash), before);
            }
        }
    }
}
