//! One run: real controllers on virtual time, from the first write to convergence.

use std::{
    cell::Cell,
    collections::BTreeSet,
    panic,
    sync::{Arc, Once},
    time::Duration,
};

use controller::{
    fence::Fence,
    member::connection_config::{Credentials, LeaderConnectionConfig},
    metrics::{Metrics, Role},
    runtime::{self, env::Environment, leader_connection::LeaderConnectionError},
};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use mc_api::{
    config::{
        DEFAULT_WITHDRAW_AFTER, EndpointIpType, IdentityExport, Isolation, MIN_STALE_TIMEOUT,
        StaleMemberPolicy,
    },
    names,
};
use mc_test_kit::fake_apiserver::{
    resources::Scheme,
    store::{Actor, Change, Store, StoredObject},
};
use mc_tests::rng::Rng;
use tokio::{
    runtime::Builder,
    time::{Instant, sleep},
};

use crate::{
    cloned_cluster::{self, Backup},
    empty_leader::{self, Lost},
    expected_state,
    invariants::{antrea, core, wanted_cluster_id},
    pod_restart, replaced_cluster_set,
    simulation::{
        Counts, Crash, Faults, LEADER_NAMESPACE, LEADER_URL, MEMBER_NAMESPACE, SharedSimulation, Simulation,
    },
    transport::Transport,
};

/// Cluster IDs of members; one is a prefix of another.
const IDS: [&str; 4] = ["east", "west", "east-2-x", "north"];
/// Promised time to converge after the last fault and the last [grace period](Simulation::grant_grace): black-holed
/// requests fail after 15 s, retries are at most 10 s apart, objects are compared again after 30 s, and a drain takes
/// 30 s.
pub(crate) const PROMISED_CONVERGENCE: Duration = Duration::from_secs(40);
/// The time for which members keep imports that a restored leader lacks, or one that answers a list from an old state.
const REGRESSION_HOLD: Duration = Duration::from_mins(1);
/// Time limit for everything: a drain takes 30 s, and counters of rules are written once a minute.
const CONVERGENCE_BOUND: Duration = Duration::from_secs(150);
/// Minimum wait after the last fault: black-holed requests still fail 15 s later, and an Event that failed then is
/// published 10 s after that.
const MIN_SETTLE_TIME: Duration = Duration::from_secs(27);
/// Period of the expected state before the quiet period begins: Events are published 5 s after their cause, and a burst
/// of them takes a few seconds more (`runtime::events`).
const REST_PERIOD: Duration = Duration::from_secs(12);
/// A member without heartbeats for this time is stale for longer than [`MIN_STALE_TIMEOUT`].
const SILENCE: Duration = Duration::from_secs(140);
/// When the simulated administrator removes leftovers of a restored leader.
const ADMIN_CLEANUP_AFTER: Duration = Duration::from_secs(10);
/// Quiet period without writes; longer than the controllers' resync interval.
const QUIET_PERIOD: Duration = Duration::from_secs(35);
/// Quiet period of one seed in [`LONG_QUIET_SEEDS`]: 100 resyncs.
const LONG_QUIET_PERIOD: Duration = Duration::from_secs(100 * 30 + 5);
/// One seed in this number has the long quiet period.
const LONG_QUIET_SEEDS: u64 = 50;
/// Periods in which claims of prefixes may end before one without: of clusters that left, and of removed Nodes.
const MAX_QUIET_PERIODS: usize = 4;

thread_local! {
    /// Panics of this thread; tasks swallow their own.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Failures; empty on success.
    pub(crate) failures: Vec<String>,
    /// Counters.
    pub(crate) counts: Counts,
    /// Hash of all changes.
    pub(crate) trace_hash: u64,
    /// Log of the run, if requested.
    pub(crate) log: Option<String>,
    /// Virtual time until convergence.
    pub(crate) settle_time: Duration,
    /// Write requests per controller.
    pub(crate) writes: Vec<(Actor, u64)>,
    /// Objects removed by the simulated administrator.
    pub(crate) leftovers: usize,
}

/// Actions of a run, besides faults.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// Actions and faults from the seed.
    Random,
    /// A scenario without faults except this crash.
    Fixed(Scenario, Option<Crash>),
}

/// A scenario for crashes at each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Two clusters join.
    Join,
    /// A Service is exported, changed and withdrawn.
    Export,
    /// The only Pod of an exported Service restarts.
    PodRestart,
    /// Two clusters export a Service with different ports; the first withdraws.
    Conflict,
    /// Gateways are added, drained and removed.
    Gateways,
    /// A member leaves and rejoins.
    Leave,
    /// Two members' ClusterSets are deleted and created again.
    ReplacedClusterSet,
    /// A member is silent, is removed by policy and rejoins.
    StaleMember,
    /// The leader loses objects while the exporter of Services is cut off.
    EmptyLeader(Lost),
    /// A copy of a member runs beside it.
    ClonedCluster(Backup),
    /// Two clusters have Pods with one label; one after the other withdraws it, and one returns.
    Identities,
}

/// Clock and connections of a simulated controller.
struct SimEnvironment {
    world: SharedSimulation,
    actor: Actor,
    incarnation: u64,
}

// === impl Surroundings ===

impl SimEnvironment {
    fn cluster(&self) -> usize {
        match self.actor {
            Actor::Member(i) => i,
            _ => 0,
        }
    }

    fn client(&self, server: usize, token: Option<String>) -> Client {
        let wire = Transport {
            world: self.world.clone(),
            server,
            actor: self.actor,
            incarnation: self.incarnation,
            token,
        };
        wire.client()
    }
}

impl Environment for SimEnvironment {
    fn now(&self) -> Timestamp {
        self.world.lock().now(self.cluster())
    }

    fn instance(&self) -> String {
        format!("{:?}-{}", self.actor, self.incarnation)
    }

    fn connect<'a>(
        &'a self,
        spec: &'a LeaderConnectionConfig,
    ) -> BoxFuture<'a, Result<Client, LeaderConnectionError>> {
        let right = spec.server == LEADER_URL;
        let token = match &spec.credentials {
            Credentials::Token(token) | Credentials::Bootstrap { token, .. } => token.clone(),
        };
        let client = self.client(0, Some(token));
        Box::pin(async move {
            right.then_some(client).ok_or(LeaderConnectionError::Client {
                cause: "no such server".to_owned(),
            })
        })
    }
}

/// Runs a controller and restarts it after each crash.
async fn run_controller(world: SharedSimulation, actor: Actor) {
    loop {
        let (environment, ended, config) = {
            let world = &world;
            let locked = world.lock();
            let Some(life) = locked.processes.get(&actor) else {
                return;
            };
            let environment = SimEnvironment {
                world: world.clone(),
                actor,
                incarnation: life.incarnation,
            };
            let config = locked.clusters[environment.cluster()].config.clone();
            (environment, life.ended.clone(), config)
        };
        let client = environment.client(environment.cluster(), None);
        let outside: Arc<dyn Environment> = Arc::new(environment);
        let work: BoxFuture<'static, ()> = if actor == Actor::Leader {
            Box::pin(runtime::leader::run(
                client,
                LEADER_NAMESPACE.to_owned(),
                config,
                Fence::open(),
                outside,
                Metrics::new(Role::Leader),
            ))
        } else {
            Box::pin(runtime::member::run(
                client,
                MEMBER_NAMESPACE.to_owned(),
                config,
                Fence::open(),
                outside,
                Metrics::new(Role::Member),
            ))
        };
        tokio::select! {
            biased;
            () = ended.notified() => {}
            () = work => world.lock().invariants.violations.push(format!("{actor:?} ended by itself")),
        }
        let pause = world.lock().rng.range(1, 4000);
        sleep(Duration::from_millis(pause)).await;
    }
}

/// Runs a seed.
pub(crate) fn run(seed: u64, plan: Plan, kinds: &Arc<Scheme>, talk: bool) -> Outcome {
    install_panic_counter();
    PANICS.set(0);
    // No reactor: the simulation has no file descriptors.
    let built = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    let mut outcome = runtime.block_on(run_async(seed, plan, kinds, talk));
    drop(runtime);
    if PANICS.get() > 0 {
        outcome.failures.push(format!("{} panics", PANICS.get()));
    }
    outcome
}

fn install_panic_counter() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            print(info);
        }));
    });
}

async fn run_async(seed: u64, plan: Plan, kinds: &Arc<Scheme>, talk: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let members = match plan {
        Plan::Random => 2 + rng.index(3),
        Plan::Fixed(Scenario::ClonedCluster(_), _) => 3,
        Plan::Fixed(..) => 2,
    };
    let mut world = Simulation::new(rng, &IDS[..members], kinds, talk);
    world.invariants.staleness_window = Duration::from_secs(12);
    // In some runs one member has a Namespace of its own.
    if matches!(plan, Plan::Random) && seed % 5 == 2 {
        world.separate = Some(1 + usize::try_from(seed / 5).unwrap_or(0) % members);
        world.clusters[0].config.isolation = Isolation::Namespace;
    }
    for server in 0..=members {
        world.set_up(server);
    }
    if let Plan::Fixed(_, crash) = plan {
        world.planned_crash = crash;
    } else {
        draw_faults(&mut world);
    }
    // In some runs stale members are removed; the timeout is the shortest that the configuration allows.
    let removes = match plan {
        Plan::Random => seed.is_multiple_of(4),
        Plan::Fixed(scenario, _) => scenario == Scenario::StaleMember,
    };
    if removes {
        world.clusters[0].config.stale_member_policy = StaleMemberPolicy::Remove;
    }
    world.clusters[0].config.stale_member_timeout = MIN_STALE_TIMEOUT;
    if matches!(plan, Plan::Fixed(Scenario::PodRestart, _)) {
        world.clusters[1].config.withdraw_after = DEFAULT_WITHDRAW_AFTER;
    }
    // In some runs label identities are exchanged.
    let stretched = match plan {
        Plan::Random => seed.is_multiple_of(3),
        Plan::Fixed(scenario, _) => scenario == Scenario::Identities,
    };
    // In some runs with label identities, clusters export those that policies of other clusters select.
    let selected = matches!(plan, Plan::Random) && seed.is_multiple_of(6);
    for cluster in &mut world.clusters {
        cluster.config.stretched_network_policy = stretched;
        if selected {
            cluster.config.identity_export = IdentityExport::Selected;
        }
    }
    let world = SharedSimulation::new(world);
    let actors: Vec<_> = world.lock().processes.keys().copied().collect();
    let mut tasks: Vec<_> = actors
        .iter()
        .map(|a| tokio::spawn(run_controller(world.clone(), *a)))
        .collect();
    let keeper = world.clone();
    tasks.push(tokio::spawn(async move {
        loop {
            sleep(Duration::from_millis(900)).await;
            keeper.lock().collect_garbage();
        }
    }));
    match plan {
        Plan::Random => run_random(&world).await,
        Plan::Fixed(scenario, _) => run_scenario(&world, scenario).await,
    }
    stop_faults(&world);
    let (rest, leftovers, mut failures) = await_convergence(&world).await;
    if failures.is_empty() {
        let is_long = matches!(plan, Plan::Random) && seed.is_multiple_of(LONG_QUIET_SEEDS);
        failures = check_quiet(&world, if is_long { LONG_QUIET_PERIOD } else { QUIET_PERIOD }).await;
    }
    for task in tasks {
        task.abort();
    }
    let mut world = world.lock();
    failures.extend(world.invariants.violations.drain(..).take(5));
    Outcome {
        failures,
        counts: world.counts,
        trace_hash: world.trace_hash,
        log: world.log.take(),
        settle_time: rest,
        writes: world.processes.iter().map(|(a, l)| (*a, l.writes)).collect(),
        leftovers,
    }
}

/// Draws clock skew, fault rates and configuration.
fn draw_faults(world: &mut Simulation) {
    world.page = *world.rng.pick(&[2, 3, 500]);
    for i in 0..world.clusters.len() {
        let seconds = *world.rng.pick(&[0, 0, 0, 1, -7, 300, -7200, 200_000, -200_000]);
        world.clusters[i].clock_skew = SignedDuration::from_secs(seconds);
    }
    for i in 1..world.clusters.len() {
        if world.rng.permille(300) {
            world.clusters[i].config.endpoint_ip_type = EndpointIpType::PodIp;
        }
        let seconds = *world.rng.pick(&[0, 0, 2, 10]);
        world.clusters[i].config.withdraw_after = SignedDuration::from_secs(seconds);
    }
    let level = *world.rng.pick(&[0, 1, 1, 3, 8]);
    if level > 0 {
        world.invariants.staleness_window = Duration::from_mins(1);
    }
    let mut draw = |most: u64| {
        let on = world.rng.permille(600);
        if on { world.rng.below(most * level + 1) } else { 0 }
    };
    world.faults = Faults {
        enabled: level > 0,
        connection_refused: draw(15),
        error_status: draw(15),
        response_lost: draw(15),
        request_delayed: draw(10),
        watch_closed: draw(15),
        event_delayed: draw(25),
        event_repeated: draw(20),
        version_expired: draw(8),
        stale_list: draw(25),
        crash: draw(8),
    };
}

/// Random user actions and disruptions.
async fn run_random(world: &SharedSimulation) {
    {
        let mut world = world.lock();
        for server in 1..world.clusters.len() {
            let id = world.clusters[server].id.clone();
            if world.rng.permille(900) {
                world.join(server, &id);
            }
            if world.rng.permille(800) {
                world.set_gateway(server, "n1", true);
            }
        }
    }
    let acts = world.lock().rng.range(10, 40);
    let mut old = None;
    for _ in 0..acts {
        let pause = {
            let mut world = world.lock();
            world.random_action();
            if world.faults.enabled {
                disrupt(&mut world, &mut old);
            }
            // Mostly without a pause, sometimes after everything has settled.
            match world.rng.below(20) {
                0 => world.rng.range(10_000, 60_000),
                1..4 => world.rng.range(1000, 10_000),
                _ => world.rng.below(400),
            }
        };
        sleep(Duration::from_millis(pause)).await;
    }
    let silence = cut_off(&mut world.lock());
    sleep(silence).await;
}

/// In some runs a member does not reach the leader for longer than the timeout of stale members; returns the time.
fn cut_off(world: &mut Simulation) -> Duration {
    if !world.faults.enabled || !world.rng.permille(150) {
        return Duration::ZERO;
    }
    let server = 1 + world.rng.index(world.clusters.len() - 1);
    let swallows = world.rng.permille(500);
    partition(world, server, SILENCE, swallows);
    SILENCE
}

/// Cuts the connection of a member to the leader; with `swallows`, requests get no answer.
fn partition(world: &mut Simulation, server: usize, time: Duration, swallows: bool) {
    world.record(|| format!("cluster {server} does not reach the leader for {time:?}"));
    world.clusters[server].partitioned = Some((Instant::now() + time, swallows));
    wake_watches(world, 0);
}

/// Faults of whole servers and controllers.
fn disrupt(world: &mut Simulation, old: &mut Option<Store>) {
    let now = Instant::now();
    let server = world.rng.index(world.clusters.len());
    let time = Duration::from_millis(world.rng.range(10, 35_000));
    match world.rng.below(60) {
        0 | 1 => {
            world.record(|| format!("server {server} is down for {time:?}"));
            world.clusters[server].down = Some(now + time);
            world.clusters[server].epoch += 1;
            wake_watches(world, server);
        }
        2..5 if server > 0 => {
            let swallows = world.rng.permille(500);
            partition(world, server, time, swallows);
        }
        5 | 6 => {
            let store = &mut world.clusters[server].store;
            store.compact(store.version());
            world.clusters[server].epoch += 1;
            world.record(|| format!("server {server} is compacted and restarted"));
            wake_watches(world, server);
        }
        7..9 => {
            let actors: Vec<_> = world.processes.keys().copied().collect();
            let actor = *world.rng.pick(&actors);
            world.kill(actor);
        }
        9..12 => *old = Some(world.clusters[0].store.clone()),
        12 => {
            if let Some(old) = old.take() {
                restore_leader(world, &old);
            }
        }
        13 | 14 => {
            let seconds = *world
                .rng
                .pick(&[1, -1, 15, -15, 300, -300, 7200, -7200, 200_000, -200_000]);
            world.record(|| format!("the clock of cluster {server} jumps by {seconds} s"));
            let skew = world.clusters[server].clock_skew;
            world.clusters[server].clock_skew = skew.saturating_add(SignedDuration::from_secs(seconds));
        }
        _ => {}
    }
}

/// Restores the leader's server to an earlier state.
pub(crate) fn restore_leader(world: &mut Simulation, old: &Store) {
    world.record(|| "the leader's server is restored".to_owned());
    world.clusters[0].store.restore(old);
    world.restored = true;
    if let Some(server) = world.separate {
        // The administrator applies its manifest again.
        let id = world.clusters[server].id.clone();
        world.write_member_namespace(server, &id);
    }
    world.grant_grace(REGRESSION_HOLD);
    world.clusters[0].epoch += 1;
    let at = world.elapsed();
    let clusters = std::mem::take(&mut world.clusters);
    world.invariants.reevaluate(&clusters, at);
    world.clusters = clusters;
    wake_watches(world, 0);
}

/// Wakes all watches of a server, whose connections are broken.
pub(crate) fn wake_watches(world: &mut Simulation, server: usize) {
    let store = &mut world.clusters[server].store;
    for resource in store.resources() {
        store.notify(&resource).notify_waiters();
    }
}

/// The actions of a fixed scenario.
async fn run_scenario(world: &SharedSimulation, scenario: Scenario) {
    let wait = |seconds| sleep(Duration::from_secs(seconds));
    let start = |world: &mut Simulation| {
        for server in 1..=2 {
            let id = world.clusters[server].id.clone();
            world.join(server, &id);
            world.set_gateway(server, "n1", true);
        }
    };
    let without_members = world.lock().clusters[0].store.clone();
    start(&mut world.lock());
    match scenario {
        Scenario::Join => wait(12).await,
        Scenario::Export => {
            wait(1).await;
            world.lock().put_service(1, "shop", "web", 0, 2);
            world.lock().set_export(1, "shop", "web", true);
            wait(8).await;
            world.lock().put_service(1, "shop", "web", 2, 3);
            wait(8).await;
            world.lock().set_export(1, "shop", "web", false);
            wait(8).await;
        }
        Scenario::Conflict => {
            wait(1).await;
            for (server, ports) in [(1, 0), (2, 1)] {
                world.lock().put_service(server, "shop", "web", ports, 2);
                world.lock().set_export(server, "shop", "web", true);
                wait(8).await;
            }
            world.lock().set_export(1, "shop", "web", false);
            wait(8).await;
        }
        Scenario::Gateways => {
            wait(6).await;
            world.lock().set_gateway(1, "n2", true);
            wait(6).await;
            world.lock().set_gateway(1, "n1", false);
            wait(40).await;
        }
        Scenario::Leave => {
            world.lock().put_service(1, "shop", "web", 0, 2);
            world.lock().set_export(1, "shop", "web", true);
            wait(8).await;
            world.lock().leave(1);
            // The grace period, the deregistration and its confirmation.
            wait(60).await;
            world.lock().join(1, "east");
            wait(8).await;
        }
        Scenario::StaleMember => {
            world.lock().put_service(1, "shop", "web", 0, 2);
            world.lock().set_export(1, "shop", "web", true);
            wait(8).await;
            disconnect_first_member(world, Duration::from_secs(150));
            // Detection, timeout, and twice the restart of a crashed leader plus its observation period.
            wait(140).await;
            check_first_member_removed(&mut world.lock());
            wait(20).await;
        }
        Scenario::PodRestart => pod_restart::run(world).await,
        Scenario::ClonedCluster(backup) => cloned_cluster::run(world, backup).await,
        Scenario::EmptyLeader(lost) => empty_leader::run(world, lost, without_members).await,
        Scenario::ReplacedClusterSet => replaced_cluster_set::run(world).await,
        Scenario::Identities => {
            world.lock().put_pod(1, "shop", "p0", 0);
            wait(8).await;
            world.lock().put_pod(2, "shop", "p0", 0);
            wait(8).await;
            world.lock().put_pod(1, "shop", "p0", 1);
            wait(8).await;
            world.lock().delete_pod(2, "shop", "p0");
            wait(8).await;
            world.lock().put_pod(2, "shop", "p0", 0);
            wait(8).await;
            // The first member's label is withdrawn after the grace period.
            world.lock().delete_pod(1, "shop", "p0");
            wait(40).await;
        }
    }
}

/// Cuts the first member's connection to the leader.
pub(crate) fn disconnect_first_member(world: &SharedSimulation, time: Duration) {
    partition(&mut world.lock(), 1, time, false);
}

/// Checks that the first member and its exports were removed.
fn check_first_member_removed(world: &mut Simulation) {
    let id = world.clusters[1].id.clone();
    let leader = &world.clusters[0].store;
    let announces = leader.all(&antrea("memberclusterannounces"));
    let exports = leader.all(&antrea("resourceexports"));
    let left: Vec<_> = announces
        .filter(|(_, a)| a.value["clusterID"] == id.as_str())
        .chain(exports.filter(|(_, e)| e.value["spec"]["clusterID"] == id.as_str()))
        .map(|(key, _)| key.1.clone())
        .collect();
    if !left.is_empty() {
        world
            .invariants
            .violations
            .push(format!("still there of a silent member: {left:?}"));
    }
}

/// Ends all faults.
fn stop_faults(world: &SharedSimulation) {
    let mut world = world.lock();
    world.record(|| "everything works again".to_owned());
    world.faults.enabled = false;
    if world.faults.stale_list > 0 {
        world.grant_grace(REGRESSION_HOLD);
    }
    for cluster in &mut world.clusters {
        cluster.down = None;
        cluster.partitioned = None;
    }
    world.report_all_policies();
    world.report_reachability_everywhere();
}

/// Waits for convergence; returns the time until all objects had converged, after the last fault and grace period, the
/// number of removed leftovers and the remaining differences.
async fn await_convergence(world: &SharedSimulation) -> (Duration, usize, Vec<String>) {
    let begin = Instant::now();
    let mut cleaned = None;
    let mut converged_at = None;
    let mut objects_at = None;
    loop {
        sleep(Duration::from_secs(3)).await;
        let mut world = world.lock();
        if cleaned.is_none() && begin.elapsed() > ADMIN_CLEANUP_AFTER {
            cleaned = Some(remove_leftovers(&mut world));
        }
        if cleaned.is_some() {
            // Members are permitted to delete the imports from former ones; one that joins late holds them later.
            for server in 1..world.clusters.len() {
                if world.restored {
                    world.permit_deletions(server);
                } else {
                    world.end_waits_for_departed(server);
                }
            }
        }
        if !expected_state::differences_of_objects(&world).is_empty() {
            objects_at = None;
        } else if objects_at.is_none() {
            objects_at = Some(begin.elapsed());
        }
        let differences = expected_state::differences(&world);
        if !differences.is_empty() {
            converged_at = None;
        } else if converged_at.is_none() {
            converged_at = Some(begin.elapsed());
        }
        let rested = converged_at.filter(|at| begin.elapsed().saturating_sub(*at) >= REST_PERIOD);
        if rested.is_some() && begin.elapsed() > MIN_SETTLE_TIME {
            let grace = world
                .grace_until
                .map(|until| until.saturating_duration_since(begin));
            let at = objects_at
                .unwrap_or_default()
                .saturating_sub(grace.unwrap_or_default());
            return (at, cleaned.unwrap_or(0), differences);
        }
        if begin.elapsed() > CONVERGENCE_BOUND {
            return (begin.elapsed(), cleaned.unwrap_or(0), differences);
        }
    }
}

/// Removes leftovers of former members from a restored leader.
fn remove_leftovers(world: &mut Simulation) -> usize {
    if !world.restored {
        return 0;
    }
    let (announces, exports) = expected_state::leftovers(world);
    let count = announces.len() + exports.len();
    for key in announces {
        world.delete_as_user(0, &antrea("memberclusterannounces"), &key);
    }
    for key in exports {
        world.delete_as_user(0, &antrea("resourceexports"), &key);
    }
    count
}

/// Checks that after convergence nothing but heartbeats is written and nothing changes. A claim of a cluster that left
/// ends later, and its range becomes usable for another one.
async fn check_quiet(world: &SharedSimulation, period: Duration) -> Vec<String> {
    for _ in 0..MAX_QUIET_PERIODS {
        let before: Vec<u64> = {
            let world = world.lock();
            world.clusters.iter().map(|c| c.store.version()).collect()
        };
        sleep(period).await;
        let world = world.lock();
        let records = world.clusters[0]
            .store
            .changes_since(&core("configmaps"), before[0]);
        if !records.iter().any(is_end_of_claim) {
            return unrest(&world, &before);
        }
    }
    vec!["not quiet: claims end in each period".to_owned()]
}

/// The differences from the expected state, and the changes since these versions of the stores.
fn unrest(world: &Simulation, before: &[u64]) -> Vec<String> {
    let mut failures = expected_state::differences(world);
    let ids: BTreeSet<_> = world
        .clusters
        .iter()
        .skip(1)
        .filter_map(wanted_cluster_id)
        .collect();
    for (number, cluster) in world.clusters.iter().enumerate() {
        for resource in cluster.store.resources() {
            for change in cluster.store.changes_since(&resource, before[number]) {
                let beat = resource.1 == "memberclusterannounces"
                    && ids.contains(change.new.value["clusterID"].as_str().unwrap_or_default());
                if !beat {
                    failures.push(format!(
                        "not quiet: server {number}, {}/{}/{}",
                        resource.1, change.key.0, change.key.1
                    ));
                }
            }
        }
    }
    failures.truncate(8);
    failures
}

/// Whether claims in the record of prefixes end, which is due a while after their announcement.
fn is_end_of_claim(change: &Change) -> bool {
    let size = |object: &StoredObject| object.value["data"].to_string().len();
    change.key.1 == names::PREFIX_OWNERS
        && change
            .old
            .as_ref()
            .is_some_and(|old| size(&change.new) < size(old))
}
