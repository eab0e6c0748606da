//! Tasks owned by a value.

use tokio::task::JoinHandle;

/// A task that is aborted when this value is dropped.
#[derive(Debug)]
pub struct AbortOnDrop(JoinHandle<()>);

// === impl AbortOnDrop ===

impl AbortOnDrop {
    /// Spawns `future` on the current runtime.
    pub fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
