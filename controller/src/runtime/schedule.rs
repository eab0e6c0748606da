//! Intervals of the reconcile loops.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// The interval in which events are collected before a reconcile.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// The longest interval between two reconciles.
pub(super) const RESYNC_PERIOD: Duration = Duration::from_secs(30);

/// The interval in which events are collected, given the duration of the last reconcile: at most half of the time is
/// spent on reconciling, regardless of the number of objects.
pub(super) fn debounce(last_reconcile: Duration) -> Duration {
    DEBOUNCE.max(last_reconcile)
}

/// The monotonic equivalent of a time of day.
pub(super) fn to_instant(at: Option<Timestamp>, now: Timestamp) -> Option<Instant> {
    let left = at?.duration_since(now);
    Some(Instant::now() + Duration::try_from(left).unwrap_or_default())
}
