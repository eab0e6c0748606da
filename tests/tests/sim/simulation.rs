//! State of one run: API servers, clocks, faults, invariants and the random number generator.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use controller::{
    leader::label_imports,
    member::instance::{self, SETTLING_TIME},
};
use jiff::{SignedDuration, Timestamp};
use mc_api::{config::Config, names};
use mc_test_kit::fake_apiserver::{
    resources::Scheme,
    store::{Actor, Store, StoredObject},
};
use mc_tests::rng::Rng;
use tokio::{sync::Notify, time::Instant};

use crate::invariants::Invariants;

/// Namespace of the leader's exchanged objects.
pub(crate) const LEADER_NAMESPACE: &str = "antrea-multicluster";
/// Namespace of members' controllers.
pub(crate) const MEMBER_NAMESPACE: &str = "kube-system";
/// Name of the ClusterSet.
pub(crate) const SET: &str = "set";
/// Leader URL in members' ClusterSets.
pub(crate) const LEADER_URL: &str = "https://leader.example:6443";
/// Wall clock time at the start of a run.
const START_TIME: &str = "2026-01-01T00:00:00Z";

/// Maximum age of a stale list.
pub(crate) const MAX_LIST_AGE: Duration = Duration::from_secs(20);

/// Fault rates, per mille.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// True while faults are injected.
    pub(crate) enabled: bool,
    /// A request is refused.
    pub(crate) connection_refused: u64,
    /// A request fails with 429, 500, 503 or 504 without effect, a write also with 403 or 422.
    pub(crate) error_status: u64,
    /// A request takes effect and its response is lost.
    pub(crate) response_lost: u64,
    /// A request is delayed by up to 8 s.
    pub(crate) request_delayed: u64,
    /// A watch closes when an event is due.
    pub(crate) watch_closed: u64,
    /// An event is delayed by up to 3 s.
    pub(crate) event_delayed: u64,
    /// An event is sent twice.
    pub(crate) event_repeated: u64,
    /// A watch fails with 410 Gone.
    pub(crate) version_expired: u64,
    /// A list shows an older state.
    pub(crate) stale_list: u64,
    /// A controller crashes at a write.
    pub(crate) crash: u64,
}

/// One cluster and its API server.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Cluster ID; `leader` for the leader.
    pub(crate) id: String,
    /// Objects of its API server.
    pub(crate) store: Store,
    /// Clock skew.
    pub(crate) clock_skew: SignedDuration,
    /// Configuration of its controller.
    pub(crate) config: Config,
    /// Incremented at each server restart, which breaks all watches.
    pub(crate) epoch: u64,
    /// End of the server's outage.
    pub(crate) down: Option<Instant>,
    /// End of the partition from the leader; true if requests are black-holed instead of refused.
    pub(crate) partitioned: Option<(Instant, bool)>,
    /// Newest version by time, for stale lists.
    pub(crate) history: Vec<(Duration, u64)>,
    /// True if garbage collection has work.
    pub(crate) needs_gc: bool,
    /// On the leader: the cluster of each token.
    pub(crate) tokens: BTreeMap<String, usize>,
}

/// A planned crash at a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crash {
    /// The controller.
    pub(crate) actor: Actor,
    /// Number of the write, from 1.
    pub(crate) write: u64,
    /// True if the write takes effect.
    pub(crate) after: bool,
}

/// A controller's process over all restarts.
#[derive(Debug, Default)]
pub(crate) struct Process {
    /// Number of the current incarnation.
    pub(crate) incarnation: u64,
    /// Write requests of all incarnations.
    pub(crate) writes: u64,
    /// Notified when an incarnation ends.
    pub(crate) ended: Arc<Notify>,
}

/// Counters of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Requests, answered or not.
    pub(crate) requests: u64,
    /// Committed writes, each checked.
    pub(crate) writes: u64,
    /// Committed writes of controllers.
    pub(crate) controller_writes: u64,
    /// Injected faults.
    pub(crate) faults: u64,
    /// Controller crashes.
    pub(crate) crashes: u64,
    /// Waits for the exports of departed clusters that the simulated administrator ended.
    pub(crate) ended_waits: u64,
}

/// State of one run.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// Source of all decisions.
    pub(crate) rng: Rng,
    /// The leader, then the members.
    pub(crate) clusters: Vec<Cluster>,
    /// Fault rates.
    pub(crate) faults: Faults,
    /// Maximum page size of lists.
    pub(crate) page: usize,
    /// The controllers.
    pub(crate) processes: BTreeMap<Actor, Process>,
    /// Invariants.
    pub(crate) invariants: Invariants,
    /// End of the last grace period that the controllers promise before they withdraw something.
    pub(crate) grace_until: Option<Instant>,
    /// A planned crash.
    pub(crate) planned_crash: Option<Crash>,
    /// True if the leader's server was restored from an older snapshot.
    pub(crate) restored: bool,
    /// The member with a Namespace of its own in the leader cluster.
    pub(crate) separate: Option<usize>,
    /// Counters.
    pub(crate) counts: Counts,
    /// Hash of all changes.
    pub(crate) trace_hash: u64,
    /// Log, if requested.
    pub(crate) log: Option<String>,
    start: Instant,
    epoch_time: Timestamp,
}

/// A shared handle.
#[derive(Clone, Debug)]
pub(crate) struct SharedSimulation(Arc<Mutex<Simulation>>);

// === impl Shared ===

impl SharedSimulation {
    /// Locks the state.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Simulation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A shared handle of the state.
    pub(crate) fn new(world: Simulation) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }
}

/// The run of a member controller that has written an announce.
fn instance_of(announce: &StoredObject) -> Option<&str> {
    let statement = announce.meta("annotations")[names::ANNOTATION_INSTANCE].as_str()?;
    Some(instance::name(statement))
}

/// The labels in a record of the leader that no cluster exports; their imports have a grace period.
fn released_labels(record: &StoredObject) -> BTreeSet<&str> {
    let lines = record.value["data"]["identities"].as_str().unwrap_or_default();
    // ID, digest and the time of the release.
    let lines = lines.lines();
    lines.filter(|line| line.split(' ').count() == 3).collect()
}

// === impl World ===

impl Simulation {
    /// The controllers may wait for this time from now on before they withdraw something.
    pub(crate) fn grant_grace(&mut self, time: Duration) {
        self.grace_until = self.grace_until.max(Some(Instant::now() + time));
    }

    /// A leader and members with these IDs, without objects.
    pub(crate) fn new(rng: Rng, ids: &[&str], kinds: &Arc<Scheme>, talk: bool) -> Self {
        let cluster = |(number, id): (usize, &&str)| Cluster {
            id: (*id).to_owned(),
            store: Store::new(kinds.clone(), u64::try_from(number).unwrap_or(0)),
            clock_skew: SignedDuration::ZERO,
            config: Config {
                withdraw_after: SignedDuration::ZERO,
                ..Config::default()
            },
            epoch: 0,
            down: None,
            partitioned: None,
            history: vec![],
            needs_gc: false,
            tokens: BTreeMap::new(),
        };
        let clusters: Vec<_> = ["leader"].iter().chain(ids).enumerate().map(cluster).collect();
        let actors = std::iter::once(Actor::Leader).chain((1..clusters.len()).map(Actor::Member));
        Self {
            rng,
            processes: actors.map(|a| (a, Process::default())).collect(),
            clusters,
            faults: Faults::default(),
            page: 500,
            invariants: Invariants::default(),
            planned_crash: None,
            grace_until: None,
            counts: Counts::default(),
            trace_hash: 0xcbf2_9ce4_8422_2325,
            restored: false,
            separate: None,
            log: talk.then(String::new),
            start: Instant::now(),
            epoch_time: START_TIME.parse().unwrap_or_default(),
        }
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Wall clock time in a cluster.
    pub(crate) fn now(&self, cluster: usize) -> Timestamp {
        let since = SignedDuration::try_from(self.elapsed()).unwrap_or_default();
        let skew = self
            .clusters
            .get(cluster)
            .map(|c| c.clock_skew)
            .unwrap_or_default();
        self.epoch_time
            .checked_add(since)
            .and_then(|t| t.checked_add(skew))
            .unwrap_or(self.epoch_time)
    }

    /// Appends a line to the log.
    pub(crate) fn record(&mut self, what: impl FnOnce() -> String) {
        let at = self.elapsed();
        if let Some(log) = &mut self.log {
            // Writing to a String cannot fail.
            _ = writeln!(log, "{:9.3} {}", at.as_secs_f64(), what());
        }
    }

    /// Decides whether a fault occurs.
    pub(crate) fn inject(&mut self, chance: impl Fn(&Faults) -> u64) -> bool {
        let chance = chance(&self.faults);
        let happens = self.faults.enabled && chance > 0 && self.rng.permille(chance);
        self.counts.faults += u64::from(happens);
        happens
    }

    /// A recent version, for a stale list.
    pub(crate) fn stale_version(&mut self, server: usize) -> u64 {
        let since = self.elapsed().saturating_sub(MAX_LIST_AGE);
        let history = &self.clusters[server].history;
        let first = history.partition_point(|(at, _)| *at < since);
        let recent = history.get(first..).unwrap_or_default();
        if recent.is_empty() {
            return u64::MAX;
        }
        self.rng.pick(recent).1
    }

    /// Ends the current incarnation of a controller.
    pub(crate) fn kill(&mut self, actor: Actor) {
        self.counts.crashes += 1;
        self.record(|| format!("{actor:?} dies"));
        if let Some(life) = self.processes.get_mut(&actor) {
            life.incarnation += 1;
            life.ended.notify_waiters();
        }
    }

    /// True for the current incarnation of a controller.
    pub(crate) fn is_current(&self, actor: Actor, incarnation: u64) -> bool {
        self.processes
            .get(&actor)
            .is_none_or(|l| l.incarnation == incarnation)
    }

    /// Processes all changes of a server: invariants, hash, counters.
    pub(crate) fn process_changes(&mut self, server: usize, actor: Actor) {
        let Some(cluster) = self.clusters.get_mut(server) else {
            return;
        };
        let changes = std::mem::take(&mut cluster.store.changes);
        let newest = cluster.store.version();
        cluster.needs_gc |= changes
            .iter()
            .any(|c| c.deleted || ["namespaces", "endpointslices"].contains(&c.resource.1.as_str()));
        let at = self.start.elapsed();
        cluster.history.push((at, newest));
        for change in changes {
            self.counts.writes += 1;
            self.counts.controller_writes += u64::from(matches!(actor, Actor::Leader | Actor::Member(_)));
            for byte in change.new.text.bytes().chain(change.key.1.bytes()) {
                self.trace_hash = (self.trace_hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
            let at = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.trace_hash = (self.trace_hash ^ at).wrapping_mul(0x0000_0100_0000_01b3);
            self.record(|| {
                let what = match (&change.old, change.deleted) {
                    (_, true) => "-",
                    (None, _) => "+",
                    _ => "~",
                };
                format!(
                    "{server} {actor:?} {what}{}/{}/{} {}",
                    change.resource.1, change.key.0, change.key.1, change.new.text
                )
            });
            // A new run keeps exports that it does not want for this time.
            if instance_of(&change.new) != change.old.as_deref().and_then(instance_of) {
                self.grant_grace(SETTLING_TIME);
            }
            let released = || change.old.as_deref().map(released_labels).unwrap_or_default();
            if actor == Actor::Leader && !released_labels(&change.new).is_subset(&released()) {
                self.grant_grace(label_imports::GRACE_PERIOD.unsigned_abs());
            }
            let at = self.elapsed();
            let now = self.now(server);
            let broken = self
                .invariants
                .check(&self.clusters, server, actor, &change, at, now);
            for rule in broken {
                self.record(|| format!("BROKEN: {rule}"));
            }
        }
    }
}
