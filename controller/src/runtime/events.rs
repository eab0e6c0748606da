//! Kubernetes Events for warnings: each once while it stays active, if it lasts longer than a moment, at a limited
//! rate.
//!
//! Replaces `kube::runtime::events::Recorder`, which counts repetitions of one Event with a read and a write each time,
//! has no rate limit and no fence, and does not produce the fields by which users of Antrea's controllers find Events.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
};
use kube::{Api, Client, api::PostParams, core::ObjectMeta};
use mc_api::{label_identity::digest, names::FIELD_MANAGER};
use mc_kube::{AbortOnDrop, error_chain};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, warn};

use crate::{fence::Fence, metrics::api_metrics::ApiMetrics, plan::WarningEvent};

/// Time limit for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The age at which a warning is published: watches of different kinds are not in step, and an object may refer to
/// another one that is created a moment later.
const PUBLISH_DELAY: Duration = Duration::from_secs(5);
/// The pause after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// Events that may be published at once; beyond them one per [`INTERVAL`].
const BURST: u32 = 50;
/// See [`BURST`].
const INTERVAL: Duration = Duration::from_secs(1);
/// The reporting instance of Antrea's controllers, which users filter by.
const REPORTING_INSTANCE: &str = "antrea-mc-controller";
/// The namespace of Events about cluster-scoped objects.
const DEFAULT_NAMESPACE: &str = "default";
/// The API server's limits (`NoteLengthLimit`, `ReasonLengthLimit`).
const MAX_MESSAGE: usize = 1_024;
const MAX_REASON: usize = 128;

/// Publishes warnings to one API server, in a task that ends with this value.
///
/// Guarantee: nothing is published while the fence is closed.
pub struct EventPublisher {
    active: Arc<ActiveEvents>,
    _task: AbortOnDrop,
}

/// The active warnings, and those of them that are published.
#[derive(Default)]
struct ActiveEvents {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// Each active warning with the time it appeared.
    active: BTreeMap<WarningEvent, Instant>,
    published: BTreeSet<WarningEvent>,
    /// The time of the plan that contained them.
    at: Timestamp,
}

/// The next step of the publisher.
#[derive(Debug, PartialEq)]
enum Step {
    /// Publish this warning, found at this time.
    Publish(WarningEvent, Timestamp),
    /// Wait until that moment, or for a change.
    Wait(Option<Instant>),
}

/// The result of publishing one Event.
enum PublishResult {
    Published,
    /// The API server will never admit it, or its object is gone.
    Unpublishable(String),
    Failed(String),
}

// === impl ActiveEvents ===

impl ActiveEvents {
    /// Replaces the active warnings by those found at `at`.
    fn replace(&self, warnings: Vec<WarningEvent>, at: Timestamp, now: Instant) {
        let mut state = self.lock();
        let state = &mut *state;
        let old = std::mem::take(&mut state.active);
        let since = |warning: &WarningEvent| old.get(warning).copied().unwrap_or(now);
        state.active = warnings
            .into_iter()
            .map(|warning| {
                let since = since(&warning);
                (warning, since)
            })
            .collect();
        state.at = at;
        state
            .published
            .retain(|warning| state.active.contains_key(warning));
        if state.published.len() < state.active.len() {
            self.changed.notify_one();
        }
    }

    /// An unpublished warning, after `last` if possible, so that one that fails does not block the others.
    fn next(&self, last: Option<&WarningEvent>, now: Instant) -> Step {
        let state = self.lock();
        let after = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut wait: Option<Instant> = None;
        for (warning, since) in state.active.range((after, Bound::Unbounded)).chain(&state.active) {
            if state.published.contains(warning) {
                continue;
            }
            let due = *since + PUBLISH_DELAY;
            if due <= now {
                return Step::Publish(warning.clone(), state.at);
            }
            wait = Some(wait.map_or(due, |at| at.min(due)));
        }
        Step::Wait(wait)
    }

    /// Marks a warning as published, unless it is no longer active.
    fn mark_published(&self, warning: &WarningEvent) {
        let mut state = self.lock();
        if state.active.contains_key(warning) {
            state.published.insert(warning.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl EventPublisher ===

impl EventPublisher {
    /// Publishes with `client` while `fence` is open, and counts in `metrics`.
    #[must_use]
    pub fn new(client: Client, fence: Fence, metrics: Arc<ApiMetrics>) -> Self {
        let active = Arc::new(ActiveEvents::default());
        let task = AbortOnDrop::spawn(publish_loop(client, fence, active.clone(), metrics));
        Self { active, _task: task }
    }

    /// Replaces the active warnings by those found `now`.
    pub fn set_active(&self, warnings: Vec<WarningEvent>, now: Timestamp) {
        self.active.replace(warnings, now, Instant::now());
    }
}

async fn publish_loop(client: Client, fence: Fence, active: Arc<ActiveEvents>, metrics: Arc<ApiMetrics>) {
    let mut last = None;
    let mut failures = 0_u32;
    // The time of the next Event at an even rate.
    let mut due = Instant::now();
    loop {
        let (warning, at) = match active.next(last.as_ref(), Instant::now()) {
            Step::Publish(warning, at) => (warning, at),
            Step::Wait(None) => {
                active.changed.notified().await;
                continue;
            }
            Step::Wait(Some(until)) => {
                tokio::select! {
                    biased;
                    () = active.changed.notified() => {}
                    () = sleep_until(until) => {}
                }
                continue;
            }
        };
        due = due.max(Instant::now()) + INTERVAL;
        sleep_until(due.checked_sub(INTERVAL * BURST).unwrap_or(due)).await;
        // The Lease may be renewed again; else the process ends.
        if !fence.is_open() {
            sleep(RETRY_DELAY).await;
            continue;
        }
        match publish(&client, &event(&warning, at)).await {
            PublishResult::Published => {
                metrics.event_published(true);
                active.mark_published(&warning);
                failures = 0;
            }
            PublishResult::Unpublishable(error) => {
                debug!(object = %warning.object, error, "Event not admitted");
                active.mark_published(&warning);
            }
            PublishResult::Failed(error) => {
                metrics.event_published(false);
                // Logged once per outage.
                if failures == 0 {
                    warn!(object = %warning.object, error, "Event not published");
                }
                failures = failures.saturating_add(1);
                sleep(RETRY_DELAY).await;
            }
        }
        last = Some(warning);
    }
}

async fn publish(client: &Client, event: &Event) -> PublishResult {
    let namespace = event.metadata.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    match tokio::time::timeout(REQUEST_TIMEOUT, api.create(&params, event)).await {
        Ok(Ok(_)) => PublishResult::Published,
        // It exists already, for example since before a restart of this controller.
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => PublishResult::Published,
        // The namespace is terminating or gone, or this API server rejects a field.
        Ok(Err(kube::Error::Api(status))) if is_permanent(status.code, &status.message) => {
            PublishResult::Unpublishable(status.message.clone())
        }
        Ok(Err(error)) => PublishResult::Failed(error_chain(&error)),
        Err(_) => PublishResult::Failed("no answer".to_owned()),
    }
}

fn is_permanent(code: u16, message: &str) -> bool {
    [400, 404, 422].contains(&code) || (code == 403 && message.contains("it is being terminated"))
}

/// The Event of a warning. Its name is a hash of the content: a warning that appears repeatedly is published once until
/// the API server drops the Event (after an hour).
fn event(warning: &WarningEvent, now: Timestamp) -> Event {
    let object = &warning.object;
    let kind = object.kind.api_resource();
    let hash: String = digest(&format!(
        "{}\n{}\n{}\n{}",
        kind.kind, warning.uid, warning.reason, warning.message
    ))
    .chars()
    .take(16)
    .collect();
    // A name has at most 253 characters.
    let name: String = object.name.chars().take(230).collect();
    let namespace = Some(object.namespace.clone()).filter(|n| !n.is_empty());
    let controller = format!("{}-controller", kind.kind.to_lowercase());
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{hash}", name.trim_end_matches(['.', '-']))),
            namespace: Some(namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned())),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(kind.api_version),
            kind: Some(kind.kind),
            namespace,
            name: Some(object.name.clone()),
            uid: Some(warning.uid.clone()).filter(|uid| !uid.is_empty()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(truncated(&warning.reason, MAX_REASON)),
        message: Some(truncated(&warning.message, MAX_MESSAGE)),
        action: Some("synced".to_owned()),
        event_time: Some(MicroTime(now)),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        reporting_component: Some(controller.clone()),
        reporting_instance: Some(REPORTING_INSTANCE.to_owned()),
        source: Some(EventSource {
            component: Some(controller),
            host: None,
        }),
        ..Event::default()
    }
}

/// At most `most` bytes of a text, with an ellipsis if it is longer.
fn truncated(text: &str, most: usize) -> String {
    const MORE: &str = "…";
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most.saturating_sub(MORE.len());
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    format!("{}{MORE}", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::{ApiServer, Kind, ObjectRef};

    fn warning(name: &str, message: &str) -> WarningEvent {
        WarningEvent {
            object: ObjectRef {
                side: ApiServer::Leader,
                kind: Kind::ResourceImport,
                namespace: "mc".to_owned(),
                name: name.to_owned(),
            },
            uid: "u".to_owned(),
            reason: "ACNPImportFailed".to_owned(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn each_warning_is_published_once_while_it_is_active() {
        let active = ActiveEvents::default();
        let (a, b) = (warning("a", "x"), warning("b", "x"));
        let at = Timestamp::UNIX_EPOCH;
        let start = Instant::now();
        let later = start + PUBLISH_DELAY;
        let next = |last: Option<&WarningEvent>| active.next(last, later);
        let publish = |warning: &WarningEvent| Step::Publish(warning.clone(), at);
        active.replace(vec![a.clone(), a.clone()], at, start);
        assert_eq!(next(None), publish(&a));
        active.mark_published(&a);
        assert_eq!(next(None), Step::Wait(None));
        active.replace(vec![a.clone()], at, start);
        assert_eq!(next(None), Step::Wait(None), "it is still active");
        active.replace(vec![a.clone(), b.clone()], at, start);
        assert_eq!(next(None), publish(&b), "not published yet");
        active.replace(vec![], at, start);
        active.mark_published(&b);
        active.replace(vec![a.clone(), b.clone()], at, start);
        assert_eq!(next(None), publish(&a), "it appeared again");
        // A failing one does not block the others.
        assert_eq!(next(Some(&a)), publish(&b));
        assert_eq!(next(Some(&b)), publish(&a));
    }

    #[test]
    fn a_momentary_warning_is_not_published() {
        let active = ActiveEvents::default();
        let (a, b) = (warning("a", "x"), warning("b", "x"));
        let at = Timestamp::UNIX_EPOCH;
        let start = Instant::now();
        let second = Duration::from_secs(1);
        active.replace(vec![a.clone()], at, start);
        assert_eq!(active.next(None, start), Step::Wait(Some(start + PUBLISH_DELAY)));
        active.replace(vec![a.clone(), b.clone()], at, start + second);
        assert_eq!(
            active.next(None, start + PUBLISH_DELAY),
            Step::Publish(a.clone(), at),
            "the delay runs since it appeared"
        );
        active.replace(vec![b.clone()], at, start + PUBLISH_DELAY);
        active.replace(vec![a.clone(), b.clone()], at, start + PUBLISH_DELAY);
        active.mark_published(&b);
        let due = start + PUBLISH_DELAY + PUBLISH_DELAY;
        assert_eq!(
            active.next(None, start + PUBLISH_DELAY + second),
            Step::Wait(Some(due)),
            "the delay starts over"
        );
        assert_eq!(active.next(None, due), Step::Publish(a, at));
    }

    #[test]
    fn a_permanent_rejection_is_not_retried() {
        assert!(
            is_permanent(404, "namespaces \"x\" not found")
                && is_permanent(422, "")
                && is_permanent(403, "because it is being terminated")
        );
        assert!(
            !is_permanent(403, "events is forbidden") && !is_permanent(500, "") && !is_permanent(429, "")
        );
    }

    #[test]
    fn events_have_the_fields_of_antreas() {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let policy = "strict-antreaclusternetworkpolicy";
        let first = event(&warning(policy, "ACNP Tier x does not exist"), now);
        let second = event(&warning(policy, "ACNP Tier x does not exist"), now);
        assert_eq!(first.metadata.name, second.metadata.name);
        let other = event(&warning(policy, "ACNP Tier y does not exist"), now);
        assert_ne!(first.metadata.name, other.metadata.name);
        let value = serde_json::to_value(&first).unwrap();
        assert_eq!(
            value["involvedObject"]["apiVersion"],
            "multicluster.crd.antrea.io/v1alpha1"
        );
        assert_eq!(value["involvedObject"]["kind"], "ResourceImport");
        assert_eq!(value["reportingComponent"], "resourceimport-controller");
        assert_eq!(value["reportingInstance"], "antrea-mc-controller");
        assert_eq!(
            (value["action"].as_str(), value["type"].as_str()),
            (Some("synced"), Some("Warning"))
        );
    }

    #[test]
    fn name_and_message_respect_the_api_servers_limits() {
        let now = Timestamp::UNIX_EPOCH;
        let long = event(&warning(&"x".repeat(253), &"ä".repeat(5_000)), now);
        assert!(long.metadata.name.unwrap().len() <= 253);
        let message = long.message.unwrap();
        assert!(
            message.len() <= MAX_MESSAGE && message.len() > MAX_MESSAGE - 5 && message.ends_with('…'),
            "{}",
            message.len()
        );
        assert_eq!(truncated("short", 5), "short");
    }

    #[test]
    fn an_event_is_in_the_namespace_of_its_object() {
        let mut warning = warning("x", "y");
        let at = |warning: &WarningEvent| {
            let event = event(warning, Timestamp::UNIX_EPOCH);
            (event.metadata.namespace, event.involved_object.namespace)
        };
        assert_eq!(at(&warning), (Some("mc".to_owned()), Some("mc".to_owned())));
        warning.object.namespace.clear();
        assert_eq!(at(&warning), (Some("default".to_owned()), None));
    }

    /// Events were published without regard to the Lease.
    #[tokio::test(start_paused = true)]
    async fn nothing_is_published_while_the_fence_is_closed() {
        use std::{
            convert::Infallible,
            sync::atomic::{AtomicUsize, Ordering},
        };
        for (fence, expected) in [(Fence::closed(), 0), (Fence::open(), 1)] {
            let requests = Arc::new(AtomicUsize::new(0));
            let counter = requests.clone();
            let server = tower::service_fn(move |_: http::Request<kube::client::Body>| {
                counter.fetch_add(1, Ordering::Relaxed);
                let body =
                    json!({ "apiVersion": "v1", "kind": "Event", "metadata": {}, "involvedObject": {} });
                let body = kube::client::Body::from(body.to_string().into_bytes());
                std::future::ready(Ok::<_, Infallible>(http::Response::new(body)))
            });
            let client = Client::new(server, "default");
            let publisher = EventPublisher::new(client, fence, Arc::default());
            publisher.set_active(vec![warning("a", "x")], Timestamp::UNIX_EPOCH);
            sleep(Duration::from_mins(1)).await;
            assert_eq!(requests.load(Ordering::Relaxed), expected);
        }
    }
}
