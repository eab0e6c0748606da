//! The labels of all Pods, counted; nothing else of a Pod is read or kept.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    core::{ObjectMeta, PartialObjectMeta},
    runtime::watcher::{self, Event, watcher},
};
use tokio::{sync::Notify, time::sleep};
use tracing::warn;

use super::watch::{Task, chain, pause};
use crate::{
    api::label_identity::{Exclusions, sorted},
    world::{Key, PodLabels},
};

/// The labels of all Pods, as last seen; `changed` is told only when there are others than before.
#[derive(Clone, Debug)]
pub struct Pods {
    seen: Arc<Mutex<Census>>,
}

/// Which Pod has which labels.
///
/// Guarantees: [`Census::labels`] are those of the Pods of one complete list and the changes since.
#[derive(Debug, Default)]
struct Census {
    exclusions: Exclusions,
    pods: BTreeMap<Key, Arc<str>>,
    labels: PodLabels,
    relisting: Option<BTreeMap<Key, Arc<str>>>,
    synced: bool,
}

// === impl Pods ===

impl Pods {
    /// Watches the metadata of all Pods.
    #[must_use]
    pub fn watch(client: &Client, exclusions: Exclusions, changed: &Arc<Notify>) -> (Self, Task) {
        let census = Census {
            exclusions,
            ..Census::default()
        };
        let pods = Self {
            seen: Arc::new(Mutex::new(census)),
        };
        let task = Task::spawn(pods.clone().keep(Api::all(client.clone()), changed.clone()));
        (pods, task)
    }

    /// The labels, once all Pods are known.
    #[must_use]
    pub fn labels(&self) -> Option<PodLabels> {
        let seen = self.lock();
        seen.synced.then(|| seen.labels.clone())
    }

    async fn keep(self, api: Api<PartialObjectMeta<Pod>>, changed: Arc<Notify>) {
        let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
        let mut failures = 0;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    failures = if matches!(event, Event::Init) { failures } else { 0 };
                    if self.lock().note(event) {
                        changed.notify_one();
                    }
                }
                Err(error) => {
                    if failures == 0 {
                        warn!(kind = "Pod", error = chain(&error), "watch failed");
                    }
                    failures += 1;
                    sleep(pause(failures)).await;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Census> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Census ===

impl Census {
    /// Whether there are other labels than before.
    fn note(&mut self, event: Event<PartialObjectMeta<Pod>>) -> bool {
        match event {
            Event::Init => {
                self.relisting = Some(BTreeMap::new());
                false
            }
            Event::InitApply(pod) => {
                let (key, labels) = self.read(&pod.metadata);
                self.relisting.get_or_insert_default().insert(key, labels);
                false
            }
            Event::InitDone => {
                self.pods = self.relisting.take().unwrap_or_default();
                let mut labels = BTreeMap::new();
                for ((namespace, _), pod) in &self.pods {
                    *labels.entry((namespace.clone(), pod.clone())).or_default() += 1;
                }
                for ((namespace, _), pod) in &mut self.pods {
                    if let Some(((_, one), _)) = labels.get_key_value(&(namespace.clone(), pod.clone())) {
                        *pod = one.clone();
                    }
                }
                let news = !self.synced || !self.labels.keys().eq(labels.keys());
                self.labels = Arc::new(labels);
                self.synced = true;
                news
            }
            Event::Apply(pod) => {
                let (key, labels) = self.read(&pod.metadata);
                if self.pods.get(&key) == Some(&labels) {
                    return false;
                }
                let gone = self.remove(&key);
                let count = Arc::make_mut(&mut self.labels)
                    .entry((key.0.clone(), labels.clone()))
                    .or_default();
                *count += 1;
                let new = *count == 1;
                self.pods.insert(key, labels);
                gone || new
            }
            Event::Delete(pod) => self.remove(&key(&pod.metadata)),
        }
    }

    /// Whether the labels went with the Pod.
    fn remove(&mut self, key: &Key) -> bool {
        let Some(labels) = self.pods.remove(key) else {
            return false;
        };
        let all = Arc::make_mut(&mut self.labels);
        let key = (key.0.clone(), labels);
        let Some(count) = all.get_mut(&key) else {
            return false;
        };
        *count -= 1;
        *count == 0 && all.remove(&key).is_some()
    }

    /// The labels as they are compared; the same text is kept once.
    fn read(&self, metadata: &ObjectMeta) -> (Key, Arc<str>) {
        let key = key(metadata);
        let labels: Arc<str> = sorted(metadata.labels.iter().flatten(), &self.exclusions).into();
        let entry = (key.0.clone(), labels);
        let known = match self.labels.get_key_value(&entry) {
            Some(((_, known), _)) => known.clone(),
            None => entry.1,
        };
        (key, known)
    }
}

fn key(metadata: &ObjectMeta) -> Key {
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, app: &str) -> PartialObjectMeta<Pod> {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "shop", "labels": { "app": app, "hash": name } },
        }))
        .unwrap()
    }

    fn census() -> Census {
        let mut exclusions = Exclusions::default();
        assert!(exclusions.add("hash"));
        Census {
            exclusions,
            ..Census::default()
        }
    }

    fn seen(census: &Census) -> Vec<(&str, usize)> {
        census.labels.iter().map(|((_, l), n)| (l.as_ref(), *n)).collect()
    }

    #[test]
    fn labels_are_counted_and_only_news_is_told() {
        let mut census = census();
        assert!(!census.note(Event::Init));
        assert!(!census.note(Event::InitApply(pod("a", "web"))));
        assert!(!census.note(Event::InitApply(pod("b", "web"))));
        assert!(!census.synced);
        assert!(
            census.note(Event::InitDone),
            "also when there is none: now that is known"
        );
        assert_eq!(seen(&census), [("app=web", 2)]);
        assert!(
            !census.note(Event::Apply(pod("a", "web"))),
            "a status, for example"
        );
        assert!(!census.note(Event::Apply(pod("c", "web"))));
        assert!(!census.note(Event::Delete(pod("a", "web"))));
        assert!(census.note(Event::Apply(pod("b", "db"))));
        assert_eq!(seen(&census), [("app=db", 1), ("app=web", 1)]);
        assert!(census.note(Event::Delete(pod("b", "db"))));
        assert!(!census.note(Event::Delete(pod("b", "db"))));
        // A list read anew replaces the old one, without a word when nothing is different.
        for event in [Event::Init, Event::InitApply(pod("x", "web"))] {
            assert!(!census.note(event));
            assert_eq!(seen(&census), [("app=web", 1)]);
        }
        assert!(!census.note(Event::InitDone));
        assert!(
            !census.note(Event::Delete(pod("c", "web"))),
            "not in the new list"
        );
        assert_eq!(seen(&census), [("app=web", 1)]);
    }

    proptest! {
        /// Whatever happens in between, the count is that of the Pods there are.
        #[test]
        fn counts_agree_with_the_pods(events in proptest::collection::vec((0u8..5, 0usize..4, 0usize..3), 0..40)) {
            let mut census = census();
            let mut pods = BTreeMap::new();
            let mut listing: Option<BTreeMap<_, _>> = None;
            for (what, name, app) in events {
                let (name, app) = (["a", "b", "c", "d"][name], ["web", "db", "api"][app]);
                let before: Vec<_> = census.labels.keys().cloned().collect();
                let was = census.synced;
                let told = match (what, &mut listing) {
                    (0, None) => {
                        listing = Some(BTreeMap::new());
                        census.note(Event::Init)
                    }
                    (_, Some(list)) if what < 4 => {
                        list.insert(name, app);
                        census.note(Event::InitApply(pod(name, app)))
                    }
                    (_, Some(list)) => {
                        pods = std::mem::take(list);
                        listing = None;
                        census.note(Event::InitDone)
                    }
                    (1 | 2, None) => {
                        pods.insert(name, app);
                        census.note(Event::Apply(pod(name, app)))
                    }
                    (_, None) => {
                        let app = pods.remove(name).unwrap_or(app);
                        census.note(Event::Delete(pod(name, app)))
                    }
                };
                let mut counts: BTreeMap<String, usize> = BTreeMap::new();
                for app in pods.values() {
                    *counts.entry(format!("app={app}")).or_default() += 1;
                }
                let found: BTreeMap<String, usize> =
                    census.labels.iter().map(|((_, l), n)| (l.to_string(), *n)).collect();
                prop_assert_eq!(found, counts);
                let changed = census.labels.keys().cloned().collect::<Vec<_>>() != before;
                prop_assert_eq!(told, changed || was != census.synced);
            }
        }
    }
}
