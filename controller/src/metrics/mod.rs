//! `/metrics`, `/healthz` and `/readyz` of the controllers; `docs/metrics.md` lists the metrics.

pub mod api_metrics;
pub mod object_gauges;
mod render;
pub mod state;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use mc_metrics::{
    MetricsSource,
    server::{self, Listener},
};
use tokio::time::Instant;

use api_metrics::ApiMetrics;
use mc_api::config::Config;
pub use object_gauges::ObjectGauges;
use state::{ControllerState, ReplicaRole};

use crate::{fence::Fence, plan::Plan};

/// The role of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Merges exports into imports.
    Leader,
    /// Exports and imports Services.
    Member,
}

/// The state and metrics of a controller.
#[derive(Debug)]
pub struct Metrics {
    role: Role,
    state: Mutex<ControllerState>,
    /// The metrics of the local API server.
    pub local: Arc<ApiMetrics>,
    /// The metrics of the leader's API server, in a member.
    pub remote: Arc<ApiMetrics>,
}

// === impl Role ===

impl Role {
    /// The name in labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Member => "member",
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// The metrics of a controller that starts now.
    #[must_use]
    pub fn new(role: Role) -> Arc<Self> {
        Arc::new(Self {
            role,
            state: Mutex::new(ControllerState::new(Instant::now())),
            local: Arc::default(),
            remote: Arc::default(),
        })
    }

    /// Records an iteration of the main loop.
    pub fn loop_tick(&self) {
        self.state().last_tick = Instant::now();
    }

    /// Records a read of the Lease: another replica holds it, or the error.
    pub fn standby(&self, read: Result<(), String>) {
        if read.is_ok() {
            self.local.contacted();
        }
        let mut state = self.state();
        state.last_tick = Instant::now();
        state.replica = ReplicaRole::Standby(read);
    }

    /// Records that this replica is active while `fence` is open.
    pub fn activated(&self, fence: Fence) {
        let mut state = self.state();
        state.last_tick = Instant::now();
        state.replica = ReplicaRole::Active(fence);
    }

    /// Records that all lists are complete.
    pub fn synced(&self) {
        self.state().synced = true;
    }

    /// Records a reconcile of a snapshot with `objects`.
    pub fn reconciled(&self, took: Duration, now: Timestamp, plan: &Plan, objects: ObjectGauges) {
        self.state().reconciled(took, now, plan, objects);
    }

    fn state(&self) -> MutexGuard<'_, ControllerState> {
        // Every change leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetricsSource for Metrics {
    fn metrics(&self) -> Result<String, String> {
        let state = self.state().clone();
        let servers = [
            ("local", self.local.snapshot()),
            ("leader", self.remote.snapshot()),
        ];
        // A leader has one API server.
        let known = if self.role == Role::Leader { 1 } else { 2 };
        let servers = servers.get(..known).unwrap_or_default();
        render::render(self.role, &state, servers, Instant::now(), Timestamp::now())
            .map_err(|error| error.to_string())
    }

    fn healthy(&self) -> Result<(), String> {
        // A batch delayed by the API server is progress, too.
        let progress = self.local.snapshot().progress;
        self.state().alive(progress, Instant::now())
    }

    fn ready(&self) -> Result<(), String> {
        self.state().ready()
    }
}

/// Serves `metrics` on the configured addresses.
pub fn serve(config: &Config, metrics: &Arc<Metrics>) {
    for listener in listeners(&config.health_addresses, &config.metrics_addresses) {
        server::start(listener, metrics.clone());
    }
}

/// One listener for health and metrics if both have the same address.
fn listeners(health: &[SocketAddr], metrics: &[SocketAddr]) -> Vec<Listener> {
    let listener = |addresses: &[SocketAddr], setting, metrics, health| Listener {
        addresses: addresses.to_vec(),
        setting,
        metrics,
        health,
    };
    let all = if health == metrics {
        vec![listener(
            health,
            "health.healthProbeBindAddress and metrics.bindAddress",
            true,
            true,
        )]
    } else {
        vec![
            listener(health, "health.healthProbeBindAddress", false, true),
            listener(metrics, "metrics.bindAddress", true, false),
        ]
    };
    all.into_iter().filter(|l| !l.addresses.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_addresses_share_a_listener() {
        let a: Vec<SocketAddr> = vec!["[::]:8080".parse().unwrap()];
        let b: Vec<SocketAddr> = vec!["127.0.0.1:8081".parse().unwrap()];
        let pages = |health: &[SocketAddr], metrics: &[SocketAddr]| -> Vec<(bool, bool)> {
            listeners(health, metrics)
                .iter()
                .map(|l| (l.health, l.metrics))
                .collect()
        };
        assert_eq!(pages(&a, &a), [(true, true)]);
        assert_eq!(pages(&a, &b), [(true, false), (false, true)]);
        assert_eq!(pages(&a, &[]), [(true, false)]);
        assert_eq!(pages(&[], &b), [(false, true)]);
        assert_eq!(pages(&[], &[]), []);
    }
}
