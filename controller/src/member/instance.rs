//! Instances of member controllers: recognises a copy of this cluster by its etcd, or another controller of it.
//!
//! Pure. Each run of a controller has a random instance, which is kept nowhere but on its announce in the leader
//! cluster. The instance of a run that has ended never returns there. One that returns after this run has replaced it
//! is that of a run elsewhere, with the same UID of the Namespace `kube-system` and the same token.
//!
//! Guarantee: of two such runs the one whose instance has been on the announce for [`SETTLING_TIME`] goes on, and the
//! other yields to it. Before that time no run deletes an export that it has found and not wanted. One that finds the
//! instance of another run writes nothing but heartbeats for [`WAITING_TIME`], in which a run that has not ended
//! replaces its instance.

use std::{cmp::Ordering, collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use kube::ResourceExt;
use mc_api::{member_cluster_announce::MemberClusterAnnounce, names};

use crate::{
    plan::{ApiServer, Kind, ObjectRef, Plan, Write, WriteOp},
    snapshot::{Instance, MemberSnapshot},
};

/// The time without a heartbeat of the other cluster after which this one takes its place, by this cluster's monotonic
/// clock: six heartbeat periods. A cluster that is built anew waits as long.
pub const TAKEOVER_DELAY: Duration = Duration::from_mins(1);
/// The time for which an instance is undisputed before its run may delete inherited exports. A run that was cut off for
/// this time has lost its precedence: it is longer than that of its last heartbeat.
pub const SETTLING_TIME: Duration = Duration::from_secs(20);
/// The time for which the instance of a run in the place of another one is undisputed before it writes: longer than a
/// run elsewhere takes to notice its heartbeat.
pub const WAITING_TIME: Duration = Duration::from_secs(2);
/// The time after its first plan in which the exports that a run would delete count as inherited, unless it has written
/// them: its lists of Pods can be complete later than the others. Later deletions are those of users.
const INHERITANCE_TIME: Duration = Duration::from_secs(1);
/// The age of the last own heartbeat up to which a settled run has precedence: a heartbeat period and the time of slow
/// requests.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(18);
/// The displacements after which a run yields. The first one can be a late write of the run before it.
const MAX_DISPLACEMENTS: u32 = 2;
/// The same for the lesser of two instances: of two that start at once, one stays.
const MAX_DISPLACEMENTS_OF_LESSER: u32 = 4;
/// The displacements after which a settled run loses its precedence, should its own writes fail.
const MAX_DISPLACEMENTS_OF_SETTLED: u32 = 8;

/// The instance of this run, and the history of the announce.
#[derive(Clone, Debug)]
pub struct InstanceTracker {
    own: String,
    seen: Option<Seen>,
    /// The time of the last own heartbeat on the announce.
    heartbeat_at: Duration,
    displacements: u32,
    other: Option<String>,
    /// Whether the instance has followed another one, and was not undisputed for [`WAITING_TIME`] since.
    is_waiting: bool,
    /// Whether it has been undisputed for [`SETTLING_TIME`].
    is_settled: bool,
    /// The time of the first plan for an active membership.
    active_since: Option<Duration>,
    /// The exports that this run has found and not wanted.
    inherited: BTreeSet<ObjectRef>,
    /// The exports that this run has written within [`INHERITANCE_TIME`].
    written: BTreeSet<ObjectRef>,
}

/// The last announce.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// With the instance of this run.
    Own { since: Duration, statement: String },
    /// With another instance, or none.
    Other { statement: Option<String> },
}

// === impl InstanceTracker ===

impl InstanceTracker {
    /// A run that starts now.
    #[must_use]
    pub fn new(own: String) -> Self {
        Self {
            own,
            seen: None,
            heartbeat_at: Duration::ZERO,
            displacements: 0,
            other: None,
            is_waiting: false,
            is_settled: false,
            active_since: None,
            inherited: BTreeSet::new(),
            written: BTreeSet::new(),
        }
    }

    /// Updates the history by the announce, which has been the same for `unchanged_for`, at a monotonic time.
    pub fn update(&mut self, announce: &MemberClusterAnnounce, unchanged_for: Duration, now: Duration) {
        let statement = announce.annotations().get(names::ANNOTATION_INSTANCE);
        let seen = match statement {
            Some(statement) if is_of(statement, &self.own) => Seen::Own {
                since: match self.seen {
                    Some(Seen::Own { since, .. }) => since,
                    Some(Seen::Other { .. }) | None => now,
                },
                statement: statement.clone(),
            },
            _ => Seen::Other {
                statement: statement.cloned(),
            },
        };
        if self.seen.as_ref() != Some(&seen) {
            match &seen {
                Seen::Own { .. } => {
                    self.heartbeat_at = now;
                    if self.is_settled {
                        self.displacements = 0;
                    }
                }
                Seen::Other { statement: None } => {}
                // The first statement can be that of a run that has ended.
                Seen::Other { .. } if self.seen.is_none() => self.is_waiting = true,
                Seen::Other {
                    statement: Some(statement),
                } => self.displaced_by(name(statement), now),
            }
            self.seen = Some(seen);
        }
        if self.other.is_some() && unchanged_for >= TAKEOVER_DELAY {
            *self = Self {
                seen: self.seen.take(),
                is_waiting: true,
                ..Self::new(std::mem::take(&mut self.own))
            };
        }
        self.settle(now);
    }

    /// Grants the rights of an instance that has been undisputed until now.
    fn settle(&mut self, now: Duration) {
        let time = self.undisputed_for(now);
        if time >= WAITING_TIME {
            self.is_waiting = false;
        }
        if time >= SETTLING_TIME && self.other.is_none() {
            self.displacements = 0;
            self.is_settled = true;
        }
    }

    fn displaced_by(&mut self, instance: &str, now: Duration) {
        self.displacements = self.displacements.saturating_add(1);
        let is_active = now.saturating_sub(self.heartbeat_at) <= HEARTBEAT_TIMEOUT;
        if self.is_settled && is_active && self.displacements < MAX_DISPLACEMENTS_OF_SETTLED {
            // Its heartbeat follows; the next announce may be another one again.
            self.heartbeat_at = now;
            return;
        }
        self.is_settled = false;
        self.is_waiting = true;
        let max = match self.own.as_str().cmp(instance) {
            Ordering::Less => MAX_DISPLACEMENTS_OF_LESSER,
            Ordering::Equal | Ordering::Greater => MAX_DISPLACEMENTS,
        };
        if self.displacements >= max {
            self.other = Some(instance.to_owned());
        }
    }

    fn undisputed_for(&self, now: Duration) -> Duration {
        match self.seen {
            Some(Seen::Own { since, .. }) => now.saturating_sub(since),
            Some(Seen::Other { .. }) | None => Duration::ZERO,
        }
    }

    /// Removes deletions of inherited exports from the plan for an [active](crate::member::is_active) membership, while
    /// the instance is not settled: a copy lacks what its original exports.
    pub fn hold_deletions(&mut self, snapshot: &MemberSnapshot, plan: &mut Plan, now: Duration) {
        if self.is_settled {
            return;
        }
        let since = *self.active_since.get_or_insert(now);
        if now.saturating_sub(since) < INHERITANCE_TIME {
            for write in plan.writes.iter().filter(|write| is_of_export(write)) {
                if !deletes_export(write) {
                    self.written.insert(write.target.clone());
                } else if !self.written.contains(&write.target) {
                    self.inherited.insert(write.target.clone());
                }
            }
        }
        let before = plan.writes.len();
        plan.writes
            .retain(|write| !(deletes_export(write) && self.inherited.contains(&write.target)));
        if plan.writes.len() < before {
            requeue(snapshot, snapshot.instance.deletes_in, plan);
        }
    }

    /// The instance at a monotonic time.
    #[must_use]
    pub fn instance(&self, now: Duration) -> Instance {
        let remaining = |time: Duration| time.saturating_sub(self.undisputed_for(now));
        Instance {
            own: self.own.clone(),
            other: self.other.clone(),
            writes_in: self.is_waiting.then(|| remaining(WAITING_TIME)),
            deletes_in: (!self.is_settled).then(|| remaining(SETTLING_TIME)),
        }
    }
}

/// The statement of a run on its announce: the name of its instance, and a time that no other heartbeat of it has.
#[must_use]
pub(super) fn statement(instance: &Instance, now: Timestamp) -> String {
    format!("{}/{}", instance.own, now.as_nanosecond())
}

/// Whether a run has written a statement.
#[must_use]
pub(super) fn is_of(statement: &str, instance: &str) -> bool {
    name(statement) == instance
}

/// The name of the instance in a statement.
#[must_use]
pub fn name(statement: &str) -> &str {
    statement.split_once('/').map_or(statement, |(name, _)| name)
}

/// Whether a write deletes an export of this cluster.
fn deletes_export(write: &Write) -> bool {
    is_of_export(write) && matches!(write.op, WriteOp::Delete { .. })
}

fn is_of_export(write: &Write) -> bool {
    write.target.side == ApiServer::Leader && write.target.kind == Kind::ResourceExport
}

/// Requeues at the end of a time. One that has passed ends with the next answer of the leader.
pub(super) fn requeue(snapshot: &MemberSnapshot, wait: Option<Duration>, plan: &mut Plan) {
    let wait = wait.filter(|wait| !wait.is_zero());
    if let Some(at) = wait.and_then(|wait| snapshot.now.checked_add(wait).ok()) {
        plan.requeue_at(at);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::snapshot::fake::object;

    /// Two controllers, or one after the other, with one announce. Times are in seconds.
    struct World {
        now: u64,
        announce: MemberClusterAnnounce,
        changed: u64,
    }

    impl World {
        fn new(instance: Option<&str>) -> Self {
            let mut world = Self {
                now: 0,
                announce: object(json!({ "metadata": { "name": "a", "annotations": {} } })),
                changed: 0,
            };
            if let Some(instance) = instance {
                world.write(instance);
            }
            world
        }

        /// A heartbeat of a controller.
        fn write(&mut self, instance: &str) {
            let annotations = self.announce.metadata.annotations.get_or_insert_default();
            let statement = format!("{instance}/{}", self.now);
            annotations.insert(names::ANNOTATION_INSTANCE.to_owned(), statement);
            self.changed = self.now;
        }

        fn show(&self, tracker: &mut InstanceTracker) -> Instance {
            let now = Duration::from_secs(self.now);
            tracker.update(&self.announce, Duration::from_secs(self.now - self.changed), now);
            tracker.instance(now)
        }

        /// A reconciliation: the instance is written if another one is on the announce.
        fn reconcile(&mut self, tracker: &mut InstanceTracker) -> Instance {
            let instance = self.show(tracker);
            let announced = self.announce.annotations().get(names::ANNOTATION_INSTANCE);
            let is_own = announced.is_some_and(|statement| is_of(statement, &instance.own));
            let is_due = self.now - self.changed >= 10 || !is_own;
            if instance.other.is_none() && is_due {
                self.write(&instance.own);
            }
            instance
        }
    }

    fn tracker(own: &str) -> InstanceTracker {
        InstanceTracker::new(own.to_owned())
    }

    /// A controller that runs alone for `seconds`.
    fn run(world: &mut World, tracker: &mut InstanceTracker, seconds: u64) -> Instance {
        let end = world.now + seconds;
        while world.now < end {
            let _instance = world.reconcile(tracker);
            world.now += 1;
        }
        world.show(tracker)
    }

    /// A cluster whose controller is settled.
    fn established(own: &str) -> (World, InstanceTracker) {
        let (mut world, mut tracker) = (World::new(None), tracker(own));
        let instance = run(&mut world, &mut tracker, 40);
        assert_eq!(instance.deletes_in, None);
        (world, tracker)
    }

    /// Two controllers, of which the first one reconciles first in each second.
    fn run_both(world: &mut World, trackers: [&mut InstanceTracker; 2], seconds: u64) {
        let [first, second] = trackers;
        for _ in 0..seconds {
            let _instances = [world.reconcile(first), world.reconcile(second)];
            world.now += 1;
        }
    }

    #[test]
    fn a_restart_settles_without_a_dispute() {
        let mut world = World::new(Some("former"));
        world.now = 5;
        let mut own = tracker("own");
        let first = world.reconcile(&mut own);
        assert_eq!((first.other, first.writes_in), (None, Some(WAITING_TIME)));
        assert_eq!(first.deletes_in, Some(SETTLING_TIME));
        assert_eq!(
            run(&mut world, &mut own, 1).writes_in,
            Some(Duration::from_secs(1))
        );
        assert_eq!(run(&mut world, &mut own, 1).writes_in, None);
        let instance = run(&mut world, &mut own, 17);
        assert_eq!(instance.deletes_in, Some(Duration::from_secs(1)));
        let instance = run(&mut world, &mut own, 1);
        assert_eq!((instance.other, instance.deletes_in), (None, None));
    }

    #[test]
    fn the_first_run_of_a_cluster_writes_at_once() {
        let mut world = World::new(None);
        let mut own = tracker("own");
        assert_eq!(world.reconcile(&mut own).writes_in, None);
        assert_eq!(world.reconcile(&mut own).writes_in, None);
    }

    #[test]
    fn a_late_write_of_the_former_run_is_no_copy() {
        let mut world = World::new(Some("former"));
        let mut own = tracker("own");
        let _instance = run(&mut world, &mut own, 3);
        world.write("former");
        let instance = run(&mut world, &mut own, 40);
        assert_eq!((instance.other, instance.deletes_in), (None, None));
    }

    #[test]
    fn the_established_run_goes_on_and_a_new_one_yields() {
        for (old, new) in [("a", "b"), ("b", "a")] {
            let (mut world, mut original) = established(old);
            let mut copy = tracker(new);
            for _ in 0..40 {
                let of_copy = world.reconcile(&mut copy);
                assert_ne!(of_copy.writes_in, None, "the copy exports");
                let of_original = world.reconcile(&mut original);
                assert_eq!(of_original.other, None, "{old}");
                world.now += 1;
            }
            assert_eq!(
                copy.instance(Duration::from_secs(world.now)).other.as_deref(),
                Some(old)
            );
            assert_eq!(original.instance(Duration::from_secs(world.now)).deletes_in, None);
        }
    }

    /// Found by the property below: the time in which the run was suspended counted as undisputed.
    #[test]
    fn a_run_that_was_suspended_while_another_one_wrote_is_not_settled() {
        let mut world = World::new(Some("former"));
        let [mut suspended, mut other] = ["a", "b"].map(tracker);
        let _instance = run(&mut world, &mut suspended, 12);
        let _instance = run(&mut world, &mut other, 11);
        let instance = world.show(&mut suspended);
        assert_eq!(instance.deletes_in, Some(SETTLING_TIME));
    }

    #[test]
    fn restarts_of_a_copy_do_not_displace_the_original() {
        let (mut world, mut original) = established("m");
        for copy in ["a", "z", "b", "y", "c", "x", "d", "w"] {
            let mut copy = tracker(copy);
            run_both(&mut world, [&mut copy, &mut original], 8);
            let now = Duration::from_secs(world.now);
            assert_eq!(original.instance(now).other, None);
            assert_eq!(copy.instance(now).other.as_deref(), Some("m"));
        }
    }

    #[test]
    fn of_two_that_start_at_once_one_goes_on() {
        let mut world = World::new(Some("former"));
        let [mut a, mut b] = ["a", "b"].map(tracker);
        run_both(&mut world, [&mut a, &mut b], 40);
        let now = Duration::from_secs(world.now);
        let [a, b] = [a, b].map(|tracker| tracker.instance(now));
        assert_eq!((a.other, a.deletes_in), (None, None));
        assert_eq!(b.other.as_deref(), Some("a"));
    }

    #[test]
    fn an_original_that_was_cut_off_yields_to_the_copy_in_its_place() {
        let (mut world, mut original) = established("a");
        let mut copy = tracker("b");
        let _instance = run(&mut world, &mut copy, 600);
        run_both(&mut world, [&mut original, &mut copy], 6);
        let now = Duration::from_secs(world.now);
        assert_eq!(original.instance(now).other.as_deref(), Some("b"));
        assert_eq!(copy.instance(now).other, None);
    }

    #[test]
    fn a_run_takes_the_place_of_one_that_has_ended() {
        let (mut world, mut original) = established("a");
        let mut copy = tracker("b");
        run_both(&mut world, [&mut copy, &mut original], 20);
        let instance = run(&mut world, &mut copy, 40);
        assert_eq!(instance.other.as_deref(), Some("a"));
        world.now = world.changed + TAKEOVER_DELAY.as_secs();
        let instance = world.show(&mut copy);
        assert_eq!((instance.other, instance.writes_in), (None, Some(WAITING_TIME)));
        let instance = run(&mut world, &mut copy, 60);
        assert_eq!((instance.other, instance.deletes_in), (None, None));
    }

    proptest! {
        #[test]
        fn two_runs_never_delete_exports_in_one_period(
            schedule in prop::collection::vec((any::<bool>(), 0_u64..4), 1..200),
            start in 0_usize..100,
        ) {
            let mut world = World::new(None);
            let mut runs = ["a", "b"].map(tracker);
            let mut deletes_at = [None, None];
            for (step, (first, wait)) in schedule.into_iter().enumerate() {
                let one = usize::from(first && step >= start);
                let instance = world.reconcile(&mut runs[one]);
                if instance.deletes_in.is_none() {
                    deletes_at[one] = Some(world.now);
                    let of_other: Option<u64> = deletes_at[1 - one];
                    let passed = of_other.map(|at| Duration::from_secs(world.now - at));
                    prop_assert!(passed.is_none_or(|passed| passed >= SETTLING_TIME), "{passed:?}");
                }
                world.now += wait;
            }
        }
    }
}
