//! `/metrics`, `/healthz` and `/readyz` of the controllers; `docs/metrics.md` lists the metrics.

mod collect;
pub mod counts;
pub mod state;
pub mod tally;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use mc_metrics::{
    Source,
    server::{self, Listener},
};
use tokio::time::Instant;

pub use counts::Counts;
use state::{Seat, State};
use tally::Tally;

use crate::{api::config::Config, plan::Plan, shell::election::Fence};

/// What a controller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It turns exports into imports.
    Leader,
    /// It exports and imports.
    Member,
}

/// What is known of a controller's work.
#[derive(Debug)]
pub struct Metrics {
    role: Role,
    state: Mutex<State>,
    /// Of the API server of the controller's own cluster.
    pub local: Arc<Tally>,
    /// Of the leader's API server, where the controller is a member's.
    pub remote: Arc<Tally>,
}

// === impl Role ===

impl Role {
    /// As labels name it.
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
    /// Of a controller that starts now.
    #[must_use]
    pub fn new(role: Role) -> Arc<Self> {
        Arc::new(Self {
            role,
            state: Mutex::new(State::new(Instant::now())),
            local: Arc::default(),
            remote: Arc::default(),
        })
    }

    /// The main loop has come round.
    pub fn turned(&self) {
        self.state().turned = Instant::now();
    }

    /// The Lease was looked at: somebody else holds it, or why nobody knows.
    pub fn waits(&self, seen: Result<(), String>) {
        if seen.is_ok() {
            self.local.answered();
        }
        let mut state = self.state();
        state.turned = Instant::now();
        state.seat = Seat::Waits(seen);
    }

    /// This replica works from now on, while `fence` is open.
    pub fn works(&self, fence: Fence) {
        let mut state = self.state();
        state.turned = Instant::now();
        state.seat = Seat::Works(fence);
    }

    /// Everything has been read once.
    pub fn synced(&self) {
        self.state().synced = true;
    }

    /// A plan was made of a world that `counts` tells of.
    pub fn planned(&self, took: Duration, now: Timestamp, plan: &Plan, counts: Counts) {
        self.state().planned(took, now, plan, counts);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is complete on its own.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Metrics {
    fn metrics(&self) -> Result<String, String> {
        let state = self.state().clone();
        let tallies = [
            ("local", self.local.snapshot()),
            ("leader", self.remote.snapshot()),
        ];
        // A leader's controller talks to one API server only.
        let known = if self.role == Role::Leader { 1 } else { 2 };
        let tallies = tallies.get(..known).unwrap_or_default();
        Ok(collect::render(
            self.role,
            &state,
            tallies,
            Instant::now(),
            Timestamp::now(),
        ))
    }

    fn alive(&self) -> Result<(), String> {
        // A batch of writes that an API server lets wait is work, too.
        let progress = self.local.snapshot().progress;
        self.state().alive(progress, Instant::now())
    }

    fn ready(&self) -> Result<(), String> {
        self.state().ready()
    }
}

/// Serves `metrics` where the configuration says.
pub fn serve(config: &Config, metrics: &Arc<Metrics>) {
    for listener in listeners(&config.health_addresses, &config.metrics_addresses) {
        server::start(listener, metrics.clone());
    }
}

/// One listener for both where both are asked for at one address.
fn listeners(health: &[SocketAddr], metrics: &[SocketAddr]) -> Vec<Listener> {
    let listener = |addresses: &[SocketAddr], said, metrics, health| Listener {
        addresses: addresses.to_vec(),
        said,
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
    fn one_address_is_one_listener() {
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
