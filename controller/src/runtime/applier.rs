//! Executes the writes of a plan; the only writer of objects besides the Lease and Events.
//!
//! A failed write is not repeated as such: its object is held back for a while, and the next plan decides again. After
//! a write no plan is made until the cache contains it, so that no decision is based on stale objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, stream};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::DynamicObject,
};
use mc_api::names::FIELD_MANAGER;
use mc_kube::{Backoff, CacheState, WatchObserver as _, error_chain, jitter_seed};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{api_health::ApiHealth, batch};
use crate::{
    fence::Fence,
    metrics::api_metrics::WriteResult,
    plan::{Kind, ObjectRef, Write, WriteOp},
};

/// Time limit for one request; the watch shows the effect of a later one. A request that starts while the Lease is held
/// ends before another replica may acquire it ([`crate::lease`]).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time a plan waits for the cache to contain a write.
const CACHE_TIMEOUT: Duration = Duration::from_secs(2);
/// The shortest delay before an object is written again after a failure.
const MIN_BACKOFF: Duration = Duration::from_millis(20);
/// The longest delay before an object is written again after a failure.
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Requests in flight.
const MAX_IN_FLIGHT: usize = 32;

/// Writes to one API server.
pub struct Applier {
    client: Client,
    fence: Fence,
    health: Arc<ApiHealth>,
    retries: BTreeMap<ObjectRef, Retry>,
    written: BTreeMap<ObjectRef, PendingObservation>,
}

#[derive(Debug)]
struct Retry {
    failures: u32,
    backoff: Backoff,
    not_before: Instant,
    message: String,
    /// Whether the API server rejected the last write.
    rejected: bool,
}

#[derive(Debug)]
struct PendingObservation {
    /// The version that the cache has to reach; `None`: the object has to disappear.
    version: Option<u64>,
    deadline: Instant,
}

/// The outcome of a request.
enum Outcome {
    Written(Option<String>),
    Deleted,
    /// The object differs from the cached one; the watch will show it.
    Conflict(String),
    /// The API server is overloaded or failing; the delay it requests.
    Throttled(String, Option<Duration>),
    /// The API server rejects the write.
    Rejected(String),
    /// No answer, or not authenticated.
    Unreachable(String),
}

// === impl Outcome ===

impl Outcome {
    fn result(&self) -> WriteResult {
        match self {
            Self::Written(_) | Self::Deleted => WriteResult::Done,
            Self::Conflict(_) => WriteResult::Conflict,
            Self::Rejected(..) => WriteResult::Rejected,
            Self::Throttled(..) => WriteResult::Throttled,
            Self::Unreachable(_) => WriteResult::Unreachable,
        }
    }
}

// === impl Applier ===

impl Applier {
    /// Writes with `client` while `fence` is open.
    #[must_use]
    pub fn new(client: Client, fence: Fence, health: Arc<ApiHealth>) -> Self {
        Self {
            client,
            fence,
            health,
            retries: BTreeMap::new(),
            written: BTreeMap::new(),
        }
    }

    /// Executes a batch of the writes that are not held back: additions first, then removals.
    pub async fn run(&mut self, writes: Vec<Write>) {
        let now = Instant::now();
        self.health.metrics().set_pending(&writes);
        self.drop_unplanned_retries(&writes, now);
        let due = writes
            .into_iter()
            .filter(|a| self.retries.get(&a.target).is_none_or(|r| r.not_before <= now));
        let (removals, additions): (Vec<_>, Vec<_>) = batch::select_batch(due.collect(), batch::MAX_BATCH)
            .into_iter()
            .partition(|a| matches!(a.op, WriteOp::Delete { .. }));
        let failed = self.batch(additions).await;
        // The old Gateway stays until its replacement is written.
        let keep = |a: &Write| a.target.kind == Kind::Gateway && failed.contains(&Kind::Gateway);
        self.batch(removals.into_iter().filter(|a| !keep(a)).collect())
            .await;
        self.health
            .metrics()
            .set_failing(self.persistent_failures().map(|(target, _)| target));
    }

    /// Whether any of these writes is not held back.
    #[must_use]
    pub fn is_due(&self, writes: &[Write]) -> bool {
        let now = Instant::now();
        let held = |a: &Write| self.retries.get(&a.target).is_some_and(|r| r.not_before > now);
        writes.iter().any(|a| !held(a))
    }

    /// Drops retry state for writes no longer planned.
    fn drop_unplanned_retries(&mut self, writes: &[Write], now: Instant) {
        let planned: BTreeSet<_> = writes.iter().map(|a| &a.target).collect();
        self.retries
            .retain(|target, retry| planned.contains(target) || retry.not_before > now);
    }

    async fn batch(&mut self, writes: Vec<Write>) -> BTreeSet<Kind> {
        let (client, fence, tally) = (&self.client, &self.fence, self.health.metrics());
        let outcomes: Vec<_> = stream::iter(writes)
            .map(|action| async move {
                let outcome = if fence.is_open() {
                    request(client, &action).await
                } else {
                    Outcome::Unreachable(
                        "the Lease was not renewed: another replica may be active".to_owned(),
                    )
                };
                tally.progress();
                (action, outcome)
            })
            .buffer_unordered(MAX_IN_FLIGHT)
            .collect()
            .await;
        let mut failed = BTreeSet::new();
        for (action, outcome) in outcomes {
            if !self.record_outcome(&action, outcome) {
                failed.insert(action.target.kind);
            }
        }
        failed
    }

    fn record_outcome(&mut self, Write { target, op }: &Write, outcome: Outcome) -> bool {
        let deadline = Instant::now() + CACHE_TIMEOUT;
        let verb = op.verb();
        self.health.metrics().write(target, outcome.result());
        if !matches!(outcome, Outcome::Unreachable(_)) {
            self.health.succeeded();
        }
        let rejected = matches!(outcome, Outcome::Rejected(_));
        let (message, wait) = match outcome {
            Outcome::Written(version) => {
                info!(%target, "{verb}");
                self.retries.remove(target);
                if let Some(version) = version.and_then(|v| v.parse().ok()) {
                    self.written.insert(
                        target.clone(),
                        PendingObservation {
                            version: Some(version),
                            deadline,
                        },
                    );
                }
                return true;
            }
            Outcome::Deleted => {
                info!(%target, "{verb}");
                self.retries.remove(target);
                self.written.insert(
                    target.clone(),
                    PendingObservation {
                        version: None,
                        deadline,
                    },
                );
                return true;
            }
            Outcome::Conflict(message) => {
                debug!(%target, message, "{verb} conflicted");
                (message, None)
            }
            Outcome::Throttled(message, wait) => (message, wait),
            Outcome::Rejected(message) => (message, None),
            Outcome::Unreachable(message) => {
                self.health.failed(message.clone());
                (message, None)
            }
        };
        let retry = self.retries.entry(target.clone()).or_insert_with(|| Retry {
            failures: 0,
            backoff: Backoff::new(
                MIN_BACKOFF,
                MAX_BACKOFF,
                jitter_seed([target.to_string().as_str()]),
            ),
            not_before: Instant::now(),
            message: String::new(),
            rejected,
        });
        let delay = retry.backoff.next_delay();
        retry.failures = retry.failures.saturating_add(1);
        retry.not_before = Instant::now() + wait.unwrap_or(delay);
        // The first failure may be a race.
        if retry.failures == 2 || retry.failures.is_multiple_of(30) {
            warn!(%target, message, failures = retry.failures, "{verb} failed");
        }
        retry.message = message;
        retry.rejected = rejected;
        false
    }

    /// Whether the caches contain all writes. `state` returns nothing for kinds that are not watched.
    ///
    /// Resource versions grow within a kind, so a newer one of any object suffices: the object itself may have been
    /// deleted meanwhile, for example by the patch that removed its last finalizer.
    pub fn cache_caught_up(&mut self, state: impl Fn(&ObjectRef) -> Option<CacheState>) -> bool {
        let now = Instant::now();
        self.written.retain(|target, written| {
            let observed = state(target).is_none_or(|state| match written.version {
                Some(version) => state.newest_version >= version,
                None => !state.active,
            });
            !observed && written.deadline > now
        });
        self.written.is_empty()
    }

    /// Writes that failed more than once and have not succeeded since, with the last error.
    #[must_use]
    pub fn failure_messages(&self) -> BTreeMap<ObjectRef, String> {
        self.persistent_failures()
            .map(|(target, r)| (target.clone(), r.message.clone()))
            .collect()
    }

    /// Those of [`Applier::failure_messages`] that the API server rejected.
    #[must_use]
    pub fn rejected_writes(&self) -> BTreeMap<ObjectRef, String> {
        let mut failing = self.failure_messages();
        failing.retain(|target, _| self.retries.get(target).is_some_and(|r| r.rejected));
        failing
    }

    /// The error of a write that failed and has not succeeded since.
    pub(super) fn any_failure(&self) -> Option<&str> {
        self.retries.values().next().map(|r| r.message.as_str())
    }

    fn persistent_failures(&self) -> impl Iterator<Item = (&ObjectRef, &Retry)> {
        self.retries.iter().filter(|(_, r)| r.failures >= 2)
    }

    /// The next time at which something is due without an event.
    #[must_use]
    pub fn next_requeue(&self) -> Option<Instant> {
        let now = Instant::now();
        let retries = self.retries.values().map(|r| r.not_before).filter(|at| *at > now);
        retries.chain(self.written.values().map(|w| w.deadline)).min()
    }
}

async fn request(client: &Client, action: &Write) -> Outcome {
    match tokio::time::timeout(REQUEST_TIMEOUT, send(client, action)).await {
        Err(_) => Outcome::Unreachable(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())),
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => classify_error(&action.op, &error),
    }
}

async fn send(client: &Client, Write { target, op }: &Write) -> kube::Result<Outcome> {
    let resource = target.kind.api_resource();
    let api: Api<DynamicObject> = if target.namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &target.namespace, &resource)
    };
    let name = &target.name;
    let manager = || PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let written = |object: DynamicObject| Outcome::Written(object.metadata.resource_version);
    Ok(match op {
        WriteOp::Create(body) => {
            let params = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            written(
                api.create(
                    &params,
                    &serde_json::from_str(body.text()).map_err(kube::Error::SerdeError)?,
                )
                .await?,
            )
        }
        WriteOp::Apply(body) => written(
            api.patch(
                name,
                &PatchParams::apply(FIELD_MANAGER).force(),
                &Patch::Apply(body),
            )
            .await?,
        ),
        WriteOp::Patch(patch) => written(api.patch(name, &manager(), &Patch::Merge(patch)).await?),
        WriteOp::Status(patch) => written(api.patch_status(name, &manager(), &Patch::Merge(patch)).await?),
        WriteOp::Delete { uid, version } => {
            let preconditions = Preconditions {
                uid: uid.clone(),
                resource_version: version.clone(),
            };
            let params = DeleteParams {
                preconditions: Some(preconditions),
                ..DeleteParams::default()
            };
            let _answer = api.delete(name, &params).await?;
            Outcome::Deleted
        }
    })
}

fn classify_error(op: &WriteOp, error: &kube::Error) -> Outcome {
    let message = error_chain(error);
    let kube::Error::Api(status) = error else {
        return Outcome::Unreachable(message);
    };
    let message = if status.message.is_empty() {
        message
    } else {
        status.message.clone()
    };
    match (status.code, op) {
        (404, WriteOp::Delete { .. }) => Outcome::Deleted,
        // Gone or never there, changed, taken, or being deleted.
        (404, WriteOp::Patch(_) | WriteOp::Status(_)) | (409, _) => Outcome::Conflict(message),
        (401, _) => Outcome::Unreachable(message),
        (429 | 503, _) => {
            let seconds = status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
            let wait = Duration::from_secs(u64::from(seconds)).clamp(Duration::from_secs(1), MAX_BACKOFF);
            Outcome::Throttled(message, Some(wait))
        }
        (500.., _) => Outcome::Throttled(message, None),
        _ => Outcome::Rejected(message),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;
    use crate::raw_json::RawJson;

    fn api(code: u16) -> kube::Error {
        kube::Error::Api(Status::failure("why", "Reason").with_code(code).boxed())
    }

    #[test]
    fn errors_are_classified() {
        let delete = WriteOp::Delete {
            uid: None,
            version: None,
        };
        let patch = WriteOp::Patch(RawJson::default());
        assert!(matches!(classify_error(&delete, &api(404)), Outcome::Deleted));
        assert!(matches!(classify_error(&patch, &api(404)), Outcome::Conflict(_)));
        assert!(matches!(classify_error(&patch, &api(409)), Outcome::Conflict(_)));
        assert!(matches!(classify_error(&delete, &api(409)), Outcome::Conflict(_)));
        assert!(matches!(
            classify_error(&patch, &api(401)),
            Outcome::Unreachable(_)
        ));
        assert!(matches!(classify_error(&patch, &api(403)), Outcome::Rejected(_)));
        assert!(matches!(
            classify_error(&patch, &api(500)),
            Outcome::Throttled(_, None)
        ));
        assert!(matches!(
            classify_error(&patch, &api(429)),
            Outcome::Throttled(_, Some(_))
        ));
        assert!(matches!(
            classify_error(&patch, &kube::Error::LinesCodecMaxLineLengthExceeded),
            Outcome::Unreachable(_)
        ));
    }

    #[tokio::test]
    async fn retry_state_ends_with_the_plan() {
        let target = |name: &str| ObjectRef {
            side: crate::plan::ApiServer::Local,
            kind: Kind::ClusterNetworkPolicy,
            namespace: String::new(),
            name: name.to_owned(),
        };
        let action = |name: &str| Write {
            target: target(name),
            op: WriteOp::Create(RawJson::default()),
        };
        let config = kube::Config::new("http://127.0.0.1:9".parse().expect("a URL"));
        let client = Client::try_from(config).expect("a client");
        let mut applier = Applier::new(client, Fence::open(), Arc::default());
        for _ in 0..2 {
            for name in ["a", "b"] {
                applier.record_outcome(
                    &action(name),
                    Outcome::Throttled("no".to_owned(), Some(Duration::ZERO)),
                );
            }
        }
        assert_eq!(applier.failure_messages().len(), 2);
        let now = Instant::now() + Duration::from_millis(1);
        applier.drop_unplanned_retries(&[action("a")], now);
        assert_eq!(
            applier.failure_messages(),
            [(target("a"), "no".to_owned())].into()
        );
        // A held-back write keeps its state: an intermittent one is not retried more often for it.
        applier.record_outcome(
            &action("a"),
            Outcome::Throttled("no".to_owned(), Some(Duration::from_mins(1))),
        );
        applier.drop_unplanned_retries(&[], now);
        assert_eq!(applier.failure_messages().len(), 1);
        // A throttled write is not rejected.
        assert!(applier.rejected_writes().is_empty());
        applier.record_outcome(&action("a"), Outcome::Rejected("never".to_owned()));
        assert_eq!(
            applier.rejected_writes(),
            [(target("a"), "never".to_owned())].into()
        );
    }
}
