//! The labels of all Pods and their numbers; nothing else of a Pod is kept.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    core::{ObjectMeta, PartialObjectMeta},
    runtime::watcher::{self, Event},
};
use mc_api::label_identity::{LabelKeyFilter, join_labels};
use mc_kube::{AbortOnDrop, NamespacedName, WatchContext, error_chain, is_expired, jitter_seed, watch};
use tracing::{debug, warn};

use crate::snapshot::PodLabelCounts;

/// The labels of all Pods, as last seen; notifies only when the set of labels has changed.
#[derive(Clone, Debug)]
pub(super) struct PodLabelWatch {
    counts: Arc<Mutex<LabelCounts>>,
}

/// The labels of each Pod.
///
/// Guarantee: [`LabelCounts::labels`] are those of one complete list and the changes since.
#[derive(Debug, Default)]
struct LabelCounts {
    excluded: LabelKeyFilter,
    pods: BTreeMap<NamespacedName, Arc<str>>,
    labels: PodLabelCounts,
    relisting: Option<BTreeMap<NamespacedName, Arc<str>>>,
    synced: bool,
}

// === impl PodLabelWatch ===

impl PodLabelWatch {
    /// Watches the metadata of all Pods.
    pub(super) fn watch(context: &WatchContext, excluded: LabelKeyFilter) -> (Self, AbortOnDrop) {
        let counts = LabelCounts {
            excluded,
            ..LabelCounts::default()
        };
        let pods = Self {
            counts: Arc::new(Mutex::new(counts)),
        };
        let (target, context) = (pods.clone(), context.clone());
        let task = AbortOnDrop::spawn(async move { target.run(&context).await });
        (pods, task)
    }

    /// The labels, once the list of Pods is complete.
    pub(super) fn labels(&self) -> Option<PodLabelCounts> {
        let counts = self.lock();
        counts.synced.then(|| counts.labels.clone())
    }

    async fn run(&self, context: &WatchContext) {
        let api: Api<PartialObjectMeta<Pod>> = Api::all(context.client.clone());
        let seed = jitter_seed([context.client_name.as_str(), "Pod"]);
        let mut events = std::pin::pin!(watch(api, watcher::Config::default(), seed));
        let mut failing = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    failing &= matches!(event, Event::Init);
                    if self.lock().apply_event(event) {
                        context.changed.notify_one();
                    }
                }
                Err(error) if is_expired(&error) => debug!(kind = "Pod", "watch expired, relisting"),
                Err(error) => {
                    if !failing {
                        warn!(kind = "Pod", error = error_chain(&error), "watch failed");
                    }
                    failing = true;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, LabelCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl LabelCounts ===

impl LabelCounts {
    /// Applies an event; returns whether the set of labels has changed.
    fn apply_event(&mut self, event: Event<PartialObjectMeta<Pod>>) -> bool {
        match event {
            Event::Init => {
                self.relisting = Some(BTreeMap::new());
                false
            }
            Event::InitApply(pod) => {
                let (name, labels) = self.parse(&pod.metadata);
                self.relisting.get_or_insert_default().insert(name, labels);
                false
            }
            Event::InitDone => {
                self.pods = self.relisting.take().unwrap_or_default();
                let mut labels = BTreeMap::new();
                for (name, pod) in &self.pods {
                    *labels.entry((name.namespace.clone(), pod.clone())).or_default() += 1;
                }
                for (name, pod) in &mut self.pods {
                    if let Some(((_, shared), _)) =
                        labels.get_key_value(&(name.namespace.clone(), pod.clone()))
                    {
                        *pod = shared.clone();
                    }
                }
                let changed = !self.synced || !self.labels.keys().eq(labels.keys());
                self.labels = Arc::new(labels);
                self.synced = true;
                changed
            }
            Event::Apply(pod) => {
                let (name, labels) = self.parse(&pod.metadata);
                if self.pods.get(&name) == Some(&labels) {
                    return false;
                }
                let removed = self.remove(&name);
                let count = Arc::make_mut(&mut self.labels)
                    .entry((name.namespace.clone(), labels.clone()))
                    .or_default();
                *count += 1;
                let added = *count == 1;
                self.pods.insert(name, labels);
                removed || added
            }
            Event::Delete(pod) => self.remove(&NamespacedName::from(&pod.metadata)),
        }
    }

    /// Removes a Pod; returns whether it was the last one with its labels.
    fn remove(&mut self, name: &NamespacedName) -> bool {
        let Some(labels) = self.pods.remove(name) else {
            return false;
        };
        let all = Arc::make_mut(&mut self.labels);
        let key = (name.namespace.clone(), labels);
        let Some(count) = all.get_mut(&key) else {
            return false;
        };
        *count -= 1;
        *count == 0 && all.remove(&key).is_some()
    }

    /// A Pod's name and its labels, normalize; equal texts share one allocation.
    fn parse(&self, metadata: &ObjectMeta) -> (NamespacedName, Arc<str>) {
        let name = NamespacedName::from(metadata);
        let labels: Arc<str> = join_labels(metadata.labels.iter().flatten(), &self.excluded).into();
        let entry = (name.namespace.clone(), labels);
        let shared = match self.labels.get_key_value(&entry) {
            Some(((_, shared), _)) => shared.clone(),
            None => entry.1,
        };
        (name, shared)
    }
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

    fn counts() -> LabelCounts {
        let mut excluded = LabelKeyFilter::default();
        assert!(excluded.add("hash"));
        LabelCounts {
            excluded,
            ..LabelCounts::default()
        }
    }

    fn labels(counts: &LabelCounts) -> Vec<(&str, usize)> {
        counts.labels.iter().map(|((_, l), n)| (l.as_ref(), *n)).collect()
    }

    #[test]
    fn only_a_new_set_of_labels_is_a_change() {
        let mut counts = counts();
        assert!(!counts.apply_event(Event::Init));
        assert!(!counts.apply_event(Event::InitApply(pod("a", "web"))));
        assert!(!counts.apply_event(Event::InitApply(pod("b", "web"))));
        assert!(!counts.synced);
        assert!(counts.apply_event(Event::InitDone), "a complete list is a change");
        assert_eq!(labels(&counts), [("app=web", 2)]);
        assert!(
            !counts.apply_event(Event::Apply(pod("a", "web"))),
            "a status, for example"
        );
        assert!(!counts.apply_event(Event::Apply(pod("c", "web"))));
        assert!(!counts.apply_event(Event::Delete(pod("a", "web"))));
        assert!(counts.apply_event(Event::Apply(pod("b", "db"))));
        assert_eq!(labels(&counts), [("app=db", 1), ("app=web", 1)]);
        assert!(counts.apply_event(Event::Delete(pod("b", "db"))));
        assert!(!counts.apply_event(Event::Delete(pod("b", "db"))));
        // A new list replaces the old one; equal labels are no change.
        for event in [Event::Init, Event::InitApply(pod("x", "web"))] {
            assert!(!counts.apply_event(event));
            assert_eq!(labels(&counts), [("app=web", 1)]);
        }
        assert!(!counts.apply_event(Event::InitDone));
        assert!(
            !counts.apply_event(Event::Delete(pod("c", "web"))),
            "not in the new list"
        );
        assert_eq!(labels(&counts), [("app=web", 1)]);
    }

    proptest! {
        /// The counts are those of the existing Pods after any sequence of events.
        #[test]
        fn counts_agree_with_the_pods(events in proptest::collection::vec((0u8..5, 0usize..4, 0usize..3), 0..40)) {
            let mut counts = counts();
            let mut pods = BTreeMap::new();
            let mut listing: Option<BTreeMap<_, _>> = None;
            for (event, name, app) in events {
                let (name, app) = (["a", "b", "c", "d"][name], ["web", "db", "api"][app]);
                let before: Vec<_> = counts.labels.keys().cloned().collect();
                let was = counts.synced;
                let reported = match (event, &mut listing) {
                    (0, None) => {
                        listing = Some(BTreeMap::new());
                        counts.apply_event(Event::Init)
                    }
                    (_, Some(list)) if event < 4 => {
                        list.insert(name, app);
                        counts.apply_event(Event::InitApply(pod(name, app)))
                    }
                    (_, Some(list)) => {
                        pods = std::mem::take(list);
                        listing = None;
                        counts.apply_event(Event::InitDone)
                    }
                    (1 | 2, None) => {
                        pods.insert(name, app);
                        counts.apply_event(Event::Apply(pod(name, app)))
                    }
                    (_, None) => {
                        let app = pods.remove(name).unwrap_or(app);
                        counts.apply_event(Event::Delete(pod(name, app)))
                    }
                };
                let mut expected: BTreeMap<String, usize> = BTreeMap::new();
                for app in pods.values() {
                    *expected.entry(format!("app={app}")).or_default() += 1;
                }
                let found: BTreeMap<String, usize> =
                    counts.labels.iter().map(|((_, l), n)| (l.to_string(), *n)).collect();
                prop_assert_eq!(found, expected);
                let changed = counts.labels.keys().cloned().collect::<Vec<_>>() != before;
                prop_assert_eq!(reported, changed || was != counts.synced);
            }
        }
    }
}
