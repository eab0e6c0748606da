//! Past lookup tables of a Service port: for each share of the flows the backends that earlier tables gave it. Pure.
//!
//! *Guarantees*: an entry is a backend that still exists and differs from that of the present table and of the other
//! past tables in the same place; 0 where there is none. Newer backends are in lower tables.

use std::collections::BTreeSet;
use std::sync::Arc;

use mc_gateway_common::abi::service::{MAGLEV_SLOTS, Maglev, PAST_TABLES};

/// The past tables for the `present` one, or for no table, from all `earlier` ones, newest first. Tables without an
/// entry are left out.
pub fn past_tables<'t>(
    present: Option<&Maglev>,
    earlier: impl IntoIterator<Item = &'t Maglev>,
    existing: &BTreeSet<u64>,
) -> Vec<Arc<Maglev>> {
    const NONE: u64 = 0;
    let mut tables = vec![[NONE; MAGLEV_SLOTS]; usize::from(PAST_TABLES)];
    for table in earlier {
        for (slot, id) in table.backends.into_iter().enumerate() {
            let is_present = present.is_some_and(|present| present.backends.get(slot) == Some(&id));
            if id == NONE || is_present || !existing.contains(&id) {
                continue;
            }
            // The first place that is free or has the backend already.
            let places = tables.iter_mut().filter_map(|past| past.get_mut(slot));
            if let Some(place) = places.into_iter().find(|place| **place == NONE || **place == id) {
                *place = id;
            }
        }
    }
    tables
        .into_iter()
        .filter(|backends| backends.iter().any(|id| *id != NONE))
        .map(|backends| Arc::new(Maglev { backends }))
        .collect()
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::abi::service::MAGLEV_ENTRIES;
    use mc_gateway_common::maglev;
    use proptest::prelude::*;

    use super::*;

    fn table(ids: impl IntoIterator<Item = u64>) -> Box<Maglev> {
        maglev::table(&ids.into_iter().collect()).unwrap()
    }

    /// The backends of past tables in one place.
    fn column(tables: &[Arc<Maglev>], slot: usize) -> Vec<u64> {
        tables.iter().map(|table| table.backends[slot]).collect()
    }

    #[test]
    fn a_connection_finds_the_backend_of_every_earlier_table_that_exists() {
        let (first, second, third) = (table([1, 2, 3]), table([2, 3, 4]), table([3, 4, 5]));
        let tables = past_tables(Some(&third), [&*second, &*first], &[2, 3, 4, 5].into());
        for slot in 0..MAGLEV_ENTRIES {
            let (now, newer, older) = (third.backends[slot], second.backends[slot], first.backends[slot]);
            let mut expected = vec![];
            for id in [newer, older] {
                if id != now && id != 1 && !expected.contains(&id) {
                    expected.push(id);
                }
            }
            expected.resize(tables.len(), 0);
            assert_eq!(column(&tables, slot), expected, "slot {slot}");
        }
    }

    #[test]
    fn equal_tables_and_removed_backends_leave_no_past_table() {
        let (old, new) = (table([1]), table([2]));
        assert_eq!(past_tables(Some(&new), [&*new], &[2].into()), []);
        assert_eq!(past_tables(Some(&new), [&*old], &[2].into()), []);
        assert_eq!(past_tables(Some(&new), [&*old], &[1, 2].into()).len(), 1);
    }

    #[test]
    fn without_a_present_table_the_last_one_is_the_newest_past_one() {
        let last = table([1, 2]);
        assert_eq!(past_tables(None, [&*last], &[1, 2].into()), [Arc::new(*last)]);
    }

    proptest! {
        #[test]
        fn the_newest_existing_backends_are_kept(
            sets in prop::collection::vec(prop::collection::btree_set(1_u64..12, 1..6), 1..9),
            existing in prop::collection::btree_set(1_u64..12, 0..12),
        ) {
            let all: Vec<Box<Maglev>> = sets.iter().map(|set| table(set.iter().copied())).collect();
            let (present, earlier) = all.split_first().unwrap();
            let tables = past_tables(Some(present), earlier.iter().map(|table| &**table), &existing);
            for slot in 0..MAGLEV_SLOTS {
                let mut expected = Vec::new();
                for id in earlier.iter().map(|table| table.backends[slot]) {
                    if id != 0 && id != present.backends[slot] && existing.contains(&id) && !expected.contains(&id) {
                        expected.push(id);
                    }
                }
                expected.truncate(usize::from(PAST_TABLES));
                expected.resize(tables.len(), 0);
                prop_assert_eq!(column(&tables, slot), expected);
            }
            // Past tables in place of the tables that they were made of give the same result: after a restart.
            let again = std::iter::once(&**present).chain(tables.iter().map(|table| &**table));
            prop_assert_eq!(past_tables(Some(present), again, &existing), tables.clone());
        }
    }
}
