//! Damping of reachability: a short loss is not reported, and neither is a short recovery. Pure: time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Time from the death of a cluster's last gateway to the report of the cluster as unreachable.
const CONFIRM_LOSS: Duration = Duration::from_millis(500);
/// Time with answers until a cluster is reported as reachable again; doubles with each loss soon after a recovery …
const CONFIRM_RECOVERY: Duration = Duration::from_secs(5);
/// … up to this one.
const MAX_CONFIRM_RECOVERY: Duration = Duration::from_mins(1);
/// Time after a recovery until a loss is no longer one of a flapping path.
const STABLE: Duration = Duration::from_mins(5);

/// The reported reachability of all clusters.
#[derive(Debug, Default)]
pub(super) struct Damping(BTreeMap<String, DampedReachability>);

#[derive(Debug)]
struct DampedReachability {
    is_reachable: bool,
    /// The time since which the probes have another result.
    differs_since: Option<Instant>,
    confirm_recovery: Duration,
    recovered_at: Option<Instant>,
}

impl Damping {
    /// Takes the results of the probes; the first one of a cluster is reported at once, and without one the reported
    /// reachability remains. Returns the time at which that changes if the results remain.
    #[must_use]
    pub(super) fn update(&mut self, now: Instant, seen: &BTreeMap<String, Option<bool>>) -> Option<Instant> {
        self.0.retain(|cluster, _| seen.contains_key(cluster));
        let due = seen.iter().filter_map(|(cluster, is_reachable)| {
            let is_reachable = (*is_reachable)?;
            let new = || DampedReachability::new(is_reachable);
            let damped = self.0.entry(cluster.clone()).or_insert_with(new);
            damped.update(now, is_reachable)
        });
        due.min()
    }

    /// Whether each cluster is reachable.
    pub(super) fn reported(&self) -> impl Iterator<Item = (String, bool)> {
        let clusters = self.0.iter();
        clusters.map(|(cluster, damped)| (cluster.clone(), damped.is_reachable))
    }
}

impl DampedReachability {
    fn new(is_reachable: bool) -> Self {
        Self {
            is_reachable,
            differs_since: None,
            confirm_recovery: CONFIRM_RECOVERY,
            recovered_at: None,
        }
    }

    fn update(&mut self, now: Instant, is_reachable: bool) -> Option<Instant> {
        if is_reachable == self.is_reachable {
            self.differs_since = None;
            return None;
        }
        let since = *self.differs_since.get_or_insert(now);
        let confirm = if is_reachable {
            self.confirm_recovery
        } else {
            CONFIRM_LOSS
        };
        let due = since.checked_add(confirm)?;
        if now < due {
            return Some(due);
        }
        self.is_reachable = is_reachable;
        self.differs_since = None;
        if is_reachable {
            self.recovered_at = Some(now);
        } else {
            let is_flapping = self
                .recovered_at
                .is_some_and(|recovered| now.duration_since(recovered) < STABLE);
            self.confirm_recovery = if is_flapping {
                self.confirm_recovery.saturating_mul(2).min(MAX_CONFIRM_RECOVERY)
            } else {
                CONFIRM_RECOVERY
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reported changes, in milliseconds, for a path that changes at these times, first by a loss.
    fn reported(changes: &[u64], end: u64) -> Vec<(u64, bool)> {
        let start = Instant::now();
        let mut damping = Damping::default();
        let mut found = vec![];
        let mut before = None;
        for ms in (0..end).step_by(100) {
            let lost = changes.iter().filter(|change| **change <= ms).count() % 2 == 1;
            let _due = damping.update(
                start + Duration::from_millis(ms),
                &[("c".to_owned(), Some(!lost))].into(),
            );
            let now = damping.reported().next().map(|(_, is_reachable)| is_reachable);
            if before != now {
                found.extend(now.map(|now| (ms, now)));
                before = now;
            }
        }
        found
    }

    #[test]
    fn the_first_result_is_reported_at_once() {
        assert_eq!(reported(&[], 300), [(0, true)]);
        assert_eq!(reported(&[0], 300), [(0, false)]);
    }

    #[test]
    fn a_loss_is_reported_after_half_a_second_and_a_recovery_after_five() {
        let found = reported(&[1_000, 4_000], 20_000);
        assert_eq!(found, [(0, true), (1_500, false), (9_000, true)]);
    }

    #[test]
    fn short_losses_and_short_recoveries_are_not_reported() {
        assert_eq!(reported(&[1_000, 1_400, 3_000, 3_400], 20_000), [(0, true)]);
        let found = reported(&[1_000, 4_000, 8_000, 12_000], 30_000);
        assert_eq!(found, [(0, true), (1_500, false), (17_000, true)]);
    }

    #[test]
    fn a_flapping_path_takes_longer_to_recover_each_time() {
        let changes: Vec<u64> = (0..6)
            .flat_map(|round| [round * 100_000, round * 100_000 + 10_000])
            .collect();
        let recoveries: Vec<u64> = reported(&changes, 700_000)
            .into_iter()
            .filter(|(_, is_reachable)| *is_reachable)
            .map(|(ms, _)| ms % 100_000 - 10_000)
            .collect();
        assert_eq!(recoveries, [5_000, 10_000, 20_000, 40_000, 60_000, 60_000]);
    }

    #[test]
    fn a_stable_path_is_no_flapping_one() {
        let found = reported(&[0, 10_000, 400_000, 410_000], 500_000);
        assert_eq!(
            found,
            [(0, false), (15_000, true), (400_500, false), (415_000, true)]
        );
    }

    #[test]
    fn the_next_change_is_announced_and_a_removed_cluster_is_forgotten() {
        let start = Instant::now();
        let mut damping = Damping::default();
        assert_eq!(
            damping.update(start, &[("c".to_owned(), Some(true))].into()),
            None
        );
        let due = damping.update(start, &[("c".to_owned(), Some(false))].into());
        assert_eq!(due, Some(start + CONFIRM_LOSS));
        assert_eq!(damping.update(start, &[("c".to_owned(), None)].into()), None);
        assert_eq!(damping.reported().collect::<Vec<_>>(), [("c".to_owned(), true)]);
        assert_eq!(damping.update(start, &BTreeMap::new()), None);
        assert_eq!(damping.reported().count(), 0);
    }
}
