//! Counters of a node's data path, read from its pinned maps.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result};
use aya::{
    Pod,
    maps::{Map, MapData, PerCpuArray},
};
use mc_gateway_common::{
    abi::{self, Counter},
    verdict::{DropReason, Event, Outcome as PacketPath},
};

/// Counters of the programs of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets and bytes by outcome: `encap`, `transit`, `deliver`.
    pub outcomes: BTreeMap<&'static str, Counter>,
    /// Dropped packets by reason; reasons without drops are absent.
    pub drops: BTreeMap<&'static str, u64>,
    /// Events of forwarded packets by name; events that did not occur are absent.
    pub events: BTreeMap<&'static str, u64>,
}

// === impl Counters ===

impl Counters {
    /// Reads the counters of the agent that pins in `bpf_dir`; the agent need not run.
    pub fn read(bpf_dir: &Path) -> Result<Self> {
        let maps = bpf_dir.join(abi::MAPS_DIR);
        let counters = per_cpu::<Counter>(&maps.join(abi::OUTCOMES))?;
        let mut paths = BTreeMap::new();
        for path in PacketPath::ALL {
            let mut sum = Counter::default();
            for one in counters.get(&(path as u32), 0)?.iter() {
                sum.packets += one.packets;
                sum.bytes += one.bytes;
                sum.gso += one.gso;
            }
            paths.insert(path.name(), sum);
        }
        let drops = DropReason::ALL.map(|reason| (reason as u32, reason.name()));
        let events = Event::ALL.map(|event| (event as u32, event.name()));
        Ok(Self {
            outcomes: paths,
            drops: sums(&maps.join(abi::DROPS), &drops)?,
            events: sums(&maps.join(abi::EVENTS), &events)?,
        })
    }

    /// Occurrences of an event.
    #[must_use]
    pub fn events(&self, event: Event) -> u64 {
        self.events.get(event.name()).copied().unwrap_or_default()
    }

    /// Packets with an outcome.
    #[must_use]
    pub fn packets(&self, path: PacketPath) -> u64 {
        self.outcomes
            .get(path.name())
            .map_or(0, |counter| counter.packets)
    }
}

/// Sums over all CPUs that are not zero, by name.
fn sums(pin: &Path, named: &[(u32, &'static str)]) -> Result<BTreeMap<&'static str, u64>> {
    let counts = per_cpu::<u64>(pin)?;
    let mut sums = BTreeMap::new();
    for (number, name) in named {
        let sum: u64 = counts.get(number, 0)?.iter().sum();
        if sum != 0 {
            sums.insert(*name, sum);
        }
    }
    Ok(sums)
}

fn per_cpu<T: Pod>(pin: &Path) -> Result<PerCpuArray<MapData, T>> {
    let data = MapData::from_pin(pin).with_context(|| format!("cannot open {}", pin.display()))?;
    let map = Map::from_map_data(data)?;
    PerCpuArray::try_from(map).with_context(|| format!("unexpected type or sizes of map {}", pin.display()))
}
