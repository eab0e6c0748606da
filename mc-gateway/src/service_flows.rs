//! What the programs have written into the Service maps: read, never written.
//!
//! These tables forget what was quiet longest and change under traffic, so a reader may miss an entry or
//! meet one twice; it never reads more than a table can hold.

use std::collections::BTreeMap;
use std::path::Path;

use aya::maps::{HashMap, MapData, MapError};
use mc_gateway_common::abi::service::{
    self as abi, Flow, FlowKey, Fragment, FragmentKey, MAX_FLOWS, MAX_FRAGMENTS, MAX_REPLIES, Reply, ReplyKey,
};

use crate::maps::{MapsError, map_error, open};

/// Flows to Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowState {
    /// At a gateway: id of the backend.
    pub flows: BTreeMap<FlowKey, u64>,
    /// At a Pod's node: the Service address.
    pub replies: BTreeMap<ReplyKey, Reply>,
    /// Fragmented packets under way.
    pub fragments: BTreeMap<FragmentKey, Fragment>,
}

/// The maps.
pub struct FlowMaps {
    flows: HashMap<MapData, FlowKey, Flow>,
    replies: HashMap<MapData, ReplyKey, Reply>,
    fragments: HashMap<MapData, FragmentKey, Fragment>,
}

impl FlowMaps {
    /// Opens them in a directory of pinned maps.
    pub fn open(maps: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            flows: open(maps, abi::FLOWS)?,
            replies: open(maps, abi::REPLIES)?,
            fragments: open(maps, abi::FRAGMENTS)?,
        })
    }

    /// All entries.
    pub fn read(&self) -> Result<FlowState, MapsError> {
        let flows = entries(&self.flows, abi::FLOWS, MAX_FLOWS)?;
        Ok(FlowState {
            flows: flows.into_iter().map(|(key, flow)| (key, flow.backend)).collect(),
            replies: entries(&self.replies, abi::REPLIES, MAX_REPLIES)?,
            fragments: entries(&self.fragments, abi::FRAGMENTS, MAX_FRAGMENTS)?,
        })
    }

    /// Name, entries and capacity of each.
    pub fn usage(&self) -> Result<[(&'static str, usize, u32); 3], MapsError> {
        Ok([
            (abi::FLOWS, count(&self.flows, abi::FLOWS, MAX_FLOWS)?, MAX_FLOWS),
            (
                abi::REPLIES,
                count(&self.replies, abi::REPLIES, MAX_REPLIES)?,
                MAX_REPLIES,
            ),
            (
                abi::FRAGMENTS,
                count(&self.fragments, abi::FRAGMENTS, MAX_FRAGMENTS)?,
                MAX_FRAGMENTS,
            ),
        ])
    }
}

fn max_entries(capacity: u32) -> usize {
    usize::try_from(capacity).unwrap_or(usize::MAX)
}

fn entries<K: aya::Pod + Ord, V: aya::Pod>(
    map: &HashMap<MapData, K, V>,
    name: &'static str,
    capacity: u32,
) -> Result<BTreeMap<K, V>, MapsError> {
    let read: Result<_, MapError> = map.iter().take(max_entries(capacity)).collect();
    read.map_err(map_error(name, "read"))
}

/// A key that goes while the map is walked starts the walk again: more than the capacity is never counted.
fn count<K: aya::Pod, V: aya::Pod>(
    map: &HashMap<MapData, K, V>,
    name: &'static str,
    capacity: u32,
) -> Result<usize, MapsError> {
    map.keys()
        .take(max_entries(capacity))
        .try_fold(0_usize, |count, key| key.map(|_| count.saturating_add(1)))
        .map_err(map_error(name, "read"))
}
