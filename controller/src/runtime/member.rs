//! The reconcile loop of a member.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ipnet::IpNet;
use kube::{Api, Client};
use mc_api::{cluster_set::ClusterSet, config::Config};
use mc_kube::{AbortOnDrop, WatchContext};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};
use tracing::{debug, info};

use super::{
    api_health::ApiHealth,
    applier::Applier,
    deregistration::Deregistrations,
    env::Environment,
    events::EventPublisher,
    issue_log::IssueLogger,
    leader_connection::{ClosedConnection, LeaderConnection},
    member_stores::MemberStores,
    pod_addresses::PodAddressWatch,
    pod_labels::PodLabelWatch,
    schedule::{RESYNC_PERIOD, debounce, to_instant},
    secret_poll::SecretPoll,
    service_cidr::{self, DiscoveryError},
};
use crate::{
    fence::Fence,
    issue_code::IssueCode,
    member::{
        self, address_groups, announce,
        cluster_copy::{self, ClusterIdentity},
        connection_config, deregistration,
        instance::InstanceTracker,
        membership,
        membership_record::MembershipRecord,
        unreadable_imports,
        without_cluster_set::{self, MembershipPhase},
    },
    metrics::{Metrics, ObjectGauges, object_gauges::MemberGauges},
    plan::{ApiServer, ObjectRef, Plan},
    snapshot::{
        DeregistrationState, Instance, LeaderConnectionState, MemberSnapshot, Membership, SecretState,
        StatusTimes,
    },
};

/// Timeout for Service CIDR discovery; it blocks the loop.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// The delay before the next attempt at Service CIDR discovery.
const DISCOVERY_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The state of the loop.
struct Member {
    context: WatchContext,
    fence: Fence,
    env: Arc<dyn Environment>,
    namespace: String,
    config: Config,
    stores: MemberStores,
    service_cidrs: Vec<IpNet>,
    cidr_discovery: CidrDiscovery,
    secret: Option<SecretPoll>,
    connection: Option<LeaderConnection>,
    connect_error: Option<String>,
    /// Connections that may belong to an ended membership.
    closed: Vec<ClosedConnection>,
    deregistrations: Deregistrations,
    /// The watch of the addresses of Pods, while agents need them.
    pod_addresses: Option<(PodAddressWatch, AbortOnDrop)>,
    status_times: StatusTimes,
    /// The instance of this run, by the time since its start.
    instance: (InstanceTracker, Instant),
    /// The membership of this instance.
    instance_of: Option<Membership>,
    /// The heartbeat in this cluster's announce, and the time of its change.
    heartbeat_seen: Option<(String, Instant)>,
    metrics: Arc<Metrics>,
}

/// The next attempt at Service CIDR discovery, and the error of the last one.
struct CidrDiscovery {
    next: Instant,
    error: Option<String>,
}

/// Runs the member whose own objects are in `namespace`, without end; it writes while `fence` is open.
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
    let mut applier = Applier::new(client.clone(), fence.clone(), health.clone());
    let events = EventPublisher::new(client.clone(), fence.clone(), metrics.local.clone());
    let mut issue_log = IssueLogger::default();
    let context = WatchContext {
        client,
        changed: changed.clone(),
        observer: health,
        client_name: "member".to_owned(),
    };
    let mut member = Member::new(
        context,
        namespace,
        config,
        fence,
        env,
        changed.clone(),
        metrics.clone(),
    );
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
        if !member.stores.synced() {
            continue;
        }
        if !ready {
            ready = true;
            metrics.synced();
            info!(namespace = member.namespace, "member ready");
        }
        member.discover_service_cidrs().await;
        let snapshot = member.snapshot();
        member.sync_connection(&snapshot).await;
        member.sync_deregistrations(&snapshot);
        member.sync_pod_addresses(&snapshot);
        drop(snapshot);
        let local_ready = applier.cache_caught_up(|target| member.stores.cache_state(target));
        let leader_ready = match &mut member.connection {
            Some(connection) => connection.cache_caught_up().await,
            None => false,
        };
        if local_ready || leader_ready {
            let mut failures = applier.failure_messages();
            failures.extend(
                member
                    .connection
                    .iter()
                    .flat_map(LeaderConnection::rejected_writes),
            );
            let start = Instant::now();
            let plan = member.reconcile(failures);
            plan_duration = start.elapsed();
            requeue = requeue.min(to_instant(plan.next_requeue, member.env.now()).unwrap_or(requeue));
            issue_log.update(plan.issues);
            let (local, remote): (Vec<_>, Vec<_>) = plan
                .writes
                .into_iter()
                .partition(|a| a.target.side == ApiServer::Local);
            debug!(
                local = local.len(),
                remote = remote.len(),
                local_ready,
                leader_ready,
                "plan"
            );
            let (local_events, remote_events): (Vec<_>, Vec<_>) = plan
                .warning_events
                .into_iter()
                .partition(|r| r.object.side == ApiServer::Local);
            if let Some(connection) = member.connection.as_mut().filter(|_| leader_ready) {
                connection.start_batch(remote, &changed);
                connection.publish_events(remote_events, member.env.now());
            }
            if local_ready {
                events.set_active(local_events, member.env.now());
                member.status_times.record(&local, member.env.now());
                applier.run(local).await;
            }
        }
        for at in [applier.next_requeue(), member.next_requeue()]
            .into_iter()
            .flatten()
        {
            requeue = requeue.min(at);
        }
    }
}

// === impl Member ===

impl Member {
    fn new(
        context: WatchContext,
        namespace: String,
        config: Config,
        fence: Fence,
        env: Arc<dyn Environment>,
        changed: Arc<Notify>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            stores: MemberStores::watch(&context, &namespace, &config),
            context,
            deregistrations: Deregistrations::new(fence.clone(), changed),
            instance: (InstanceTracker::new(env.instance()), Instant::now()),
            instance_of: None,
            pod_addresses: None,
            fence,
            env,
            namespace,
            service_cidrs: config.service_cidrs.clone(),
            config,
            cidr_discovery: CidrDiscovery {
                next: Instant::now(),
                error: None,
            },
            secret: None,
            connection: None,
            connect_error: None,
            closed: vec![],
            status_times: StatusTimes::default(),
            heartbeat_seen: None,
            metrics,
        }
    }

    async fn discover_service_cidrs(&mut self) {
        if !self.service_cidrs.is_empty() || Instant::now() < self.cidr_discovery.next {
            return;
        }
        let discovery = service_cidr::discover(&self.context.client, &self.namespace);
        let found = timeout(DISCOVERY_TIMEOUT, discovery).await.unwrap_or_else(|_| {
            Err(DiscoveryError::NoAnswer {
                cause: "no answer".to_owned(),
            })
        });
        match found {
            Ok(cidrs) => {
                info!(?cidrs, "Service CIDRs discovered");
                self.service_cidrs = cidrs;
                self.cidr_discovery.error = None;
            }
            Err(error) => {
                self.cidr_discovery = CidrDiscovery {
                    next: Instant::now() + DISCOVERY_RETRY_DELAY,
                    error: Some(error.to_string()),
                };
            }
        }
    }

    /// Opens, replaces or closes the connection according to the `ClusterSet` and its Secret.
    async fn sync_connection(&mut self, snapshot: &MemberSnapshot) {
        let set = membership::active_cluster_set(snapshot);
        if is_kept(snapshot, set) {
            return;
        }
        self.sync_secret(set.and_then(connection_config::secret_name));
        let Some(set) = set else {
            self.connect_error = None;
            self.close_connection();
            return;
        };
        // An unusable configuration changes nothing: the present connection remains, unless it is that of another
        // membership, for which nothing may be written with this one's credentials.
        let Ok(config) = connection_config::connection_config(set, &self.secret_state()) else {
            let old = self.connection.as_ref();
            if old.is_some_and(|old| connection_config::is_obsolete(old.config(), set)) {
                self.close_connection();
            }
            return;
        };
        if self.connection.as_ref().is_some_and(|c| *c.config() == config) {
            return;
        }
        let membership = Membership::from(&config);
        if self.instance_of.as_ref() != Some(&membership) {
            // Without the rights of the instance of another membership.
            self.instance = (InstanceTracker::new(self.env.instance()), Instant::now());
            self.instance_of = Some(membership);
        }
        if let Some(old) = self.connection.take() {
            if Membership::from(old.config()) == Membership::from(&config) {
                info!(server = config.server, "leader or token changed, reconnecting");
            } else {
                self.closed.push(old.close());
            }
        }
        match self.env.connect(&config).await {
            Ok(client) => {
                self.connection = Some(LeaderConnection::open(
                    config,
                    client,
                    self.config.identity_export,
                    &self.fence,
                    &self.context.changed,
                    &self.metrics.remote,
                ));
                self.connect_error = None;
            }
            Err(error) => self.connect_error = Some(error.to_string()),
        }
    }

    fn close_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.closed.push(connection.close());
            self.metrics.remote.reset();
        }
    }

    /// Starts the deregistrations of ended memberships, those that ended before this process started included, and
    /// drops the deregistrations of resumed ones.
    fn sync_deregistrations(&mut self, snapshot: &MemberSnapshot) {
        if unreadable_imports::is_membership_hidden(snapshot) {
            return;
        }
        let set = membership::active_cluster_set(snapshot);
        let record = MembershipRecord::from_snapshot(snapshot);
        self.deregistrations.set_identity(ClusterIdentity {
            uid: cluster_copy::own_uid(snapshot),
            instance: snapshot.instance.own.clone(),
        });
        self.deregistrations.retain(|membership| {
            let state = snapshot.deregistrations.get(membership);
            let is_confirmed = state == Some(&DeregistrationState::Confirmed);
            let is_recorded = record.endpoints.contains_key(membership);
            membership.has_ended(set) && (!is_confirmed || is_recorded)
        });
        if is_kept(snapshot, set) {
            return;
        }
        let secrets = || Api::namespaced(self.context.client.clone(), &self.namespace);
        for closed in std::mem::take(&mut self.closed) {
            let membership = Membership::from(&closed.config);
            if membership.has_ended(set) {
                let endpoint = record.endpoints.get(&membership);
                self.deregistrations
                    .start(&membership, endpoint, Some(closed), secrets(), &self.env);
            }
        }
        for (membership, endpoint) in deregistration::ended(&record, set) {
            self.deregistrations
                .start(membership, Some(endpoint), None, secrets(), &self.env);
        }
    }

    /// Watches the addresses of Pods while agents need them.
    fn sync_pod_addresses(&mut self, snapshot: &MemberSnapshot) {
        match (address_groups::are_needed(snapshot), &self.pod_addresses) {
            (true, None) => self.pod_addresses = Some(PodAddressWatch::watch(&self.context)),
            (false, Some(_)) => self.pod_addresses = None,
            (true, Some(_)) | (false, None) => {}
        }
    }

    fn sync_secret(&mut self, name: Option<&str>) {
        if self.secret.as_ref().map(|s| s.name.as_str()) != name {
            self.secret = name.map(|name| SecretPoll::new(&self.context, &self.namespace, name));
        }
    }

    fn secret_state(&self) -> SecretState {
        self.secret
            .as_ref()
            .map_or(SecretState::Pending, SecretPoll::state)
    }

    fn reconcile(&mut self, persistent_failures: BTreeMap<ObjectRef, String>) -> Plan {
        let mut snapshot = self.snapshot();
        snapshot.persistent_failures = persistent_failures;
        let start = Instant::now();
        let mut plan = member::plan(&snapshot);
        if member::is_active(&snapshot) {
            let (tracker, start) = &mut self.instance;
            tracker.hold_deletions(&snapshot, &mut plan, start.elapsed());
        }
        if let Some(error) = &self.cidr_discovery.error {
            plan.issue(IssueCode::ServiceCidrUnknown, "serviceCIDR", error.as_str());
        }
        let gauges = ObjectGauges::Member(MemberGauges::from_snapshot(&snapshot));
        self.metrics
            .reconciled(start.elapsed(), snapshot.now, &plan, gauges);
        plan
    }

    fn snapshot(&mut self) -> MemberSnapshot {
        let now = self.env.now();
        let connection = match (&self.connection, &self.connect_error) {
            (Some(connection), _) => connection.state(),
            (None, Some(error)) => LeaderConnectionState::Down { error: error.clone() },
            (None, None) => LeaderConnectionState::Idle,
        };
        let stores = &self.stores;
        let cluster_sets = stores.cluster_sets.full_snapshot();
        let mut snapshot = MemberSnapshot {
            now,
            namespace: self.namespace.clone(),
            config: self.config.clone(),
            service_cidrs: self.service_cidrs.clone(),
            cluster_sets: cluster_sets.objects,
            unreadable_cluster_sets: cluster_sets.unreadable,
            memberships: stores.memberships.snapshot(),
            deregistrations: self.deregistrations.states(),
            cluster_claims: stores.cluster_claims.optional(),
            node_keys: stores.node_keys.snapshot(),
            nodes: stores.nodes.snapshot(),
            namespaces: stores.namespaces.snapshot(),
            services: stores.services.snapshot(),
            endpoint_slices: stores.endpoint_slices.snapshot(),
            service_exports: stores.service_exports.snapshot(),
            service_imports: stores.service_imports.snapshot(),
            gateways: stores.gateways.snapshot(),
            cluster_infos: stores.cluster_infos.snapshot(),
            pod_labels: stores.pods.as_ref().and_then(PodLabelWatch::labels),
            label_identities: stores.label_identities.optional(),
            policies: stores.policies.optional(),
            network_policies: stores.network_policies.optional(),
            cluster_groups: stores.cluster_groups.optional(),
            groups: stores.groups.optional(),
            node_policy_statuses: stores.node_policy_statuses.optional(),
            node_reachabilities: stores.node_reachabilities.optional(),
            address_group_slices: stores.address_group_slices.optional(),
            pod_addresses: self.pod_addresses.as_ref().and_then(|(pods, _)| pods.addresses()),
            tiers: stores.tiers.optional(),
            persistent_failures: BTreeMap::new(),
            status_times: self.status_times.clone(),
            secret: self.secret_state(),
            connection,
            announce_unchanged_for: Duration::ZERO,
            instance: Instance::default(),
            leader: self.connection.as_mut().map(|c| c.remote_objects(now)),
        };
        self.read_announce(&mut snapshot);
        let (tracker, start) = &self.instance;
        snapshot.instance = tracker.instance(start.elapsed());
        snapshot
    }

    /// Sets the time since the last heartbeat in this cluster's announce, and compares its instance with this run.
    fn read_announce(&mut self, snapshot: &mut MemberSnapshot) {
        let is_connected = snapshot.connection == LeaderConnectionState::Up;
        let leader = snapshot
            .leader
            .as_ref()
            .filter(|leader| is_connected && leader.synced);
        let set = membership::active_cluster_set(snapshot);
        let announce = leader
            .zip(set)
            .and_then(|(leader, set)| announce::announce(leader, set));
        let Some(announce) = announce else {
            self.heartbeat_seen = None;
            return;
        };
        let (heartbeat, now) = (announce.heartbeat(), Instant::now());
        let unchanged_for = match &self.heartbeat_seen {
            Some((known, since)) if *known == heartbeat => now.saturating_duration_since(*since),
            _ => {
                self.heartbeat_seen = Some((heartbeat.to_owned(), now));
                Duration::ZERO
            }
        };
        let (tracker, start) = &mut self.instance;
        tracker.update(announce, unchanged_for, start.elapsed());
        snapshot.announce_unchanged_for = unchanged_for;
    }

    fn next_requeue(&self) -> Option<Instant> {
        let discovery = &self.cidr_discovery;
        let discovery = discovery.error.as_ref().map(|_| discovery.next);
        let connection = self.connection.as_ref().and_then(LeaderConnection::next_requeue);
        discovery.into_iter().chain(connection).min()
    }
}

/// Whether the membership outlasts its deleted `ClusterSet`.
fn is_kept(snapshot: &MemberSnapshot, set: Option<&ClusterSet>) -> bool {
    set.is_none() && matches!(without_cluster_set::phase(snapshot), MembershipPhase::Kept { .. })
}
