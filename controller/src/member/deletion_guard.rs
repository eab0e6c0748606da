//! Suppresses deletions of imports that the leader may have lost: after a restore from an etcd snapshot it lacks the
//! exports written since, until the members write them again.
//!
//! Pure. Guarantees: an import that is absent from a new list is kept until the leader's other lists could be read
//! again, and for a minute after an object with an older version was seen. Deletions reported by a watch take effect at
//! once.

use jiff::{SignedDuration, Timestamp};
use mc_kube::RelistStats;

use super::imported_objects::deletes_import;
use crate::{issue_code::IssueCode, plan::Plan};

/// The time after a relist in which the other lists are read again: watches back off for at most 3 s.
const RELIST_HOLD: SignedDuration = SignedDuration::from_secs(5);
/// The time in which members and the leader's controller write lost objects again.
const REGRESSION_HOLD: SignedDuration = SignedDuration::from_mins(1);

/// The relists of the leader's lists so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletionGuard {
    seen: RelistStats,
    until: Option<Timestamp>,
}

// === impl DeletionGuard ===

impl DeletionGuard {
    /// Records relists; returns the time until which an absent object is no deletion.
    pub fn update(&mut self, stats: RelistStats, now: Timestamp) -> Option<Timestamp> {
        let wait = if stats.version_regressions == self.seen.version_regressions {
            (stats.relists != self.seen.relists).then_some(RELIST_HOLD)
        } else {
            Some(REGRESSION_HOLD)
        };
        self.seen = stats;
        let until = wait.and_then(|wait| now.checked_add(wait).ok());
        // The suppression ends although the clock was set back.
        self.until = self
            .until
            .filter(|until| *until > now && until.duration_since(now) <= REGRESSION_HOLD)
            .max(until);
        self.until
    }
}

/// Removes deletions of imports from the plan and requeues at the end of the suppression.
pub fn suppress_deletions(plan: &mut Plan, until: Timestamp) {
    let before = plan.writes.len();
    plan.writes.retain(|write| !deletes_import(write));
    let held = before.saturating_sub(plan.writes.len());
    if held > 0 {
        plan.issue(
            IssueCode::DeletionsHeld,
            "leader",
            "imports absent from the leader's list are kept for now: the leader may have been restored from a snapshot",
        );
        plan.requeue_at(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn stats(relists: u32, version_regressions: u32) -> RelistStats {
        RelistStats {
            relists,
            version_regressions,
        }
    }

    #[test]
    fn a_relist_suppresses_deletions_and_a_version_regression_for_longer() {
        let mut guard = DeletionGuard::default();
        assert_eq!(guard.update(stats(0, 0), at(0)), None);
        assert_eq!(guard.update(stats(1, 0), at(1)), Some(at(6)));
        assert_eq!(guard.update(stats(2, 0), at(3)), Some(at(8)));
        assert_eq!(guard.update(stats(3, 1), at(4)), Some(at(64)));
        assert_eq!(guard.update(stats(4, 1), at(10)), Some(at(64)));
        assert_eq!(guard.update(stats(4, 1), at(64)), None);
    }

    #[test]
    fn a_clock_set_back_ends_the_suppression() {
        let mut guard = DeletionGuard::default();
        assert_eq!(guard.update(stats(1, 1), at(1000)), Some(at(1060)));
        assert_eq!(guard.update(stats(1, 1), at(0)), None);
    }
}
