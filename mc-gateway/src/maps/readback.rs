//! Comparison of the maps with the entries that this agent has written, to notice changes by other programs.
//!
//! The kernel notifies no process of a changed entry.

use std::collections::BTreeMap;

use aya::maps::{Array, MapData};
use mc_gateway_common::abi;

use super::batch;
use super::entries::same_entries;
use super::error::{MapsError, map_error};
use super::pinned::PinnedMaps;

impl PinnedMaps {
    /// Number of entries that this agent has written.
    #[must_use]
    pub fn entries(&self) -> usize {
        let contents = &self.contents;
        [
            contents.prefixes.len(),
            contents.groups.len(),
            contents.next_hops.len(),
            contents.peers.len(),
            contents.services.services.len(),
            contents.services.tables.len(),
            contents.services.backends.len(),
            contents.policies.len(),
        ]
        .into_iter()
        .fold(1, usize::saturating_add)
    }

    /// Whether the maps hold the entries that this agent has written, and no others. Unused slots of arrays are not
    /// read: no entry refers to them.
    pub fn is_unchanged(&self) -> Result<bool, MapsError> {
        let config = self.config.get(&0, 0).map_err(map_error(abi::CONFIG, "read"))?;
        Ok(config == self.contents.config
            && !self.is_epoch_changed()?
            && has_slots(&self.groups, &self.contents.groups, abi::NEXT_HOP_GROUPS)?
            && has_slots(&self.next_hops, &self.contents.next_hops, abi::NEXT_HOPS)?
            && self.prefixes.is_unchanged(&self.contents.prefixes)?
            && same_entries(batch::entries(&self.peers), &self.contents.peers, abi::PEERS)?
            && self.services.is_unchanged(&self.contents.services)?
            && self.policies.is_unchanged(&self.contents.policies)?)
    }
}

/// Whether slots of an array have the expected values.
fn has_slots<V: aya::Pod + PartialEq>(
    map: &Array<MapData, V>,
    expected: &BTreeMap<u32, V>,
    name: &'static str,
) -> Result<bool, MapsError> {
    // The agent assigns the lowest free slots.
    let slots = expected
        .keys()
        .next_back()
        .map_or(0, |last| last.saturating_add(1));
    let mut found: usize = 0;
    for entry in batch::slots(map, slots) {
        let (slot, value) = entry.map_err(map_error(name, "read"))?;
        match expected.get(&slot) {
            Some(expected) if *expected != value => return Ok(false),
            Some(_) => found = found.saturating_add(1),
            None => {}
        }
    }
    Ok(found == expected.len())
}
