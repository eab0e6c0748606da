//! Termination signals.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{AgentError, io_error};

/// Handlers of SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, AgentError> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(io_error("handle SIGTERM"))?,
            interrupt: signal(SignalKind::interrupt()).map_err(io_error("handle SIGINT"))?,
        })
    }

    /// Waits for a signal and returns its name.
    pub(super) async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
