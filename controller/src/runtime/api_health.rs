//! Health of the exchanges with one API server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mc_kube::WatchObserver;
use tokio::time::Instant;

use crate::metrics::api_metrics::ApiMetrics;

/// The times of the last success and the last failure of requests to one API server.
#[derive(Debug, Default)]
pub struct ApiHealth {
    last: Mutex<Last>,
    metrics: Arc<ApiMetrics>,
}

#[derive(Debug, Default)]
struct Last {
    success: Option<Instant>,
    failure: Option<(Instant, String)>,
}

// === impl ApiHealth ===

impl ApiHealth {
    /// The health of a new connection, counted in `metrics`.
    pub(super) fn new(metrics: &Arc<ApiMetrics>) -> Arc<Self> {
        Arc::new(Self {
            last: Mutex::default(),
            metrics: metrics.clone(),
        })
    }

    /// The metrics of the API server.
    pub(super) fn metrics(&self) -> &Arc<ApiMetrics> {
        &self.metrics
    }

    /// The last failure, unless a request succeeded since; and whether any request succeeded.
    pub(super) fn state(&self) -> (Option<String>, bool) {
        let last = self.lock();
        let failure = last
            .failure
            .as_ref()
            .filter(|(at, _)| last.success.is_none_or(|success| success < *at));
        (failure.map(|(_, error)| error.clone()), last.success.is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchObserver for ApiHealth {
    fn succeeded(&self) {
        self.lock().success = Some(Instant::now());
        self.metrics.contacted();
    }

    fn failed(&self, error: String) {
        self.lock().failure = Some((Instant::now(), error));
    }

    fn restarted(&self, kind: &str) {
        self.metrics.watch_restarted(kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_that_of_the_last_request() {
        let health = ApiHealth::default();
        assert_eq!(health.state(), (None, false));
        health.failed("no".to_owned());
        assert_eq!(health.state(), (Some("no".to_owned()), false));
        health.succeeded();
        assert_eq!(health.state(), (None, true));
    }
}
