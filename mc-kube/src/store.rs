//! All objects of a kind, kept up to date by a watch.
//!
//! Replaces `kube::runtime::reflector`, which cannot be used here: a planner needs the newest resource version a cache
//! has seen (its own writes are waited for), immutable snapshots of a whole kind, the number of relists, and kinds that
//! an API server may lack. A reflector also stops at the first object that does not match its type,
//! which any author may write.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, DynamicObject, ObjectMeta},
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio::{sync::Notify, time::sleep};
use tracing::{debug, warn};

use crate::{AbortOnDrop, NamespacedName, error_chain, is_expired, is_unknown_kind, jitter_seed, watch};

/// The delay before a kind that the API server does not serve is listed again.
const UNKNOWN_KIND_DELAY: Duration = Duration::from_secs(10);
/// Objects per page of a list: decoding takes several times the memory of the objects kept.
const PAGE_SIZE: u32 = 100;
/// kubectl's copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// All objects of a kind; cheap to clone.
pub type ObjectMap<K> = Arc<BTreeMap<NamespacedName, Arc<K>>>;

/// All objects of a kind that an API server may lack.
#[derive(Clone, Debug, Default)]
pub enum OptionalKind<K> {
    /// The list is incomplete.
    #[default]
    Pending,
    /// The API server does not serve the kind.
    Absent,
    /// All objects.
    Present(ObjectMap<K>),
}

/// Receives the results of the watches of one API server.
pub trait WatchObserver: Send + Sync {
    /// The API server answered.
    fn succeeded(&self);

    /// A request failed; the watch backs off.
    fn failed(&self, error: String);

    /// The watch of `kind` ended in an error and starts again.
    fn restarted(&self, kind: &str);
}

/// The surroundings of watches of one API server.
#[derive(Clone)]
pub struct WatchContext {
    /// The client.
    pub client: Client,
    /// Notified of each change.
    pub changed: Arc<Notify>,
    /// Receives successes and failures.
    pub observer: Arc<dyn WatchObserver>,
    /// The name of this client; spreads its retries ([`jitter_seed`]).
    pub client_name: String,
}

/// All objects of a kind, as last seen.
///
/// Guarantees: [`Store::synced`] is true only after a complete list; a new list replaces the old one at once when it is
/// complete; an object whose new version does not match the type keeps its last one, with the metadata of the new
/// version, and is unreadable ([`FullSnapshot::unreadable`]).
#[derive(Debug)]
pub struct Store<K> {
    cache: Arc<Mutex<Cache<K>>>,
}

#[derive(Debug)]
struct Cache<K> {
    objects: ObjectMap<K>,
    relisting: BTreeMap<NamespacedName, Arc<K>>,
    /// Objects whose newest version does not match the type.
    unreadable: BTreeSet<NamespacedName>,
    relisting_unreadable: BTreeSet<NamespacedName>,
    synced: bool,
    /// The API server does not serve the kind.
    absent: bool,
    newest_version: u64,
    relist_stats: RelistStats,
}

/// The cache's state of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheState {
    /// The newest resource version of any object of the kind.
    pub newest_version: u64,
    /// Whether the object exists and is not being deleted.
    pub active: bool,
}

/// Lists after the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelistStats {
    /// Complete lists after the first one.
    pub relists: u32,
    /// Those in which an object had an older resource version than before.
    pub version_regressions: u32,
}

/// All objects of a kind with the state of their list at the same moment.
#[derive(Clone, Debug)]
pub struct FullSnapshot<K> {
    /// The objects.
    pub objects: ObjectMap<K>,
    /// Those whose newest version does not match the type, such as one that a newer version of a controller has
    /// written. Those that never matched it exist, but are not among the objects.
    pub unreadable: BTreeSet<NamespacedName>,
    /// [`RelistStats::relists`].
    pub relists: u32,
}

// === impl OptionalKind ===

impl<K> OptionalKind<K> {
    /// Whether the list is incomplete.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        matches!(self, Self::Pending)
    }

    /// All objects, if the list is complete.
    #[must_use]
    pub fn objects(&self) -> Option<&ObjectMap<K>> {
        match self {
            Self::Present(objects) => Some(objects),
            Self::Pending | Self::Absent => None,
        }
    }
}

// === impl WatchContext ===

impl WatchContext {
    /// Watches the objects of a kind, of all namespaces or of one.
    #[must_use]
    pub fn store<K>(&self, namespace: Option<&str>, config: watcher::Config) -> (Store<K>, AbortOnDrop)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Send + Sync + 'static,
    {
        let (store, api) = (Store::default(), self.api::<K>(namespace));
        let (context, target) = (self.clone(), store.clone());
        let task = AbortOnDrop::spawn(async move { context.run(&target, api, config, false).await });
        (store, task)
    }

    /// Watches a kind that the API server may lack, now or later; see [`Store::optional`].
    #[must_use]
    pub fn optional_store<K>(&self, namespace: Option<&str>) -> (Store<K>, AbortOnDrop)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Send + Sync + 'static,
    {
        let (store, api) = (Store::default(), self.api::<K>(namespace));
        let (context, target) = (self.clone(), store.clone());
        let task = AbortOnDrop::spawn(async move {
            loop {
                let config = watcher::Config::default();
                context.run(&target, api.clone(), config, true).await;
                if target.clear() {
                    debug!(kind = %K::kind(&()), "the API server does not serve this kind");
                    context.changed.notify_one();
                }
                sleep(UNKNOWN_KIND_DELAY).await;
            }
        });
        (store, task)
    }

    /// Keeps `store` up to date; ends if the kind is unknown and `optional`.
    async fn run<K>(&self, store: &Store<K>, api: Api<DynamicObject>, config: watcher::Config, optional: bool)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned,
    {
        let kind = K::kind(&());
        let seed = jitter_seed([self.client_name.as_str(), &kind]);
        let mut events = std::pin::pin!(watch(api, config.page_size(PAGE_SIZE), seed));
        let mut failing = false;
        while let Some(event) = events.next().await {
            match event {
                // Init precedes the list request and proves nothing.
                Ok(Event::Init) => store.apply_event(Event::Init),
                Ok(event) => {
                    failing = false;
                    self.observer.succeeded();
                    store.apply_event(event);
                    self.changed.notify_one();
                }
                Err(error) if optional && is_unknown_kind(&error) => return,
                Err(error) => {
                    self.observer.restarted(&kind);
                    let expired = is_expired(&error);
                    let error = error_chain(&error);
                    if expired {
                        debug!(%kind, error, "watch expired, relisting");
                        continue;
                    }
                    // Logged once per outage; the observer has the details.
                    if !failing {
                        warn!(%kind, error, "watch failed");
                    }
                    failing = true;
                    self.observer.failed(error);
                    self.changed.notify_one();
                }
            }
        }
    }

    fn api<K: Resource<DynamicType = ()>>(&self, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = ApiResource::erase::<K>(&());
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        }
    }
}

// === impl Store ===

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
        }
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        let cache = Cache {
            objects: ObjectMap::default(),
            relisting: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            relisting_unreadable: BTreeSet::new(),
            synced: false,
            absent: false,
            newest_version: 0,
            relist_stats: RelistStats::default(),
        };
        Self {
            cache: Arc::new(Mutex::new(cache)),
        }
    }
}

impl<K> Store<K> {
    /// All objects.
    #[must_use]
    pub fn snapshot(&self) -> ObjectMap<K> {
        self.lock().objects.clone()
    }

    /// All objects with the state of the list at the same moment.
    #[must_use]
    pub fn full_snapshot(&self) -> FullSnapshot<K> {
        let cache = self.lock();
        FullSnapshot {
            objects: cache.objects.clone(),
            unreadable: cache.unreadable.clone(),
            relists: cache.relist_stats.relists,
        }
    }

    /// Whether the list is complete.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.lock().synced
    }

    /// Lists after the first one.
    #[must_use]
    pub fn relist_stats(&self) -> RelistStats {
        self.lock().relist_stats
    }

    /// All objects of a kind that the API server may lack.
    #[must_use]
    pub fn optional(&self) -> OptionalKind<K> {
        let cache = self.lock();
        match (cache.synced, cache.absent) {
            (true, _) => OptionalKind::Present(cache.objects.clone()),
            (false, true) => OptionalKind::Absent,
            (false, false) => OptionalKind::Pending,
        }
    }

    /// Removes everything: the kind is unknown. Returns whether it was known before.
    fn clear(&self) -> bool {
        let mut cache = self.lock();
        let changed = !cache.absent;
        cache.objects = ObjectMap::default();
        cache.relisting.clear();
        cache.unreadable.clear();
        cache.relisting_unreadable.clear();
        cache.synced = false;
        cache.absent = true;
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Cache<K>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Resource<DynamicType = ()>> Store<K> {
    /// The cache's state of one object.
    #[must_use]
    pub fn cache_state(&self, name: &NamespacedName) -> CacheState {
        let cache = self.lock();
        let object = cache.objects.get(name);
        CacheState {
            newest_version: cache.newest_version,
            active: object.is_some_and(|o| o.meta().deletion_timestamp.is_none()),
        }
    }
}

impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned> Store<K> {
    fn apply_event(&self, event: Event<DynamicObject>) {
        let mut cache = self.lock();
        if let Event::Apply(object) | Event::InitApply(object) | Event::Delete(object) = &event {
            let version = object.metadata.resource_version.as_deref();
            let version = version.and_then(|v| v.parse().ok());
            cache.newest_version = cache.newest_version.max(version.unwrap_or(0));
        }
        match event {
            Event::Init => {
                cache.relisting.clear();
                cache.relisting_unreadable.clear();
            }
            Event::InitApply(object) => {
                let (name, parsed) = parse(object);
                if parsed.is_err() {
                    cache.relisting_unreadable.insert(name.clone());
                }
                if let Some(object) = readable(parsed, cache.objects.get(&name)) {
                    cache.relisting.insert(name, object);
                }
            }
            Event::InitDone => {
                let new = std::mem::take(&mut cache.relisting);
                if cache.synced {
                    let regressed = has_older_version(&cache.objects, &new);
                    let stats = &mut cache.relist_stats;
                    stats.relists = stats.relists.saturating_add(1);
                    stats.version_regressions =
                        stats.version_regressions.saturating_add(u32::from(regressed));
                }
                cache.objects = Arc::new(new);
                cache.unreadable = std::mem::take(&mut cache.relisting_unreadable);
                cache.synced = true;
                cache.absent = false;
            }
            Event::Apply(object) => {
                let (name, parsed) = parse(object);
                if parsed.is_err() {
                    cache.unreadable.insert(name.clone());
                } else {
                    cache.unreadable.remove(&name);
                }
                let object = readable(parsed, cache.objects.get(&name));
                let objects = Arc::make_mut(&mut cache.objects);
                match object {
                    Some(object) => objects.insert(name, object),
                    None => objects.remove(&name),
                };
            }
            Event::Delete(object) => {
                let name = NamespacedName::from(&object.metadata);
                cache.unreadable.remove(&name);
                Arc::make_mut(&mut cache.objects).remove(&name);
            }
        }
    }
}

/// Whether an object has an older version than before: the API server's data was restored from a backup.
fn has_older_version<K: Resource<DynamicType = ()>>(
    old: &BTreeMap<NamespacedName, Arc<K>>,
    new: &BTreeMap<NamespacedName, Arc<K>>,
) -> bool {
    let version = |object: &K| object.resource_version().and_then(|v| v.parse::<u64>().ok());
    new.iter().any(|(name, new)| {
        let same = old.get(name).filter(|old| old.uid() == new.uid());
        same.is_some_and(|old| version(new) < version(old))
    })
}

/// An object without the metadata that no planner reads; the metadata if it does not match its type, so that one bad
/// object does not hide the others.
fn parse<K>(mut object: DynamicObject) -> (NamespacedName, Result<Arc<K>, Box<ObjectMeta>>)
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let name = NamespacedName::from(&object.metadata);
    object.metadata.managed_fields = None;
    if let Some(annotations) = &mut object.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
    let parsed = serde_json::to_value(&object).and_then(serde_json::from_value);
    let parsed = parsed.map(Arc::new).map_err(|error| {
        warn!(
            kind = %K::kind(&()), namespace = name.namespace, name = name.name, %error,
            "object does not match its type: its last readable version is used, if any"
        );
        Box::new(object.metadata)
    });
    (name, parsed)
}

/// The object, else its last readable version with the new metadata; `None` if that is of another object of the name.
fn readable<K>(parsed: Result<Arc<K>, Box<ObjectMeta>>, old: Option<&Arc<K>>) -> Option<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone,
{
    let metadata = match parsed {
        Ok(object) => return Some(object),
        Err(metadata) => metadata,
    };
    let old = old.filter(|old| old.meta().uid == metadata.uid)?;
    let mut kept = old.as_ref().clone();
    *kept.meta_mut() = *metadata;
    Some(Arc::new(kept))
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
    fn an_incomplete_list_replaces_nothing() {
        let store = Store::<ConfigMap>::default();
        store.apply_event(Event::Init);
        store.apply_event(Event::InitApply(object("a")));
        assert!(!store.synced() && store.snapshot().is_empty());
        store.apply_event(Event::InitDone);
        assert!(store.synced() && store.snapshot().len() == 1);
        store.apply_event(Event::Init);
        store.apply_event(Event::InitApply(object("b")));
        let active = store.cache_state(&NamespacedName::new("n", "a")).active;
        assert!(active, "the old list is valid until the new one is complete");
        store.apply_event(Event::InitDone);
        store.apply_event(Event::Apply(object("c")));
        store.apply_event(Event::Delete(object("b")));
        assert_eq!(
            store.cache_state(&NamespacedName::new("n", "b")),
            CacheState {
                newest_version: 7,
                active: false
            }
        );
        let names: Vec<_> = store.snapshot().keys().map(|k| k.name.clone()).collect();
        assert_eq!(names, ["c"]);
    }

    #[test]
    fn a_version_regression_is_counted() {
        let versioned = |name: &str, uid: &str, version: &str| {
            let mut object = object(name);
            object.metadata.uid = Some(uid.to_owned());
            object.metadata.resource_version = Some(version.to_owned());
            object
        };
        let store = Store::<ConfigMap>::default();
        let list = |object: DynamicObject| {
            store.apply_event(Event::Init);
            store.apply_event(Event::InitApply(object));
            store.apply_event(Event::InitDone);
            store.relist_stats()
        };
        let stats = |relists, version_regressions| RelistStats {
            relists,
            version_regressions,
        };
        assert_eq!(list(versioned("a", "1", "7")), stats(0, 0));
        assert_eq!(list(versioned("a", "1", "7")), stats(1, 0));
        assert_eq!(list(versioned("a", "1", "6")), stats(2, 1));
        let recreated = list(versioned("a", "2", "5"));
        assert_eq!(recreated, stats(3, 1), "another object of that name");
    }

    /// A newer version of a controller may write objects that this one cannot read.
    #[test]
    fn an_unreadable_version_does_not_replace_the_last_readable_one() {
        let with = |uid: &str, data: serde_json::Value| {
            let mut object = object("a");
            object.metadata.uid = Some(uid.to_owned());
            object.data = serde_json::json!({ "data": data });
            object
        };
        let good = with("1", serde_json::json!({ "key": "value" }));
        let mut bad = with("1", serde_json::json!([1]));
        bad.metadata.generation = Some(2);
        let name = NamespacedName::new("n", "a");
        let unreadable = BTreeSet::from([name.clone()]);
        let list = |store: &Store<ConfigMap>, object: &DynamicObject| {
            for event in [Event::Init, Event::InitApply(object.clone()), Event::InitDone] {
                store.apply_event(event);
            }
        };

        let unreadable_of = |store: &Store<ConfigMap>| store.full_snapshot().unreadable;

        let store = Store::<ConfigMap>::default();
        list(&store, &bad);
        assert!(store.synced() && store.snapshot().is_empty());
        assert_eq!(
            unreadable_of(&store),
            unreadable,
            "exists, although it was never read"
        );

        list(&store, &good);
        assert_eq!((store.snapshot().len(), unreadable_of(&store).len()), (1, 0));
        for change in [0, 1] {
            if change == 0 {
                store.apply_event(Event::Apply(bad.clone()));
            } else {
                list(&store, &bad);
            }
            let kept = store.snapshot().get(&name).cloned().expect("the last version");
            let data = kept.data.iter().flatten().next();
            assert_eq!(data, Some((&"key".to_owned(), &"value".to_owned())));
            assert_eq!(kept.metadata.generation, Some(2), "newer metadata");
            assert_eq!(unreadable_of(&store), unreadable);
        }

        store.apply_event(Event::Apply(with("2", serde_json::json!([1]))));
        assert!(store.snapshot().is_empty(), "another object of the name");
        assert_eq!(unreadable_of(&store), unreadable);
        store.apply_event(Event::Delete(bad));
        assert!(unreadable_of(&store).is_empty());
    }

    #[test]
    fn an_optional_kind_may_appear_and_disappear() {
        let store = Store::<ConfigMap>::default();
        assert!(matches!(store.optional(), OptionalKind::Pending));
        assert!(store.clear() && !store.clear(), "a change is reported once");
        assert!(matches!(store.optional(), OptionalKind::Absent));
        for event in [Event::Init, Event::InitApply(object("a")), Event::InitDone] {
            store.apply_event(event);
        }
        assert!(matches!(store.optional(), OptionalKind::Present(o) if o.len() == 1));
        assert!(store.clear());
        assert!(matches!(store.optional(), OptionalKind::Absent));
    }
}
