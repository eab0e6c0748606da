//! Schedule of reconciles. Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// Quiet time after a burst of changes …
const QUIET: Duration = Duration::from_millis(50);
/// … and the longest delay by a burst.
const MAX_DELAY: Duration = Duration::from_millis(500);
/// Interval of full resyncs, which repair foreign changes.
pub(super) const RESYNC: Duration = Duration::from_secs(30);
/// First and longest delay before a failed reconcile is retried: a state is repaired within seconds after the cause of
/// a failure is gone.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// Debounces changes, backs off retries, and schedules resyncs.
#[derive(Debug)]
pub(super) struct Schedule {
    due: Instant,
    burst_ends: Option<Instant>,
    resync: Instant,
    retry: Duration,
    /// After a failure: the rollback is notified as a change of the host, and must not advance the retry.
    not_before: Option<Instant>,
}

impl Schedule {
    /// A reconcile is due immediately.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            due: now,
            burst_ends: None,
            resync: now + RESYNC,
            retry: RETRY.0,
            not_before: None,
        }
    }

    /// Time of the next reconcile.
    pub(super) fn due_at(&self) -> Instant {
        self.due
    }

    /// Objects changed: a reconcile is due after the debounce, also during a back-off.
    pub(super) fn objects_changed(&mut self, now: Instant) {
        self.not_before = None;
        self.debounce(now);
    }

    /// The host changed: a reconcile is due after the debounce and the back-off.
    pub(super) fn host_changed(&mut self, now: Instant) {
        self.debounce(now);
    }

    fn debounce(&mut self, now: Instant) {
        let ends = *self.burst_ends.get_or_insert(now + MAX_DELAY);
        let due = (now + QUIET).min(ends);
        self.due = self.not_before.map_or(due, |earliest| earliest.max(due));
    }

    /// Whether a resync is due.
    pub(super) fn resync_due(&self, now: Instant) -> bool {
        now >= self.resync
    }

    /// A reconcile succeeded.
    pub(super) fn done(&mut self, now: Instant) {
        self.burst_ends = None;
        self.not_before = None;
        self.retry = RETRY.0;
        if self.resync_due(now) {
            self.resync = now + RESYNC;
        }
        self.due = self.resync;
    }

    /// A reconcile failed.
    pub(super) fn failed(&mut self, now: Instant) {
        self.burst_ends = None;
        self.due = now + self.retry;
        self.not_before = Some(self.due);
        self.retry = self.retry.saturating_mul(2).min(RETRY.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_burst_leads_to_one_reconcile_with_a_bounded_delay() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        schedule.done(start);
        assert_eq!(schedule.due_at(), start + RESYNC);
        for step in 0..40 {
            schedule.host_changed(start + MS * (step * 20));
        }
        assert_eq!(schedule.due_at(), start + MAX_DELAY);
        schedule.done(start + MAX_DELAY);
        schedule.host_changed(start + MS * 900);
        assert_eq!(schedule.due_at(), start + MS * 950);
    }

    #[test]
    fn a_rollback_does_not_advance_the_retry_but_new_objects_do() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        schedule.failed(start);
        schedule.failed(start);
        schedule.failed(start);
        assert_eq!(schedule.due_at(), start + MS * 1000);
        schedule.host_changed(start + MS);
        assert_eq!(schedule.due_at(), start + MS * 1000);
        schedule.objects_changed(start + MS);
        assert_eq!(schedule.due_at(), start + MS * 51);
        schedule.done(start);
        schedule.failed(start);
        assert_eq!(
            schedule.due_at(),
            start + RETRY.0,
            "a success resets the back-off"
        );
    }

    #[test]
    fn the_retry_delay_is_bounded() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        for _ in 0..20 {
            schedule.failed(start);
        }
        assert_eq!(schedule.due_at(), start + RETRY.1);
    }
}
