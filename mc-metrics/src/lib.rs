//! `/metrics`, `/healthz` and `/readyz` of the agent and the controllers.
#![forbid(unsafe_code)]

mod process;
pub mod scrape;
pub mod server;

use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;

pub use prometheus_client;

/// Upper bounds of a duration histogram, in seconds.
const DURATION_BOUNDS: [f64; 8] = [0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096, 16.384];

/// The state behind the three endpoints.
pub trait MetricsSource: Send + Sync + 'static {
    /// Every metric in the `OpenMetrics` text format, or the reason for a failed scrape.
    fn metrics(&self) -> Result<String, String>;

    /// Liveness; an error means that the process has to be restarted.
    fn healthy(&self) -> Result<(), String>;

    /// Readiness; an error names the missing condition.
    fn ready(&self) -> Result<(), String>;
}

/// A histogram of durations in seconds, from 1 ms to 16 s.
#[must_use]
pub fn duration_histogram() -> Histogram {
    Histogram::new(DURATION_BOUNDS)
}

/// Checks the age of the main loop's last iteration against its limit.
pub fn check_loop_age(age: Duration, limit: Duration) -> Result<(), String> {
    if age <= limit {
        return Ok(());
    }
    Err(format!(
        "the main loop has made no progress for {} s",
        age.as_secs()
    ))
}
