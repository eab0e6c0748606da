//! One run: controllers that are real, on time that is not, from the first write to the last.

use std::{
    cell::Cell,
    collections::BTreeSet,
    panic,
    sync::{Arc, Once},
    time::Duration,
};

use controller::{
    api::config::{EndpointIpType, MIN_STALE, StaleMemberPolicy},
    member::membership::LinkSpec,
    metrics::{Metrics, Role},
    shell::{self, election::Fence, link::LinkError, outside::Outside},
};
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use tokio::{
    runtime::Builder,
    time::{Instant, sleep},
};

use mc_tests::rng::Rng;

use crate::{
    model::{kinds::Kinds, store::Actor},
    rules::{antrea, wants},
    truth,
    wire::Wire,
    world::{Counts, Crash, Faults, LEADER_NAMESPACE, LEADER_URL, MEMBER_NAMESPACE, Shared, World},
};

/// The IDs of members; one is the beginning of another.
const IDS: [&str; 4] = ["east", "west", "east-2-x", "north"];
/// How long everything may take to come to rest: what was swallowed is answered after 30 s, retries come at most
/// 10 s apart, leaving is tried every 30 s, and a drain takes another 30 s.
const BOUND: Duration = Duration::from_secs(150);
/// How long what was under way may still go wrong: what was swallowed is answered, badly, after 30 s.
const AFTERMATH: Duration = Duration::from_secs(31);
/// When an administrator removes what a restored leader knows again.
const CLEAN_UP: Duration = Duration::from_secs(45);
/// How long nothing may be written then: longer than the controllers wait between two looks.
const QUIET: Duration = Duration::from_secs(35);

thread_local! {
    /// Panics of this thread: tasks swallow theirs.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What went wrong; empty: nothing.
    pub(crate) failures: Vec<String>,
    /// Counts.
    pub(crate) counts: Counts,
    /// What happened, in a number.
    pub(crate) trace: u64,
    /// What happened, in words.
    pub(crate) story: Option<String>,
    /// How long it took to come to rest, in virtual time.
    pub(crate) rest: Duration,
    /// Writes each controller asked for.
    pub(crate) writes: Vec<(Actor, u64)>,
    /// What had to be removed by an administrator.
    pub(crate) ghosts: usize,
}

/// What is done in a run, beside faults.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// Whatever the seed says, with the faults it says.
    Random,
    /// A scenario, without faults but this death.
    Fixed(Scenario, Option<Crash>),
}

/// A scenario for deaths at each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Two clusters become members.
    Join,
    /// A Service is exported, changed and taken back.
    Export,
    /// Two clusters export a Service with different ports; the first leaves off.
    Conflict,
    /// Gateways come, are drained and go.
    Gateways,
    /// A member leaves and comes back.
    Leave,
    /// A member falls silent, is removed for it and comes back.
    Silent,
}

/// What a simulated controller has around it.
struct Surroundings {
    world: Shared,
    actor: Actor,
    incarnation: u64,
}

// === impl Surroundings ===

impl Surroundings {
    fn cluster(&self) -> usize {
        match self.actor {
            Actor::Member(i) => i,
            _ => 0,
        }
    }

    fn client(&self, server: usize, token: Option<String>) -> Client {
        let wire = Wire {
            world: self.world.clone(),
            server,
            actor: self.actor,
            incarnation: self.incarnation,
            token,
        };
        wire.client()
    }
}

impl Outside for Surroundings {
    fn now(&self) -> Timestamp {
        self.world.lock().now(self.cluster())
    }

    fn connect<'a>(&'a self, spec: &'a LinkSpec) -> BoxFuture<'a, Result<Client, LinkError>> {
        let right = spec.server == LEADER_URL;
        let client = self.client(0, Some(spec.token.clone()));
        Box::pin(async move {
            right.then_some(client).ok_or(LinkError::Client {
                cause: "no such server".to_owned(),
            })
        })
    }
}

/// Lets a controller live, again and again.
async fn live(world: Shared, actor: Actor) {
    loop {
        let (surroundings, ended, config) = {
            let world = &world;
            let locked = world.lock();
            let Some(life) = locked.lives.get(&actor) else {
                return;
            };
            let surroundings = Surroundings {
                world: world.clone(),
                actor,
                incarnation: life.incarnation,
            };
            let config = locked.clusters[surroundings.cluster()].config.clone();
            (surroundings, life.ended.clone(), config)
        };
        let client = surroundings.client(surroundings.cluster(), None);
        let outside: Arc<dyn Outside> = Arc::new(surroundings);
        let work: BoxFuture<'static, ()> = if actor == Actor::Leader {
            Box::pin(shell::leader::run(
                client,
                LEADER_NAMESPACE.to_owned(),
                config,
                Fence::open(),
                outside,
                Metrics::new(Role::Leader),
            ))
        } else {
            Box::pin(shell::member::run(
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
            () = work => world.lock().rules.broken.push(format!("{actor:?} ended by itself")),
        }
        let pause = world.lock().rng.range(1, 4000);
        sleep(Duration::from_millis(pause)).await;
    }
}

/// Runs a seed.
pub(crate) fn run(seed: u64, plan: Plan, kinds: &Arc<Kinds>, talk: bool) -> Outcome {
    count_panics();
    PANICS.set(0);
    // No reactor: nothing here has a file descriptor.
    let built = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = match built {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    let mut outcome = runtime.block_on(drive(seed, plan, kinds, talk));
    drop(runtime);
    if PANICS.get() > 0 {
        outcome.failures.push(format!("{} panics", PANICS.get()));
    }
    outcome
}

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            print(info);
        }));
    });
}

async fn drive(seed: u64, plan: Plan, kinds: &Arc<Kinds>, talk: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let members = match plan {
        Plan::Random => 2 + rng.index(3),
        Plan::Fixed(..) => 2,
    };
    let mut world = World::new(rng, &IDS[..members], kinds, talk);
    world.rules.window = Duration::from_secs(12);
    for server in 0..=members {
        world.furnish(server);
    }
    if let Plan::Fixed(_, crash) = plan {
        world.crash = crash;
    } else {
        dice(&mut world);
    }
    // In some runs the silent are removed, as early as can be configured.
    let removes = match plan {
        Plan::Random => seed.is_multiple_of(4),
        Plan::Fixed(scenario, _) => scenario == Scenario::Silent,
    };
    if removes {
        world.clusters[0].config.stale_member_policy = StaleMemberPolicy::Remove;
        world.clusters[0].config.stale_member_timeout = MIN_STALE;
    }
    let world = Shared::new(world);
    let actors: Vec<_> = world.lock().lives.keys().copied().collect();
    let mut tasks: Vec<_> = actors
        .iter()
        .map(|a| tokio::spawn(live(world.clone(), *a)))
        .collect();
    let keeper = world.clone();
    tasks.push(tokio::spawn(async move {
        loop {
            sleep(Duration::from_millis(900)).await;
            keeper.lock().housekeeping();
        }
    }));
    match plan {
        Plan::Random => scenario(&world).await,
        Plan::Fixed(scenario, _) => fixed(&world, scenario).await,
    }
    heal(&world);
    let (rest, ghosts, mut failures) = rest(&world).await;
    if failures.is_empty() {
        failures = quiet(&world).await;
    }
    for task in tasks {
        task.abort();
    }
    let mut world = world.lock();
    failures.extend(world.rules.broken.drain(..).take(5));
    Outcome {
        failures,
        counts: world.counts,
        trace: world.trace,
        story: world.story.take(),
        rest,
        writes: world.lives.iter().map(|(a, l)| (*a, l.writes)).collect(),
        ghosts,
    }
}

/// Clocks, faults and configuration of a run.
fn dice(world: &mut World) {
    world.page = *world.rng.pick(&[2, 3, 500]);
    for i in 0..world.clusters.len() {
        let seconds = *world.rng.pick(&[0, 0, 0, 1, -7, 300, -7200, 200_000, -200_000]);
        world.clusters[i].skew = SignedDuration::from_secs(seconds);
    }
    for i in 1..world.clusters.len() {
        if world.rng.permille(300) {
            world.clusters[i].config.endpoint_ip_type = EndpointIpType::PodIp;
        }
    }
    let level = *world.rng.pick(&[0, 1, 1, 3, 8]);
    if level > 0 {
        world.rules.window = Duration::from_mins(1);
    }
    let mut draw = |most: u64| {
        let on = world.rng.permille(600);
        if on { world.rng.below(most * level + 1) } else { 0 }
    };
    world.faults = Faults {
        on: level > 0,
        refuse: draw(15),
        fail: draw(15),
        lose: draw(15),
        slow: draw(10),
        cut: draw(15),
        late: draw(25),
        twice: draw(20),
        gone: draw(8),
        stale: draw(25),
        crash: draw(8),
    };
}

/// People and misfortune.
async fn scenario(world: &Shared) {
    {
        let mut world = world.lock();
        for server in 1..world.clusters.len() {
            let id = world.clusters[server].id.clone();
            if world.rng.permille(900) {
                world.join(server, &id);
            }
            if world.rng.permille(800) {
                world.gateway(server, "n1", true);
            }
        }
    }
    let acts = world.lock().rng.range(10, 40);
    let mut old = None;
    for _ in 0..acts {
        let pause = {
            let mut world = world.lock();
            world.act();
            if world.faults.on {
                misfortune(&mut world, &mut old);
            }
            // Mostly at once, now and then long after everything has settled.
            match world.rng.below(20) {
                0 => world.rng.range(10_000, 60_000),
                1..4 => world.rng.range(1000, 10_000),
                _ => world.rng.below(400),
            }
        };
        sleep(Duration::from_millis(pause)).await;
    }
}

/// What befalls servers and controllers as a whole.
fn misfortune(world: &mut World, old: &mut Option<crate::model::store::Store>) {
    let now = Instant::now();
    let server = world.rng.index(world.clusters.len());
    let time = Duration::from_millis(world.rng.range(10, 35_000));
    match world.rng.below(60) {
        0 | 1 => {
            world.tell(|| format!("server {server} is down for {time:?}"));
            world.clusters[server].down = Some(now + time);
            world.clusters[server].epoch += 1;
            nudge(world, server);
        }
        2..5 if server > 0 => {
            let swallows = world.rng.permille(500);
            world.tell(|| format!("cluster {server} does not reach the leader for {time:?}"));
            world.clusters[server].parted = Some((now + time, swallows));
            nudge(world, 0);
        }
        5 | 6 => {
            let store = &mut world.clusters[server].store;
            store.compact(store.version());
            world.clusters[server].epoch += 1;
            world.tell(|| format!("server {server} is compacted and restarted"));
            nudge(world, server);
        }
        7..9 => {
            let actors: Vec<_> = world.lives.keys().copied().collect();
            let actor = *world.rng.pick(&actors);
            world.kill(actor);
        }
        9..12 => *old = Some(world.clusters[0].store.clone()),
        12 => {
            if let Some(old) = old.take() {
                world.tell(|| "the leader's server is restored".to_owned());
                world.clusters[0].store.restore(&old);
                world.restored = true;
                world.clusters[0].epoch += 1;
                let at = world.elapsed();
                let clusters = std::mem::take(&mut world.clusters);
                world.rules.restored(&clusters, at);
                world.clusters = clusters;
                nudge(world, 0);
            }
        }
        _ => {}
    }
}

/// Wakes all watches of a server: their connections are gone.
fn nudge(world: &mut World, server: usize) {
    let store = &mut world.clusters[server].store;
    for resource in store.resources() {
        store.notify(&resource).notify_waiters();
    }
}

/// What happens in a fixed scenario.
async fn fixed(world: &Shared, scenario: Scenario) {
    let wait = |seconds| sleep(Duration::from_secs(seconds));
    let start = |world: &mut World| {
        for server in 1..=2 {
            let id = world.clusters[server].id.clone();
            world.join(server, &id);
            world.gateway(server, "n1", true);
        }
    };
    start(&mut world.lock());
    match scenario {
        Scenario::Join => wait(12).await,
        Scenario::Export => {
            wait(1).await;
            world.lock().service(1, "shop", "web", 0, 2);
            world.lock().export(1, "shop", "web", true);
            wait(8).await;
            world.lock().service(1, "shop", "web", 2, 3);
            wait(8).await;
            world.lock().export(1, "shop", "web", false);
            wait(8).await;
        }
        Scenario::Conflict => {
            wait(1).await;
            for (server, ports) in [(1, 0), (2, 1)] {
                world.lock().service(server, "shop", "web", ports, 2);
                world.lock().export(server, "shop", "web", true);
                wait(8).await;
            }
            world.lock().export(1, "shop", "web", false);
            wait(8).await;
        }
        Scenario::Gateways => {
            wait(6).await;
            world.lock().gateway(1, "n2", true);
            wait(6).await;
            world.lock().gateway(1, "n1", false);
            wait(40).await;
        }
        Scenario::Leave => {
            world.lock().service(1, "shop", "web", 0, 2);
            world.lock().export(1, "shop", "web", true);
            wait(8).await;
            world.lock().leave(1);
            wait(8).await;
            world.lock().join(1, "east");
            wait(8).await;
        }
        Scenario::Silent => {
            world.lock().service(1, "shop", "web", 0, 2);
            world.lock().export(1, "shop", "web", true);
            wait(8).await;
            part(world, Duration::from_secs(150));
            // Until it is noticed, until it is time, and twice until a leader that died is back and has listened.
            wait(140).await;
            left_nothing(&mut world.lock());
            wait(20).await;
        }
    }
}

/// The first member does not reach the leader.
fn part(world: &Shared, time: Duration) {
    let mut world = world.lock();
    world.clusters[1].parted = Some((Instant::now() + time, false));
    nudge(&mut world, 0);
}

/// The first member was removed, with all it exported.
fn left_nothing(world: &mut World) {
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
            .rules
            .broken
            .push(format!("still there of a silent member: {left:?}"));
    }
}

/// Nothing goes wrong any more.
fn heal(world: &Shared) {
    let mut world = world.lock();
    world.tell(|| "everything works again".to_owned());
    world.faults.on = false;
    for cluster in &mut world.clusters {
        cluster.down = None;
        cluster.parted = None;
    }
}

/// Waits until everything is as it should be; says how long that took, and what had to be cleaned up.
async fn rest(world: &Shared) -> (Duration, usize, Vec<String>) {
    let begin = Instant::now();
    let mut cleaned = None;
    loop {
        sleep(Duration::from_secs(3)).await;
        let mut world = world.lock();
        if cleaned.is_none() && begin.elapsed() > CLEAN_UP {
            cleaned = Some(clean_up(&mut world));
        }
        let differences = truth::differences(&world);
        let over = begin.elapsed() > AFTERMATH;
        if differences.is_empty() && over || begin.elapsed() > BOUND {
            return (begin.elapsed(), cleaned.unwrap_or(0), differences);
        }
    }
}

/// An administrator removes what a restored leader knows again of members that left for good.
fn clean_up(world: &mut World) -> usize {
    if !world.restored {
        return 0;
    }
    let (announces, exports) = truth::ghosts(world);
    let count = announces.len() + exports.len();
    for key in announces {
        world.cut(0, &antrea("memberclusterannounces"), &key);
    }
    for key in exports {
        world.cut(0, &antrea("resourceexports"), &key);
    }
    count
}

/// Once everything is as it should be, nothing is written but heartbeats, and nothing changes.
async fn quiet(world: &Shared) -> Vec<String> {
    let before: Vec<u64> = {
        let world = world.lock();
        world.clusters.iter().map(|c| c.store.version()).collect()
    };
    sleep(QUIET).await;
    let world = world.lock();
    let mut failures = truth::differences(&world);
    let ids: BTreeSet<_> = world.clusters.iter().skip(1).filter_map(wants).collect();
    for (number, cluster) in world.clusters.iter().enumerate() {
        for resource in cluster.store.resources() {
            for change in cluster.store.since(&resource, before[number]) {
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
