//! `/metrics`, `/healthz` and `/readyz` of the agent; `docs/metrics.md` lists the metrics.

mod collect;
mod state;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aya::maps::{MapData, PerCpuArray};
use mc_gateway_common::abi::sample::{SAMPLE_GATE, SampleLimiter};

use crate::host::conntrack;
use crate::inspect::snapshot::{CounterMaps, LivenessMaps, PeerCounterMap};
use crate::maps::{MapsError, open};
use crate::service_flows::FlowMaps;
use collect::KernelCounters;
use mc_metrics::MetricsSource;
pub use state::State;

/// What is served: the state the loop writes, and the maps.
pub struct Metrics {
    state: Mutex<State>,
    counters: CounterMaps,
    health: LivenessMaps,
    peer_counters: PeerCounterMap,
    sample_limiter: PerCpuArray<MapData, SampleLimiter>,
    flows: FlowMaps,
}

impl Metrics {
    /// Opens the maps. `adopted` says whether an older agent's data path was found in place.
    pub fn open(maps: &Path, now: Instant, adopted: bool) -> Result<Arc<Self>, MapsError> {
        Ok(Arc::new(Self {
            state: Mutex::new(State::new(now, adopted)),
            counters: CounterMaps::open(maps)?,
            health: LivenessMaps::open(maps)?,
            peer_counters: PeerCounterMap::open(maps)?,
            sample_limiter: open(maps, SAMPLE_GATE)?,
            flows: FlowMaps::open(maps)?,
        }))
    }

    /// The state, for one look or one change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete on its own.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything as Prometheus text.
    pub fn render(&self) -> Result<String, MapsError> {
        let mut state = self.state().clone();
        state.map_usage.extend(self.flows.usage()?);
        let counters = self.counters.read()?;
        let health = self
            .health
            .read(state.next_hops.iter().map(|member| member.slot))?;
        let traffic = self
            .peer_counters
            .read(state.peers.iter().map(|peer| peer.slot))?;
        let gates = self
            .sample_limiter
            .get(&0, 0)
            .map_err(|source| MapsError::Access {
                map: SAMPLE_GATE,
                operation: "read",
                source,
            })?;
        let conntrack = conntrack::error_counters();
        let counted = KernelCounters {
            counters,
            health,
            peer_counters: traffic,
            sample_limiters: gates.to_vec(),
            conntrack,
        };
        Ok((state, counted))
    }
}

impl MetricsSource for Metrics {
    fn metrics(&self) -> Result<String, String> {
        self.render().map_err(|error| crate::error_chain(&error))
    }

    fn healthy(&self) -> Result<(), String> {
        self.state().healthy(Instant::now())
    }

    fn ready(&self) -> Result<(), String> {
        self.state().ready()
    }
}
