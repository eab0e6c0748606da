//! The one place that writes: carries out the actions of a plan.
//!
//! A failed action is not repeated as such: it holds back its target for a while, and the next plan decides anew.
//! After a write no plan is made until the watch has shown it, so that nothing is decided on stale sight.

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
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    batch,
    election::Fence,
    watch::{Health, Sight, chain},
};
use crate::{
    api::names::FIELD_MANAGER,
    metrics::tally::Fate,
    plan::{Action, Kind, Op, Target},
};

/// How long one request may take; what came of it after that is seen in the watch. One that begins while the Lease is
/// held ends before somebody else may take it ([`crate::lease`]).
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the watch may lag behind a write before plans go on without.
const LAG: Duration = Duration::from_secs(2);
/// The longest a failing target is held back.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// Requests under way at a time.
const WIDTH: usize = 32;

/// Writes to one API server.
pub struct Applier {
    client: Client,
    fence: Fence,
    health: Arc<Health>,
    retries: BTreeMap<Target, Retry>,
    written: BTreeMap<Target, Written>,
}

#[derive(Debug)]
struct Retry {
    failures: u32,
    not_before: Instant,
    message: String,
    /// Whether the last answer was that it is not taken like this.
    refused: bool,
}

#[derive(Debug)]
struct Written {
    /// What the watch has to reach; `None`: the object has to go.
    version: Option<u64>,
    deadline: Instant,
}

/// What came of a request.
enum Outcome {
    Written(Option<String>),
    Deleted,
    /// The object is not what it was taken for; the watch will show.
    Stale(String),
    /// Answered: not now; waiting the given time is advised.
    Busy(String, Option<Duration>),
    /// Answered: not like this.
    Refused(String),
    /// Not answered, or not authenticated.
    Unreachable(String),
}

// === impl Outcome ===

impl Outcome {
    fn fate(&self) -> Fate {
        match self {
            Self::Written(_) | Self::Deleted => Fate::Done,
            Self::Stale(_) => Fate::Stale,
            Self::Refused(..) => Fate::Refused,
            Self::Busy(..) => Fate::Busy,
            Self::Unreachable(_) => Fate::Unreachable,
        }
    }
}

// === impl Applier ===

impl Applier {
    /// Writes with `client` while `fence` is open.
    #[must_use]
    pub fn new(client: Client, fence: Fence, health: Arc<Health>) -> Self {
        Self {
            client,
            fence,
            health,
            retries: BTreeMap::new(),
            written: BTreeMap::new(),
        }
    }

    /// Carries out what is not held back, or a part of it if that is much: what adds first, then what removes.
    pub async fn run(&mut self, actions: Vec<Action>) {
        let now = Instant::now();
        self.health.tally().ask(&actions);
        self.forget(&actions, now);
        let due = actions
            .into_iter()
            .filter(|a| self.retries.get(&a.target).is_none_or(|r| r.not_before <= now));
        let (removals, additions): (Vec<_>, Vec<_>) = batch::choose(due.collect(), batch::MOST)
            .into_iter()
            .partition(|a| matches!(a.op, Op::Delete { .. }));
        let failed = self.batch(additions).await;
        // A new Gateway that could not be written must not cost the old one.
        let keep = |a: &Action| a.target.kind == Kind::Gateway && failed.contains(&Kind::Gateway);
        self.batch(removals.into_iter().filter(|a| !keep(a)).collect())
            .await;
        self.health
            .tally()
            .failing(self.hopeless().map(|(target, _)| target));
    }

    /// Whether any of these is not held back.
    #[must_use]
    pub fn is_due(&self, actions: &[Action]) -> bool {
        let now = Instant::now();
        let held = |a: &Action| self.retries.get(&a.target).is_some_and(|r| r.not_before > now);
        actions.iter().any(|a| !held(a))
    }

    /// What nobody wants any more has not failed.
    fn forget(&mut self, actions: &[Action], now: Instant) {
        let asked: BTreeSet<_> = actions.iter().map(|a| &a.target).collect();
        self.retries
            .retain(|target, retry| asked.contains(target) || retry.not_before > now);
    }

    async fn batch(&mut self, actions: Vec<Action>) -> BTreeSet<Kind> {
        let (client, fence, tally) = (&self.client, &self.fence, self.health.tally());
        let outcomes: Vec<_> = stream::iter(actions)
            .map(|action| async move {
                let outcome = if fence.is_open() {
                    request(client, &action).await
                } else {
                    Outcome::Unreachable(
                        "another replica may be working: the Lease was not renewed".to_owned(),
                    )
                };
                tally.progress();
                (action, outcome)
            })
            .buffer_unordered(WIDTH)
            .collect()
            .await;
        let mut failed = BTreeSet::new();
        for (action, outcome) in outcomes {
            if !self.record(&action, outcome) {
                failed.insert(action.target.kind);
            }
        }
        failed
    }

    fn record(&mut self, Action { target, op }: &Action, outcome: Outcome) -> bool {
        let deadline = Instant::now() + LAG;
        let verb = op.verb();
        self.health.tally().write(target, outcome.fate());
        if !matches!(outcome, Outcome::Unreachable(_)) {
            self.health.ok();
        }
        let refused = matches!(outcome, Outcome::Refused(_));
        let (message, wait) = match outcome {
            Outcome::Written(version) => {
                info!(%target, "{verb}");
                self.retries.remove(target);
                if let Some(version) = version.and_then(|v| v.parse().ok()) {
                    self.written.insert(
                        target.clone(),
                        Written {
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
                    Written {
                        version: None,
                        deadline,
                    },
                );
                return true;
            }
            Outcome::Stale(message) => {
                debug!(%target, message, "{verb} came too late");
                (message, None)
            }
            Outcome::Busy(message, wait) => (message, wait),
            Outcome::Refused(message) => (message, None),
            Outcome::Unreachable(message) => {
                self.health.failed(message.clone());
                (message, None)
            }
        };
        let retry = self.retries.entry(target.clone()).or_insert_with(|| Retry {
            failures: 0,
            not_before: Instant::now(),
            message: String::new(),
            refused,
        });
        let pause = wait.unwrap_or_else(|| pause(retry.failures));
        retry.failures = retry.failures.saturating_add(1);
        retry.not_before = Instant::now() + pause;
        // The second time it is no race any more.
        if retry.failures == 2 || retry.failures.is_multiple_of(30) {
            warn!(%target, message, failures = retry.failures, "{verb} failed");
        }
        retry.message = message;
        retry.refused = refused;
        false
    }

    /// Whether the watches show everything that was written; forgets what they show. `seen` says nothing of
    /// kinds that nobody watches.
    ///
    /// Resource versions grow within a kind, so a newer one of any object will do: the object itself may have
    /// been deleted meanwhile, for one by the very patch that took its last finalizer.
    pub fn settled(&mut self, seen: impl Fn(&Target) -> Option<Sight>) -> bool {
        let now = Instant::now();
        self.written.retain(|target, written| {
            let shown = seen(target).is_none_or(|sight| match written.version {
                Some(version) => sight.newest >= version,
                None => !sight.alive,
            });
            !shown && written.deadline > now
        });
        self.written.is_empty()
    }

    /// What failed more than once and has not succeeded since, and why.
    #[must_use]
    pub fn failing(&self) -> BTreeMap<Target, String> {
        self.hopeless()
            .map(|(target, r)| (target.clone(), r.message.clone()))
            .collect()
    }

    /// Of [`Applier::failing`] what the API server has answered with a refusal.
    #[must_use]
    pub fn refused(&self) -> BTreeMap<Target, String> {
        let mut failing = self.failing();
        failing.retain(|target, _| self.retries.get(target).is_some_and(|r| r.refused));
        failing
    }

    fn hopeless(&self) -> impl Iterator<Item = (&Target, &Retry)> {
        self.retries.iter().filter(|(_, r)| r.failures >= 2)
    }

    /// When there is something to do again that no event announces.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let now = Instant::now();
        let retries = self.retries.values().map(|r| r.not_before).filter(|at| *at > now);
        retries.chain(self.written.values().map(|w| w.deadline)).min()
    }
}

/// 20 ms, doubled with each failure.
fn pause(failures: u32) -> Duration {
    Duration::from_millis(20)
        .saturating_mul(1 << failures.min(10))
        .min(MAX_PAUSE)
}

async fn request(client: &Client, action: &Action) -> Outcome {
    match tokio::time::timeout(TIMEOUT, send(client, action)).await {
        Err(_) => Outcome::Unreachable(format!("no answer within {} s", TIMEOUT.as_secs())),
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => judge(&action.op, &error),
    }
}

async fn send(client: &Client, Action { target, op }: &Action) -> kube::Result<Outcome> {
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
        Op::Create(body) => {
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
        Op::Apply(body) => written(
            api.patch(
                name,
                &PatchParams::apply(FIELD_MANAGER).force(),
                &Patch::Apply(body),
            )
            .await?,
        ),
        Op::Patch(patch) => written(api.patch(name, &manager(), &Patch::Merge(patch)).await?),
        Op::Status(patch) => written(api.patch_status(name, &manager(), &Patch::Merge(patch)).await?),
        Op::Delete { uid, version } => {
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

fn judge(op: &Op, error: &kube::Error) -> Outcome {
    let message = chain(error);
    let kube::Error::Api(status) = error else {
        return Outcome::Unreachable(message);
    };
    let message = if status.message.is_empty() {
        message
    } else {
        status.message.clone()
    };
    match (status.code, op) {
        (404, Op::Delete { .. }) => Outcome::Deleted,
        // Gone or never there, changed, taken, or being deleted.
        (404, Op::Patch(_) | Op::Status(_)) | (409, _) => Outcome::Stale(message),
        (401, _) => Outcome::Unreachable(message),
        (429 | 503, _) => {
            let seconds = status.details.as_ref().map_or(0, |d| d.retry_after_seconds);
            let wait = Duration::from_secs(u64::from(seconds)).clamp(Duration::from_secs(1), MAX_PAUSE);
            Outcome::Busy(message, Some(wait))
        }
        (500.., _) => Outcome::Busy(message, None),
        _ => Outcome::Refused(message),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;
    use crate::body::Body;

    fn api(code: u16) -> kube::Error {
        kube::Error::Api(Status::failure("why", "Reason").with_code(code).boxed())
    }

    #[test]
    fn errors_are_told_apart() {
        let delete = Op::Delete {
            uid: None,
            version: None,
        };
        let patch = Op::Patch(Body::default());
        assert!(matches!(judge(&delete, &api(404)), Outcome::Deleted));
        assert!(matches!(judge(&patch, &api(404)), Outcome::Stale(_)));
        assert!(matches!(judge(&patch, &api(409)), Outcome::Stale(_)));
        assert!(matches!(judge(&delete, &api(409)), Outcome::Stale(_)));
        assert!(matches!(judge(&patch, &api(401)), Outcome::Unreachable(_)));
        assert!(matches!(judge(&patch, &api(403)), Outcome::Refused(_)));
        assert!(matches!(judge(&patch, &api(500)), Outcome::Busy(_, None)));
        assert!(matches!(judge(&patch, &api(429)), Outcome::Busy(_, Some(_))));
        assert!(matches!(
            judge(&patch, &kube::Error::LinesCodecMaxLineLengthExceeded),
            Outcome::Unreachable(_)
        ));
    }

    #[tokio::test]
    async fn what_nobody_wants_any_more_has_not_failed() {
        let target = |name: &str| Target {
            side: crate::plan::Side::Local,
            kind: Kind::ClusterNetworkPolicy,
            namespace: String::new(),
            name: name.to_owned(),
        };
        let action = |name: &str| Action {
            target: target(name),
            op: Op::Create(Body::default()),
        };
        let config = kube::Config::new("http://127.0.0.1:9".parse().expect("a URL"));
        let client = Client::try_from(config).expect("a client");
        let mut applier = Applier::new(client, Fence::open(), Arc::default());
        for _ in 0..2 {
            for name in ["a", "b"] {
                applier.record(
                    &action(name),
                    Outcome::Busy("no".to_owned(), Some(Duration::ZERO)),
                );
            }
        }
        assert_eq!(applier.failing().len(), 2);
        let now = Instant::now() + Duration::from_millis(1);
        applier.forget(&[action("a")], now);
        assert_eq!(applier.failing(), [(target("a"), "no".to_owned())].into());
        // One that is held back is remembered until then: what comes and goes is not tried more often for it.
        applier.record(
            &action("a"),
            Outcome::Busy("no".to_owned(), Some(Duration::from_mins(1))),
        );
        applier.forget(&[], now);
        assert_eq!(applier.failing().len(), 1);
        // Not now is no refusal.
        assert!(applier.refused().is_empty());
        applier.record(&action("a"), Outcome::Refused("never".to_owned()));
        assert_eq!(applier.refused(), [(target("a"), "never".to_owned())].into());
    }

    #[test]
    fn pauses_grow_and_end() {
        assert!(pause(0) < pause(1));
        assert_eq!(pause(99), MAX_PAUSE);
    }
}
