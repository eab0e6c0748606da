//! Background deregistration from former leaders, retried until confirmed.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::ListParams,
    core::{ApiResource, DynamicObject},
};
use mc_api::{member_cluster_announce::MemberClusterAnnounce, names, resource_export::ResourceExport};
use mc_kube::{AbortOnDrop, Backoff, error_chain, jitter_seed};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};
use tracing::info;

use super::{
    api_health::ApiHealth, applier::Applier, batch::MAX_BATCH, env::Environment,
    leader_connection::ClosedConnection,
};
use crate::{
    fence::Fence,
    member::{
        cluster_copy::{AnnounceObserver, AnnounceOwner, ClusterIdentity},
        connection_config::{self, LeaderConnectionConfig},
        deregistration::{self, FormerMemberObjects},
        membership_record::LeaderEndpoint,
    },
    snapshot::{DeregistrationState, Membership},
};

/// Time limit for connecting and reading; each deletion has the applier's own.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest delay after a failure.
const MIN_BACKOFF: Duration = Duration::from_millis(100);
/// The longest delay after a failure.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// The time in which an earlier request may still be executed: the announce has to be absent after it, too.
const CONFIRMATION_DELAY: Duration = Duration::from_secs(15);
/// The time after which the leader is read again, at least.
const REREAD_DELAY: Duration = Duration::from_secs(1);
/// The time between two reads of an announce without a known owner.
const OBSERVATION_PERIOD: Duration = Duration::from_secs(5);
/// Exports per page of a list.
const PAGE_SIZE: u32 = 100;

/// The result of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CleanupResult {
    /// Objects of the membership were found and deleted.
    Deleted,
    /// The leader's controller is releasing the announce.
    Releasing,
    /// The leader has no object of the membership.
    Clean,
    /// The announce can be that of a former run of this cluster's controller, or of another cluster.
    Unknown,
}

/// All deregistrations of this process.
///
/// Guarantee: nothing is written while the fence is closed.
pub struct Deregistrations {
    fence: Fence,
    changed: Arc<Notify>,
    /// The marks of this cluster's announce.
    own: ClusterIdentity,
    tasks: BTreeMap<Membership, DeregistrationTask>,
}

struct DeregistrationTask {
    state: Arc<Mutex<DeregistrationState>>,
    endpoint: Arc<Mutex<Option<LeaderEndpoint>>>,
    _task: AbortOnDrop,
}

/// One deregistration, in its task.
struct Deregistration {
    membership: Membership,
    endpoint: Arc<Mutex<Option<LeaderEndpoint>>>,
    /// The client of the last connection; its token may have been revoked.
    last_client: Option<Client>,
    secrets: Api<Secret>,
    /// The marks of this cluster's announce.
    own: ClusterIdentity,
    env: Arc<dyn Environment>,
    fence: Fence,
}

// === impl Deregistrations ===

impl Deregistrations {
    /// No deregistrations yet; they write while `fence` is open and notify `changed` of their progress.
    #[must_use]
    pub fn new(fence: Fence, changed: Arc<Notify>) -> Self {
        Self {
            fence,
            changed,
            own: ClusterIdentity::default(),
            tasks: BTreeMap::new(),
        }
    }

    /// Sets the marks of this cluster's announce, for deregistrations that start from now on.
    pub fn set_identity(&mut self, own: ClusterIdentity) {
        self.own = own;
    }

    /// Starts or continues a deregistration with the current credentials of the endpoint's Secret, one of `secrets`;
    /// falls back to the client of a closed connection.
    pub fn start(
        &mut self,
        membership: &Membership,
        endpoint: Option<&LeaderEndpoint>,
        closed: Option<ClosedConnection>,
        secrets: Api<Secret>,
        env: &Arc<dyn Environment>,
    ) {
        if let Some(task) = self.tasks.get(membership) {
            // The record may have been written after the start.
            if let Some(endpoint) = endpoint {
                *lock(&task.endpoint) = Some(endpoint.clone());
            }
            return;
        }
        let state = Arc::new(Mutex::new(DeregistrationState::InProgress));
        let endpoint = Arc::new(Mutex::new(endpoint.cloned()));
        let (last_client, in_flight) = closed.map_or((None, None), |c| (Some(c.client), c.in_flight));
        let deregistration = Deregistration {
            membership: membership.clone(),
            endpoint: endpoint.clone(),
            last_client,
            secrets,
            own: self.own.clone(),
            env: env.clone(),
            fence: self.fence.clone(),
        };
        let (progress, changed) = (state.clone(), self.changed.clone());
        let task = AbortOnDrop::spawn(async move {
            // A write that reaches the leader after the clean-up would remain there.
            if let Some(in_flight) = in_flight {
                let _applier = in_flight.await;
            }
            deregistration.run(&progress, &changed).await;
        });
        let task = DeregistrationTask {
            state,
            endpoint,
            _task: task,
        };
        self.tasks.insert(membership.clone(), task);
    }

    /// The state of each deregistration.
    #[must_use]
    pub fn states(&self) -> BTreeMap<Membership, DeregistrationState> {
        let states = self.tasks.iter();
        states
            .map(|(membership, task)| (membership.clone(), lock(&task.state).clone()))
            .collect()
    }

    /// Drops the deregistrations of memberships for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(&Membership) -> bool) {
        self.tasks.retain(|membership, _| keep(membership));
    }
}

// === impl Deregistration ===

impl Deregistration {
    /// Repeats attempts until one confirms the deregistration.
    async fn run(&self, state: &Mutex<DeregistrationState>, changed: &Notify) {
        let start = Instant::now();
        let mut deleted_at = start;
        let mut observer = AnnounceObserver::default();
        let seed = jitter_seed([self.membership.cluster_id.as_str()]);
        let mut backoff = Backoff::new(MIN_BACKOFF, MAX_BACKOFF, seed);
        loop {
            let (new, wait) = match self.attempt(&mut observer, start).await {
                Ok(CleanupResult::Clean) if start.elapsed() >= CONFIRMATION_DELAY => {
                    (DeregistrationState::Confirmed, Duration::ZERO)
                }
                // A leader without a controller releases nothing.
                Ok(CleanupResult::Releasing) if deleted_at.elapsed() >= CONFIRMATION_DELAY => {
                    (DeregistrationState::Confirmed, Duration::ZERO)
                }
                Ok(CleanupResult::Unknown) => (DeregistrationState::InProgress, OBSERVATION_PERIOD),
                Ok(result) => {
                    if result == CleanupResult::Deleted {
                        deleted_at = Instant::now();
                    }
                    let remaining = CONFIRMATION_DELAY.saturating_sub(start.elapsed());
                    (DeregistrationState::InProgress, remaining.max(REREAD_DELAY))
                }
                Err(error) => (DeregistrationState::Failing(error), backoff.next_delay()),
            };
            if !matches!(new, DeregistrationState::Failing(_)) {
                backoff.reset();
            }
            let confirmed = new == DeregistrationState::Confirmed;
            {
                let mut state = lock(state);
                if *state != new {
                    *state = new;
                    changed.notify_one();
                }
            }
            if confirmed {
                let set = self.membership.cluster_set.as_str();
                return info!(set, "deregistered from the leader");
            }
            sleep(wait).await;
        }
    }

    /// Reads the leader's state and executes the deletions planned for it.
    async fn attempt(
        &self,
        observer: &mut AnnounceObserver,
        start: Instant,
    ) -> Result<CleanupResult, String> {
        if !self.fence.is_open() {
            return Err("the Lease was not renewed: another replica may be active".to_owned());
        }
        let read = async {
            let client = self.client().await?;
            let objects = read_objects(&client, &self.membership).await?;
            Ok((client, objects))
        };
        let no_answer = |_| Err(format!("no answer within {} s", READ_TIMEOUT.as_secs()));
        let (client, objects) = timeout(READ_TIMEOUT, read).await.unwrap_or_else(no_answer)?;
        let announce = objects.announce.as_ref();
        let owner = announce.map_or(AnnounceOwner::Own, |announce| {
            observer.owner(&self.own, announce, start.elapsed())
        });
        if owner == AnnounceOwner::Unknown {
            return Ok(CleanupResult::Unknown);
        }
        let plan = deregistration::plan(&self.membership, owner, &objects);
        if plan.writes.is_empty() {
            let is_releasing = announce.is_some() && owner == AnnounceOwner::Own;
            return Ok(if is_releasing {
                CleanupResult::Releasing
            } else {
                CleanupResult::Clean
            });
        }
        // The leader's metrics are those of the active connection.
        let health = ApiHealth::new(&Arc::default());
        let mut applier = Applier::new(client, self.fence.clone(), health);
        for batch in plan.writes.chunks(MAX_BATCH) {
            applier.run(batch.to_vec()).await;
            if let Some(error) = applier.any_failure() {
                return Err(error.to_owned());
            }
        }
        Ok(CleanupResult::Deleted)
    }

    /// A client with the current credentials, else that of the last connection.
    async fn client(&self) -> Result<Client, String> {
        let endpoint = lock(&self.endpoint).clone();
        let connected = match endpoint {
            Some(endpoint) => self.connect(endpoint).await,
            None => Err("the membership record has no endpoint".to_owned()),
        };
        connected.or_else(|error| self.last_client.clone().ok_or(error))
    }

    async fn connect(&self, endpoint: LeaderEndpoint) -> Result<Client, String> {
        let found = self.secrets.get_opt(&endpoint.secret).await;
        let secret = found.map_err(|e| error_chain(&e))?;
        let secret = secret.ok_or_else(|| format!("Secret {:?} does not exist", endpoint.secret))?;
        let (ca, credentials) = connection_config::credentials(&secret).map_err(|e| e.to_string())?;
        let config = LeaderConnectionConfig {
            cluster_set: self.membership.cluster_set.clone(),
            cluster_id: self.membership.cluster_id.clone(),
            namespace: self.membership.namespace.clone(),
            server: endpoint.server,
            ca,
            credentials,
        };
        self.env.connect(&config).await.map_err(|e| e.to_string())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The objects of the membership; the exports only once the announce is gone.
async fn read_objects(client: &Client, membership: &Membership) -> Result<FormerMemberObjects, String> {
    let api: Api<MemberClusterAnnounce> = Api::namespaced(client.clone(), &membership.namespace);
    let name = names::member_announce(&membership.cluster_id);
    let announce = api.get_opt(&name).await.map_err(|e| error_chain(&e))?;
    let exports = match announce {
        Some(_) => vec![],
        None => list_exports(client, &membership.namespace).await?,
    };
    Ok(FormerMemberObjects { announce, exports })
}

/// All exports of a namespace. Objects that do not match their type are skipped: this cluster did not write them.
async fn list_exports(client: &Client, namespace: &str) -> Result<Vec<ResourceExport>, String> {
    let resource = ApiResource::erase::<ResourceExport>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let mut page = ListParams::default().limit(PAGE_SIZE);
    let mut all = vec![];
    loop {
        let exports = api.list(&page).await.map_err(|e| error_chain(&e))?;
        let next = exports.metadata.continue_.filter(|next| !next.is_empty());
        all.extend(exports.items.into_iter().filter_map(|e| e.try_parse().ok()));
        let Some(next) = next else {
            return Ok(all);
        };
        page = page.continue_token(&next);
    }
}
