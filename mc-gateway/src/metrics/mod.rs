//! `/metrics`, `/healthz` and `/readyz` of the agent; `docs/metrics.md` lists the metrics.

mod collect;
mod state;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use aya::maps::{MapData, PerCpuArray};
use mc_gateway_common::abi::policy::RuleCounter;
use mc_gateway_common::abi::sample::{SAMPLE_LIMIT, SampleLimiter};

use crate::host::{conntrack, nftables};
use crate::maps::{
    CounterMaps, FlowMaps, LivenessMaps, MapsError, PeerCounterMap, RuleCounterMap, map_error, open,
};
use collect::KernelCounters;
use mc_metrics::MetricsSource;
pub use state::State;

/// State of the main loop, and the maps with counters.
pub struct Metrics {
    state: Mutex<State>,
    counters: CounterMaps,
    health: LivenessMaps,
    peer_counters: PeerCounterMap,
    rule_counters: RuleCounterMap,
    sample_limiter: PerCpuArray<MapData, SampleLimiter>,
    flows: FlowMaps,
}

impl Metrics {
    /// Opens the maps. `adopted`: an earlier agent's data path was in place.
    pub fn open(maps: &Path, now: Instant, adopted: bool) -> Result<Arc<Self>, MapsError> {
        Ok(Arc::new(Self {
            state: Mutex::new(State::new(now, adopted)),
            counters: CounterMaps::open(maps)?,
            health: LivenessMaps::open(maps)?,
            peer_counters: PeerCounterMap::open(maps)?,
            rule_counters: RuleCounterMap::open(maps)?,
            sample_limiter: open(maps, SAMPLE_LIMIT)?,
            flows: FlowMaps::open(maps)?,
        }))
    }

    /// The state, for one access.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete on its own.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters of the rules of network policies, by ID.
    pub fn rule_counters(&self) -> Result<BTreeMap<u32, RuleCounter>, MapsError> {
        self.rule_counters.read()
    }

    /// A copy of the state, and the counters of the kernel.
    fn read(&self) -> Result<(State, KernelCounters), MapsError> {
        let mut state = self.state().clone();
        state.map_usage.extend(self.flows.usage()?);
        let next_hops = state.next_hops.iter().map(|next_hop| next_hop.slot);
        let peers = state.peers.iter().map(|peer| peer.slot);
        let limiters = self
            .sample_limiter
            .get(&0, 0)
            .map_err(map_error(SAMPLE_LIMIT, "read"))?;
        let kernel = KernelCounters {
            counters: self.counters.read()?,
            health: self.health.read(next_hops)?,
            peer_counters: self.peer_counters.read(peers)?,
            rule_counters: self.rule_counters()?,
            sample_limiters: limiters.to_vec(),
            conntrack: conntrack::error_counters(),
            nftables: nftables::read_counters(),
        };
        Ok((state, kernel))
    }
}

impl MetricsSource for Metrics {
    fn metrics(&self) -> Result<String, String> {
        let (state, kernel) = self.read().map_err(|error| crate::error_chain(&error))?;
        collect::render(&state, &kernel).map_err(|error| error.to_string())
    }

    fn healthy(&self) -> Result<(), String> {
        self.state().healthy(Instant::now())
    }

    fn ready(&self) -> Result<(), String> {
        self.state().ready()
    }
}
