//! The write fence of the leader election.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

/// Whether this replica may write.
///
/// Guarantee: it closes by itself when the Lease is not renewed in time, also in a process that was stopped meanwhile.
#[derive(Clone, Debug)]
pub struct Fence {
    base: Instant,
    /// Milliseconds after `base` at which it closes.
    until: Arc<AtomicU64>,
}

// === impl Fence ===

impl Fence {
    /// A fence that never closes, for a controller without leader election.
    #[must_use]
    pub fn open() -> Self {
        Self {
            base: Instant::now(),
            until: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }

    /// A closed fence.
    #[must_use]
    pub fn closed() -> Self {
        Self {
            until: Arc::new(AtomicU64::new(0)),
            ..Self::open()
        }
    }

    /// Whether writes are permitted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let elapsed = Instant::now().saturating_duration_since(self.base);
        elapsed.as_millis() < u128::from(self.until.load(Ordering::Acquire))
    }

    /// Permits writes until `at`.
    pub(crate) fn open_until(&self, at: Instant) {
        let elapsed = at.saturating_duration_since(self.base);
        self.store(elapsed);
    }

    /// Ends the permission to write.
    pub(crate) fn close(&self) {
        self.store(Duration::ZERO);
    }

    fn store(&self, until: Duration) {
        let millis = u64::try_from(until.as_millis()).unwrap_or(u64::MAX);
        self.until.store(millis, Ordering::Release);
    }
}
