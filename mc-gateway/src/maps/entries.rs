//! Comparison of the entries of a map with those that the agent has written.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use super::error::{MapsError, map_error};

/// Whether the entries of a map are the expected ones. Ends at the first other entry.
pub(super) fn same_entries<K: Ord, V: PartialEq>(
    entries: impl Iterator<Item = Result<(K, V), aya::maps::MapError>>,
    expected: &BTreeMap<K, V>,
    name: &'static str,
) -> Result<bool, MapsError> {
    has_entries(entries, |key| expected.get(key), expected.len(), name)
}

/// Whether the entries of a map are `count` expected ones. Ends at the first other entry.
pub(super) fn has_entries<K, V: PartialEq, E: Borrow<V>>(
    entries: impl Iterator<Item = Result<(K, V), aya::maps::MapError>>,
    expected: impl Fn(&K) -> Option<E>,
    count: usize,
    name: &'static str,
) -> Result<bool, MapsError> {
    let mut read: usize = 0;
    for entry in entries {
        let (key, value) = entry.map_err(map_error(name, "read"))?;
        if expected(&key).is_none_or(|expected| *expected.borrow() != value) {
            return Ok(false);
        }
        read = read.saturating_add(1);
    }
    Ok(read == count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(entries: &[(u32, u32)], expected: &[(u32, u32)]) -> bool {
        let expected: BTreeMap<u32, u32> = expected.iter().copied().collect();
        same_entries(entries.iter().copied().map(Ok), &expected, "map").unwrap()
    }

    #[test]
    fn a_changed_added_or_deleted_entry_is_noticed() {
        let written = [(1, 10), (2, 20)];
        assert!(same(&[(2, 20), (1, 10)], &written));
        assert!(!same(&[(1, 10), (2, 21)], &written));
        assert!(!same(&[(1, 10), (2, 20), (3, 30)], &written));
        assert!(!same(&[(1, 10)], &written));
        assert!(!same(&[], &written));
        assert!(same(&[], &[]));
    }
}
