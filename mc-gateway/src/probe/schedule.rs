//! Send times of the probes. Pure: time and randomness are arguments.
//!
//! *Guarantees*: at most one probe per interval to each next hop, slightly more often on average; after a stall one
//! probe, not one for every missed interval.

use std::collections::BTreeMap;
use std::time::Duration;

/// Divisor of the interval for the random reduction that keeps nodes from synchronising.
const JITTER_DIVISOR: u32 = 10;

/// Next send time by slot. Times count from any fixed moment.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    interval: Duration,
    due: BTreeMap<u32, Duration>,
}

impl Schedule {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            due: BTreeMap::new(),
        }
    }

    /// Adds a slot, first due at a random moment of the first interval.
    pub(super) fn add(&mut self, slot: u32, now: Duration, random: u32) {
        let first = now.saturating_add(fraction(self.interval, random));
        self.due.entry(slot).or_insert(first);
    }

    /// Removes a slot.
    pub(super) fn remove(&mut self, slot: u32) {
        self.due.remove(&slot);
    }

    /// Earliest send time.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.due.values().min().copied()
    }

    /// The slots that are due; each gets its next send time.
    pub(super) fn pop_due(&mut self, now: Duration, mut random: impl FnMut() -> u32) -> Vec<u32> {
        let mut slots = Vec::new();
        for (slot, due) in &mut self.due {
            if *due > now {
                continue;
            }
            slots.push(*slot);
            let step = self
                .interval
                .saturating_sub(fraction(self.interval / JITTER_DIVISOR, random()));
            let next = due.saturating_add(step);
            *due = if next > now {
                next
            } else {
                now.saturating_add(step)
            };
        }
        slots
    }
}

/// A random part of a duration.
fn fraction(whole: Duration, random: u32) -> Duration {
    let nanos = whole.as_nanos().saturating_mul(random.into()) >> 32;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);

    #[test]
    fn first_probes_are_spread_over_an_interval() {
        let mut schedule = Schedule::new(INTERVAL);
        schedule.add(1, Duration::from_secs(1), 0);
        schedule.add(2, Duration::from_secs(1), u32::MAX);
        assert_eq!(schedule.next_due(), Some(Duration::from_secs(1)));
        assert_eq!(schedule.pop_due(Duration::from_secs(1), || 0), [1]);
        assert_eq!(schedule.pop_due(Duration::from_millis(1_100), || 0), [1, 2]);
    }

    #[test]
    fn no_burst_after_a_stall() {
        let mut schedule = Schedule::new(INTERVAL);
        schedule.add(1, Duration::ZERO, 0);
        let late = Duration::from_mins(1);
        assert_eq!(schedule.pop_due(late, || 0), [1]);
        assert_eq!(schedule.pop_due(late, || 0), Vec::<u32>::new());
        assert_eq!(schedule.next_due(), Some(late + INTERVAL));
    }

    #[test]
    fn a_removed_slot_is_never_due() {
        let mut schedule = Schedule::new(INTERVAL);
        schedule.add(1, Duration::ZERO, 0);
        schedule.remove(1);
        assert_eq!(schedule.next_due(), None);
    }

    proptest! {
        #[test]
        fn one_probe_an_interval(randoms in prop::collection::vec(any::<u32>(), 100)) {
            let mut schedule = Schedule::new(INTERVAL);
            schedule.add(1, Duration::ZERO, 0);
            let mut last = None;
            for random in randoms {
                let now = schedule.next_due().unwrap();
                prop_assert_eq!(schedule.pop_due(now, || random), [1]);
                if let Some(last) = last {
                    let gap = now.saturating_sub(last);
                    prop_assert!(gap <= INTERVAL && gap >= INTERVAL * 9 / 10, "{:?}", gap);
                }
                last = Some(now);
            }
        }
    }
}
