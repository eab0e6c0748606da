//! The counters of the programs, summed over CPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use aya::maps::{MapData, PerCpuArray, PerCpuHashMap};
use mc_gateway_common::abi::policy::{RULE_COUNTERS, RuleCounter};
use mc_gateway_common::abi::{self, Counter, PeerStats};
use mc_gateway_common::verdict::{DropReason, Event, Outcome};

use super::error::{MapsError, map_error, open};

/// Every counter of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// By [`Outcome::ALL`].
    pub outcomes: Vec<(Outcome, Counter)>,
    /// By [`DropReason::ALL`].
    pub drops: Vec<(DropReason, u64)>,
    /// By [`Event::ALL`].
    pub events: Vec<(Event, u64)>,
}

/// The maps of [`Counters`].
pub struct CounterMaps {
    outcomes: PerCpuArray<MapData, Counter>,
    drops: PerCpuArray<MapData, u64>,
    events: PerCpuArray<MapData, u64>,
}

/// The map of counters by peer.
pub struct PeerCounterMap(PerCpuArray<MapData, PeerStats>);

/// The map of counters by rule of a policy.
pub struct RuleCounterMap(PerCpuHashMap<MapData, u32, RuleCounter>);

// === impl CounterMaps ===

impl CounterMaps {
    /// Opens the maps pinned in a directory.
    pub fn open(maps: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            outcomes: open(maps, abi::OUTCOMES)?,
            drops: open(maps, abi::DROPS)?,
            events: open(maps, abi::EVENTS)?,
        })
    }

    /// Reads every counter.
    pub fn read(&self) -> Result<Counters, MapsError> {
        let mut counters = Counters::default();
        for outcome in Outcome::ALL {
            let values = self.outcomes.get(&(outcome as u32), 0);
            let values = values.map_err(map_error(abi::OUTCOMES, "read"))?;
            counters.outcomes.push((outcome, sum_counters(&values)));
        }
        for reason in DropReason::ALL {
            let values = self.drops.get(&(reason as u32), 0);
            let values = values.map_err(map_error(abi::DROPS, "read"))?;
            counters.drops.push((reason, sum(&values)));
        }
        for event in Event::ALL {
            let values = self.events.get(&(event as u32), 0);
            let values = values.map_err(map_error(abi::EVENTS, "read"))?;
            counters.events.push((event, sum(&values)));
        }
        Ok(counters)
    }
}

// === impl PeerCounterMap ===

impl PeerCounterMap {
    /// Opens the map pinned in a directory.
    pub fn open(maps: &Path) -> Result<Self, MapsError> {
        Ok(Self(open(maps, abi::PEER_STATS)?))
    }

    /// Reads the counters of some slots. Several peers may share a slot.
    pub fn read(&self, slots: impl Iterator<Item = u32>) -> Result<BTreeMap<u32, PeerStats>, MapsError> {
        let slots: BTreeSet<u32> = slots.collect();
        let read = slots.into_iter().map(|slot| {
            let values = self.0.get(&slot, 0).map_err(map_error(abi::PEER_STATS, "read"))?;
            Ok((slot, sum_peer_counters(&values)))
        });
        read.collect()
    }
}

// === impl RuleCounterMap ===

impl RuleCounterMap {
    /// Opens the map pinned in a directory.
    pub fn open(maps: &Path) -> Result<Self, MapsError> {
        Ok(Self(open(maps, RULE_COUNTERS)?))
    }

    /// Reads the counters of all rules, by ID.
    pub fn read(&self) -> Result<BTreeMap<u32, RuleCounter>, MapsError> {
        let entries = self.0.iter().map(|entry| {
            let (rule, values) = entry.map_err(map_error(RULE_COUNTERS, "read"))?;
            Ok((rule, sum_rule_counters(&values)))
        });
        entries.collect()
    }
}

fn sum(values: &[u64]) -> u64 {
    values.iter().fold(0, |sum, value| sum.wrapping_add(*value))
}

fn sum_counters(values: &[Counter]) -> Counter {
    let mut sum = Counter::default();
    for one in values {
        sum.packets = sum.packets.wrapping_add(one.packets);
        sum.bytes = sum.bytes.wrapping_add(one.bytes);
        sum.gso = sum.gso.wrapping_add(one.gso);
    }
    sum
}

fn sum_peer_counters(values: &[PeerStats]) -> PeerStats {
    values.iter().fold(PeerStats::default(), |sum, one| PeerStats {
        sent_packets: sum.sent_packets.wrapping_add(one.sent_packets),
        sent_bytes: sum.sent_bytes.wrapping_add(one.sent_bytes),
        received_packets: sum.received_packets.wrapping_add(one.received_packets),
        received_bytes: sum.received_bytes.wrapping_add(one.received_bytes),
    })
}

fn sum_rule_counters(values: &[RuleCounter]) -> RuleCounter {
    values
        .iter()
        .fold(RuleCounter::default(), |sum, one| RuleCounter {
            packets: sum.packets.wrapping_add(one.packets),
            bytes: sum.bytes.wrapping_add(one.bytes),
        })
}
