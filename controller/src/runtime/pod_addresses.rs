//! The addresses of all Pods with their attributes; nothing else of a Pod is kept.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::StreamExt;
use kube::{
    Api,
    runtime::watcher::{self, Event},
};
use mc_api::address_group_slice::AddressGroupPort;
use mc_kube::{
    AbortOnDrop, NamespacedName, WatchContext, error_chain, is_expired, jitter_seed,
    pod::{NOT_ENDED, Pod, Port},
    watch,
};
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::snapshot::{PodAddresses, PodAttributes};

/// Time in which changes are collected: a workload starts many Pods at once, and each write of a slice is an event for
/// every Node.
const BATCH_TIME: Duration = Duration::from_millis(200);

/// The addresses of all Pods, as last seen; notifies only when an address or its attributes have changed.
#[derive(Clone, Debug)]
pub(super) struct PodAddressWatch {
    published: Arc<Mutex<Option<PodAddresses>>>,
}

/// Attributes and addresses of Pods.
type PodsByName = BTreeMap<NamespacedName, (Arc<PodAttributes>, Vec<IpAddr>)>;

/// The Pods with addresses of their own.
///
/// Guarantee: [`Pods::addresses`] are those of one complete list and the changes since.
#[derive(Debug, Default)]
struct Pods {
    current: PodsByName,
    relisting: Option<PodsByName>,
    synced: bool,
}

// === impl PodAddressWatch ===

impl PodAddressWatch {
    /// Watches all Pods that have not ended.
    pub(super) fn watch(context: &WatchContext) -> (Self, AbortOnDrop) {
        let pods = Self {
            published: Arc::default(),
        };
        let (target, context) = (pods.clone(), context.clone());
        let task = AbortOnDrop::spawn(async move { target.run(&context).await });
        (pods, task)
    }

    /// The addresses, once the list of Pods is complete.
    pub(super) fn addresses(&self) -> Option<PodAddresses> {
        self.lock().clone()
    }

    async fn run(&self, context: &WatchContext) {
        let api: Api<Pod> = Api::all(context.client.clone());
        let config = watcher::Config::default().fields(NOT_ENDED);
        let seed = jitter_seed([context.client_name.as_str(), "PodAddresses"]);
        let mut events = std::pin::pin!(watch(api, config, seed));
        let mut pods = Pods::default();
        let mut due: Option<Instant> = None;
        let mut failing = false;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = None;
                    if self.publish(&pods) {
                        context.changed.notify_one();
                    }
                    continue;
                }
            };
            match event {
                Some(Ok(event)) => {
                    failing &= matches!(event, Event::Init);
                    if pods.apply_event(event) {
                        due.get_or_insert_with(|| Instant::now() + BATCH_TIME);
                    }
                }
                Some(Err(error)) if is_expired(&error) => debug!(kind = "Pod", "watch expired, relisting"),
                Some(Err(error)) => {
                    if !failing {
                        warn!(kind = "Pod", error = error_chain(&error), "watch failed");
                    }
                    failing = true;
                }
                None => return,
            }
        }
    }

    /// Publishes the addresses; returns whether they have changed.
    fn publish(&self, pods: &Pods) -> bool {
        let addresses = pods.addresses();
        let mut published = self.lock();
        let changed = published.as_deref() != Some(&addresses);
        if changed {
            *published = Some(Arc::new(addresses));
        }
        changed
    }

    fn lock(&self) -> MutexGuard<'_, Option<PodAddresses>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Pods ===

impl Pods {
    /// Applies an event; returns whether the Pods may have changed since one complete list.
    fn apply_event(&mut self, event: Event<Pod>) -> bool {
        match event {
            Event::Init => {
                self.relisting = Some(BTreeMap::new());
                return false;
            }
            Event::InitApply(pod) => {
                let (name, entry) = parse(&pod);
                self.relisting.get_or_insert_default().insert(name, entry);
                return false;
            }
            Event::InitDone => {
                self.current = self.relisting.take().unwrap_or_default();
                self.synced = true;
            }
            Event::Apply(pod) => {
                let (name, entry) = parse(&pod);
                if self.current.get(&name) == Some(&entry) {
                    return false;
                }
                self.current.insert(name, entry);
            }
            Event::Delete(pod) => {
                self.current
                    .remove(&NamespacedName::new(pod.namespace(), pod.name()));
            }
        }
        self.synced
    }

    /// The attributes of each address; equal ones share one allocation.
    fn addresses(&self) -> BTreeMap<IpAddr, Arc<PodAttributes>> {
        let mut shared: BTreeMap<&PodAttributes, &Arc<PodAttributes>> = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        for (attributes, ips) in self.current.values() {
            let attributes = *shared.entry(attributes).or_insert(attributes);
            for ip in ips {
                addresses.entry(*ip).or_insert_with(|| attributes.clone());
            }
        }
        addresses
    }
}

/// A Pod's name, attributes and addresses.
fn parse(pod: &Pod) -> (NamespacedName, (Arc<PodAttributes>, Vec<IpAddr>)) {
    let attributes = PodAttributes {
        namespace: pod.namespace().to_owned(),
        labels: pod
            .labels()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        service_account: pod.service_account().to_owned(),
        ports: pod.ports().filter_map(named).collect(),
    };
    let name = NamespacedName::new(pod.namespace(), pod.name());
    let addresses = pod.own_addresses().filter_map(|text| text.parse().ok());
    (name, (Arc::new(attributes), addresses.collect()))
}

/// The port, if it has a name.
fn named(port: &Port) -> Option<AddressGroupPort> {
    (!port.name.is_empty()).then(|| AddressGroupPort {
        name: port.name.clone(),
        protocol: port.protocol().to_owned(),
        port: port.number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, app: &str, ips: &[&str]) -> Pod {
        let ips: Vec<_> = ips.iter().map(|ip| serde_json::json!({ "ip": ip })).collect();
        serde_json::from_value(serde_json::json!({
            "metadata": { "namespace": "shop", "name": name, "labels": { "app": app } },
            "spec": { "nodeName": "n1", "containers": [
                { "ports": [{ "name": "dns", "containerPort": 53, "protocol": "UDP" }, { "containerPort": 80 }] },
            ] },
            "status": { "phase": "Running", "podIPs": ips },
        }))
        .unwrap()
    }

    /// The label `app` by address.
    fn apps(pods: &Pods) -> Vec<(String, String)> {
        let addresses = pods.addresses();
        let app = |(addr, of): (&IpAddr, &Arc<PodAttributes>)| (addr.to_string(), of.labels["app"].clone());
        addresses.iter().map(app).collect()
    }

    fn named(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter()
            .map(|(addr, app)| ((*addr).to_owned(), (*app).to_owned()))
            .collect()
    }

    #[test]
    fn only_a_complete_list_counts_and_later_changes_of_addresses_and_labels() {
        let mut pods = Pods::default();
        assert!(!pods.apply_event(Event::Init));
        assert!(!pods.apply_event(Event::InitApply(pod("a", "web", &["10.0.0.1", "fd00::1", "x"]))));
        assert_eq!(apps(&pods), []);
        assert!(pods.apply_event(Event::InitDone));
        let first = named(&[("10.0.0.1", "web"), ("fd00::1", "web")]);
        assert_eq!(apps(&pods), first);
        assert!(!pods.apply_event(Event::Apply(pod("a", "web", &["10.0.0.1", "fd00::1"]))));
        assert!(pods.apply_event(Event::Apply(pod("b", "db", &["10.0.0.2"]))));
        assert!(pods.apply_event(Event::Apply(pod("a", "api", &["10.0.0.1"]))));
        let second = named(&[("10.0.0.1", "api"), ("10.0.0.2", "db")]);
        assert_eq!(apps(&pods), second);
        pods.apply_event(Event::Init);
        pods.apply_event(Event::InitApply(pod("a", "api", &["10.0.0.1"])));
        assert_eq!(apps(&pods), second, "the list is not complete");
        pods.apply_event(Event::InitDone);
        assert_eq!(apps(&pods), named(&[("10.0.0.1", "api")]));
        assert!(pods.apply_event(Event::Delete(pod("a", "api", &["10.0.0.1"]))));
        assert_eq!(apps(&pods), []);
    }

    #[test]
    fn an_address_of_two_pods_is_that_of_the_first_by_name() {
        let mut pods = Pods::default();
        pods.apply_event(Event::InitApply(pod("b", "new", &["10.0.0.1"])));
        pods.apply_event(Event::InitApply(pod("a", "old", &["10.0.0.1"])));
        pods.apply_event(Event::InitDone);
        assert_eq!(apps(&pods), named(&[("10.0.0.1", "old")]));
    }

    #[test]
    fn pods_with_equal_attributes_share_them_and_only_named_ports_count() {
        let mut pods = Pods::default();
        for (name, ip) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
            pods.apply_event(Event::InitApply(pod(name, "web", &[ip])));
        }
        pods.apply_event(Event::InitDone);
        let addresses = pods.addresses();
        let all: Vec<_> = addresses.values().collect();
        assert!(Arc::ptr_eq(all[0], all[1]));
        let port = AddressGroupPort {
            name: "dns".to_owned(),
            protocol: "UDP".to_owned(),
            port: 53,
        };
        assert_eq!(all[0].ports, [port]);
        assert_eq!(all[0].service_account, "default");
    }
}
