//! State of the main loop, for health checks and metrics.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use mc_metrics::prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

use super::object_gauges::ObjectGauges;
use crate::{
    fence::Fence,
    issue_code::IssueCode,
    plan::{Kind, Plan},
};

/// The longest iteration of a healthy loop: it reconciles at least every 30 s, and reads the Lease every 2 s.
pub(super) const LOOP_TIMEOUT: Duration = Duration::from_secs(90);

/// The role of this replica.
#[derive(Clone, Debug)]
pub enum ReplicaRole {
    /// Another replica holds the Lease, or the error of the last read.
    Standby(Result<(), String>),
    /// This replica is active while the fence is open.
    Active(Fence),
}

/// The state of the main loop.
#[derive(Clone, Debug)]
pub struct ControllerState {
    /// The time of the last iteration.
    pub last_tick: Instant,
    /// The role of this replica.
    pub replica: ReplicaRole,
    /// Whether all lists are complete.
    pub synced: bool,
    /// The durations of reconciles.
    pub reconcile_durations: Histogram,
    /// The time of the last reconcile.
    pub last_reconcile: Option<Timestamp>,
    /// The numbers of active issues by code.
    pub issues: BTreeMap<IssueCode, usize>,
    /// The active warning Events, by kind of the object and reason.
    pub warnings: BTreeMap<(Kind, String), u64>,
    /// The numbers of objects.
    pub objects: ObjectGauges,
}

impl ControllerState {
    /// The state of a controller that starts now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            last_tick: now,
            replica: ReplicaRole::Standby(Err("the Lease has not been read yet".to_owned())),
            synced: false,
            reconcile_durations: mc_metrics::duration_histogram(),
            last_reconcile: None,
            issues: BTreeMap::new(),
            warnings: BTreeMap::new(),
            objects: ObjectGauges::None,
        }
    }

    /// Records a reconcile.
    pub fn reconciled(&mut self, took: Duration, now: Timestamp, plan: &Plan, objects: ObjectGauges) {
        self.reconcile_durations.observe(took.as_secs_f64());
        self.last_reconcile = Some(now);
        self.issues = BTreeMap::new();
        for issue in &plan.issues {
            let count = self.issues.entry(issue.code).or_default();
            *count = count.saturating_add(1);
        }
        self.warnings.clear();
        for warning_event in &plan.warning_events {
            let key = (warning_event.object.kind, warning_event.reason.clone());
            let count = self.warnings.entry(key).or_default();
            *count = count.saturating_add(1);
        }
        self.objects = objects;
    }

    /// Whether this replica is active.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(&self.replica, ReplicaRole::Active(fence) if fence.is_open())
    }

    /// Checks that the loop makes progress. `progress` is the time at which a write last ended.
    pub fn alive(&self, progress: Option<Instant>, now: Instant) -> Result<(), String> {
        let last = progress.map_or(self.last_tick, |at| at.max(self.last_tick));
        mc_metrics::check_loop_age(now.saturating_duration_since(last), LOOP_TIMEOUT)
    }

    /// Checks that this replica is active with complete lists, or a standby.
    pub fn ready(&self) -> Result<(), String> {
        match &self.replica {
            ReplicaRole::Standby(Err(error)) => Err(format!("waiting for the Lease: {error}")),
            ReplicaRole::Active(fence) if !fence.is_open() => {
                Err("the Lease was not renewed in time".to_owned())
            }
            ReplicaRole::Active(_) if !self.synced => Err("the lists are incomplete".to_owned()),
            ReplicaRole::Standby(Ok(())) | ReplicaRole::Active(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_loop_is_unhealthy_unless_it_writes() {
        let now = Instant::now();
        let state = ControllerState::new(now);
        assert_eq!(state.alive(None, now + LOOP_TIMEOUT), Ok(()));
        let later = now + LOOP_TIMEOUT + Duration::from_secs(1);
        assert_eq!(
            state.alive(None, later),
            Err("the main loop has made no progress for 91 s".to_owned())
        );
        assert_eq!(state.alive(Some(now + Duration::from_mins(1)), later), Ok(()));
    }

    #[test]
    fn a_standby_and_a_synced_active_replica_are_ready() {
        let mut state = ControllerState::new(Instant::now());
        assert!(state.ready().is_err() && !state.is_active());
        state.replica = ReplicaRole::Standby(Ok(()));
        assert_eq!(state.ready(), Ok(()), "a standby");
        state.replica = ReplicaRole::Standby(Err("no answer within 3 s".to_owned()));
        assert_eq!(
            state.ready(),
            Err("waiting for the Lease: no answer within 3 s".to_owned())
        );
        state.replica = ReplicaRole::Active(Fence::open());
        assert!(state.ready().unwrap_err().contains("lists") && state.is_active());
        state.synced = true;
        assert_eq!(state.ready(), Ok(()));
        state.replica = ReplicaRole::Active(Fence::closed());
        assert!(state.ready().is_err() && !state.is_active());
    }
}
