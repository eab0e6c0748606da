//! The loop of a member.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Node, Secret, Service},
    discovery::v1::EndpointSlice,
};
use kube::{Api, Client, runtime::watcher};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tracing::{debug, info};

use super::{
    apply::Applier,
    election::Fence,
    goodbye::Goodbyes,
    leader::{RESYNC, debounce, instant},
    link::{Closed, Link},
    outside::Outside,
    pods::Pods,
    remarks::Remarks,
    report::Reporter,
    service_cidr,
    watch::{self, Health, Sight, Store, Task, Watched},
};
use crate::{
    api::{
        cluster_claim::ClusterClaim,
        cluster_info::ClusterInfoImport,
        cluster_set::ClusterSet,
        config::Config,
        gateway::Gateway,
        label_identity::LabelIdentity,
        names,
        network_policy::{ClusterNetworkPolicy, Tier},
        service_export::ServiceExport,
        service_import::ServiceImport,
    },
    member::{
        self, membership,
        parting::{Goodbye, Membership, Record},
    },
    metrics::{Counts, Metrics, counts},
    plan::{Notice, Plan, Side, Target},
    world::{self, MemberWorld, SecretSeen},
};

/// How long an answer is waited for: everything else waits, too.
const ASK_FOR: Duration = Duration::from_secs(10);
/// How long until the Service CIDR is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(10);

struct Stores {
    cluster_sets: Store<ClusterSet>,
    memberships: Store<ConfigMap>,
    claims: Store<ClusterClaim>,
    nodes: Store<Node>,
    namespaces: Store<Namespace>,
    services: Store<Service>,
    slices: Store<EndpointSlice>,
    service_exports: Store<ServiceExport>,
    service_imports: Store<ServiceImport>,
    gateways: Store<Gateway>,
    cluster_infos: Store<ClusterInfoImport>,
    label_identities: Store<LabelIdentity>,
    policies: Store<ClusterNetworkPolicy>,
    tiers: Store<Tier>,
    /// Only where label identities are exported.
    pods: Option<Pods>,
}

struct SecretWatch {
    name: String,
    store: Store<Secret>,
    _task: Task,
}

struct Member {
    client: Client,
    fence: Fence,
    outside: Arc<dyn Outside>,
    namespace: String,
    config: Config,
    changed: Arc<Notify>,
    health: Arc<Health>,
    stores: Stores,
    service_cidrs: Vec<IpNet>,
    /// When to ask for it, and why it is not known.
    ask: (Instant, Option<String>),
    secret: Option<SecretWatch>,
    link: Option<Link>,
    /// Connections whose membership may be over.
    closed: Vec<Closed>,
    goodbyes: Goodbyes,
    link_error: Option<String>,
    metrics: Arc<Metrics>,
}

/// Runs the member whose own objects are in `namespace`, for ever; it writes while `fence` is open.
pub async fn run(
    client: Client,
    namespace: String,
    config: Config,
    fence: Fence,
    outside: Arc<dyn Outside>,
    metrics: Arc<Metrics>,
) {
    metrics.works(fence.clone());
    let changed = Arc::new(Notify::new());
    let health = Health::of(&metrics.local);
    let (stores, _tasks) = Stores::watch(&client, &namespace, &config, &changed, &health);
    let mut applier = Applier::new(client.clone(), fence.clone(), health.clone());
    let remarks = Remarks::new(client.clone(), metrics.local.clone());
    let mut reporter = Reporter::default();
    let mut member = Member {
        client,
        goodbyes: Goodbyes::new(fence.clone(), changed.clone()),
        fence,
        outside,
        namespace,
        service_cidrs: config.service_cidrs.clone(),
        config,
        changed: changed.clone(),
        health,
        stores,
        ask: (Instant::now(), None),
        secret: None,
        link: None,
        closed: vec![],
        link_error: None,
        metrics: metrics.clone(),
    };
    let mut ready = false;
    let mut took = Duration::ZERO;
    let mut wake = Instant::now() + RESYNC;
    loop {
        tokio::select! {
            biased;
            () = changed.notified() => tokio::time::sleep(debounce(took)).await,
            () = tokio::time::sleep_until(wake) => {}
        }
        metrics.turned();
        wake = Instant::now() + RESYNC;
        if !watch::synced(&member.stores.all()) {
            continue;
        }
        if !ready {
            ready = true;
            metrics.synced();
            info!(namespace = member.namespace, "member ready");
        }
        member.ask_service_cidr().await;
        let world = member.snapshot();
        member.follow_cluster_set(&world).await;
        member.say_goodbyes(&world);
        let local = applier.settled(|target| member.stores.sight(target));
        let remote = match &mut member.link {
            Some(link) => link.settled().await,
            None => false,
        };
        if local || remote {
            let mut failing = applier.failing();
            failing.extend(member.link.iter().flat_map(Link::refused));
            let begun = Instant::now();
            let plan = member.look(failing);
            took = begun.elapsed();
            wake = wake.min(instant(plan.wake_at, member.outside.now()).unwrap_or(wake));
            reporter.report(plan.notices);
            let (here, there): (Vec<_>, Vec<_>) = plan
                .actions
                .into_iter()
                .partition(|a| a.target.side == Side::Local);
            debug!(here = here.len(), there = there.len(), local, remote, "plan");
            let (mine, theirs): (Vec<_>, Vec<_>) = plan
                .remarks
                .into_iter()
                .partition(|r| r.about.side == Side::Local);
            if let Some(link) = member.link.as_mut().filter(|_| remote) {
                link.start(there, &changed);
                link.tell(theirs, member.outside.now());
            }
            if local {
                remarks.tell(mine, member.outside.now());
                applier.run(here).await;
            }
        }
        for at in [applier.wake_at(), member.wake_at()].into_iter().flatten() {
            wake = wake.min(at);
        }
    }
}

// === impl Member ===

impl Member {
    async fn ask_service_cidr(&mut self) {
        if !self.service_cidrs.is_empty() || Instant::now() < self.ask.0 {
            return;
        }
        let asked = service_cidr::discover(&self.client, &self.namespace);
        let answer = timeout(ASK_FOR, asked).await.unwrap_or_else(|_| {
            Err(service_cidr::NotFound::Unsaid {
                why: "no answer".to_owned(),
            })
        });
        match answer {
            Ok(cidrs) => {
                info!(?cidrs, "Service CIDR found");
                self.service_cidrs = cidrs;
                self.ask.1 = None;
            }
            Err(error) => self.ask = (Instant::now() + ASK_AGAIN, Some(error.to_string())),
        }
    }

    /// Opens, replaces or closes the connection as the `ClusterSet` and its Secret say.
    async fn follow_cluster_set(&mut self, world: &MemberWorld) {
        let set = membership::current(world);
        self.follow_secret(set.and_then(membership::secret_name));
        let Some(set) = set else {
            self.link_error = None;
            if let Some(link) = self.link.take() {
                self.closed.push(link.close());
                self.metrics.remote.parted();
            }
            return;
        };
        // What cannot be used now changes nothing: the connection that stands is as good as before.
        let Ok(spec) = membership::link_spec(set, &self.secret_seen()) else {
            return;
        };
        if self.link.as_ref().is_some_and(|l| *l.spec() == spec) {
            return;
        }
        if let Some(old) = self.link.take() {
            if Membership::from(old.spec()) == Membership::from(&spec) {
                info!(server = spec.server, "leader or token changed: connecting anew");
            } else {
                self.closed.push(old.close());
            }
        }
        match self.outside.connect(&spec).await {
            Ok(client) => {
                self.link = Some(Link::open(
                    spec,
                    client,
                    &self.fence,
                    &self.changed,
                    &self.metrics.remote,
                ));
                self.link_error = None;
            }
            Err(error) => self.link_error = Some(error.to_string()),
        }
    }

    /// Of memberships that ended while nobody was looking, too; not of one that began anew.
    fn say_goodbyes(&mut self, world: &MemberWorld) {
        let set = membership::current(world);
        let is_over = |membership: &Membership| !set.is_some_and(|set| membership.may_be_of(set));
        let record = Record::of(world);
        self.goodbyes.retain(|membership| {
            let is_said = world.goodbyes.get(membership) == Some(&Goodbye::Said);
            is_over(membership) && (!is_said || record.ways.contains_key(membership))
        });
        let closed = std::mem::take(&mut self.closed).into_iter();
        let closed = closed.map(|closed| (Membership::from(&closed.spec), Some(closed)));
        let others = record.ways.keys().map(|membership| (membership.clone(), None));
        for (membership, closed) in closed.chain(others).filter(|(membership, _)| is_over(membership)) {
            let way = record.ways.get(&membership);
            let secrets = Api::namespaced(self.client.clone(), &self.namespace);
            self.goodbyes
                .say(&membership, way, closed, secrets, &self.outside);
        }
    }

    fn follow_secret(&mut self, name: Option<&str>) {
        if self.secret.as_ref().map(|s| s.name.as_str()) == name {
            return;
        }
        self.secret = name.map(|name| {
            let (store, task) = Store::watch(
                &self.client,
                Some(&self.namespace),
                watcher::Config::default().fields(&format!("metadata.name={name}")),
                &self.changed,
                &self.health,
            );
            SecretWatch {
                name: name.to_owned(),
                store,
                _task: task,
            }
        });
    }

    fn secret_seen(&self) -> SecretSeen {
        let Some(secret) = self.secret.as_ref().filter(|s| s.store.synced()) else {
            return SecretSeen::Pending;
        };
        match world::get(&secret.store.snapshot(), &self.namespace, &secret.name) {
            Some(secret) => SecretSeen::Present(secret.clone()),
            None => SecretSeen::Missing,
        }
    }

    fn look(&mut self, failing: BTreeMap<Target, String>) -> Plan {
        let mut world = self.snapshot();
        world.failing = failing;
        let begun = Instant::now();
        let mut plan = member::plan(&world);
        if let Some(why) = &self.ask.1 {
            plan.notices.push(Notice {
                subject: "serviceCIDR".to_owned(),
                message: why.clone(),
            });
        }
        let counts = Counts::Member(counts::Member::of(&world));
        self.metrics.planned(begun.elapsed(), world.now, &plan, counts);
        plan
    }

    fn snapshot(&mut self) -> MemberWorld {
        let now = self.outside.now();
        let link = match (&self.link, &self.link_error) {
            (Some(link), _) => link.state(),
            (None, Some(error)) => world::Link::Down { error: error.clone() },
            (None, None) => world::Link::Idle,
        };
        MemberWorld {
            now,
            namespace: self.namespace.clone(),
            config: self.config.clone(),
            service_cidrs: self.service_cidrs.clone(),
            cluster_sets: self.stores.cluster_sets.snapshot(),
            memberships: self.stores.memberships.snapshot(),
            goodbyes: self.goodbyes.states(),
            claims: self.stores.claims.optional(),
            nodes: self.stores.nodes.snapshot(),
            namespaces: self.stores.namespaces.snapshot(),
            services: self.stores.services.snapshot(),
            slices: self.stores.slices.snapshot(),
            service_exports: self.stores.service_exports.snapshot(),
            service_imports: self.stores.service_imports.snapshot(),
            gateways: self.stores.gateways.snapshot(),
            cluster_infos: self.stores.cluster_infos.snapshot(),
            pod_labels: self.stores.pods.as_ref().and_then(Pods::labels),
            label_identities: self.stores.label_identities.optional(),
            policies: self.stores.policies.optional(),
            tiers: self.stores.tiers.optional(),
            failing: BTreeMap::new(),
            secret: self.secret_seen(),
            link,
            leader: self.link.as_mut().map(|link| link.view(now)),
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        let ask = self.ask.1.as_ref().map(|_| self.ask.0);
        let link = self.link.as_ref().and_then(Link::wake_at);
        ask.into_iter().chain(link).min()
    }
}

// === impl Stores ===

impl Stores {
    fn watch(
        client: &Client,
        namespace: &str,
        config: &Config,
        changed: &Arc<Notify>,
        health: &Arc<Health>,
    ) -> (Self, Vec<Task>) {
        let mut tasks = vec![];
        macro_rules! watch {
            ($namespace:expr) => {{
                let (store, task) = Store::watch(
                    client,
                    $namespace,
                    watcher::Config::default(),
                    changed,
                    health,
                );
                tasks.push(task);
                store
            }};
        }
        let cluster_sets = watch!(Some(namespace));
        let record = format!("metadata.name={}", names::MEMBERSHIPS);
        let (memberships, task) = Store::watch(
            client,
            Some(namespace),
            watcher::Config::default().fields(&record),
            changed,
            health,
        );
        tasks.push(task);
        let gateways = watch!(Some(namespace));
        let cluster_infos = watch!(Some(namespace));
        let nodes = watch!(None);
        let namespaces = watch!(None);
        let services = watch!(None);
        let slices = watch!(None);
        let service_exports = watch!(None);
        let service_imports = watch!(None);
        macro_rules! watch_optional {
            ($namespace:expr) => {{
                let (store, task) = Store::watch_optional(client, $namespace, changed, health);
                tasks.push(task);
                store
            }};
        }
        let claims = watch_optional!(Some(namespace));
        let label_identities = watch_optional!(None);
        let policies = watch_optional!(None);
        let tiers = watch_optional!(None);
        let pods = config.stretched_policy.then(|| {
            let (pods, task) = Pods::watch(client, config.excluded_labels.clone(), changed);
            tasks.push(task);
            pods
        });
        let stores = Self {
            cluster_sets,
            memberships,
            claims,
            nodes,
            namespaces,
            services,
            slices,
            service_exports,
            service_imports,
            gateways,
            cluster_infos,
            label_identities,
            policies,
            tiers,
            pods,
        };
        (stores, tasks)
    }

    fn all(&self) -> [&dyn Watched; 10] {
        [
            &self.cluster_sets,
            &self.memberships,
            &self.nodes,
            &self.namespaces,
            &self.services,
            &self.slices,
            &self.service_exports,
            &self.service_imports,
            &self.gateways,
            &self.cluster_infos,
        ]
    }

    fn sight(&self, target: &Target) -> Option<Sight> {
        let optional: [&dyn Watched; 2] = [&self.label_identities, &self.policies];
        watch::sight(&self.all(), target).or_else(|| watch::sight(&optional, target))
    }
}
