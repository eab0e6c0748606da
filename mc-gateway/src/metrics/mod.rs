//! `/metrics`, `/healthz` and `/readyz` of the agent; `docs/metrics.md` lists the metrics.

mod collect;
mod state;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aya::maps::{MapData, PerCpuArray};
use mc_gateway_common::abi::sample::{Gate, SAMPLE_GATE};

use crate::host::conntrack;
use crate::inspect::snapshot::{CounterMaps, HealthMaps, TrafficMap};
use crate::service_flows::FlowMaps;
use crate::tables::{TablesError, open};
use collect::Counted;
use mc_metrics::Source;
pub use state::State;

/// What is served: the state the loop writes, and the maps.
pub struct Metrics {
    state: Mutex<State>,
    counters: CounterMaps,
    health: HealthMaps,
    traffic: TrafficMap,
    gate: PerCpuArray<MapData, Gate>,
    flows: FlowMaps,
}

impl Metrics {
    /// Opens the maps. `adopted` says whether an older agent's data path was found in place.
    pub fn open(maps: &Path, now: Instant, adopted: bool) -> Result<Arc<Self>, TablesError> {
        Ok(Arc::new(Self {
            state: Mutex::new(State::new(now, adopted)),
            counters: CounterMaps::open(maps)?,
            health: HealthMaps::open(maps)?,
            traffic: TrafficMap::open(maps)?,
            gate: open(maps, SAMPLE_GATE)?,
            flows: FlowMaps::open(maps)?,
        }))
    }

    /// The state, for one look or one change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete on its own.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything as Prometheus text.
    pub fn render(&self) -> Result<String, TablesError> {
        let mut state = self.state().clone();
        state.tables.extend(self.flows.fill()?);
        let counters = self.counters.read()?;
        let health = self.health.read(state.members.iter().map(|member| member.slot))?;
        let traffic = self.traffic.read(state.peers.iter().map(|peer| peer.slot))?;
        let gates = self.gate.get(&0, 0).map_err(|source| TablesError::Access {
            map: SAMPLE_GATE,
            what: "read",
            source,
        })?;
        let conntrack = conntrack::losses();
        let counted = Counted {
            counters,
            health,
            traffic,
            gates: gates.to_vec(),
            conntrack,
        };
        Ok(collect::render(&state, &counted))
    }
}

impl Source for Metrics {
    fn metrics(&self) -> Result<String, String> {
        self.render().map_err(|error| crate::chain(&error))
    }

    fn alive(&self) -> Result<(), String> {
        self.state().alive(Instant::now())
    }

    fn ready(&self) -> Result<(), String> {
        self.state().ready()
    }
}
