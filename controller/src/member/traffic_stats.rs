//! The pace at which counters of rules are written into the status of network policies.
//!
//! Every agent watches all policies: one write is an event for each Node, and every packet changes a counter. The time
//! of the last write is in the status, so that another replica keeps the pace.

use jiff::{SignedDuration, Timestamp};

/// Shortest time between two writes of a status with other counters alone.
const MIN_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
/// Most events of the agents' watches per second that these writes cause, on average.
const EVENTS_PER_SECOND: usize = 1_000;

/// The pace of writes of counters alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    now: Timestamp,
    interval: SignedDuration,
}

// === impl Pace ===

impl Pace {
    /// The pace in a cluster of this size.
    pub(super) fn new(now: Timestamp, policies: usize, nodes: usize) -> Self {
        let seconds = policies.saturating_mul(nodes).div_ceil(EVENTS_PER_SECOND);
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        Self {
            now,
            interval: SignedDuration::from_secs(seconds).max(MIN_INTERVAL),
        }
    }

    /// The time at which counters are written after a write at `last`; none if that is now. A clock has been wrong if
    /// `last` is in the future.
    pub(super) fn next(&self, last: Option<Timestamp>) -> Option<Timestamp> {
        let last = last.filter(|last| *last <= self.now)?;
        let next = last.checked_add(self.interval).unwrap_or(Timestamp::MAX);
        (next > self.now).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::fake::NOW;

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn after(seconds: i64) -> Timestamp {
        now().checked_add(SignedDuration::from_secs(seconds)).unwrap()
    }

    #[test]
    fn the_interval_grows_with_policies_and_nodes() {
        for (policies, nodes, seconds) in [
            (0, 0, 60),
            (1, 1, 60),
            (60, 1_000, 60),
            (100, 601, 61),
            (1_000, 500, 500),
            (
                usize::MAX,
                2,
                i64::try_from(usize::MAX / EVENTS_PER_SECOND + 1).unwrap(),
            ),
        ] {
            let interval = Pace::new(now(), policies, nodes).interval;
            assert_eq!(interval.as_secs(), seconds, "{policies} policies, {nodes} Nodes");
        }
    }

    #[test]
    fn counters_are_written_after_the_interval() {
        let pace = Pace::new(now(), 1, 1);
        assert_eq!(pace.next(None), None, "never written");
        assert_eq!(pace.next(Some(now())), Some(after(60)));
        assert_eq!(pace.next(Some(after(-59))), Some(after(1)));
        assert_eq!(pace.next(Some(after(-60))), None);
        assert_eq!(pace.next(Some(after(1))), None, "a time in the future");
        let slowest = Pace::new(now(), usize::MAX, 2);
        assert_eq!(slowest.next(Some(now())), Some(Timestamp::MAX));
    }
}
