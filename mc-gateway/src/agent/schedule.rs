//! When the next round is due. Pure: the time is an argument.

use std::time::Duration;

use tokio::time::Instant;

/// How long it must be quiet before a burst of changes is looked at …
const QUIET: Duration = Duration::from_millis(50);
/// … and how long a burst may delay that.
const MAX_DELAY: Duration = Duration::from_millis(500);
/// How often everything is read again, to repair what somebody else changed.
const RESYNC: Duration = Duration::from_secs(30);
/// First and longest wait before a failed plan is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));

/// Debounces changes, spaces retries, and wakes up now and then without either.
#[derive(Debug)]
pub(super) struct Schedule {
    due: Instant,
    burst_ends: Option<Instant>,
    resync: Instant,
    retry: Duration,
    /// After a failure: what we took back looks like a change of the host, and must not hurry the retry.
    not_before: Option<Instant>,
}

impl Schedule {
    /// Due at once.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            due: now,
            burst_ends: None,
            resync: now + RESYNC,
            retry: RETRY.0,
            not_before: None,
        }
    }

    /// When the next round is due.
    pub(super) fn due_at(&self) -> Instant {
        self.due
    }

    /// A round when it is quiet, but not later than the burst allows.
    pub(super) fn objects_changed(&mut self, now: Instant) {
        self.not_before = None;
        self.debounce(now);
    }

    /// The same, but not earlier than a retry that waits.
    pub(super) fn host_changed(&mut self, now: Instant) {
        self.debounce(now);
    }

    fn debounce(&mut self, now: Instant) {
        let ends = *self.burst_ends.get_or_insert(now + MAX_DELAY);
        let due = (now + QUIET).min(ends);
        self.due = self.not_before.map_or(due, |earliest| earliest.max(due));
    }

    /// Whether everything has to be read again.
    pub(super) fn resync_due(&self, now: Instant) -> bool {
        now >= self.resync
    }

    /// A round went well.
    pub(super) fn done(&mut self, now: Instant) {
        self.burst_ends = None;
        self.not_before = None;
        self.retry = RETRY.0;
        if self.resync_due(now) {
            self.resync = now + RESYNC;
        }
        self.due = self.resync;
    }

    /// A round failed.
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
    fn a_burst_is_looked_at_once_and_not_too_late() {
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
    fn our_own_roll_back_does_not_hurry_the_retry_but_new_objects_do() {
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
            "a success makes retries quick again"
        );
    }

    #[test]
    fn retries_never_wait_longer_than_the_longest() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        for _ in 0..20 {
            schedule.failed(start);
        }
        assert_eq!(schedule.due_at(), start + RETRY.1);
    }
}
