//! The maps of the prefix table.

use std::path::Path;

use aya::maps::{Array, HashMap, MapData};
use mc_gateway_common::abi::{self, PrefixKey, prefix};

use super::batch;
use super::entries::has_entries;
use super::error::{MapsError, ignore_missing, map_error, open};
use super::prefix_writes::{PrefixChange, PrefixTable, PrefixWrite};
use crate::shared_map::SharedMap;

/// The pinned maps of the prefix table.
pub(super) struct PinnedPrefixes {
    entries: HashMap<MapData, PrefixKey, abi::Prefix>,
    lengths: Array<MapData, prefix::PrefixLengths>,
    generation: Array<MapData, u32>,
    /// As written; the generation also after a failed write.
    table: PrefixTable,
}

impl PinnedPrefixes {
    /// Opens the maps pinned in `dir`.
    pub(super) fn open(dir: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            entries: open(dir, abi::PREFIXES)?,
            lengths: open(dir, prefix::PREFIX_LENS)?,
            generation: open(dir, prefix::PREFIX_GENERATION)?,
            table: PrefixTable::default(),
        })
    }

    /// Reads the entries.
    pub(super) fn read(&self) -> Result<SharedMap<PrefixKey, abi::Prefix>, MapsError> {
        let read: Result<Vec<_>, _> = batch::entries(&self.entries).collect();
        let mut entries = read.map_err(map_error(abi::PREFIXES, "read"))?;
        entries.sort_unstable_by_key(|(key, _)| *key);
        Ok(entries.into_iter().collect())
    }

    /// Restores the lists of the lengths of these entries, those of the map, and raises the generation.
    pub(super) fn restore<'k>(&mut self, keys: impl Iterator<Item = &'k PrefixKey>) -> Result<(), MapsError> {
        self.table = PrefixTable::new(self.read_generation()?, keys);
        self.write(self.table.restore())
    }

    /// Whether the maps hold these entries and no others, and the lists of their lengths.
    pub(super) fn is_unchanged(
        &self,
        expected: &SharedMap<PrefixKey, abi::Prefix>,
    ) -> Result<bool, MapsError> {
        if self.read_generation()? != self.table.current_generation() {
            return Ok(false);
        }
        for (slot, lengths) in self.table.lengths() {
            let read = self.lengths.get(&slot, 0);
            if read.map_err(map_error(prefix::PREFIX_LENS, "read"))? != lengths {
                return Ok(false);
            }
        }
        let entries = batch::entries(&self.entries);
        has_entries(entries, |key| expected.get(key), expected.len(), abi::PREFIXES)
    }

    /// Adds, changes or removes an entry. `is_present` states whether the map has one with this key.
    pub(super) fn set(
        &mut self,
        key: PrefixKey,
        is_present: bool,
        to: Option<abi::Prefix>,
    ) -> Result<(), MapsError> {
        self.write(self.table.set(key, is_present, to))
    }

    fn write(&mut self, change: PrefixChange) -> Result<(), MapsError> {
        for write in change.writes {
            match write {
                PrefixWrite::Lengths { slot, lengths } => self
                    .lengths
                    .set(slot, lengths, 0)
                    .map_err(map_error(prefix::PREFIX_LENS, "write"))?,
                PrefixWrite::Generation(generation) => {
                    self.generation
                        .set(0, generation, 0)
                        .map_err(map_error(prefix::PREFIX_GENERATION, "write"))?;
                    self.table.set_generation(generation);
                }
                PrefixWrite::Insert(key, prefix) => self
                    .entries
                    .insert(key, prefix, 0)
                    .map_err(map_error(abi::PREFIXES, "write"))?,
                PrefixWrite::Remove(key) => {
                    let removed = self.entries.remove(&key);
                    ignore_missing(removed).map_err(map_error(abi::PREFIXES, "remove"))?;
                }
            }
        }
        self.table = change.after;
        Ok(())
    }

    fn read_generation(&self) -> Result<u32, MapsError> {
        self.generation
            .get(&0, 0)
            .map_err(map_error(prefix::PREFIX_GENERATION, "read"))
    }
}
