//! Lookup table of a Service: Maglev hashing (Eisenbud et al., NSDI 2016, section 3.4).
//!
//! *Guarantees*: the table only depends on the set of backends, so it is the same on every gateway. The shares of two
//! backends differ by at most one entry. The removal of a backend moves few entries besides its own.

use std::{boxed::Box, collections::BTreeSet, vec::Vec};

use crate::abi::service::{MAGLEV_ENTRIES, MAGLEV_SLOTS, Maglev};

/// The backends in the table: all, or those with the lowest IDs if there are more than entries.
///
/// IDs are hashes of the Service and the Pod. The choice is therefore independent for each Service, the same at every
/// gateway, and a backend that comes or goes replaces one other at most (rendezvous hashing with one key).
pub fn served(backends: &BTreeSet<u64>) -> impl Iterator<Item = u64> {
    backends.iter().copied().take(MAGLEV_ENTRIES)
}

/// The table of the [`served`] backends, with IDs other than 0; `None` without backends.
#[must_use]
pub fn table(backends: &BTreeSet<u64>) -> Option<Box<Maglev>> {
    const FREE: u64 = 0;
    if backends.is_empty() {
        return None;
    }
    let mut table = Box::new(Maglev {
        backends: [FREE; MAGLEV_SLOTS],
    });
    let mut permutations: Vec<(u64, Permutation)> =
        served(backends).map(|id| (id, Permutation::new(id))).collect();
    let mut left = MAGLEV_ENTRIES;
    while left > 0 {
        for (id, permutation) in &mut permutations {
            // A permutation covers all entries, so it contains a free one.
            let free = permutation.find(|at| table.backends.get(*at) == Some(&FREE));
            let Some(entry) = free.and_then(|at| table.backends.get_mut(at)) else {
                return Some(table);
            };
            *entry = *id;
            left = left.saturating_sub(1);
            if left == 0 {
                break;
            }
        }
    }
    Some(table)
}

/// The order of preference of a backend over the entries: `offset`, `offset + skip`, … modulo the table's size,
/// which is prime, so that every entry comes once.
struct Permutation {
    next: usize,
    skip: usize,
    left: usize,
}

impl Permutation {
    fn new(id: u64) -> Self {
        let remainder = |hash: u64, of: usize| {
            let of = u64::try_from(of).unwrap_or(1).max(1);
            usize::try_from(hash.checked_rem(of).unwrap_or(0)).unwrap_or(0)
        };
        Self {
            next: remainder(mix(id, 1), MAGLEV_ENTRIES),
            skip: remainder(mix(id, 2), MAGLEV_ENTRIES.wrapping_sub(1)).wrapping_add(1),
            left: MAGLEV_ENTRIES,
        }
    }
}

impl Iterator for Permutation {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let at = self.next;
        self.next = at.wrapping_add(self.skip);
        if self.next >= MAGLEV_ENTRIES {
            self.next = self.next.wrapping_sub(MAGLEV_ENTRIES);
        }
        Some(at)
    }
}

/// Mixes 64 bits (the finaliser of `SplitMix64`).
fn mix(value: u64, seed: u64) -> u64 {
    let mut hash = value.wrapping_add(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn entries(table: &Maglev) -> impl Iterator<Item = u64> {
        assert_eq!(
            table.backends[MAGLEV_ENTRIES..],
            [0; MAGLEV_SLOTS - MAGLEV_ENTRIES]
        );
        table.backends.into_iter().take(MAGLEV_ENTRIES)
    }

    fn shares(table: &Maglev) -> BTreeMap<u64, usize> {
        let mut shares = BTreeMap::new();
        for id in entries(table) {
            *shares.entry(id).or_insert(0) += 1;
        }
        shares
    }

    fn ids(from: std::ops::Range<u64>) -> BTreeSet<u64> {
        from.map(|n| mix(n, 7) & ((1 << 40) - 1)).collect()
    }

    #[test]
    fn without_backends_there_is_no_table() {
        assert_eq!(table(&BTreeSet::new()), None);
    }

    #[test]
    fn one_backend_has_all_entries() {
        assert_eq!(shares(&table(&[7].into()).unwrap()), [(7, MAGLEV_ENTRIES)].into());
    }

    #[test]
    fn more_backends_than_entries_fill_the_table() {
        let shares = shares(&table(&ids(0..2 * MAGLEV_ENTRIES as u64)).unwrap());
        assert_eq!(shares.len(), MAGLEV_ENTRIES);
    }

    #[test]
    fn beyond_the_entries_a_change_of_one_backend_replaces_one_other_at_most() {
        let all = ids(0..MAGLEV_ENTRIES as u64 + 100);
        let in_table = |of: &BTreeSet<u64>| -> BTreeSet<u64> { entries(&table(of).unwrap()).collect() };
        let before = in_table(&all);
        assert_eq!(before, served(&all).collect());
        let mut unused = 0;
        for lost in &all {
            let rest: BTreeSet<u64> = all.iter().copied().filter(|id| id != lost).collect();
            let after = in_table(&rest);
            let left: Vec<u64> = before.difference(&after).copied().collect();
            let joined = after.difference(&before).count();
            if before.contains(lost) {
                assert_eq!((left, joined), (vec![*lost], 1), "{lost} leaves");
            } else {
                unused += 1;
                assert_eq!((left, joined), (vec![], 0), "{lost} was unused");
            }
        }
        assert_eq!(unused, 100);
    }

    /// The table must be the same in every version: otherwise flows move while gateways of two versions serve one
    /// Service.
    #[test]
    fn the_table_of_known_backends_never_changes() {
        let table = table(&[1, 2, 3].into()).unwrap();
        assert_eq!(shares(&table), [(1, 170), (2, 170), (3, 169)].into());
        assert_eq!(table.backends[..12], [1, 3, 3, 1, 1, 2, 3, 3, 2, 2, 3, 2]);
    }

    #[test]
    fn a_lost_backend_of_ten_moves_few_flows_of_others() {
        let all = ids(0..10);
        let before = table(&all).unwrap();
        let mut worst = 0;
        for lost in &all {
            let rest: BTreeSet<u64> = all.iter().copied().filter(|id| id != lost).collect();
            let after = table(&rest).unwrap();
            let moved = before
                .backends
                .iter()
                .zip(entries(&after))
                .filter(|(old, new)| *old != lost && **old != *new)
                .count();
            worst = worst.max(moved);
        }
        println!("{worst} of {MAGLEV_ENTRIES} entries moved besides the lost backend's, at worst");
        assert!(worst * 10 < MAGLEV_ENTRIES, "{worst} entries moved");
    }

    proptest! {
        #[test]
        fn shares_are_even(ids in prop::collection::btree_set(1_u64..1 << 40, 1..100)) {
            let shares = shares(&table(&ids).unwrap());
            let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
            prop_assert!(most - least <= 1, "{shares:?}");
            prop_assert_eq!(shares.len(), ids.len());
        }

        #[test]
        fn losing_a_backend_moves_little_but_its_own(ids in prop::collection::btree_set(1_u64..1 << 40, 2..40), lost: prop::sample::Index) {
            let lost = *lost.get(&ids.iter().copied().collect::<Vec<_>>());
            let rest: BTreeSet<u64> = ids.iter().copied().filter(|id| *id != lost).collect();
            let (before, after) = (table(&ids).unwrap(), table(&rest).unwrap());
            let moved = before.backends.iter().zip(entries(&after))
                .filter(|(old, new)| **old != lost && **old != *new).count();
            prop_assert!(moved * 4 < MAGLEV_ENTRIES, "{} moved", moved);
            prop_assert!(entries(&after).all(|id| rest.contains(&id)));
        }
    }
}
