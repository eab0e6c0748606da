//! A sorted map whose clones share their unchanged parts.
//!
//! *Guarantees*: a clone takes time for each chunk instead of each entry, a change copies one chunk, and a comparison
//! skips the chunks that both maps share.
//!
//! `imbl::OrdMap` has the same properties. Its nodes have at most 64 entries and are one allocation each, which takes
//! more memory for maps that are built as a whole and change in few places, as those of the agent.

use std::fmt;
use std::ops::Index;
use std::sync::Arc;

/// Most entries of a chunk: a power of two, so that a filled chunk has no unused memory.
const MAX_ENTRIES: usize = 256;
/// Entries of unused memory that a growing chunk gets at a time.
const GROWTH: usize = 32;
/// With more changes than one in so many entries, a new map takes less time than a changed clone.
const FEW_CHANGES: usize = 4;

type Chunk<K, V> = Vec<(K, V)>;

/// A sorted map in chunks.
#[derive(Clone)]
pub struct SharedMap<K, V> {
    /// In the order of their keys. No chunk is empty.
    chunks: Vec<Arc<Chunk<K, V>>>,
    len: usize,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<K, V> SharedMap<K, V> {
    /// Number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries in the order of their keys.
    #[must_use]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        let entries = self.chunks.iter().flat_map(|chunk| chunk.iter());
        entries.map(|(key, value)| (key, value))
    }

    /// All keys in their order.
    #[must_use]
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// All values in the order of their keys.
    #[must_use]
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// Number of the first chunk with a key of at least `key`.
    fn chunk_of(&self, key: &K) -> usize {
        let is_before = |chunk: &Arc<Chunk<K, V>>| chunk.last().is_some_and(|(last, _)| last < key);
        if self.chunks.last().is_some_and(is_before) {
            // Maps are built in the order of their keys.
            return self.chunks.len();
        }
        self.chunks.partition_point(is_before)
    }

    /// Chunk and position of an entry.
    fn find(&self, key: &K) -> Option<(usize, usize)> {
        let number = self.chunk_of(key);
        let chunk = self.chunks.get(number)?;
        let at = chunk.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
        Some((number, at))
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &K) -> Option<&V> {
        let (number, at) = self.find(key)?;
        let (_, value) = self.chunks.get(number)?.get(at)?;
        Some(value)
    }

    /// Whether there is an entry with this key.
    #[must_use]
    pub fn contains_key(&self, key: &K) -> bool {
        self.find(key).is_some()
    }

    /// The entries with a key of at least `first`, in the order of their keys.
    pub fn iter_from<'m>(&'m self, first: &K) -> impl Iterator<Item = (&'m K, &'m V)> + use<'m, K, V> {
        let number = self.chunk_of(first);
        let chunks = self.chunks.get(number..).unwrap_or_default();
        let skipped = chunks
            .first()
            .map_or(0, |chunk| chunk.partition_point(|(key, _)| key < first));
        let entries = chunks.iter().flat_map(|chunk| chunk.iter()).skip(skipped);
        entries.map(|(key, value)| (key, value))
    }

    /// The keys with other values in the two maps, or in one map only, in their order.
    pub fn changes<'m>(&'m self, other: &'m Self) -> impl Iterator<Item = &'m K>
    where
        V: PartialEq,
    {
        Changes {
            a: Position::new(self),
            b: Position::new(other),
        }
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// Sets the value of a key and returns the previous one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let last = self.chunks.len().saturating_sub(1);
        let number = self.chunk_of(&key).min(last);
        let Some(shared) = self.chunks.get_mut(number) else {
            self.chunks.push(Arc::new(vec![(key, value)]));
            self.len = 1;
            return None;
        };
        let chunk = Arc::make_mut(shared);
        // Maps are built in the order of their keys.
        let is_last = chunk.last().is_some_and(|(last, _)| *last < key);
        let found = if is_last {
            Err(chunk.len())
        } else {
            chunk.binary_search_by(|(other, _)| other.cmp(&key))
        };
        let at = match found {
            Ok(at) => {
                let (_, known) = chunk.get_mut(at)?;
                return Some(std::mem::replace(known, value));
            }
            Err(at) => at,
        };
        if chunk.len() == chunk.capacity() {
            chunk.reserve_exact(GROWTH);
        }
        chunk.insert(at, (key, value));
        self.len = self.len.saturating_add(1);
        if chunk.len() > MAX_ENTRIES {
            // Behind the new entry, so that a series of ascending keys leaves filled chunks.
            let upper = chunk.split_off(at.saturating_add(1).clamp(MAX_ENTRIES / 2, MAX_ENTRIES));
            chunk.shrink_to_fit();
            self.chunks.insert(number.saturating_add(1), Arc::new(upper));
        }
        None
    }

    /// Removes an entry and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (number, at) = self.find(key)?;
        let chunk = Arc::make_mut(self.chunks.get_mut(number)?);
        let (_, value) = chunk.remove(at);
        self.len = self.len.saturating_sub(1);
        if chunk.is_empty() {
            self.chunks.remove(number);
        } else {
            self.join(number);
            self.join(number.saturating_sub(1));
        }
        Some(value)
    }

    /// Sets the value of a key, or removes its entry, and returns the previous value.
    pub fn set(&mut self, key: K, value: Option<V>) -> Option<V> {
        match value {
            Some(value) => self.insert(key, value),
            None => self.remove(&key),
        }
    }

    /// Joins a chunk with the next one if both are small.
    fn join(&mut self, number: usize) {
        let next = number.saturating_add(1);
        let size = |number: usize| {
            self.chunks
                .get(number)
                .map_or(MAX_ENTRIES, |chunk| Vec::len(chunk))
        };
        if size(number).saturating_add(size(next)) > MAX_ENTRIES / 2 {
            return;
        }
        let joined = self.chunks.remove(next);
        if let Some(chunk) = self.chunks.get_mut(number) {
            Arc::make_mut(chunk).extend(joined.iter().cloned());
        }
    }

    /// Keeps the entries for which `keep` is true.
    pub fn retain(&mut self, keep: impl Fn(&K, &V) -> bool) {
        let left: Vec<K> = self
            .iter()
            .filter(|(key, value)| !keep(key, value))
            .map(|(key, _)| key.clone())
            .collect();
        for key in left {
            self.remove(&key);
        }
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> SharedMap<K, V> {
    /// The same entries, with the memory of those that a `known` map has as well, unless many differ.
    #[must_use]
    pub fn sharing(self, known: &Self) -> Self {
        let few = self.len.div_euclid(FEW_CHANGES);
        let changed: Vec<&K> = known.changes(&self).take(few.saturating_add(1)).collect();
        if changed.len() > few {
            return self;
        }
        let mut shared = known.clone();
        for key in changed {
            shared.set(key.clone(), self.get(key).cloned());
        }
        shared
    }
}

impl<K: Clone, V: Clone> IntoIterator for SharedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::iter::FlatMap<
        std::vec::IntoIter<Arc<Chunk<K, V>>>,
        Chunk<K, V>,
        fn(Arc<Chunk<K, V>>) -> Chunk<K, V>,
    >;

    /// All entries in the order of their keys. The memory of a chunk is freed once its entries are taken.
    fn into_iter(self) -> Self::IntoIter {
        self.chunks.into_iter().flat_map(Arc::unwrap_or_clone)
    }
}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for SharedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        map.extend(entries);
        map
    }
}

impl<K: Ord + Clone, V: Clone, const N: usize> From<[(K, V); N]> for SharedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K: Ord, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.changes(other).next().is_none()
    }
}

impl<K: Ord, V: Eq> Eq for SharedMap<K, V> {}

impl<K: Ord, V> Index<&K> for SharedMap<K, V> {
    type Output = V;

    #[expect(
        clippy::expect_used,
        reason = "an index states that the entry exists, as for the maps of the standard library"
    )]
    fn index(&self, key: &K) -> &V {
        self.get(key).expect("the key has an entry")
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The next entry of a map: the chunks that are left, and the position in the first of them.
struct Position<'m, K, V> {
    chunks: &'m [Arc<Chunk<K, V>>],
    at: usize,
}

impl<'m, K, V> Position<'m, K, V> {
    fn new(map: &'m SharedMap<K, V>) -> Self {
        Self {
            chunks: &map.chunks,
            at: 0,
        }
    }

    /// The present chunk if its first entry is the next one.
    fn whole_chunk(&self) -> Option<&'m Arc<Chunk<K, V>>> {
        self.chunks.first().filter(|_| self.at == 0)
    }

    fn skip_chunk(&mut self) {
        self.chunks = self.chunks.get(1..).unwrap_or_default();
        self.at = 0;
    }

    fn entry(&self) -> Option<&'m (K, V)> {
        self.chunks.first()?.get(self.at)
    }

    fn advance(&mut self) {
        self.at = self.at.saturating_add(1);
        if self.entry().is_none() {
            self.skip_chunk();
        }
    }
}

/// See [`SharedMap::changes`].
struct Changes<'m, K, V> {
    a: Position<'m, K, V>,
    b: Position<'m, K, V>,
}

impl<'m, K: Ord, V: PartialEq> Iterator for Changes<'m, K, V> {
    type Item = &'m K;

    fn next(&mut self) -> Option<&'m K> {
        loop {
            let chunks = self.a.whole_chunk().zip(self.b.whole_chunk());
            if chunks.is_some_and(|(a, b)| Arc::ptr_eq(a, b)) {
                self.a.skip_chunk();
                self.b.skip_chunk();
                continue;
            }
            match (self.a.entry(), self.b.entry()) {
                (None, None) => return None,
                (Some((a, value)), Some((b, other))) if a == b => {
                    self.a.advance();
                    self.b.advance();
                    if value != other {
                        return Some(a);
                    }
                }
                (Some((a, _)), b) if b.is_none_or(|(b, _)| a < b) => {
                    self.a.advance();
                    return Some(a);
                }
                (_, b) => {
                    self.b.advance();
                    return b.map(|(b, _)| b);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn model(map: &SharedMap<u16, u8>) -> BTreeMap<u16, u8> {
        map.iter().map(|(key, value)| (*key, *value)).collect()
    }

    fn check(map: &SharedMap<u16, u8>) {
        assert_eq!(map.len(), map.iter().count());
        assert!(map.keys().zip(map.keys().skip(1)).all(|(a, b)| a < b));
        assert!(
            map.chunks
                .iter()
                .all(|chunk| (1..=MAX_ENTRIES).contains(&chunk.len()))
        );
    }

    #[test]
    fn ascending_keys_fill_the_chunks() {
        let map: SharedMap<u16, u8> = (0..10_000).map(|key| (key, 0)).collect();
        check(&map);
        assert_eq!(map.chunks.len(), 10_000_usize.div_ceil(MAX_ENTRIES));
        assert!(map.keys().copied().eq(0..10_000));
        assert!(map.iter_from(&777).map(|(key, _)| *key).eq(777..10_000));
        assert!(map.iter().rev().map(|(key, _)| *key).eq((0..10_000).rev()));
    }

    #[test]
    fn a_change_copies_one_chunk() {
        let old: SharedMap<u16, u8> = (0..10_000).map(|key| (key, 0)).collect();
        let mut new = old.clone();
        new.insert(5_000, 1);
        let shared = old.chunks.iter().filter(|chunk| Arc::strong_count(chunk) == 2);
        assert_eq!(shared.count(), old.chunks.len() - 1);
        assert!(old.changes(&new).eq([&5_000]));
        assert_eq!((old[&5_000], new[&5_000]), (0, 1));
    }

    #[test]
    fn equal_entries_of_a_known_map_are_shared() {
        let known: SharedMap<u16, u8> = (0..10_000).map(|key| (key, 0)).collect();
        let new: SharedMap<u16, u8> = (1..10_000).map(|key| (key, u8::from(key == 5_000))).collect();
        let shared = new.clone().sharing(&known);
        assert!(shared.changes(&new).next().is_none());
        let copied = known.chunks.iter().filter(|chunk| Arc::strong_count(chunk) == 1);
        assert_eq!(copied.count(), 2, "the chunks of 0 and 5,000");
        let other: SharedMap<u16, u8> = (0..10_000).map(|key| (key, 1)).collect();
        let own = other.clone().sharing(&known);
        assert!(own.chunks.iter().all(|chunk| Arc::strong_count(chunk) == 2));
    }

    #[test]
    fn small_chunks_are_joined() {
        let mut map: SharedMap<u16, u8> = (0..10_000).map(|key| (key, 0)).collect();
        map.retain(|key, _| key % 100 == 0);
        check(&map);
        assert!(map.keys().copied().eq((0..10_000).step_by(100)));
        assert!(map.chunks.len() <= 4, "{}", map.chunks.len());
    }

    /// Ranges of keys, each set to a value or removed.
    fn changes() -> impl Strategy<Value = Vec<(u16, u16, Option<u8>)>> {
        let change = (0..4_000_u16, 0..600_u16, proptest::option::of(0..3_u8));
        prop::collection::vec(change, 0..12)
    }

    fn apply(map: &mut SharedMap<u16, u8>, changes: &[(u16, u16, Option<u8>)]) {
        for (first, count, value) in changes {
            for key in *first..first + count {
                map.set(key, *value);
            }
        }
    }

    proptest! {
        /// The map behaves as one of the standard library, and its changes are those of all entries.
        #[test]
        fn the_map_is_that_of_the_standard_library(first in changes(), second in changes()) {
            let mut old = SharedMap::default();
            apply(&mut old, &first);
            let mut new = old.clone();
            apply(&mut new, &second);
            check(&old);
            check(&new);
            let mut expected = model(&old);
            for (first, count, value) in &second {
                for key in *first..first + count {
                    match value {
                        Some(value) => expected.insert(key, *value),
                        None => expected.remove(&key),
                    };
                }
            }
            prop_assert_eq!(&model(&new), &expected);
            let (a, b) = (model(&old), model(&new));
            let keys: BTreeSet<&u16> = a.keys().chain(b.keys()).collect();
            let changed: Vec<&u16> = keys.into_iter().filter(|key| a.get(key) != b.get(key)).collect();
            prop_assert!(old.changes(&new).eq(changed.iter().copied()));
            prop_assert!(new.changes(&old).eq(changed.iter().copied()));
            prop_assert_eq!(old == new, changed.is_empty());
            prop_assert_eq!(&new.clone().sharing(&old), &new);
            prop_assert!(new.clone().into_iter().eq(b.clone()));
            prop_assert_eq!(&new, &b.into_iter().collect());
            for key in (0..4_600).step_by(37) {
                prop_assert_eq!(new.get(&key), expected.get(&key));
                let from = new.iter_from(&key).next();
                prop_assert_eq!(from, expected.range(key..).next());
            }
        }
    }
}
