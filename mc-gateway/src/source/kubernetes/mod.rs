//! Cluster mode: objects from watches of the API server.

mod absent_kinds;
mod cache;
pub(crate) mod node_object;
pub(crate) mod node_report;
mod pod_watch;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, SelectAll};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use mc_api::address_group_slice::AddressGroupSlice;
use mc_api::cluster_info::ClusterInfoImport;
use mc_api::gateway::Gateway;
use mc_api::label_identity::LabelIdentity;
use mc_api::network_policy::{
    AntreaAgentInfo, AntreaControllerInfo, ClusterGroup, ClusterNetworkPolicy, GROUP, NamespacedGroup,
    NetworkPolicy, Tier,
};
use mc_api::node_key::NodeKey;
use mc_api::service_export::ServiceExport;
use mc_kube::{ConfigSource, Multiplexing};
use tokio::sync::watch as state_channel;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{Receiver, SourceError, address_groups, convert};
use crate::config::{Config, PolicyEnforcement};
use crate::objects::Objects;
use crate::policy_objects;
use absent_kinds::AbsentKinds;
use cache::{ObjectCache, ObjectEvent};
use pod_watch::PodWatch;
use watch::{WatchEvent, watch, watch_optional};

/// Kind of Services.
const SERVICE: &str = "Service";

/// Kind of Namespaces.
const NAMESPACE: &str = "Namespace";

/// Kind of label identities.
const LABEL_IDENTITY: &str = "LabelIdentity";

/// Kind of the object of Antrea's controller.
const ANTREA_CONTROLLER: &str = "AntreaControllerInfo";

/// Kind of the objects of Antrea's agents.
const ANTREA_AGENT: &str = "AntreaAgentInfo";

/// Kind of the addresses of Pods.
const ADDRESS_GROUP_SLICE: &str = "AddressGroupSlice";

/// Kinds without which, where the agent has no permission to read them, the other objects are published.
const OPTIONAL: [&str; 5] = [
    PodWatch::KIND,
    SERVICE,
    NAMESPACE,
    LABEL_IDENTITY,
    ADDRESS_GROUP_SLICE,
];

/// Delay between an event and the next publication: thousands of objects often change one after the other.
const BATCH_DELAY: Duration = Duration::from_millis(10);

/// Connects to the API server and watches Nodes, Namespaces, Services, EndpointSlices, ServiceExports and
/// LabelIdentities, and Gateways, ClusterInfoImports and `NodeKey`s of `namespace`; with policies their kinds as well.
/// Waits for an API server that is unreachable.
pub(super) async fn start(
    namespace: &str,
    kubeconfig: Option<&Path>,
    config: &Config,
) -> Result<Receiver, SourceError> {
    Ok(watch_all(client(kubeconfig).await?, namespace, config))
}

/// Watches the objects in a background task.
fn watch_all(client: Client, namespace: &str, config: &Config) -> Receiver {
    let all = watcher::Config::default;
    let node = config.node_name.as_str();
    let nodes = Api::<Node>::all(client.clone());
    let services = Api::<Service>::all(client.clone());
    let slices = Api::<EndpointSlice>::all(client.clone());
    let exports = Api::<ServiceExport>::all(client.clone());
    let gateways = Api::<Gateway>::namespaced(client.clone(), namespace);
    let imports = Api::<ClusterInfoImport>::namespaced(client.clone(), namespace);
    let mut streams = vec![
        watch("Node", nodes, all(), node, convert::node, ObjectEvent::Node),
        watch(
            SERVICE,
            services,
            all(),
            node,
            convert::service,
            ObjectEvent::Service,
        ),
        watch(
            "EndpointSlice",
            slices,
            all(),
            node,
            convert::slice,
            ObjectEvent::Slice,
        ),
        watch(
            "ServiceExport",
            exports,
            all(),
            node,
            convert::export,
            ObjectEvent::Export,
        ),
        watch(
            "Gateway",
            gateways,
            all(),
            node,
            convert::gateway,
            ObjectEvent::Gateway,
        ),
        watch(
            "ClusterInfoImport",
            imports,
            all(),
            node,
            convert::remote,
            ObjectEvent::Remote,
        ),
        watch(
            "NodeKey",
            Api::<NodeKey>::namespaced(client.clone(), namespace),
            all(),
            node,
            convert::node_key,
            ObjectEvent::NodeKey,
        ),
        watch(
            NAMESPACE,
            Api::<Namespace>::all(client.clone()),
            all(),
            node,
            convert::namespace,
            ObjectEvent::Namespace,
        ),
        watch(
            LABEL_IDENTITY,
            Api::<LabelIdentity>::all(client.clone()),
            all(),
            node,
            convert::label_identity,
            ObjectEvent::Identity,
        ),
    ];
    let absent = Arc::new(AbsentKinds::new(client.clone(), GROUP, node));
    let enforced = config.policy_enforcement != PolicyEnforcement::Off;
    if enforced {
        streams.extend(policy_watches(&client, node, &absent));
    }
    if config.policy_enforcement == PolicyEnforcement::Auto {
        streams.extend(antrea_watches(&client, node, &absent));
    }
    let address_groups = address_group_watch(&client, namespace, node);
    let pods = PodWatch::new(Api::all(client), config, address_groups);
    let cache = ObjectCache::new(namespace, node, config.policy_enforcement);
    let (sender, receiver) = state_channel::channel(None);
    tokio::spawn(run(
        futures::stream::select_all(streams),
        pods,
        cache,
        enforced,
        sender,
    ));
    receiver
}

/// Watch of the addresses of Pods. An API server with the CRDs of an older release does not serve the kind.
fn address_group_watch(client: &Client, namespace: &str, node: &str) -> BoxStream<'static, WatchEvent> {
    watch_optional(
        ADDRESS_GROUP_SLICE,
        Api::<AddressGroupSlice>::namespaced(client.clone(), namespace),
        watcher::Config::default(),
        node,
        &Arc::new(AbsentKinds::new(client.clone(), convert::MC_GATEWAY_GROUP, node)),
        address_groups::convert,
        ObjectEvent::AddressGroups,
    )
}

/// Watches of Antrea's controller and of its agent on the Node.
fn antrea_watches(
    client: &Client,
    node: &str,
    absent: &Arc<AbsentKinds>,
) -> [BoxStream<'static, WatchEvent>; 2] {
    [
        watch_optional(
            ANTREA_CONTROLLER,
            Api::<AntreaControllerInfo>::all(client.clone()),
            watcher::Config::default(),
            node,
            absent,
            AntreaControllerInfo::name_any,
            ObjectEvent::AntreaController,
        ),
        watch_optional(
            ANTREA_AGENT,
            Api::<AntreaAgentInfo>::all(client.clone()),
            watcher::Config::default().fields(&format!("metadata.name={node}")),
            node,
            absent,
            AntreaAgentInfo::name_any,
            ObjectEvent::AntreaAgent,
        ),
    ]
}

/// Watches of the kinds of network policies, whose CRDs a cluster without policies may lack.
fn policy_watches(
    client: &Client,
    node: &str,
    absent: &Arc<AbsentKinds>,
) -> [BoxStream<'static, WatchEvent>; 5] {
    let all = watcher::Config::default;
    [
        watch_optional(
            "ClusterNetworkPolicy",
            Api::<ClusterNetworkPolicy>::all(client.clone()),
            all(),
            node,
            absent,
            policy_objects::cluster_network_policy,
            ObjectEvent::ClusterPolicy,
        ),
        watch_optional(
            "NetworkPolicy",
            Api::<NetworkPolicy>::all(client.clone()),
            all(),
            node,
            absent,
            policy_objects::network_policy,
            ObjectEvent::Policy,
        ),
        watch_optional(
            "ClusterGroup",
            Api::<ClusterGroup>::all(client.clone()),
            all(),
            node,
            absent,
            policy_objects::cluster_group,
            ObjectEvent::ClusterGroup,
        ),
        watch_optional(
            "Group",
            Api::<NamespacedGroup>::all(client.clone()),
            all(),
            node,
            absent,
            policy_objects::namespaced_group,
            ObjectEvent::Group,
        ),
        watch_optional(
            "Tier",
            Api::<Tier>::all(client.clone()),
            all(),
            node,
            absent,
            policy_objects::tier,
            ObjectEvent::Tier,
        ),
    ]
}

/// Client for the API server of `kubeconfig`, or of the Pod's service account.
pub(crate) async fn client(kubeconfig: Option<&Path>) -> Result<Client, SourceError> {
    let source = kubeconfig.map_or(ConfigSource::InCluster, ConfigSource::Kubeconfig);
    Ok(mc_kube::client(source, Multiplexing::Shared).await?)
}

/// Applies events to the cache and publishes it in batches, until the receiver is dropped.
async fn run(
    mut events: SelectAll<BoxStream<'static, WatchEvent>>,
    mut pods: PodWatch,
    mut cache: ObjectCache,
    enforced: bool,
    sender: state_channel::Sender<Option<Arc<Objects>>>,
) {
    let mut failing: BTreeMap<&'static str, String> = BTreeMap::new();
    let mut delay = BATCH_DELAY;
    let mut due: Option<Instant> = None;
    loop {
        let event = tokio::select! {
            () = sleep_until_due(due) => None,
            event = next_event(&mut events, &mut pods.events, &sender) => match event {
                Some(event) => Some(event),
                None => return,
            },
        };
        let Some((kind, event)) = event else {
            due = None;
            let began = Instant::now();
            let address_groups = pods.update_scope(&mut cache, failing.contains_key(ADDRESS_GROUP_SLICE));
            events.extend(address_groups);
            // An agent that does not know all policies changes nothing.
            if !enforced || cache.policies_are_synced() {
                publish(&cache, &pods, &failing, &sender);
            }
            // Publishing uses at most a fifth of the time, however many objects there are.
            delay = BATCH_DELAY.max(began.elapsed().saturating_mul(4));
            continue;
        };
        let changed = match event {
            Ok(event) => {
                if failing.remove(kind).is_some() {
                    info!(kind, "watch recovered");
                }
                debug!(?event, "watch event");
                cache.apply(event)
            }
            Err(error) => {
                if failing.get(kind) != Some(&error) {
                    warn!(kind, %error, "watch failed; keeping the last state");
                    if [ANTREA_CONTROLLER, ANTREA_AGENT].contains(&kind) && cache.policy_mode().is_err() {
                        warn!(
                            kind,
                            "--policy-enforcement auto: nothing changes before this kind can be listed"
                        );
                    }
                }
                failing.insert(kind, error);
                // Without permission for these kinds the others are published.
                OPTIONAL.contains(&kind)
            }
        };
        if changed {
            due.get_or_insert_with(|| Instant::now() + delay);
        }
    }
}

/// Sleeps until `due`; forever without one.
async fn sleep_until_due(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Publishes the cached objects if they are complete and differ from the last ones.
fn publish(
    cache: &ObjectCache,
    pods: &PodWatch,
    failing: &BTreeMap<&'static str, String>,
    sender: &state_channel::Sender<Option<Arc<Objects>>>,
) {
    // Before the first list of Services, addresses reserved for Nodes would seem to be released. Where Services
    // cannot be read, everything else is published, unless policies depend on them.
    let reservations = cache.services.synced || failing.contains_key(SERVICE);
    // Before the first list of label identities, all Pods would be unknown to other clusters.
    let readable = |synced, kind| synced || failing.contains_key(kind);
    let identities =
        readable(cache.namespaces.synced, NAMESPACE) && readable(cache.identities.synced, LABEL_IDENTITY);
    let ready = reservations && identities && pods.ready(cache, failing.contains_key(PodWatch::KIND));
    let Some(objects) = cache.objects().filter(|_| ready) else {
        return;
    };
    sender.send_if_modified(|published| {
        let changed = published.as_deref() != Some(&objects);
        let mode = published.as_ref().and_then(|objects| objects.policy_mode);
        if mode != objects.policy_mode {
            info!(mode = ?objects.policy_mode, "rules of network policies to enforce");
        }
        *published = Some(Arc::new(objects));
        changed
    });
}

/// The next event; none once the receiver is dropped.
async fn next_event<S, P>(
    events: &mut S,
    pods: &mut P,
    sender: &state_channel::Sender<Option<Arc<Objects>>>,
) -> Option<S::Item>
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
