//! Lookup tables of the present sets of backends, kept between plans.
//!
//! *Guarantees*: a table is that of [`maglev::table`]; without an entry it is computed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mc_gateway_common::abi::service::Maglev;
use mc_gateway_common::maglev;

/// Lookup tables by set of backends.
#[derive(Clone, Debug, Default)]
pub(super) struct MaglevTables {
    by_backends: BTreeMap<BTreeSet<u64>, Arc<Maglev>>,
}

impl MaglevTables {
    /// The table of these backends; none without backends. An equal `observed` table is shared.
    pub(super) fn table(
        &mut self,
        backends: &BTreeSet<u64>,
        observed: Option<&Arc<Maglev>>,
    ) -> Option<Arc<Maglev>> {
        if let Some(known) = self.by_backends.get_mut(backends) {
            if let Some(observed) = observed.filter(|observed| *observed == known) {
                *known = Arc::clone(observed);
            }
            return Some(Arc::clone(known));
        }
        let computed: Arc<Maglev> = maglev::table(backends)?.into();
        let table = observed
            .filter(|observed| **observed == computed)
            .unwrap_or(&computed);
        self.by_backends.insert(backends.clone(), Arc::clone(table));
        Some(Arc::clone(table))
    }

    /// Drops tables of other sets if there are more tables than sets.
    pub(super) fn retain<'b>(&mut self, present: impl ExactSizeIterator<Item = &'b BTreeSet<u64>>) {
        if self.by_backends.len() > present.len() {
            let present: BTreeSet<&BTreeSet<u64>> = present.collect();
            self.by_backends.retain(|backends, _| present.contains(backends));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_computed_once_and_dropped_with_its_set() {
        let mut tables = MaglevTables::default();
        let (first, second): (BTreeSet<u64>, BTreeSet<u64>) = ([1, 2].into(), [1, 2, 3].into());
        let table = tables.table(&first, None).unwrap();
        assert_eq!(*table, *maglev::table(&first).unwrap());
        assert!(Arc::ptr_eq(&table, &tables.table(&first, None).unwrap()));
        assert_eq!(
            *tables.table(&second, None).unwrap(),
            *maglev::table(&second).unwrap()
        );
        tables.retain([&second].into_iter());
        assert!(tables.by_backends.keys().eq([&second]));
        assert_eq!(tables.table(&BTreeSet::new(), None), None);
    }

    #[test]
    fn an_equal_table_in_the_map_is_shared() {
        let mut tables = MaglevTables::default();
        let backends: BTreeSet<u64> = [1, 2].into();
        let observed: Arc<Maglev> = maglev::table(&backends).unwrap().into();
        let other: Arc<Maglev> = maglev::table(&[3].into()).unwrap().into();
        assert!(!Arc::ptr_eq(
            &tables.table(&backends, Some(&other)).unwrap(),
            &other
        ));
        assert!(Arc::ptr_eq(
            &tables.table(&backends, Some(&observed)).unwrap(),
            &observed
        ));
        assert!(Arc::ptr_eq(&tables.table(&backends, None).unwrap(), &observed));
    }
}
