//! Everything there is in one run: API servers, clocks, faults, rules, and the numbers that decide it all.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use controller::api::config::Config;
use jiff::{SignedDuration, Timestamp};
use tokio::{sync::Notify, time::Instant};

use mc_tests::rng::Rng;

use crate::{
    model::{
        kinds::Kinds,
        store::{Actor, Store},
    },
    rules::Rules,
};

/// Where the leader's exchanged objects are.
pub(crate) const LEADER_NAMESPACE: &str = "antrea-multicluster";
/// Where members' controllers run.
pub(crate) const MEMBER_NAMESPACE: &str = "kube-system";
/// The name of the set.
pub(crate) const SET: &str = "set";
/// Where members are told to find their leader.
pub(crate) const LEADER_URL: &str = "https://leader.example:6443";
/// The time of day when a run begins.
const BEGIN: &str = "2026-01-01T00:00:00Z";

/// How old a list may be.
const LATE: Duration = Duration::from_secs(20);

/// What may go wrong, in so many of a thousand cases.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Whether any of it happens now.
    pub(crate) on: bool,
    /// A request is not taken.
    pub(crate) refuse: u64,
    /// A request is answered with 429, 500 or 503 and changes nothing.
    pub(crate) fail: u64,
    /// A request is carried out and its answer lost.
    pub(crate) lose: u64,
    /// A request takes up to 8 s on its way.
    pub(crate) slow: u64,
    /// A watch ends when an event is due.
    pub(crate) cut: u64,
    /// An event comes up to 3 s late.
    pub(crate) late: u64,
    /// An event comes twice.
    pub(crate) twice: u64,
    /// A watch is told that its version is gone.
    pub(crate) gone: u64,
    /// A list shows an older state.
    pub(crate) stale: u64,
    /// A controller dies at a write.
    pub(crate) crash: u64,
}

/// One cluster: its API server and what is particular about it.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Its ID; the leader's is `leader`.
    pub(crate) id: String,
    /// Its API server's objects.
    pub(crate) store: Store,
    /// How much its clock is ahead of the truth.
    pub(crate) skew: SignedDuration,
    /// How its member controller is configured.
    pub(crate) config: Config,
    /// Counted up when the server is restarted: no watch survives it.
    pub(crate) epoch: u64,
    /// The server takes no requests until then.
    pub(crate) down: Option<Instant>,
    /// Nothing gets from here to the leader until then; whether it is refused or swallowed.
    pub(crate) parted: Option<(Instant, bool)>,
    /// When which version was the newest, for lists that are late.
    pub(crate) history: Vec<(Duration, u64)>,
    /// Whether there is something for the cluster's own controllers to do.
    pub(crate) untidy: bool,
    /// On the leader: which cluster a token is for.
    pub(crate) tokens: BTreeMap<String, usize>,
}

/// A death that is planned: who, at which of its writes, and whether it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crash {
    /// Who.
    pub(crate) actor: Actor,
    /// At which write, from 1.
    pub(crate) write: u64,
    /// Whether the write is carried out.
    pub(crate) after: bool,
}

/// A controller, in all its lives.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// The present one.
    pub(crate) incarnation: u64,
    /// Writes asked for in all of them.
    pub(crate) writes: u64,
    /// Told when one ends.
    pub(crate) ended: Arc<Notify>,
}

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Requests answered or not.
    pub(crate) requests: u64,
    /// Writes carried out by anybody, each checked.
    pub(crate) writes: u64,
    /// Of these, by controllers.
    pub(crate) ours: u64,
    /// Faults that happened.
    pub(crate) faults: u64,
    /// Deaths of controllers.
    pub(crate) crashes: u64,
}

/// Everything there is in one run.
#[derive(Debug)]
pub(crate) struct World {
    /// Where every decision comes from.
    pub(crate) rng: Rng,
    /// The leader, then the members.
    pub(crate) clusters: Vec<Cluster>,
    /// What goes wrong.
    pub(crate) faults: Faults,
    /// The most a list holds at a time.
    pub(crate) page: usize,
    /// The controllers.
    pub(crate) lives: BTreeMap<Actor, Life>,
    /// What must never happen.
    pub(crate) rules: Rules,
    /// A death that is planned.
    pub(crate) crash: Option<Crash>,
    /// Whether the leader's server was restored from an older snapshot.
    pub(crate) restored: bool,
    /// Counts.
    pub(crate) counts: Counts,
    /// What happened, in a number.
    pub(crate) trace: u64,
    /// What happened, in words, where somebody wants to read it.
    pub(crate) story: Option<String>,
    start: Instant,
    begin: Timestamp,
}

/// A handle of it.
#[derive(Clone, Debug)]
pub(crate) struct Shared(Arc<Mutex<World>>);

// === impl Shared ===

impl Shared {
    /// The world, for a moment.
    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shared.
    pub(crate) fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }
}

// === impl World ===

impl World {
    /// A leader and the members of these IDs, with nothing in them.
    pub(crate) fn new(rng: Rng, ids: &[&str], kinds: &Arc<Kinds>, talk: bool) -> Self {
        let cluster = |(number, id): (usize, &&str)| Cluster {
            id: (*id).to_owned(),
            store: Store::new(kinds.clone(), u64::try_from(number).unwrap_or(0)),
            skew: SignedDuration::ZERO,
            config: Config::default(),
            epoch: 0,
            down: None,
            parted: None,
            history: vec![],
            untidy: false,
            tokens: BTreeMap::new(),
        };
        let clusters: Vec<_> = ["leader"].iter().chain(ids).enumerate().map(cluster).collect();
        let actors = std::iter::once(Actor::Leader).chain((1..clusters.len()).map(Actor::Member));
        Self {
            rng,
            lives: actors.map(|a| (a, Life::default())).collect(),
            clusters,
            faults: Faults::default(),
            page: 500,
            rules: Rules::default(),
            crash: None,
            counts: Counts::default(),
            trace: 0xcbf2_9ce4_8422_2325,
            restored: false,
            story: talk.then(String::new),
            start: Instant::now(),
            begin: BEGIN.parse().unwrap_or_default(),
        }
    }

    /// Since the run began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The time of day in a cluster.
    pub(crate) fn now(&self, cluster: usize) -> Timestamp {
        let since = SignedDuration::try_from(self.elapsed()).unwrap_or_default();
        let skew = self.clusters.get(cluster).map(|c| c.skew).unwrap_or_default();
        self.begin
            .checked_add(since)
            .and_then(|t| t.checked_add(skew))
            .unwrap_or(self.begin)
    }

    /// Something happened that a reader would want to know.
    pub(crate) fn tell(&mut self, what: impl FnOnce() -> String) {
        let at = self.elapsed();
        if let Some(story) = &mut self.story {
            // Writing to a String cannot fail.
            _ = writeln!(story, "{:9.3} {}", at.as_secs_f64(), what());
        }
    }

    /// A fault happens, or not.
    pub(crate) fn fault(&mut self, chance: impl Fn(&Faults) -> u64) -> bool {
        let chance = chance(&self.faults);
        let happens = self.faults.on && chance > 0 && self.rng.permille(chance);
        self.counts.faults += u64::from(happens);
        happens
    }

    /// A version that was the newest not long ago.
    pub(crate) fn late(&mut self, server: usize) -> u64 {
        let since = self.elapsed().saturating_sub(LATE);
        let history = &self.clusters[server].history;
        let first = history.partition_point(|(at, _)| *at < since);
        let recent = history.get(first..).unwrap_or_default();
        if recent.is_empty() {
            return u64::MAX;
        }
        self.rng.pick(recent).1
    }

    /// Ends the present life of a controller.
    pub(crate) fn kill(&mut self, actor: Actor) {
        self.counts.crashes += 1;
        self.tell(|| format!("{actor:?} dies"));
        if let Some(life) = self.lives.get_mut(&actor) {
            life.incarnation += 1;
            life.ended.notify_waiters();
        }
    }

    /// Whether that life of a controller is the present one.
    pub(crate) fn lives(&self, actor: Actor, incarnation: u64) -> bool {
        self.lives
            .get(&actor)
            .is_none_or(|l| l.incarnation == incarnation)
    }

    /// Looks at everything that was written to a server: rules, trace, counts.
    pub(crate) fn settle(&mut self, server: usize, actor: Actor) {
        let Some(cluster) = self.clusters.get_mut(server) else {
            return;
        };
        let changes = std::mem::take(&mut cluster.store.changes);
        let newest = cluster.store.version();
        cluster.untidy |= changes
            .iter()
            .any(|c| c.deleted || ["namespaces", "endpointslices"].contains(&c.resource.1.as_str()));
        let at = self.start.elapsed();
        cluster.history.push((at, newest));
        for change in changes {
            self.counts.writes += 1;
            self.counts.ours += u64::from(matches!(actor, Actor::Leader | Actor::Member(_)));
            for byte in change.new.text.bytes().chain(change.key.1.bytes()) {
                self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
            let at = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.trace = (self.trace ^ at).wrapping_mul(0x0000_0100_0000_01b3);
            self.tell(|| {
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
            let at = self.elapsed();
            let now = self.now(server);
            let broken = self.rules.check(&self.clusters, server, actor, &change, at, now);
            for rule in broken {
                self.tell(|| format!("BROKEN: {rule}"));
            }
        }
    }
}
