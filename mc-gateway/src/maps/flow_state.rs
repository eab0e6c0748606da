//! Per-flow entries that the programs write for Services and policies. The agent only reads them.
//!
//! These are LRU maps that change under traffic: a reader may miss an entry or see one twice, and never reads more
//! entries than the map's capacity.

use std::collections::BTreeMap;
use std::path::Path;

use aya::maps::{HashMap, MapData, MapError, MapInfo};
use mc_gateway_common::abi::policy::POLICY_FLOWS;
use mc_gateway_common::abi::service::{
    FLOWS, FRAGMENTS, Flow, FlowKey, Fragment, FragmentKey, REPLIES, Reply, ReplyKey,
};

use super::batch;
use super::error::{MapsError, map_error, open};

/// Per-flow entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowState {
    /// At a gateway: ID of the selected backend.
    pub flows: BTreeMap<FlowKey, u64>,
    /// At a Pod's node: the Service address for replies.
    pub replies: BTreeMap<ReplyKey, Reply>,
    /// Ports of fragmented packets in transit.
    pub fragments: BTreeMap<FragmentKey, Fragment>,
    /// At a Pod's node: time of the last packet of flows that policies let pass.
    pub policies: BTreeMap<ReplyKey, u64>,
    /// Capacities of the first three, in this order.
    pub capacities: [u32; 3],
}

/// `mc_flows`, `mc_replies`, `mc_fragments` and `mc_policy_flows`.
pub struct FlowMaps {
    flows: HashMap<MapData, FlowKey, Flow>,
    replies: HashMap<MapData, ReplyKey, Reply>,
    fragments: HashMap<MapData, FragmentKey, Fragment>,
    policies: HashMap<MapData, ReplyKey, u64>,
    capacities: [u32; 3],
}

impl FlowMaps {
    /// Opens the maps pinned in a directory.
    pub fn open(maps: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            flows: open(maps, FLOWS)?,
            replies: open(maps, REPLIES)?,
            fragments: open(maps, FRAGMENTS)?,
            policies: open(maps, POLICY_FLOWS)?,
            capacities: [
                capacity(maps, FLOWS)?,
                capacity(maps, REPLIES)?,
                capacity(maps, FRAGMENTS)?,
            ],
        })
    }

    /// Reads every entry.
    pub fn read(&self) -> Result<FlowState, MapsError> {
        let flows = entries(&self.flows, FLOWS)?;
        Ok(FlowState {
            flows: flows.into_iter().map(|(key, flow)| (key, flow.backend)).collect(),
            replies: entries(&self.replies, REPLIES)?,
            fragments: entries(&self.fragments, FRAGMENTS)?,
            policies: entries(&self.policies, POLICY_FLOWS)?,
            capacities: self.capacities,
        })
    }

    /// Name, number of entries and capacity of each map.
    pub fn usage(&self) -> Result<[(&'static str, usize, u32); 3], MapsError> {
        let [of_flows, of_replies, of_fragments] = self.capacities;
        Ok([
            (FLOWS, count(&self.flows, FLOWS)?, of_flows),
            (REPLIES, count(&self.replies, REPLIES)?, of_replies),
            (FRAGMENTS, count(&self.fragments, FRAGMENTS)?, of_fragments),
        ])
    }
}

/// Capacity of a pinned map: `--flow-table-size` of the agent that made it.
fn capacity(maps: &Path, name: &'static str) -> Result<u32, MapsError> {
    let info = MapInfo::from_pin(maps.join(name)).map_err(map_error(name, "open"))?;
    Ok(info.max_entries())
}

fn entries<K: aya::Pod + Ord, V: aya::Pod>(
    map: &HashMap<MapData, K, V>,
    name: &'static str,
) -> Result<BTreeMap<K, V>, MapsError> {
    let read: Result<_, MapError> = batch::entries(map).collect();
    read.map_err(map_error(name, "read"))
}

fn count<K: aya::Pod, V: aya::Pod>(
    map: &HashMap<MapData, K, V>,
    name: &'static str,
) -> Result<usize, MapsError> {
    batch::entries(map)
        .try_fold(0_usize, |count, entry| entry.map(|_| count.saturating_add(1)))
        .map_err(map_error(name, "read"))
}
