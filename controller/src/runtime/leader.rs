//! The reconcile loop of the leader.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::{Client, runtime::watcher};
use mc_api::{
    cluster_claim::ClusterClaim,
    cluster_set::ClusterSet,
    config::{Config, Isolation},
    member_cluster_announce::MemberClusterAnnounce,
    names,
    resource_export::ResourceExport,
    resource_import::ResourceImport,
};
use mc_kube::{AbortOnDrop, CacheState, Store, WatchContext};
use tokio::{sync::Notify, time::Instant};
use tracing::{debug, info};

use super::{
    admission_poll::AdmissionPoll,
    api_health::ApiHealth,
    applier::Applier,
    cache::{self, DynStore},
    env::Environment,
    events::EventPublisher,
    issue_log::IssueLogger,
    schedule::{RESYNC_PERIOD, debounce, to_instant},
};
use crate::{
    fence::Fence,
    leader,
    metrics::{Metrics, ObjectGauges, object_gauges::LeaderGauges},
    plan::{Kind, ObjectRef},
    snapshot::{ExchangedObjects, LastHeartbeat, LeaderSnapshot, MemberNamespaces, MemberPolicies},
};

struct Stores {
    cluster_sets: Store<ClusterSet>,
    cluster_claims: Store<ClusterClaim>,
    service_accounts: Store<ServiceAccount>,
    service_account_bindings: Store<ConfigMap>,
    prefix_owners: Store<ConfigMap>,
    announces: Store<MemberClusterAnnounce>,
    exports: Store<ResourceExport>,
    imports: Store<ResourceImport>,
    /// The Namespaces of single members; without them announces, exports and imports are those of one Namespace.
    member_namespaces: Option<Store<Namespace>>,
    /// Only where label identities are exchanged: other leaders need no permission for it.
    label_id_shards: Option<Store<ConfigMap>>,
}

/// Runs the leader of the objects in `namespace`, without end; it writes while `fence` is open.
pub async fn run(
    client: Client,
    namespace: String,
    config: Config,
    fence: Fence,
    env: Arc<dyn Environment>,
    metrics: Arc<Metrics>,
) {
    metrics.activated(fence.clone());
    let changed = Arc::new(Notify::new());
    let health = ApiHealth::new(&metrics.local);
    let context = WatchContext {
        client: client.clone(),
        changed: changed.clone(),
        observer: health.clone(),
        client_name: "leader".to_owned(),
    };
    let (stores, _tasks) = Stores::watch(&context, &namespace, &config);
    let policies = AdmissionPoll::new(&context, is_separate(&config).then_some(&namespace));
    let mut applier = Applier::new(client.clone(), fence.clone(), health);
    let events = EventPublisher::new(client, fence, metrics.local.clone());
    let mut issue_log = IssueLogger::default();
    let mut heartbeats = BTreeMap::new();
    let mut ready = false;
    let mut plan_duration = Duration::ZERO;
    let mut requeue = Instant::now() + RESYNC_PERIOD;
    loop {
        tokio::select! {
            biased;
            () = changed.notified() => tokio::time::sleep(debounce(plan_duration)).await,
            () = tokio::time::sleep_until(requeue) => {}
        }
        metrics.loop_tick();
        requeue = Instant::now() + RESYNC_PERIOD;
        if !cache::synced(&stores.all()) {
            continue;
        }
        if !ready {
            ready = true;
            metrics.synced();
            info!(namespace, "leader ready");
        }
        if applier.cache_caught_up(|target| stores.cache_state(target)) {
            let snapshot = stores.snapshot(&namespace, &config, &mut heartbeats, policies.state(), env.now());
            let start = Instant::now();
            let plan = leader::plan(&snapshot);
            let gauges = ObjectGauges::Leader(LeaderGauges::from_snapshot(&snapshot));
            plan_duration = start.elapsed();
            metrics.reconciled(plan_duration, snapshot.now, &plan, gauges);
            debug!(actions = plan.writes.len(), "plan");
            issue_log.update(plan.issues);
            events.set_active(plan.warning_events, snapshot.now);
            // A store changes its objects in place while no snapshot shares them.
            drop(snapshot);
            applier.run(plan.writes).await;
            requeue = requeue.min(to_instant(plan.next_requeue, env.now()).unwrap_or(requeue));
        }
        requeue = requeue.min(applier.next_requeue().unwrap_or(requeue));
    }
}

/// Whether members may have Namespaces of their own.
fn is_separate(config: &Config) -> bool {
    config.isolation == Isolation::Namespace
}

// === impl Stores ===

impl Stores {
    fn watch(context: &WatchContext, namespace: &str, config: &Config) -> (Self, Vec<AbortOnDrop>) {
        let mut tasks = vec![];
        macro_rules! watch {
            ($config:expr) => {
                watch!(Some(namespace), $config)
            };
            ($namespace:expr, $config:expr) => {{
                let (store, task) = context.store($namespace, $config);
                tasks.push(task);
                store
            }};
        }
        let all = watcher::Config::default;
        let cluster_sets = watch!(all());
        let (cluster_claims, task) = context.optional_store(Some(namespace));
        tasks.push(task);
        let service_accounts = watch!(all());
        let named = |name: &str| all().fields(&format!("metadata.name={name}"));
        let service_account_bindings = watch!(named(names::SERVICE_ACCOUNT_BINDINGS));
        let prefix_owners = watch!(named(names::PREFIX_OWNERS));
        let is_separate = is_separate(config);
        let exchange = (!is_separate).then_some(namespace);
        let announces = watch!(exchange, all());
        let exports = watch!(exchange, all());
        let imports = watch!(exchange, all());
        let member_namespaces = is_separate.then(|| {
            let selector = format!("{}={namespace}", names::LABEL_MEMBER_NAMESPACE_OF);
            watch!(None, all().labels(&selector))
        });
        let label_id_shards = config.stretched_network_policy.then(|| {
            let selector = format!("{}={}", names::LABEL_RECORD, names::RECORD_LABEL_IDENTITIES);
            watch!(all().labels(&selector))
        });
        let stores = Self {
            cluster_sets,
            cluster_claims,
            service_accounts,
            service_account_bindings,
            prefix_owners,
            announces,
            exports,
            imports,
            member_namespaces,
            label_id_shards,
        };
        (stores, tasks)
    }

    fn all(&self) -> Vec<&dyn DynStore> {
        let mut all: Vec<&dyn DynStore> = vec![
            &self.cluster_sets,
            &self.service_accounts,
            &self.announces,
            &self.exports,
            &self.imports,
        ];
        let namespaces = self.member_namespaces.as_ref();
        all.extend(namespaces.map(|namespaces| namespaces as &dyn DynStore));
        let shards = self.label_id_shards.as_ref();
        all.extend(shards.map(|shards| shards as &dyn DynStore));
        // After the other store of ConfigMaps, which a lookup by kind finds first.
        all.push(&self.service_account_bindings);
        all.push(&self.prefix_owners);
        all
    }

    /// The cache's state of an object, from the store that contains it.
    fn cache_state(&self, target: &ObjectRef) -> Option<CacheState> {
        match (target.kind, target.name.as_str()) {
            (Kind::ConfigMap, names::SERVICE_ACCOUNT_BINDINGS) => {
                cache::cache_state(&[&self.service_account_bindings], target)
            }
            (Kind::ConfigMap, names::PREFIX_OWNERS) => cache::cache_state(&[&self.prefix_owners], target),
            _ => cache::cache_state(&self.all(), target),
        }
    }

    fn snapshot(
        &self,
        namespace: &str,
        config: &Config,
        heartbeats: &mut BTreeMap<String, LastHeartbeat>,
        member_policies: MemberPolicies,
        now: Timestamp,
    ) -> LeaderSnapshot {
        let exports = self.exports.full_snapshot();
        let all = ExchangedObjects {
            announces: self.announces.snapshot(),
            exports: exports.objects,
            unreadable_exports: exports.unreadable,
            imports: self.imports.snapshot(),
        };
        let member_namespaces = self.member_namespaces.as_ref().map(Store::snapshot);
        let bindings = self.service_account_bindings.snapshot();
        let (ours, member_namespaces) = match member_namespaces {
            Some(labelled) => {
                let recorded = leader::account_bindings::recorded_namespaces(&bindings, namespace);
                MemberNamespaces::divide(namespace, &labelled, &recorded, all)
            }
            None => (all, MemberNamespaces::default()),
        };
        let all: Vec<_> = ours.announces.values().map(AsRef::as_ref).collect();
        leader::heartbeat::record_heartbeats(heartbeats, &all, now);
        LeaderSnapshot {
            now,
            namespace: namespace.to_owned(),
            config: config.clone(),
            cluster_sets: self.cluster_sets.snapshot(),
            cluster_claims: self.cluster_claims.optional(),
            service_accounts: self.service_accounts.snapshot(),
            service_account_bindings: bindings,
            prefix_owners: self.prefix_owners.snapshot(),
            announces: ours.announces,
            exports: ours.exports,
            unreadable_exports: ours.unreadable_exports,
            imports: ours.imports,
            member_policies,
            member_namespaces,
            label_id_shards: self.label_id_shards.as_ref().map(Store::snapshot),
            heartbeats: heartbeats.clone(),
        }
    }
}
