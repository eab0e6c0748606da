//! `/metrics`, `/healthz` and `/readyz` of agent and controllers: the text format and the server.
#![forbid(unsafe_code)]

pub mod durations;
pub mod process;
pub mod server;
pub mod text;

use std::time::Duration;

/// What is served.
pub trait Source: Send + Sync + 'static {
    /// Everything as Prometheus text, or why there is none.
    fn metrics(&self) -> Result<String, String>;

    /// Whether the process works; else why not, and it should be started anew.
    fn alive(&self) -> Result<(), String>;

    /// Whether it has what it needs; else why not.
    fn ready(&self) -> Result<(), String>;
}

/// Whether a main loop that came round `since` ago turns, where it may take `limit`; else what to say of it.
pub fn turns(since: Duration, limit: Duration) -> Result<(), String> {
    if since <= limit {
        return Ok(());
    }
    Err(format!(
        "the main loop has not come round for {} s",
        since.as_secs()
    ))
}
