//! The loop of the leader.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::{Client, runtime::watcher};
use tokio::{sync::Notify, time::Instant};
use tracing::{debug, info};

use super::{
    apply::Applier,
    election::Fence,
    outside::Outside,
    remarks::Remarks,
    report::Reporter,
    watch::{self, Health, Sight, Store, Task, Watched},
};
use crate::{
    api::{
        cluster_claim::ClusterClaim, cluster_set::ClusterSet, config::Config,
        member_cluster_announce::MemberClusterAnnounce, names, resource_export::ResourceExport,
        resource_import::ResourceImport,
    },
    leader,
    metrics::{Counts, Metrics, counts},
    plan::{Kind, Target},
    world::{Heard, LeaderWorld},
};

/// How long events are gathered before a plan is made of them.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// A look at everything even if nothing happened.
pub(super) const RESYNC: Duration = Duration::from_secs(30);

struct Stores {
    cluster_sets: Store<ClusterSet>,
    claims: Store<ClusterClaim>,
    service_accounts: Store<ServiceAccount>,
    identities: Store<ConfigMap>,
    announces: Store<MemberClusterAnnounce>,
    exports: Store<ResourceExport>,
    imports: Store<ResourceImport>,
    /// Only where label identities are exchanged: a leader without that needs no permission for it.
    records: Option<Store<ConfigMap>>,
}

/// Runs the leader for the objects in `namespace`, for ever; it writes while `fence` is open.
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
    let mut applier = Applier::new(client.clone(), fence, health);
    let remarks = Remarks::new(client, metrics.local.clone());
    let mut reporter = Reporter::default();
    let mut heard = BTreeMap::new();
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
        if !watch::synced(&stores.all()) {
            continue;
        }
        if !ready {
            ready = true;
            metrics.synced();
            info!(namespace, "leader ready");
        }
        if applier.settled(|target| stores.sight(target)) {
            let world = stores.world(&namespace, &config, &mut heard, outside.now());
            let begun = Instant::now();
            let plan = leader::plan(&world);
            let counts = Counts::Leader(counts::Leader::of(&world));
            took = begun.elapsed();
            metrics.planned(took, world.now, &plan, counts);
            debug!(actions = plan.actions.len(), "plan");
            reporter.report(plan.notices);
            remarks.tell(plan.remarks, world.now);
            // The stores change their objects in place where nobody else looks at them.
            drop(world);
            applier.run(plan.actions).await;
            wake = wake.min(instant(plan.wake_at, outside.now()).unwrap_or(wake));
        }
        wake = wake.min(applier.wake_at().unwrap_or(wake));
    }
}

/// How long what happens is gathered before it is looked at, where the last look took `took`: however large the world, as
/// much time is left for other work as is spent on looking.
pub(super) fn debounce(took: Duration) -> Duration {
    DEBOUNCE.max(took)
}

/// The moment of the monotonic clock that corresponds to a time of day.
pub(super) fn instant(at: Option<Timestamp>, now: Timestamp) -> Option<Instant> {
    let left = at?.duration_since(now);
    Some(Instant::now() + Duration::try_from(left).unwrap_or_default())
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
            ($config:expr) => {{
                let (store, task) = Store::watch(client, Some(namespace), $config, changed, health);
                tasks.push(task);
                store
            }};
        }
        let all = watcher::Config::default;
        let cluster_sets = watch!(all());
        let (claims, task) = Store::watch_optional(client, Some(namespace), changed, health);
        tasks.push(task);
        let service_accounts = watch!(all());
        let name = format!("metadata.name={}", names::MEMBER_IDENTITIES);
        let identities = watch!(all().fields(&name));
        let announces = watch!(all());
        let exports = watch!(all());
        let imports = watch!(all());
        let records = config.stretched_policy.then(|| {
            let selector = format!("{}={}", names::LABEL_RECORD, names::RECORD_LABEL_IDENTITIES);
            watch!(all().labels(&selector))
        });
        (
            Self {
                cluster_sets,
                claims,
                service_accounts,
                identities,
                announces,
                exports,
                imports,
                records,
            },
            tasks,
        )
    }

    fn all(&self) -> Vec<&dyn Watched> {
        let mut all: Vec<&dyn Watched> = vec![
            &self.cluster_sets,
            &self.service_accounts,
            &self.announces,
            &self.exports,
            &self.imports,
        ];
        all.extend(self.records.as_ref().map(|records| records as &dyn Watched));
        // Behind the other store of this kind.
        all.push(&self.identities);
        all
    }

    /// How an object looks, in the store that has it.
    fn sight(&self, target: &Target) -> Option<Sight> {
        if (target.kind, target.name.as_str()) == (Kind::ConfigMap, names::MEMBER_IDENTITIES) {
            return watch::sight(&[&self.identities], target);
        }
        watch::sight(&self.all(), target)
    }

    fn world(
        &self,
        namespace: &str,
        config: &Config,
        heard: &mut BTreeMap<String, Heard>,
        now: Timestamp,
    ) -> LeaderWorld {
        let announces = self.announces.snapshot();
        let all: Vec<_> = announces.values().map(AsRef::as_ref).collect();
        leader::members::hear(heard, &all, now);
        LeaderWorld {
            now,
            namespace: namespace.to_owned(),
            config: config.clone(),
            cluster_sets: self.cluster_sets.snapshot(),
            claims: self.claims.optional(),
            service_accounts: self.service_accounts.snapshot(),
            identities: self.identities.snapshot(),
            announces,
            exports: self.exports.snapshot(),
            imports: self.imports.snapshot(),
            records: self.records.as_ref().map(Store::snapshot),
            heard: heard.clone(),
        }
    }
}
