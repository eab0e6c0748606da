//! Entry of a cache of lookups, shared by all programs of one CPU.
//!
//! *Guarantees*: [`read`] returns the value that belongs to the key and the epoch, also if programs of the CPU
//! interrupt each other between any two accesses, as on a `PREEMPT_RT` kernel. A program never waits: it does without
//! the entry that another one is writing.
//!
//! Only programs of one CPU use an entry, and each runs on its CPU to the end, so program order is enough and no CPU
//! barrier is necessary. A compare-and-exchange would be simpler, but arm64 has it since Linux 5.18; an addition
//! without a result is as old as BPF. A crate for sequence locks needs the former.

use crate::nexthop_select::mix;

/// Stamp of an entry: epoch in the upper half, then the number of its writes, then the programs that want to write it.
const EPOCH_SHIFT: u32 = 32;
const WRITES_SHIFT: u32 = 8;
const WRITERS: u64 = (1 << WRITES_SHIFT) - 1;
/// The writes, without a carry into the epoch.
const WRITES: u64 = (1 << EPOCH_SHIFT) - 1 - WRITERS;

/// Memory of an entry with keys of `W` words. All of it is zero at first.
///
/// The accesses of one program take place in the order of its calls.
pub trait CacheEntry<const W: usize> {
    /// Value type.
    type Value: Copy;

    /// The stamp.
    fn stamp(&self) -> u64;
    /// Adds to the stamp, with wrap-around: one access that no program interrupts.
    fn add_to_stamp(&self, addend: u64);
    /// Whether the entry has this key.
    fn has_key(&self, key: &[u64; W]) -> bool;
    /// The value.
    fn value(&self) -> Self::Value;
    /// Writes key and value.
    fn store(&self, key: &[u64; W], value: Self::Value);
}

/// The value of the entry if it has this key and epoch. Epoch 0 disables the cache.
#[inline(always)]
pub fn read<const W: usize, E: CacheEntry<W>>(entry: &E, epoch: u32, key: &[u64; W]) -> Option<E::Value> {
    let stamp = entry.stamp();
    if epoch == 0 || stamp >> EPOCH_SHIFT != u64::from(epoch) || !entry.has_key(key) {
        return None;
    }
    let value = entry.value();
    // Any other write since has another number, or is incomplete and has epoch 0.
    (entry.stamp() == stamp).then_some(value)
}

/// Replaces the entry, except while another program writes it.
#[inline(always)]
pub fn write<const W: usize, E: CacheEntry<W>>(entry: &E, epoch: u32, key: &[u64; W], value: E::Value) {
    entry.add_to_stamp(1);
    let stamp = entry.stamp();
    if stamp & WRITERS == 1 {
        // Only this program changes epoch and writes until it is no writer any more. It changes them by additions:
        // others add and subtract themselves in between.
        let invalid = stamp & WRITES;
        entry.add_to_stamp(invalid.wrapping_sub(stamp & !WRITERS));
        entry.store(key, value);
        let writes = invalid.wrapping_add(1 << WRITES_SHIFT) & WRITES;
        let valid = u64::from(epoch) << EPOCH_SHIFT | writes;
        entry.add_to_stamp(valid.wrapping_sub(invalid));
    }
    entry.add_to_stamp(u64::MAX);
}

/// Whether a new key replaces the first of the two entries of a set. Either is right. An entry of another epoch goes
/// first; else a hash of the key and the number of writes decides: if the older entry were replaced, three flows in
/// turn would find none of their entries.
#[inline(always)]
pub fn replaces_first<const W: usize, E: CacheEntry<W>>(
    first: &E,
    second: &E,
    epoch: u32,
    hash: u32,
) -> bool {
    let (first, second) = (first.stamp(), second.stamp());
    if first >> EPOCH_SHIFT != u64::from(epoch) {
        return true;
    }
    if second >> EPOCH_SHIFT != u64::from(epoch) {
        return false;
    }
    let writes = (first >> WRITES_SHIFT).wrapping_add(second >> WRITES_SHIFT);
    mix((writes & 0xffff_ffff) as u32, hash) & 1 == 0
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        collections::BTreeSet,
        panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    };

    use super::*;

    const EPOCH: u32 = 7;
    type Key = [u64; 2];
    /// Words of an entry: stamp, key, value.
    type EntryWords = [u64; 4];

    /// The value of a key, as a look-up finds it.
    const fn found([a, b]: Key) -> u64 {
        a.wrapping_mul(1_000).wrapping_add(b)
    }

    /// An entry of which a program makes one access, after the accesses that it made before.
    struct Step<'a> {
        words: &'a RefCell<EntryWords>,
        /// Results of the earlier accesses, which are not repeated.
        earlier: &'a [u64],
        at: Cell<usize>,
        /// Result of the one access.
        result: Cell<Option<u64>>,
    }

    /// Unwinds out of a program after its access.
    struct Interrupted;

    impl Step<'_> {
        fn access(&self, perform: impl FnOnce(&mut EntryWords) -> u64) -> u64 {
            let at = self.at.replace(self.at.get() + 1);
            if let Some(result) = self.earlier.get(at) {
                return *result;
            }
            if self.result.get().is_some() {
                resume_unwind(Box::new(Interrupted));
            }
            let result = perform(&mut self.words.borrow_mut());
            self.result.set(Some(result));
            result
        }

        fn load(&self, word: usize) -> u64 {
            self.access(|words| words[word])
        }

        fn set(&self, word: usize, value: u64) {
            self.access(|words| {
                words[word] = value;
                0
            });
        }
    }

    impl CacheEntry<2> for Step<'_> {
        type Value = u64;

        fn stamp(&self) -> u64 {
            self.load(0)
        }

        fn add_to_stamp(&self, addend: u64) {
            self.access(|words| {
                words[0] = words[0].wrapping_add(addend);
                0
            });
        }

        fn has_key(&self, key: &Key) -> bool {
            [self.load(1), self.load(2)] == *key
        }

        fn value(&self) -> Self::Value {
            self.load(3)
        }

        fn store(&self, key: &Key, value: Self::Value) {
            for (word, value) in (1..).zip([key[0], key[1], value]) {
                self.set(word, value);
            }
        }
    }

    /// A cached look-up of a key.
    type LookUp = fn(&Step<'_>, &Key) -> u64;

    fn look_up(entry: &Step<'_>, key: &Key) -> u64 {
        read(entry, EPOCH, key).unwrap_or_else(|| {
            write(entry, EPOCH, key, found(*key));
            found(*key)
        })
    }

    /// As before the stamp: the epoch last, and read once.
    fn look_up_without_stamp(entry: &Step<'_>, key: &Key) -> u64 {
        if entry.stamp() == u64::from(EPOCH) && entry.has_key(key) {
            return entry.value();
        }
        entry.store(key, found(*key));
        entry.set(0, u64::from(EPOCH));
        found(*key)
    }

    /// As [`look_up`], but the writer does not exclude others.
    fn look_up_with_shared_write(entry: &Step<'_>, key: &Key) -> u64 {
        read(entry, EPOCH, key).unwrap_or_else(|| {
            let writes = entry.stamp() & WRITES;
            entry.set(0, writes);
            entry.store(key, found(*key));
            let writes = writes.wrapping_add(1 << WRITES_SHIFT) & WRITES;
            entry.set(0, u64::from(EPOCH) << EPOCH_SHIFT | writes);
            found(*key)
        })
    }

    /// A program: its key and the results of its accesses so far; the value once it has returned.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Program {
        key: Key,
        results: Vec<u64>,
        value: Option<u64>,
    }

    /// Executes the next access of a program.
    fn step(look_up: LookUp, words: EntryWords, program: &mut Program) -> EntryWords {
        let words = RefCell::new(words);
        let entry = Step {
            words: &words,
            earlier: &program.results,
            at: Cell::new(0),
            result: Cell::new(None),
        };
        let end = catch_unwind(AssertUnwindSafe(|| look_up(&entry, &program.key)));
        let result = entry.result.get();
        program.value = match end {
            Ok(value) => Some(value),
            Err(cause) if cause.is::<Interrupted>() => None,
            Err(other) => resume_unwind(other),
        };
        program.results.extend(result);
        words.into_inner()
    }

    /// Every interleaving of look-ups of these keys. Returns the number of states, or a program with a wrong value.
    fn interleave(look_up: LookUp, start: EntryWords, keys: &[Key]) -> Result<usize, Program> {
        let programs = keys.iter().map(|key| Program {
            key: *key,
            results: Vec::new(),
            value: None,
        });
        let mut pending = vec![(start, programs.collect::<Vec<_>>())];
        let mut seen = BTreeSet::new();
        while let Some((words, programs)) = pending.pop() {
            for i in 0..programs.len() {
                let mut next = programs.clone();
                if next[i].value.is_some() {
                    continue;
                }
                let words = step(look_up, words, &mut next[i]);
                if next[i].value.is_some_and(|value| value != found(next[i].key)) {
                    return Err(next[i].clone());
                }
                if next[i].value.is_some() {
                    // Its results have no further effect.
                    next[i].results.clear();
                }
                if seen.insert((words, next.clone())) {
                    pending.push((words, next));
                }
            }
        }
        Ok(seen.len())
    }

    /// An entry after a look-up of `key`.
    fn after(key: Key) -> EntryWords {
        let mut program = Program {
            key,
            results: Vec::new(),
            value: None,
        };
        let mut words = [0; 4];
        while program.value.is_none() {
            words = step(look_up, words, &mut program);
        }
        words
    }

    const KEYS: [Key; 4] = [[1, 1], [1, 2], [2, 1], [2, 2]];

    #[test]
    fn two_look_ups_never_find_the_value_of_another_key() {
        for start in KEYS.map(after).into_iter().chain([[0; 4]]) {
            for one in KEYS {
                for other in KEYS {
                    interleave(look_up, start, &[one, other]).unwrap();
                }
            }
        }
    }

    /// Two writers may mix their keys to that of a reader.
    #[test]
    fn three_look_ups_never_find_the_value_of_another_key() {
        for start in [after([1, 2]), [0; 4]] {
            let states = interleave(look_up, start, &[[1, 1], [2, 2], [1, 2]]).unwrap();
            assert!(states > 10_000, "{states}");
        }
    }

    #[test]
    fn an_entry_without_a_stamp_returns_the_value_of_another_key() {
        let mut start = after([1, 1]);
        start[0] = u64::from(EPOCH);
        let torn = interleave(look_up_without_stamp, start, &[[1, 1], [2, 2]]).unwrap_err();
        assert_ne!(torn.value, Some(found(torn.key)));
    }

    #[test]
    fn two_writers_at_once_return_the_value_of_another_key() {
        let torn = interleave(look_up_with_shared_write, [0; 4], &[[1, 1], [2, 2], [1, 2]]).unwrap_err();
        assert_ne!(torn.value, Some(found(torn.key)));
    }

    #[test]
    fn a_value_is_found_in_its_epoch_only() {
        let words = RefCell::new(after([1, 2]));
        let at = |epoch| read(&Whole(&words), epoch, &[1, 2]);
        assert_eq!(at(EPOCH), Some(found([1, 2])));
        assert_eq!([0, 1, EPOCH + 1].map(at), [None; 3]);
        assert_eq!(read(&Whole(&words), EPOCH, &[2, 2]), None);
    }

    /// Looks up keys in turn in one set and returns the number of entries found.
    fn found_in_set(keys: &[(Key, u32)], epochs: &[u32]) -> usize {
        let set = [RefCell::new([0; 4]), RefCell::new([0; 4])];
        let [first, second] = [Whole(&set[0]), Whole(&set[1])];
        let mut hits = 0;
        for (epoch, (key, hash)) in epochs.iter().zip(keys.iter().cycle()) {
            let cached = read(&first, *epoch, key).or_else(|| read(&second, *epoch, key));
            if let Some(value) = cached {
                assert_eq!(value, found(*key));
                hits += 1;
            } else if replaces_first(&first, &second, *epoch, *hash) {
                write(&first, *epoch, key, found(*key));
            } else {
                write(&second, *epoch, key, found(*key));
            }
        }
        hits
    }

    #[test]
    fn two_keys_share_a_set() {
        assert_eq!(found_in_set(&[([1, 1], 0), ([1, 2], 0)], &[EPOCH; 100]), 98);
        assert_eq!(found_in_set(&[([1, 1], 1), ([1, 2], 1)], &[EPOCH; 100]), 98);
    }

    #[test]
    fn three_keys_in_turn_find_some_of_their_entries() {
        for hashes in 0..8_u32 {
            let keys = [[1, 1], [1, 2], [2, 1]];
            let keys = [0, 1, 2].map(|i| (keys[i], hashes >> i));
            let hits = found_in_set(&keys, &[EPOCH; 3_000]);
            assert!(hits > 300, "{hits} of 3,000 with {hashes:03b}");
        }
    }

    #[test]
    fn entries_of_another_epoch_are_replaced_first() {
        let epochs: Vec<u32> = (0..100).map(|i| EPOCH + i / 50).collect();
        assert_eq!(found_in_set(&[([1, 1], 0), ([1, 2], 0)], &epochs), 96);
    }

    #[test]
    fn the_number_of_writes_wraps_around_without_a_change_of_the_epoch() {
        let words = RefCell::new([u64::from(EPOCH) << EPOCH_SHIFT | WRITES, 1, 1, 0]);
        write(&Whole(&words), EPOCH, &[2, 2], found([2, 2]));
        assert_eq!(words.borrow()[0], u64::from(EPOCH) << EPOCH_SHIFT);
        assert_eq!(read(&Whole(&words), EPOCH, &[2, 2]), Some(found([2, 2])));
    }

    /// An entry without interruptions.
    struct Whole<'a>(&'a RefCell<EntryWords>);

    impl CacheEntry<2> for Whole<'_> {
        type Value = u64;

        fn stamp(&self) -> u64 {
            self.0.borrow()[0]
        }

        fn add_to_stamp(&self, addend: u64) {
            let mut words = self.0.borrow_mut();
            words[0] = words[0].wrapping_add(addend);
        }

        fn has_key(&self, key: &Key) -> bool {
            self.0.borrow()[1..3] == key[..]
        }

        fn value(&self) -> Self::Value {
            self.0.borrow()[3]
        }

        fn store(&self, key: &Key, value: Self::Value) {
            let mut words = self.0.borrow_mut();
            words[1..3].copy_from_slice(key);
            words[3] = value;
        }
    }
}
