//! Remarks as Events on the objects they are about: each once while it stays true, if that is for longer than a moment,
//! and never many at a time.

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
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};
use tracing::{debug, warn};

use super::watch::{Task, chain};
use crate::{
    api::{label_identity::digest, names::FIELD_MANAGER},
    metrics::tally::Tally,
    plan::Remark,
};

/// How long one request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a remark holds before it is told: watches of different kinds are not in step, and what is set up has a
/// moment in which something is missing.
const GRACE: Duration = Duration::from_secs(5);
/// How long nothing is told after something could not be.
const PAUSE: Duration = Duration::from_secs(10);
/// So many are told at once; beyond them one in each [`INTERVAL`].
const BURST: u32 = 50;
/// See [`BURST`].
const INTERVAL: Duration = Duration::from_secs(1);
/// What Antrea's controllers call themselves here; people look for it.
const INSTANCE: &str = "antrea-mc-controller";
/// Where Events about objects without a Namespace are.
const DEFAULT: &str = "default";
/// The longest message and reason an API server takes (`NoteLengthLimit`, `ReasonLengthLimit`).
const MAX_MESSAGE: usize = 1_024;
const MAX_REASON: usize = 128;

/// Tells remarks to one API server, in a task that ends with this.
pub struct Remarks {
    standing: Arc<Standing>,
    _task: Task,
}

/// The remarks that hold, and of those the ones that were told.
#[derive(Default)]
struct Standing {
    remarks: Mutex<Held>,
    news: Notify,
}

#[derive(Default)]
struct Held {
    /// Since when each holds.
    all: BTreeMap<Remark, Instant>,
    told: BTreeSet<Remark>,
    /// When they were found to hold.
    at: Timestamp,
}

/// What there is to do.
#[derive(Debug, PartialEq)]
enum Next {
    /// Tell this, which was true at this time.
    Tell(Remark, Timestamp),
    /// Nothing before that moment, or before there is news.
    Wait(Option<Instant>),
}

/// What came of telling one.
enum Told {
    Yes,
    /// The API server will never take it, or there is nothing to attach it to any more.
    Never(String),
    No(String),
}

// === impl Standing ===

impl Standing {
    /// These hold at `at`, all of them.
    fn hold(&self, remarks: Vec<Remark>, at: Timestamp, now: Instant) {
        let mut held = self.lock();
        let held = &mut *held;
        let old = std::mem::take(&mut held.all);
        let since = |remark: &Remark| old.get(remark).copied().unwrap_or(now);
        held.all = remarks
            .into_iter()
            .map(|remark| {
                let since = since(&remark);
                (remark, since)
            })
            .collect();
        held.at = at;
        held.told.retain(|remark| held.all.contains_key(remark));
        if held.told.len() < held.all.len() {
            self.news.notify_one();
        }
    }

    /// One that was not told yet, if possible behind `last`, so that one that cannot be told holds up no other.
    fn next(&self, last: Option<&Remark>, now: Instant) -> Next {
        let held = self.lock();
        let behind = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut wait: Option<Instant> = None;
        for (remark, since) in held.all.range((behind, Bound::Unbounded)).chain(&held.all) {
            if held.told.contains(remark) {
                continue;
            }
            let due = *since + GRACE;
            if due <= now {
                return Next::Tell(remark.clone(), held.at);
            }
            wait = Some(wait.map_or(due, |at| at.min(due)));
        }
        Next::Wait(wait)
    }

    /// It was told; meanwhile it may be over.
    fn told(&self, remark: &Remark) {
        let mut held = self.lock();
        if held.all.contains_key(remark) {
            held.told.insert(remark.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.remarks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Remarks ===

impl Remarks {
    /// Tells them with `client`, and `tally` how it goes.
    #[must_use]
    pub fn new(client: Client, tally: Arc<Tally>) -> Self {
        let standing = Arc::new(Standing::default());
        let task = Task::spawn(work(client, standing.clone(), tally));
        Self {
            standing,
            _task: task,
        }
    }

    /// These hold `now`, all of them.
    pub fn tell(&self, remarks: Vec<Remark>, now: Timestamp) {
        self.standing.hold(remarks, now, Instant::now());
    }
}

async fn work(client: Client, standing: Arc<Standing>, tally: Arc<Tally>) {
    let mut last = None;
    let mut failures = 0_u32;
    // When the next one would be due if they were spread evenly.
    let mut due = Instant::now();
    loop {
        let (remark, at) = match standing.next(last.as_ref(), Instant::now()) {
            Next::Tell(remark, at) => (remark, at),
            Next::Wait(None) => {
                standing.news.notified().await;
                continue;
            }
            Next::Wait(Some(until)) => {
                tokio::select! {
                    biased;
                    () = standing.news.notified() => {}
                    () = sleep_until(until) => {}
                }
                continue;
            }
        };
        due = due.max(Instant::now()) + INTERVAL;
        sleep_until(due.checked_sub(INTERVAL * BURST).unwrap_or(due)).await;
        match create(&client, &event(&remark, at)).await {
            Told::Yes => {
                tally.told(true);
                standing.told(&remark);
                failures = 0;
            }
            Told::Never(why) => {
                debug!(about = %remark.about, why, "an Event is not told");
                standing.told(&remark);
            }
            Told::No(error) => {
                tally.told(false);
                // Said once for each outage.
                if failures == 0 {
                    warn!(about = %remark.about, error, "an Event could not be told");
                }
                failures = failures.saturating_add(1);
                sleep(PAUSE).await;
            }
        }
        last = Some(remark);
    }
}

async fn create(client: &Client, event: &Event) -> Told {
    let namespace = event.metadata.namespace.as_deref().unwrap_or(DEFAULT);
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    match tokio::time::timeout(TIMEOUT, api.create(&params, event)).await {
        Ok(Ok(_)) => Told::Yes,
        // Told before: by this controller before it was restarted, for one.
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Told::Yes,
        // The Namespace is gone, or on its way out, or a field is not as this API server wants it.
        Ok(Err(kube::Error::Api(status))) if never(status.code, &status.message) => {
            Told::Never(status.message.clone())
        }
        Ok(Err(error)) => Told::No(chain(&error)),
        Err(_) => Told::No("no answer".to_owned()),
    }
}

fn never(code: u16, message: &str) -> bool {
    [400, 404, 422].contains(&code) || (code == 403 && message.contains("it is being terminated"))
}

/// A remark as an Event. The same remark has the same name, so that it is told once until the API server forgets
/// Events (after an hour), however often it begins and ends.
fn event(remark: &Remark, now: Timestamp) -> Event {
    let about = &remark.about;
    let kind = about.kind.api_resource();
    let hash: String = digest(&format!(
        "{}\n{}\n{}\n{}",
        kind.kind, remark.uid, remark.reason, remark.message
    ))
    .chars()
    .take(16)
    .collect();
    // 253 characters are allowed.
    let name: String = about.name.chars().take(230).collect();
    let namespace = Some(about.namespace.clone()).filter(|n| !n.is_empty());
    let controller = format!("{}-controller", kind.kind.to_lowercase());
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{hash}", name.trim_end_matches(['.', '-']))),
            namespace: Some(namespace.clone().unwrap_or_else(|| DEFAULT.to_owned())),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(kind.api_version),
            kind: Some(kind.kind),
            namespace,
            name: Some(about.name.clone()),
            uid: Some(remark.uid.clone()).filter(|uid| !uid.is_empty()),
            ..ObjectReference::default()
        },
        type_: Some("Warning".to_owned()),
        reason: Some(short(&remark.reason, MAX_REASON)),
        message: Some(short(&remark.message, MAX_MESSAGE)),
        action: Some("synced".to_owned()),
        event_time: Some(MicroTime(now)),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        reporting_component: Some(controller.clone()),
        reporting_instance: Some(INSTANCE.to_owned()),
        source: Some(EventSource {
            component: Some(controller),
            host: None,
        }),
        ..Event::default()
    }
}

/// As many bytes of a text as fit, with a sign that there was more.
fn short(text: &str, most: usize) -> String {
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
    use super::*;
    use crate::plan::{Kind, Side, Target};

    fn remark(name: &str, message: &str) -> Remark {
        Remark {
            about: Target {
                side: Side::Leader,
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
    fn each_remark_is_told_once_while_it_holds() {
        let standing = Standing::default();
        let (a, b) = (remark("a", "x"), remark("b", "x"));
        let at = Timestamp::UNIX_EPOCH;
        let start = Instant::now();
        let later = start + GRACE;
        let next = |last: Option<&Remark>| standing.next(last, later);
        let tell = |remark: &Remark| Next::Tell(remark.clone(), at);
        standing.hold(vec![a.clone(), a.clone()], at, start);
        assert_eq!(next(None), tell(&a));
        standing.told(&a);
        assert_eq!(next(None), Next::Wait(None));
        standing.hold(vec![a.clone()], at, start);
        assert_eq!(next(None), Next::Wait(None), "it still holds");
        standing.hold(vec![a.clone(), b.clone()], at, start);
        assert_eq!(next(None), tell(&b), "not told yet");
        standing.hold(vec![], at, start);
        standing.told(&b);
        standing.hold(vec![a.clone(), b.clone()], at, start);
        assert_eq!(next(None), tell(&a), "it began again");
        // One that cannot be told waits behind the others.
        assert_eq!(next(Some(&a)), tell(&b));
        assert_eq!(next(Some(&b)), tell(&a));
    }

    #[test]
    fn what_is_over_in_a_moment_is_not_told() {
        let standing = Standing::default();
        let (a, b) = (remark("a", "x"), remark("b", "x"));
        let at = Timestamp::UNIX_EPOCH;
        let start = Instant::now();
        let second = Duration::from_secs(1);
        standing.hold(vec![a.clone()], at, start);
        assert_eq!(standing.next(None, start), Next::Wait(Some(start + GRACE)));
        standing.hold(vec![a.clone(), b.clone()], at, start + second);
        assert_eq!(
            standing.next(None, start + GRACE),
            Next::Tell(a.clone(), at),
            "since the beginning"
        );
        standing.hold(vec![b.clone()], at, start + GRACE);
        standing.hold(vec![a.clone(), b.clone()], at, start + GRACE);
        standing.told(&b);
        let due = start + GRACE + GRACE;
        assert_eq!(
            standing.next(None, start + GRACE + second),
            Next::Wait(Some(due)),
            "it begins anew"
        );
        assert_eq!(standing.next(None, due), Next::Tell(a, at));
    }

    #[test]
    fn what_no_api_server_takes_is_not_tried_again() {
        assert!(
            never(404, "namespaces \"x\" not found")
                && never(422, "")
                && never(403, "because it is being terminated")
        );
        assert!(!never(403, "events is forbidden") && !never(500, "") && !never(429, ""));
    }

    #[test]
    fn events_are_those_people_know() {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let policy = "strict-antreaclusternetworkpolicy";
        let told = event(&remark(policy, "ACNP Tier x does not exist"), now);
        let again = event(&remark(policy, "ACNP Tier x does not exist"), now);
        assert_eq!(told.metadata.name, again.metadata.name);
        let other = event(&remark(policy, "ACNP Tier y does not exist"), now);
        assert_ne!(told.metadata.name, other.metadata.name);
        let value = serde_json::to_value(&told).unwrap();
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
    fn nothing_is_longer_than_an_api_server_takes() {
        let now = Timestamp::UNIX_EPOCH;
        let long = event(&remark(&"x".repeat(253), &"ä".repeat(5_000)), now);
        assert!(long.metadata.name.unwrap().len() <= 253);
        let message = long.message.unwrap();
        assert!(
            message.len() <= MAX_MESSAGE && message.len() > MAX_MESSAGE - 5 && message.ends_with('…'),
            "{}",
            message.len()
        );
        assert_eq!(short("short", 5), "short");
    }

    #[test]
    fn an_event_is_where_its_object_is() {
        let mut remark = remark("x", "y");
        let at = |remark: &Remark| {
            let event = event(remark, Timestamp::UNIX_EPOCH);
            (event.metadata.namespace, event.involved_object.namespace)
        };
        assert_eq!(at(&remark), (Some("mc".to_owned()), Some("mc".to_owned())));
        remark.about.namespace.clear();
        assert_eq!(at(&remark), (Some("default".to_owned()), None));
    }
}
