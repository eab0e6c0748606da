//! Order of the writes to the prefix table. Pure.
//!
//! *Guarantees*: after each write, also if the agent is killed, every length with an entry is in the lists in use; no
//! write changes a list in use; between two changes of the entries, or of the lists in use, the generation is raised.

use std::collections::BTreeMap;

use mc_gateway_common::abi::{
    self, PrefixKey,
    prefix::{PrefixLengths, lengths_slot},
};

/// A write to one map of the prefix table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixWrite {
    /// Writes a slot of `mc_prefix_lens` that is not in use.
    Lengths {
        /// The slot.
        slot: u32,
        /// Its value.
        lengths: PrefixLengths,
    },
    /// Writes `mc_prefix_gen`.
    Generation(u32),
    /// Adds an entry of `mc_prefixes`, or replaces it.
    Insert(PrefixKey, abi::Prefix),
    /// Removes an entry of `mc_prefixes`.
    Remove(PrefixKey),
}

/// The lengths of the entries of the prefix table, and its generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixTable {
    generation: u32,
    /// Number of entries by IP version of their addresses (IPv4: true) and length.
    entries: BTreeMap<(bool, u32), usize>,
}

/// Writes for a change of the table, and the table after them.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixChange {
    /// The writes in their order.
    pub writes: Vec<PrefixWrite>,
    /// The table once all of them are done.
    pub after: PrefixTable,
}

impl PrefixTable {
    /// The table with these entries in a generation.
    pub fn new<'k>(generation: u32, keys: impl Iterator<Item = &'k PrefixKey>) -> Self {
        let mut table = Self {
            generation,
            entries: BTreeMap::new(),
        };
        for key in keys {
            table.count(key, true);
        }
        table
    }

    /// The present generation.
    #[must_use]
    pub const fn current_generation(&self) -> u32 {
        self.generation
    }

    /// Sets the generation after a failed change, of which some writes are done.
    pub const fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
    }

    /// The lists in use with their slots.
    #[must_use]
    pub fn lengths(&self) -> [(u32, PrefixLengths); 2] {
        self.lengths_in(self.generation)
    }

    /// Sets an entry to `to`, or removes it. `is_present` states whether it is in the table.
    pub fn set(&self, key: PrefixKey, is_present: bool, to: Option<abi::Prefix>) -> PrefixChange {
        let mut after = self.clone();
        let mut writes = Vec::new();
        if is_present != to.is_some() {
            after.count(&key, to.is_some());
        }
        // A new length is in the lists before its first entry, and until its last entry is removed.
        let other_lengths = !after.entries.keys().eq(self.entries.keys());
        if to.is_some() && other_lengths {
            after.replace_lengths(&mut writes);
        }
        writes.push(to.map_or(PrefixWrite::Remove(key), |prefix| {
            PrefixWrite::Insert(key, prefix)
        }));
        after.raise(2, &mut writes);
        if to.is_none() && other_lengths {
            after.replace_lengths(&mut writes);
        }
        PrefixChange { writes, after }
    }

    /// Restores the lists from any state, and ends a change that an earlier agent has begun.
    pub fn restore(&self) -> PrefixChange {
        let mut after = self.clone();
        let mut writes = Vec::new();
        // An entry may have been changed without a new generation.
        after.raise(2, &mut writes);
        after.replace_lengths(&mut writes);
        PrefixChange { writes, after }
    }

    fn count(&mut self, key: &PrefixKey, is_added: bool) {
        for v4 in [false, true] {
            if !key.contains_family(v4) {
                continue;
            }
            let count = self.entries.entry((v4, key.len)).or_default();
            *count = if is_added {
                count.saturating_add(1)
            } else {
                count.saturating_sub(1)
            };
            if *count == 0 {
                self.entries.remove(&(v4, key.len));
            }
        }
    }

    fn lengths_in(&self, generation: u32) -> [(u32, PrefixLengths); 2] {
        [false, true].map(|v4| {
            let lengths = PrefixLengths::new(|len| self.entries.contains_key(&(v4, len)));
            (lengths_slot(generation, v4), lengths)
        })
    }

    /// Writes the lists that are not in use and takes them into use.
    fn replace_lengths(&mut self, writes: &mut Vec<PrefixWrite>) {
        let lists = self.lengths_in(self.generation.wrapping_add(1));
        writes.extend(lists.map(|(slot, lengths)| PrefixWrite::Lengths { slot, lengths }));
        self.raise(1, writes);
    }

    /// An odd step takes the other lists into use.
    fn raise(&mut self, step: u32, writes: &mut Vec<PrefixWrite>) {
        self.generation = self.generation.wrapping_add(step);
        writes.push(PrefixWrite::Generation(self.generation));
    }
}

#[cfg(test)]
mod tests;
