//! Every object of a kind, kept up to date by a watch.

use std::{
    collections::BTreeMap,
    error::Error,
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, DynamicObject},
    runtime::watcher::{self, Event, watcher},
};
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, task::JoinHandle, time::Instant};
use tracing::{debug, warn};

use crate::{
    member::doubt::Renewals,
    metrics::tally::Tally,
    plan::{Kind, Target},
    world::{Key, Objects, Optional},
};

/// The longest pause between two attempts to watch.
const MAX_PAUSE: Duration = Duration::from_secs(3);

/// How often a kind that an API server does not know is asked for again.
const ABSENT_PAUSE: Duration = Duration::from_secs(10);
/// Objects of one answer to a list: what it is read from takes several times the space of what is kept.
const PAGE: u32 = 100;
/// The annotation in which kubectl keeps the whole object once more.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// All objects of a kind, as last seen.
///
/// Guarantees: [`Store::synced`] says true only after one complete list; a list that is being read anew replaces
/// the old one at once when it is complete.
#[derive(Debug)]
pub struct Store<K> {
    seen: Arc<Mutex<Seen<K>>>,
}

#[derive(Debug)]
struct Seen<K> {
    objects: Objects<K>,
    relisting: BTreeMap<Key, Arc<K>>,
    synced: bool,
    /// The API server does not know the kind.
    absent: bool,
    newest: u64,
    renewals: Renewals,
}

/// How a store sees one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// The newest resource version of any object of the kind.
    pub newest: u64,
    /// Whether the object is there, and is not being deleted.
    pub alive: bool,
}

/// When requests to one API server last went well and badly.
#[derive(Debug, Default)]
pub struct Health {
    last: Mutex<Last>,
    tally: Arc<Tally>,
}

#[derive(Debug, Default)]
struct Last {
    ok: Option<Instant>,
    failed: Option<(Instant, String)>,
}

/// A task that ends with its owner.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

/// A store of any kind.
pub trait Watched {
    /// Whether it holds objects of this kind.
    fn holds(&self, kind: Kind) -> bool;

    /// Whether it holds all of them.
    fn synced(&self) -> bool;

    /// How an object looks from here.
    fn sight(&self, key: &Key) -> Sight;
}

/// How an object looks, if one of the stores holds its kind.
#[must_use]
pub fn sight(stores: &[&dyn Watched], target: &Target) -> Option<Sight> {
    let store = stores.iter().find(|s| s.holds(target.kind))?;
    Some(store.sight(&(target.namespace.clone(), target.name.clone())))
}

/// Whether all stores are complete.
#[must_use]
pub fn synced(stores: &[&dyn Watched]) -> bool {
    stores.iter().all(|s| s.synced())
}

// === impl Task ===

impl Task {
    /// Runs `future` until it ends or the value is dropped.
    pub fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    /// Whether it ended.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

// === impl Health ===

impl Health {
    /// Of a new connection to the API server of `tally`.
    #[must_use]
    pub fn of(tally: &Arc<Tally>) -> Arc<Self> {
        Arc::new(Self {
            last: Mutex::default(),
            tally: tally.clone(),
        })
    }

    /// What is counted of the API server.
    #[must_use]
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// A request was answered.
    pub fn ok(&self) {
        self.lock().ok = Some(Instant::now());
        self.tally.answered();
    }

    /// A request was not, or with a refusal of who we are.
    pub fn failed(&self, error: String) {
        self.lock().failed = Some((Instant::now(), error));
    }

    /// The last failure, unless something went well since; and whether anything ever went well.
    pub fn state(&self) -> (Option<String>, bool) {
        let last = self.lock();
        let failed = last
            .failed
            .as_ref()
            .filter(|(at, _)| last.ok.is_none_or(|ok| ok < *at));
        (failed.map(|(_, error)| error.clone()), last.ok.is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Store ===

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self {
            seen: self.seen.clone(),
        }
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        let seen = Seen {
            objects: Objects::default(),
            relisting: BTreeMap::new(),
            synced: false,
            absent: false,
            newest: 0,
            renewals: Renewals::default(),
        };
        Self {
            seen: Arc::new(Mutex::new(seen)),
        }
    }
}

impl<K> Store<K> {
    /// All objects.
    #[must_use]
    pub fn snapshot(&self) -> Objects<K> {
        self.lock().objects.clone()
    }

    /// Whether that is all of them.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.lock().synced
    }

    /// How often the list was read anew.
    #[must_use]
    pub fn renewals(&self) -> Renewals {
        self.lock().renewals
    }

    /// All objects of a kind that need not be known.
    #[must_use]
    pub fn optional(&self) -> Optional<K> {
        let seen = self.lock();
        match (seen.synced, seen.absent) {
            (true, _) => Optional::Present(seen.objects.clone()),
            (false, true) => Optional::Absent,
            (false, false) => Optional::Pending,
        }
    }

    /// Forgets everything; says whether that is news.
    fn vanish(&self) -> bool {
        let mut seen = self.lock();
        let news = !seen.absent;
        seen.objects = Objects::default();
        seen.relisting.clear();
        seen.synced = false;
        seen.absent = true;
        news
    }

    fn lock(&self) -> MutexGuard<'_, Seen<K>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Watches all objects of the kind, or those of one Namespace; tells `changed` of everything and `health` of
    /// how it goes.
    pub fn watch(
        client: &Client,
        namespace: Option<&str>,
        config: watcher::Config,
        changed: &Arc<Notify>,
        health: &Arc<Health>,
    ) -> (Self, Task) {
        let api = api::<K>(client, namespace);
        let store = Self::default();
        let task = Task::spawn(store.clone().keep(api, config, changed.clone(), health.clone()));
        (store, task)
    }

    /// The same for a kind that the API server need not know, now or later: [`Store::optional`] tells.
    pub fn watch_optional(
        client: &Client,
        namespace: Option<&str>,
        changed: &Arc<Notify>,
        health: &Arc<Health>,
    ) -> (Self, Task) {
        let api = api::<K>(client, namespace);
        let store = Self::default();
        let (mine, changed, health) = (store.clone(), changed.clone(), health.clone());
        let task = Task::spawn(async move {
            loop {
                let config = watcher::Config::default();
                mine.clone()
                    .follow(api.clone(), config, changed.clone(), health.clone(), true)
                    .await;
                if mine.vanish() {
                    debug!(kind = %K::kind(&()), "the API server does not know this kind");
                    changed.notify_one();
                }
                tokio::time::sleep(ABSENT_PAUSE).await;
            }
        });
        (store, task)
    }

    async fn keep(
        self,
        api: Api<DynamicObject>,
        config: watcher::Config,
        changed: Arc<Notify>,
        health: Arc<Health>,
    ) {
        self.follow(api, config, changed, health, false).await;
    }

    /// Watches; ends when the kind is unknown and may be.
    async fn follow(
        self,
        api: Api<DynamicObject>,
        config: watcher::Config,
        changed: Arc<Notify>,
        health: Arc<Health>,
        optional: bool,
    ) {
        let config = config.page_size(PAGE);
        let mut events = Box::pin(watcher(api.clone(), config.clone()));
        let mut failures = 0;
        while let Some(event) = events.next().await {
            match event {
                // Comes before the request, whatever becomes of it.
                Ok(Event::Init) => self.note(Event::Init),
                Ok(event) => {
                    failures = 0;
                    health.ok();
                    self.note(event);
                    changed.notify_one();
                }
                Err(error) if optional && unknown(&error) => return,
                Err(error) => {
                    let gone = is_gone(&error);
                    health.tally.watch_restarted(&K::kind(&()));
                    if gone {
                        // The library itself would ask for the same version again, where the answer to the
                        // request says that it is gone and not an event.
                        events = Box::pin(watcher(api.clone(), config.clone()));
                    }
                    let error = chain(&error);
                    if gone {
                        debug!(kind = %K::kind(&()), error, "watch starts over");
                    } else {
                        // Said once for each outage; the state of the link tells the rest.
                        if failures == 0 {
                            warn!(kind = %K::kind(&()), error, "watch failed");
                        }
                        health.failed(error);
                        changed.notify_one();
                    }
                    failures += 1;
                    tokio::time::sleep(pause(failures)).await;
                }
            }
        }
    }

    fn note(&self, event: Event<DynamicObject>) {
        let mut seen = self.lock();
        if let Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) = &event {
            let version = object
                .metadata
                .resource_version
                .as_deref()
                .and_then(|v| v.parse().ok());
            seen.newest = seen.newest.max(version.unwrap_or(0));
        }
        match event {
            Event::Init => seen.relisting.clear(),
            Event::InitApply(object) => {
                if let (key, Some(object)) = read(object) {
                    seen.relisting.insert(key, object);
                }
            }
            Event::InitDone => {
                let new = std::mem::take(&mut seen.relisting);
                if seen.synced {
                    let rewound = went_back(&seen.objects, &new);
                    seen.renewals.lists = seen.renewals.lists.saturating_add(1);
                    seen.renewals.rewound = seen.renewals.rewound.saturating_add(u32::from(rewound));
                }
                seen.objects = Arc::new(new);
                seen.synced = true;
                seen.absent = false;
            }
            Event::Apply(object) => {
                let objects = Arc::make_mut(&mut seen.objects);
                match read(object) {
                    (key, Some(object)) => objects.insert(key, object),
                    (key, None) => objects.remove(&key),
                };
            }
            Event::Delete(object) => {
                Arc::make_mut(&mut seen.objects).remove(&key(&object));
            }
        }
    }
}

impl<K> Watched for Store<K>
where
    K: Resource<DynamicType = ()>,
{
    fn holds(&self, kind: Kind) -> bool {
        let resource = kind.api_resource();
        (resource.group, resource.kind) == (K::group(&()).into_owned(), K::kind(&()).into_owned())
    }

    fn synced(&self) -> bool {
        Self::synced(self)
    }

    fn sight(&self, key: &Key) -> Sight {
        let seen = self.lock();
        let alive = seen
            .objects
            .get(key)
            .is_some_and(|o| o.meta().deletion_timestamp.is_none());
        Sight {
            newest: seen.newest,
            alive,
        }
    }
}

/// All objects of the kind, or those of one Namespace.
fn api<K: Resource<DynamicType = ()>>(client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<K>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// Whether the API server does not know the kind.
fn unknown(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchStartFailed};
    let (InitialListFailed(kube::Error::Api(status))
    | WatchStartFailed(kube::Error::Api(status))
    | WatchError(status)) = error
    else {
        return false;
    };
    status.code == 404
}

/// Whether the version to go on from is not known any more, so that everything has to be listed anew.
fn is_gone(error: &watcher::Error) -> bool {
    let code = match error {
        watcher::Error::WatchError(status)
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status.code,
        _ => 0,
    };
    code == 410
}

fn key(object: &DynamicObject) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Whether an object has an older version than before: the API server's data is a copy of earlier days.
fn went_back<K: Resource<DynamicType = ()>>(
    old: &BTreeMap<Key, Arc<K>>,
    new: &BTreeMap<Key, Arc<K>>,
) -> bool {
    let version = |object: &K| object.resource_version().and_then(|v| v.parse::<u64>().ok());
    new.iter().any(|(key, new)| {
        let same = old.get(key).filter(|old| old.uid() == new.uid());
        same.is_some_and(|old| version(new) < version(old))
    })
}

/// An object without what no plan reads. One that is not of its kind's shape, whoever wrote it, is as good as
/// absent: it must not keep us from all the others.
fn read<K>(mut object: DynamicObject) -> (Key, Option<Arc<K>>)
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let key = key(&object);
    object.metadata.managed_fields = None;
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    let read = serde_json::to_value(object).and_then(serde_json::from_value);
    if let Err(error) = &read {
        warn!(kind = %K::kind(&()), namespace = key.0, name = key.1, %error, "object ignored: it cannot be read");
    }
    (key, read.ok().map(Arc::new))
}

/// 50 ms, doubled with each failure.
pub(super) fn pause(failures: u32) -> Duration {
    Duration::from_millis(50)
        .saturating_mul(1 << failures.min(10))
        .min(MAX_PAUSE)
}

/// An error with all its causes; most of them say nothing without. What the API server says is enough.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut parts: Vec<String> = vec![];
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(kube::Error::Api(status)) = error.downcast_ref() {
            let message = if status.message.is_empty() {
                &status.reason
            } else {
                &status.message
            };
            parts.push(format!("{message} ({})", status.code));
            break;
        }
        // Many repeat their cause; the cause says it better.
        let own = error.to_string();
        next = error.source();
        let own = match next.map(ToString::to_string) {
            Some(cause) => own
                .strip_suffix(&cause)
                .map_or(own.as_str(), |o| o.trim_end_matches(": "))
                .to_owned(),
            None => own,
        };
        // The client library's name of the layer tells nobody anything.
        if !own.is_empty() && own != "ServiceError" {
            parts.push(own);
        }
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(name: &str) -> DynamicObject {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": name, "namespace": "n", "resourceVersion": "7" },
        }))
        .unwrap()
    }

    #[test]
    fn a_list_counts_when_it_is_complete() {
        let store = Store::<ConfigMap>::default();
        store.note(Event::Init);
        store.note(Event::InitApply(object("a")));
        assert!(!store.synced() && store.snapshot().is_empty());
        store.note(Event::InitDone);
        assert!(store.synced() && store.snapshot().len() == 1);
        store.note(Event::Init);
        store.note(Event::InitApply(object("b")));
        assert!(
            store.sight(&("n".to_owned(), "a".to_owned())).alive,
            "the old list stands meanwhile"
        );
        store.note(Event::InitDone);
        store.note(Event::Apply(object("c")));
        store.note(Event::Delete(object("b")));
        assert_eq!(
            store.sight(&("n".to_owned(), "b".to_owned())),
            Sight {
                newest: 7,
                alive: false
            }
        );
        let names: Vec<_> = store.snapshot().keys().map(|k| k.1.clone()).collect();
        assert_eq!(names, ["c"]);
    }

    #[test]
    fn a_list_that_went_back_is_noticed() {
        let versioned = |name: &str, uid: &str, version: &str| {
            let mut object = object(name);
            object.metadata.uid = Some(uid.to_owned());
            object.metadata.resource_version = Some(version.to_owned());
            object
        };
        let store = Store::<ConfigMap>::default();
        let list = |object: DynamicObject| {
            store.note(Event::Init);
            store.note(Event::InitApply(object));
            store.note(Event::InitDone);
            store.renewals()
        };
        let renewals = |lists, rewound| Renewals { lists, rewound };
        assert_eq!(list(versioned("a", "1", "7")), renewals(0, 0));
        assert_eq!(list(versioned("a", "1", "7")), renewals(1, 0));
        assert_eq!(list(versioned("a", "1", "6")), renewals(2, 1));
        assert_eq!(
            list(versioned("a", "2", "5")),
            renewals(3, 1),
            "another one of that name"
        );
    }

    #[test]
    fn an_object_that_cannot_be_read_is_as_good_as_absent() {
        let mut bad = object("bad");
        bad.data = serde_json::json!({ "data": [1] });
        let store = Store::<ConfigMap>::default();
        for event in [
            Event::Init,
            Event::InitApply(bad.clone()),
            Event::InitApply(object("a")),
            Event::InitDone,
        ] {
            store.note(event);
        }
        assert_eq!((store.synced(), store.snapshot().len()), (true, 1));
        bad.metadata.name = Some("a".to_owned());
        store.note(Event::Apply(bad));
        assert_eq!(store.snapshot().len(), 0);
    }

    #[test]
    fn a_kind_may_come_and_go() {
        let store = Store::<ConfigMap>::default();
        assert!(matches!(store.optional(), Optional::Pending));
        assert!(store.vanish() && !store.vanish(), "said once");
        assert!(matches!(store.optional(), Optional::Absent));
        for event in [Event::Init, Event::InitApply(object("a")), Event::InitDone] {
            store.note(event);
        }
        assert!(matches!(store.optional(), Optional::Present(o) if o.len() == 1));
        assert!(store.vanish());
        assert!(matches!(store.optional(), Optional::Absent));
    }

    #[test]
    fn a_kind_that_is_not_known_is_no_other_failure() {
        use kube::core::Status;
        let api = |code| kube::Error::Api(Status::failure("no", "no").with_code(code).boxed());
        assert!(unknown(&watcher::Error::InitialListFailed(api(404))));
        assert!(unknown(&watcher::Error::WatchStartFailed(api(404))));
        assert!(!unknown(&watcher::Error::InitialListFailed(api(403))));
        assert!(!unknown(&watcher::Error::NoResourceVersion));
    }

    #[test]
    fn errors_are_told_once() {
        use kube::core::Status;
        let api = kube::Error::Api(
            Status::failure("no such user", "Unauthorized")
                .with_code(401)
                .boxed(),
        );
        let list = watcher::Error::InitialListFailed(api);
        assert_eq!(
            chain(&list),
            "failed to perform initial object list: no such user (401)"
        );
        let io = std::io::Error::other("connection refused");
        let list = watcher::Error::WatchFailed(kube::Error::ReadEvents(io));
        assert_eq!(
            chain(&list),
            "watch stream failed: Error reading events stream: connection refused"
        );
    }

    /// The watch was tried again from the same version for as long as the server answered the request with 410.
    #[test]
    fn a_watch_refused_with_410_starts_over() {
        let status = |code| {
            kube::core::Status::failure("why", "Expired")
                .with_code(code)
                .boxed()
        };
        for (code, gone) in [(410, true), (500, false)] {
            assert_eq!(is_gone(&watcher::Error::WatchError(status(code))), gone);
            let start = watcher::Error::WatchStartFailed(kube::Error::Api(status(code)));
            assert_eq!(is_gone(&start), gone);
        }
    }

    #[test]
    fn pauses_grow_and_end() {
        assert_eq!(pause(1), Duration::from_millis(100));
        assert_eq!(pause(60), MAX_PAUSE);
    }

    #[test]
    fn health_is_what_happened_last() {
        let health = Health::default();
        assert_eq!(health.state(), (None, false));
        health.failed("no".to_owned());
        assert_eq!(health.state(), (Some("no".to_owned()), false));
        health.ok();
        assert_eq!(health.state(), (None, true));
    }
}
