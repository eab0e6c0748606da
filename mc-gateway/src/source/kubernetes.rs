//! Cluster mode: objects from the API server, watched.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use controller::api::cluster_info::ClusterInfoImport;
use controller::api::gateway::Gateway;
use controller::api::service_export::ServiceExport;
use futures::stream::{BoxStream, SelectAll};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::pod::{self, Pod, Scope};
use super::{Receiver, SourceError, convert};
use crate::config::PodLookup;
use crate::exported::{NamespacedName, ServiceInfo, SliceInfo, exported};
use crate::objects::{GatewayInfo, NodeInfo, Objects, PodInfo, RemoteCluster};

/// Connects to the API server and watches Nodes, Services, EndpointSlices and ServiceExports, and Gateways
/// and ClusterInfoImports of `namespace`.
/// An API server that cannot be reached is waited for.
pub(super) async fn start(
    namespace: &str,
    kubeconfig: Option<&Path>,
    config: &crate::config::Config,
) -> Result<Receiver, SourceError> {
    let client = client(kubeconfig).await?;
    let pods = Pods {
        api: Api::all(client.clone()),
        node: config.node_name.clone(),
        lookup: config.pod_lookup,
        scope: Scope::Nothing,
        events: futures::stream::pending().boxed(),
    };
    let gateways = Api::<Gateway>::namespaced(client.clone(), namespace);
    let imports = Api::<ClusterInfoImport>::namespaced(client.clone(), namespace);
    let streams = [
        watch(
            "Node",
            Api::<Node>::all(client.clone()),
            convert::node,
            Change::Node,
        ),
        watch(
            SERVICE,
            Api::<Service>::all(client.clone()),
            convert::service,
            Change::Service,
        ),
        watch(
            "EndpointSlice",
            Api::<EndpointSlice>::all(client.clone()),
            convert::slice,
            Change::Slice,
        ),
        watch(
            "ServiceExport",
            Api::<ServiceExport>::all(client),
            convert::export,
            Change::Export,
        ),
        watch("Gateway", gateways, convert::gateway, Change::Gateway),
        watch("ClusterInfoImport", imports, convert::remote, Change::Remote),
    ];
    let (sender, receiver) = watch::channel(None);
    let world = World {
        namespace: namespace.to_owned(),
        ..World::default()
    };
    tokio::spawn(follow(futures::stream::select_all(streams), pods, world, sender));
    Ok(receiver)
}

pub(crate) async fn client(kubeconfig: Option<&Path>) -> Result<Client, SourceError> {
    let failed = |error: &dyn std::error::Error| SourceError::Client(crate::chain(error));
    let config = match kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| {
                SourceError::Client(format!(
                    "--kubeconfig {}: {}",
                    path.display(),
                    crate::chain(&error)
                ))
            })?;
            Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|error| failed(&error))?
        }
        None => Config::incluster().map_err(|error| failed(&error))?,
    };
    Client::try_from(config).map_err(|error| failed(&error))
}

/// Kind of Services.
const SERVICE: &str = "Service";

/// An event of one of the kinds we watch.
#[derive(Debug)]
enum Change {
    Node(Event<NodeInfo>),
    Gateway(Event<GatewayInfo>),
    Remote(Event<RemoteCluster>),
    Pod(Event<Arc<PodInfo>>),
    Service(Event<ServiceInfo>),
    Slice(Event<SliceInfo>),
    Export(Event<NamespacedName>),
}

/// What a watch reported: the kind and the event, or why it does not work just now.
type Report = (&'static str, Result<Change, String>);

fn watch<K, T: 'static>(
    kind: &'static str,
    api: Api<K>,
    convert: fn(&K) -> T,
    change: fn(Event<T>) -> Change,
) -> BoxStream<'static, Report>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watch_some(kind, api, watcher::Config::default(), convert, change)
}

fn watch_some<K, T: 'static>(
    kind: &'static str,
    api: Api<K>,
    which: watcher::Config,
    convert: fn(&K) -> T,
    change: fn(Event<T>) -> Change,
) -> BoxStream<'static, Report>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api, which)
        .backoff(Retry::default())
        .map(move |event| {
            let event = event.map_err(|error| crate::chain(&error)).map(|event| {
                change(match event {
                    Event::Apply(object) => Event::Apply(convert(&object)),
                    Event::Delete(object) => Event::Delete(convert(&object)),
                    Event::Init => Event::Init,
                    Event::InitApply(object) => Event::InitApply(convert(&object)),
                    Event::InitDone => Event::InitDone,
                })
            });
            (kind, event)
        })
        .boxed()
}

/// How long to wait before a watch that broke off is started again: short, because the list that
/// follows is small and another cluster's traffic may depend on it.
#[derive(Debug)]
struct Retry(Duration);

impl Retry {
    const FIRST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(5);
}

impl Default for Retry {
    fn default() -> Self {
        Self(Self::FIRST)
    }
}

impl Iterator for Retry {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.0;
        self.0 = wait.saturating_mul(2).min(Self::LONGEST);
        Some(wait)
    }
}

impl Backoff for Retry {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// The watch of Pods, as wide as it has to be just now.
struct Pods {
    api: Api<Pod>,
    node: String,
    lookup: PodLookup,
    scope: Scope,
    events: BoxStream<'static, Report>,
}

impl Pods {
    const KIND: &'static str = "Pod";

    /// Starts another watch if what is known says that other Pods have to be known.
    fn adjust(&mut self, world: &World) {
        let World {
            nodes,
            gateways,
            pods,
            ..
        } = world;
        // Before that, a Node that is not listed yet would look like one without CIDRs.
        if !nodes.synced || !gateways.synced {
            return;
        }
        let scope = pod::scope(
            self.lookup,
            self.scope,
            &self.node,
            &nodes.now,
            &gateways.now,
            pods.now.values(),
        );
        if scope == self.scope {
            return;
        }
        info!(?scope, "watching Pods");
        self.scope = scope;
        let which = match scope {
            Scope::Nothing => return self.events = futures::stream::pending().boxed(),
            Scope::Node => format!("spec.nodeName={}", self.node),
            // What has no address yet, or none any more, need not be sent to us.
            Scope::Cluster => "status.phase=Running".to_owned(),
        };
        let which = watcher::Config::default().fields(&which);
        self.events = watch_some(Self::KIND, self.api.clone(), which, pod::convert, Change::Pod);
    }

    /// Whether what is known of Pods is enough to go on. Without permission to watch them everything that
    /// does not need them goes on.
    fn ready(&self, world: &World, failing: bool) -> bool {
        self.scope == Scope::Nothing || world.pods.synced || (failing && self.lookup == PodLookup::Auto)
    }
}

/// How long what the watches say is gathered before it is looked at as a whole: thousands of objects often change
/// one after the other.
const GATHER: Duration = Duration::from_millis(10);

async fn follow(
    events: SelectAll<BoxStream<'static, Report>>,
    mut pods: Pods,
    mut world: World,
    sender: watch::Sender<Option<Objects>>,
) {
    let mut events = events;
    let mut failing: BTreeMap<&'static str, String> = BTreeMap::new();
    let mut gather = GATHER;
    let mut due: Option<Instant> = None;
    loop {
        let event = tokio::select! {
            () = at(due) => None,
            event = next(&mut events, &mut pods.events, &sender) => match event {
                Some(event) => Some(event),
                None => return,
            },
        };
        let Some((kind, event)) = event else {
            due = None;
            let began = Instant::now();
            pods.adjust(&world);
            publish(&world, &pods, &failing, &sender);
            // However many there are, most of the time is left for other work.
            gather = GATHER.max(began.elapsed().saturating_mul(4));
            continue;
        };
        let concerns = match event {
            Ok(change) => {
                if failing.remove(kind).is_some() {
                    info!(kind, "watch works again");
                }
                debug!(?change, "watch");
                world.apply(change)
            }
            Err(error) => {
                if failing.get(kind) != Some(&error) {
                    warn!(kind, %error, "watch broke off; the last state is kept");
                }
                failing.insert(kind, error);
                [Pods::KIND, SERVICE].contains(&kind)
            }
        };
        if concerns {
            due.get_or_insert_with(|| Instant::now() + gather);
        }
    }
}

/// Comes at that time, if there is one.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Hands on what is known, if it is enough to go on and not what was known before.
fn publish(
    world: &World,
    pods: &Pods,
    failing: &BTreeMap<&'static str, String>,
    sender: &watch::Sender<Option<Objects>>,
) {
    // Before that, addresses reserved for Nodes would seem to be given back. Where Services cannot be read,
    // everything else goes on.
    let reserved = world.services.synced || failing.contains_key(SERVICE);
    let ready = reserved && pods.ready(world, failing.contains_key(Pods::KIND));
    let Some(objects) = world.objects().filter(|_| ready) else {
        return;
    };
    sender.send_if_modified(|known| {
        let changed = known.as_ref() != Some(&objects);
        *known = Some(objects);
        changed
    });
}

/// The next event, none when nobody listens any more.
async fn next<S, P>(events: &mut S, pods: &mut P, sender: &watch::Sender<Option<Objects>>) -> Option<S::Item>
where
    S: Stream + Unpin,
    P: Stream<Item = S::Item> + Unpin,
{
    tokio::select! {
        event = events.next() => event,
        event = pods.next() => event,
        () = sender.closed() => None,
    }
}

/// One kind's objects by name: those that hold, and those a new list has brought so far.
#[derive(Debug)]
struct Store<T> {
    now: BTreeMap<String, T>,
    coming: BTreeMap<String, T>,
    synced: bool,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            now: BTreeMap::new(),
            coming: BTreeMap::new(),
            synced: false,
        }
    }
}

/// Objects are known by their name.
trait Named: Clone {
    fn name(&self) -> String;
}

impl Named for NodeInfo {
    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Named for GatewayInfo {
    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Named for RemoteCluster {
    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Named for Arc<PodInfo> {
    fn name(&self) -> String {
        self.name.clone()
    }
}

impl Named for ServiceInfo {
    fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Named for SliceInfo {
    fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Named for NamespacedName {
    fn name(&self) -> String {
        format!("{}/{}", self.0, self.1)
    }
}

impl<T: Named> Store<T> {
    /// Whether what holds may be different now.
    fn apply(&mut self, event: Event<T>) -> bool {
        match event {
            Event::Apply(object) => {
                self.now.insert(object.name(), object);
            }
            Event::Delete(object) => {
                self.now.remove(&object.name());
            }
            Event::Init => {
                self.coming.clear();
                return false;
            }
            Event::InitApply(object) => {
                self.coming.insert(object.name(), object);
                return false;
            }
            // Only a complete list replaces what is known.
            Event::InitDone => {
                self.now = std::mem::take(&mut self.coming);
                self.synced = true;
            }
        }
        true
    }

    fn list(&self) -> Vec<T> {
        self.now.values().cloned().collect()
    }
}

/// Everything the watches said.
#[derive(Debug, Default)]
struct World {
    /// Namespace of what is ours.
    namespace: String,
    nodes: Store<NodeInfo>,
    gateways: Store<GatewayInfo>,
    remotes: Store<RemoteCluster>,
    pods: Store<Arc<PodInfo>>,
    services: Store<ServiceInfo>,
    slices: Store<SliceInfo>,
    exports: Store<NamespacedName>,
}

impl World {
    /// Whether what holds may be different now.
    fn apply(&mut self, change: Change) -> bool {
        match change {
            Change::Node(event) => self.nodes.apply(event),
            Change::Gateway(event) => self.gateways.apply(event),
            Change::Remote(event) => self.remotes.apply(event),
            Change::Pod(event) => self.pods.apply(event),
            Change::Service(event) => self.services.apply(event),
            Change::Slice(event) => self.slices.apply(event),
            Change::Export(event) => self.exports.apply(event),
        }
    }

    /// The Services that are exported, once all that is needed to know them was listed completely.
    fn exported(&self) -> Option<Vec<crate::exported::ExportedService>> {
        let synced = self.services.synced && self.slices.synced && self.exports.synced;
        synced.then(|| {
            let exports: BTreeSet<NamespacedName> = self.exports.now.values().cloned().collect();
            exported(self.services.now.values(), self.slices.now.values(), &exports)
        })
    }

    /// Services that reserve addresses for Nodes.
    fn reservations(&self) -> Vec<ServiceInfo> {
        let all = self.services.now.values();
        let ours = all.filter(|service| service.reserves && service.namespace == self.namespace);
        ours.cloned().collect()
    }

    /// All objects, once each kind was listed completely. Services come when they are known: where they cannot
    /// be read, Pods still reach each other.
    fn objects(&self) -> Option<Objects> {
        let synced = self.nodes.synced && self.gateways.synced && self.remotes.synced;
        synced.then(|| Objects {
            nodes: self.nodes.list(),
            gateways: self.gateways.list(),
            remotes: self.remotes.list(),
            pods: self.pods.list(),
            services: self.exported(),
            reservations: self.reservations(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeInfo {
        NodeInfo {
            host_addresses: Vec::new(),
            name: name.into(),
            ..NodeInfo::default()
        }
    }

    fn synced() -> World {
        let mut world = World::default();
        world.apply(Change::Node(Event::Init));
        world.apply(Change::Node(Event::InitApply(node("n1"))));
        world.apply(Change::Node(Event::InitDone));
        world.apply(Change::Gateway(Event::InitDone));
        assert_eq!(world.objects(), None, "ClusterInfoImports were not listed yet");
        world.apply(Change::Remote(Event::InitDone));
        world
    }

    #[test]
    fn nothing_is_known_before_all_kinds_were_listed() {
        assert_eq!(synced().objects().unwrap().nodes, [node("n1")]);
    }

    #[test]
    fn a_list_that_breaks_off_removes_nothing() {
        let mut world = synced();
        world.apply(Change::Node(Event::Init));
        world.apply(Change::Node(Event::InitApply(node("n2"))));
        assert_eq!(world.objects().unwrap().nodes, [node("n1")]);
        world.apply(Change::Node(Event::Init));
        world.apply(Change::Node(Event::InitApply(node("n3"))));
        world.apply(Change::Node(Event::InitDone));
        assert_eq!(world.objects().unwrap().nodes, [node("n3")]);
    }

    #[test]
    fn a_watch_that_broke_off_is_retried_soon_and_never_later_than_the_longest_wait() {
        let mut retry = Retry::default();
        let waits: Vec<u128> = retry.by_ref().take(7).map(|wait| wait.as_millis()).collect();
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 5000, 5000]);
        retry.reset();
        assert_eq!(retry.next(), Some(Retry::FIRST));
    }

    #[test]
    fn single_changes() {
        let mut world = synced();
        world.apply(Change::Node(Event::Apply(node("n2"))));
        world.apply(Change::Node(Event::Delete(node("n1"))));
        assert_eq!(world.objects().unwrap().nodes, [node("n2")]);
    }

    #[test]
    fn exported_services_are_known_once_all_three_kinds_were_listed() {
        let mut world = synced();
        assert_eq!(world.objects().unwrap().services, None);
        let web = ServiceInfo {
            namespace: "shop".into(),
            name: "web".into(),
            ..ServiceInfo::default()
        };
        world.apply(Change::Service(Event::InitApply(web)));
        world.apply(Change::Service(Event::InitDone));
        world.apply(Change::Slice(Event::InitDone));
        assert_eq!(world.objects().unwrap().services, None);
        world.apply(Change::Export(Event::InitDone));
        assert_eq!(world.objects().unwrap().services, Some(vec![]));
        world.apply(Change::Export(Event::Apply(("shop".into(), "web".into()))));
        assert_eq!(world.objects().unwrap().services.unwrap().len(), 1);
    }

    #[test]
    fn addresses_are_reserved_by_labelled_services_of_our_namespace_only() {
        let mut world = synced();
        world.namespace = "kube-system".into();
        for (namespace, reserves) in [("shop", true), ("kube-system", false), ("kube-system", true)] {
            let name = format!("mc-node-{namespace}-{reserves}");
            world.apply(Change::Service(Event::Apply(ServiceInfo {
                namespace: namespace.into(),
                name,
                reserves,
                ..ServiceInfo::default()
            })));
        }
        let found = world.objects().unwrap().reservations;
        let names: Vec<&str> = found.iter().map(|service| service.name.as_str()).collect();
        assert_eq!(names, ["mc-node-kube-system-true"]);
    }
}
