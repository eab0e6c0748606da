//! The connection of a member to its leader: watches, writes and Events with one [`LeaderConnectionConfig`].

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use kube::{Client, ResourceExt, runtime::watcher};
use mc_api::{
    config::IdentityExport,
    member_cluster_announce::MemberClusterAnnounce,
    names,
    resource_export::{ResourceExport, kind},
    resource_import::ResourceImport,
};
use mc_kube::{AbortOnDrop, RelistStats, Store, WatchContext};
use tokio::{sync::Notify, task::JoinHandle, time::Instant};

use super::{
    api_health::ApiHealth,
    applier::Applier,
    cache::{self, DynStore},
    complete_exporters::{CompleteExporters, LeaderState},
    events::EventPublisher,
    listed_imports::ListedImports,
};
use crate::{
    fence::Fence,
    member::{connection_config::LeaderConnectionConfig, deletion_guard::DeletionGuard},
    metrics::api_metrics::ApiMetrics,
    plan::{ObjectRef, WarningEvent, Write},
    snapshot::{LeaderConnectionState, RemoteObjects},
};

/// The duration of a watch request, in seconds: its renewal reveals a dead connection.
const WATCH_SECONDS: u32 = 60;

/// A connection to the leader's API server.
pub struct LeaderConnection {
    config: LeaderConnectionConfig,
    client: Client,
    fence: Fence,
    health: Arc<ApiHealth>,
    announces: Store<MemberClusterAnnounce>,
    exports: Store<ResourceExport>,
    imports: Store<ResourceImport>,
    /// Only where selected label identities are exported.
    policy_selectors: Option<Store<ResourceExport>>,
    import_failures: Store<ResourceExport>,
    writes: WriteState,
    events: EventPublisher,
    deletion_guard: DeletionGuard,
    listed_imports: ListedImports,
    complete_exporters: CompleteExporters,
    _tasks: Vec<AbortOnDrop>,
}

/// At most one batch of writes is in flight, in a task of its own: a slow leader must not delay the local cluster.
enum WriteState {
    Idle(Box<Applier>),
    InFlight(InFlightBatch),
    /// Between the other two.
    Taken,
}

/// A batch of writes in flight.
pub type InFlightBatch = JoinHandle<Box<Applier>>;

/// The remains of a closed connection.
pub struct ClosedConnection {
    /// Its configuration.
    pub config: LeaderConnectionConfig,
    /// Its client.
    pub client: Client,
    /// Its last batch of writes, if that is still in flight.
    pub in_flight: Option<InFlightBatch>,
}

/// A connection could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum LeaderConnectionError {
    /// The configuration makes no client.
    #[error("{cause}")]
    Client {
        /// The error with its causes.
        cause: String,
    },
}

// === impl LeaderConnection ===

impl LeaderConnection {
    /// Starts to watch with `client`, built from `config`; writes while `fence` is open. An unreachable server shows in
    /// [`LeaderConnection::state`]. The peers in other clusters' policies are read for [`IdentityExport::Selected`].
    #[must_use]
    pub fn open(
        config: LeaderConnectionConfig,
        client: Client,
        identity_export: IdentityExport,
        fence: &Fence,
        changed: &Arc<Notify>,
        metrics: &Arc<ApiMetrics>,
    ) -> Self {
        let health = ApiHealth::new(metrics);
        let context = WatchContext {
            client: client.clone(),
            changed: changed.clone(),
            observer: health.clone(),
            client_name: config.cluster_id.clone(),
        };
        let namespace = Some(config.namespace.as_str());
        let all = watcher::Config::default().timeout(WATCH_SECONDS);
        let own_announce = format!("metadata.name={}", names::member_announce(&config.cluster_id));
        let own_exports = format!("{}={}", names::LABEL_SOURCE_CLUSTER_ID, config.cluster_id);
        let announces = context.store(namespace, all.clone().fields(&own_announce));
        let exports = context.store(namespace, all.clone().labels(&own_exports));
        let of_selectors = format!("{}={}", names::LABEL_SOURCE_KIND, kind::POLICY_SELECTORS);
        let (policy_selectors, selectors_task) = (identity_export == IdentityExport::Selected)
            .then(|| context.store(namespace, all.clone().labels(&of_selectors)))
            .unzip();
        let of_failures = format!("{}={}", names::LABEL_SOURCE_KIND, kind::IMPORT_FAILURES);
        let import_failures = context.store(namespace, all.clone().labels(&of_failures));
        let imports = context.store(namespace, all);
        let applier = Applier::new(client.clone(), fence.clone(), health.clone());
        Self {
            writes: WriteState::Idle(Box::new(applier)),
            events: EventPublisher::new(client.clone(), fence.clone(), metrics.clone()),
            config,
            client,
            fence: fence.clone(),
            health,
            deletion_guard: DeletionGuard::default(),
            listed_imports: ListedImports::default(),
            complete_exporters: CompleteExporters::default(),
            announces: announces.0,
            exports: exports.0,
            imports: imports.0,
            policy_selectors,
            import_failures: import_failures.0,
            _tasks: [announces.1, exports.1, imports.1, import_failures.1]
                .into_iter()
                .chain(selectors_task)
                .collect(),
        }
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &LeaderConnectionConfig {
        &self.config
    }

    /// The result of the last exchange.
    #[must_use]
    pub fn state(&self) -> LeaderConnectionState {
        match self.health.state() {
            (Some(error), _) => LeaderConnectionState::Down { error },
            (None, true) => LeaderConnectionState::Up,
            (None, false) => LeaderConnectionState::Connecting,
        }
    }

    /// The leader's objects.
    #[must_use]
    pub fn remote_objects(&mut self, now: Timestamp) -> RemoteObjects {
        // Read first: a list that is complete now is complete in the snapshots.
        let synced = self.announces.synced() && self.exports.synced() && self.imports.synced();
        let imports = self.imports.full_snapshot();
        let listed_imports = self.listed_imports.update(imports.relists, &imports.objects);
        let has_failures = self.import_failures.synced();
        let import_failures = self.import_failures.snapshot();
        let announces = self.announces.snapshot();
        let leader = LeaderState {
            announce: announces.values().next().and_then(|announce| announce.uid()),
            relists: imports.relists,
        };
        let complete_exports = self.complete_exporters.update(leader, &import_failures, now);
        let mut objects = RemoteObjects {
            synced,
            announces,
            exports: self.exports.snapshot(),
            policy_selectors: self
                .policy_selectors
                .as_ref()
                .filter(|store| store.synced())
                .map(Store::snapshot),
            import_failures: has_failures.then_some(import_failures),
            imports: imports.objects,
            unreadable_imports: imports.unreadable,
            listed_imports,
            complete_exports,
            suppress_deletions_until: None,
        };
        // Read last: the counters include every list of the snapshots.
        let all = [
            self.announces.relist_stats(),
            self.exports.relist_stats(),
            self.imports.relist_stats(),
        ];
        let stats = RelistStats {
            relists: self.imports.relist_stats().relists,
            version_regressions: all
                .iter()
                .fold(0, |sum, stats| stats.version_regressions.saturating_add(sum)),
        };
        objects.suppress_deletions_until = self.deletion_guard.update(stats, now);
        objects
    }

    /// Whether the last batch has ended and the caches contain its writes.
    pub async fn cache_caught_up(&mut self) -> bool {
        if let WriteState::InFlight(task) = &mut self.writes {
            if !task.is_finished() {
                return false;
            }
            let applier = task.await.unwrap_or_else(|_| {
                Box::new(Applier::new(
                    self.client.clone(),
                    self.fence.clone(),
                    self.health.clone(),
                ))
            });
            self.writes = WriteState::Idle(applier);
        }
        let stores: [&dyn DynStore; 3] = [&self.announces, &self.exports, &self.imports];
        match &mut self.writes {
            WriteState::Idle(applier) => {
                applier.cache_caught_up(|target| cache::cache_state(&stores, target))
            }
            WriteState::InFlight(_) | WriteState::Taken => false,
        }
    }

    /// Starts a batch, only after [`LeaderConnection::cache_caught_up`]; notifies `changed` at its end.
    pub fn start_batch(&mut self, writes: Vec<Write>, changed: &Arc<Notify>) {
        // A batch without any due write would notify `changed`, which plans the same batch again: a busy loop for as
        // long as the leader does not answer.
        let due = matches!(&self.writes, WriteState::Idle(applier) if applier.is_due(&writes));
        if !due {
            self.health.metrics().set_pending(&writes);
            return;
        }
        if let WriteState::Idle(mut applier) = std::mem::replace(&mut self.writes, WriteState::Taken) {
            let changed = changed.clone();
            self.writes = WriteState::InFlight(tokio::spawn(async move {
                applier.run(writes).await;
                changed.notify_one();
                applier
            }));
        }
    }

    /// Writes that the leader's API server rejected more than once; empty while a batch is in flight.
    #[must_use]
    pub fn rejected_writes(&self) -> BTreeMap<ObjectRef, String> {
        match &self.writes {
            WriteState::Idle(applier) => applier.rejected_writes(),
            WriteState::InFlight(_) | WriteState::Taken => BTreeMap::new(),
        }
    }

    /// Publishes the active warnings in the leader cluster.
    pub fn publish_events(&self, warnings: Vec<WarningEvent>, now: Timestamp) {
        self.events.set_active(warnings, now);
    }

    /// The next time at which something is due without an event.
    #[must_use]
    pub fn next_requeue(&self) -> Option<Instant> {
        match &self.writes {
            WriteState::Idle(applier) => applier.next_requeue(),
            WriteState::InFlight(_) | WriteState::Taken => None,
        }
    }

    /// Closes it, except for a batch in flight.
    #[must_use]
    pub fn close(self) -> ClosedConnection {
        ClosedConnection {
            config: self.config,
            client: self.client,
            in_flight: match self.writes {
                WriteState::InFlight(task) => Some(task),
                WriteState::Idle(_) | WriteState::Taken => None,
            },
        }
    }
}
