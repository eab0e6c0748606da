//! What the loop tells those who watch it.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use mc_metrics::durations::Durations;
use tokio::time::Instant;

use super::counts::Counts;
use crate::{
    plan::{Kind, Plan},
    shell::election::Fence,
};

/// How long the loop may take for one turn before the process counts as stuck: it looks at everything every 30 s
/// without any reason, and at the Lease every 2 s.
pub(super) const STUCK: Duration = Duration::from_secs(90);

/// Whether this replica is the one that works.
#[derive(Clone, Debug)]
pub enum Seat {
    /// Somebody else is, or nobody knows why not.
    Waits(Result<(), String>),
    /// It is, while this is open.
    Works(Fence),
}

/// What is known of the loop's work.
#[derive(Clone, Debug)]
pub struct State {
    /// When it last came round.
    pub turned: Instant,
    /// Whether this replica is the one that works.
    pub seat: Seat,
    /// Whether everything has been read once.
    pub synced: bool,
    /// How long plans took to make; their number, too.
    pub plans: Durations,
    /// When the last one was made.
    pub last_plan: Option<Timestamp>,
    /// What a person should know, now.
    pub notices: usize,
    /// Warnings told as Events, by kind of the object and reason, now.
    pub warnings: BTreeMap<(Kind, String), u64>,
    /// What there was to plan for.
    pub counts: Counts,
}

impl State {
    /// Of a controller that starts now.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            turned: now,
            seat: Seat::Waits(Err("the Lease has not been looked at yet".to_owned())),
            synced: false,
            plans: Durations::default(),
            last_plan: None,
            notices: 0,
            warnings: BTreeMap::new(),
            counts: Counts::None,
        }
    }

    /// A plan was made.
    pub fn planned(&mut self, took: Duration, now: Timestamp, plan: &Plan, counts: Counts) {
        self.plans.add(took);
        self.last_plan = Some(now);
        self.notices = plan.notices.len();
        self.warnings.clear();
        for remark in &plan.remarks {
            let key = (remark.about.kind, remark.reason.clone());
            let count = self.warnings.entry(key).or_default();
            *count = count.saturating_add(1);
        }
        self.counts = counts;
    }

    /// Whether this replica works.
    #[must_use]
    pub fn works(&self) -> bool {
        matches!(&self.seat, Seat::Works(fence) if fence.is_open())
    }

    /// Whether the loop turns; else why not. `progress` is when a write last ended.
    pub fn alive(&self, progress: Option<Instant>, now: Instant) -> Result<(), String> {
        let last = progress.map_or(self.turned, |at| at.max(self.turned));
        mc_metrics::turns(now.saturating_duration_since(last), STUCK)
    }

    /// Whether this replica works on everything there is, or could at once; else why not.
    pub fn ready(&self) -> Result<(), String> {
        match &self.seat {
            Seat::Waits(Err(why)) => Err(format!("waiting for the Lease: {why}")),
            Seat::Works(fence) if !fence.is_open() => Err("the Lease was not renewed in time".to_owned()),
            Seat::Works(_) if !self.synced => {
                Err("not everything has been read from the API server yet".to_owned())
            }
            Seat::Waits(Ok(())) | Seat::Works(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_does_not_come_round_is_dead_unless_it_writes() {
        let now = Instant::now();
        let state = State::new(now);
        assert_eq!(state.alive(None, now + STUCK), Ok(()));
        let later = now + STUCK + Duration::from_secs(1);
        assert_eq!(
            state.alive(None, later),
            Err("the main loop has not come round for 91 s".to_owned())
        );
        assert_eq!(state.alive(Some(now + Duration::from_mins(1)), later), Ok(()));
    }

    #[test]
    fn ready_is_who_works_on_everything_or_could() {
        let mut state = State::new(Instant::now());
        assert!(state.ready().is_err() && !state.works());
        state.seat = Seat::Waits(Ok(()));
        assert_eq!(state.ready(), Ok(()), "a standby");
        state.seat = Seat::Waits(Err("no answer within 3 s".to_owned()));
        assert_eq!(
            state.ready(),
            Err("waiting for the Lease: no answer within 3 s".to_owned())
        );
        state.seat = Seat::Works(Fence::open());
        assert!(state.ready().unwrap_err().contains("read") && state.works());
        state.synced = true;
        assert_eq!(state.ready(), Ok(()));
        state.seat = Seat::Works(Fence::closed());
        assert!(state.ready().is_err() && !state.works());
    }
}
