//! `/metrics`, `/healthz` and `/readyz` of agent and controllers: the text format and the server.
#![forbid(unsafe_code)]

pub mod durations;
pub mod process;
pub mod server;
pub mod text;

/// What is served.
pub trait Source: Send + Sync + 'static {
    /// Everything as Prometheus text, or why there is none.
    fn metrics(&self) -> Result<String, String>;

    /// Whether the process works; else why not, and it should be started anew.
    fn alive(&self) -> Result<(), String>;

    /// Whether it has what it needs; else why not.
    fn ready(&self) -> Result<(), String>;
}
