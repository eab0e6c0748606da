//! Desired states, resolutions and plans with the caches of earlier ones are those without them.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use ipnet::IpNet;
use kube::core::ObjectMeta;
use mc_api::label_identity::{digest, object_name};
use mc_api::network_policy::{ClusterNetworkPolicy, Policy};
use proptest::prelude::*;
use serde_json::json;

use crate::config::PodLookup;
use crate::desired::{DesiredCache, DesiredState, Established, LocalNode, compute};
use crate::identity_objects::{IdentityInfo, IdentityObjects, NamespaceInfo};
use crate::objects::{GatewayInfo, NodeInfo, NodeKeyInfo, Objects, PodInfo, RemoteCluster, RemoteGateway};
use crate::peer_secret::PeerSecrets;
use crate::plan::{ObservedState, PlanCache, execute_in_memory, plan};
use crate::policy::Mode;
use crate::policy_objects::{Parsed, cluster_network_policy};
use crate::resolved::model::{connected_host, settings};
use crate::resolved::{HostInputs, ResolutionCache, resolve};
use crate::service_objects::{EndpointInfo, ExportedService, ServiceInfo, ServicePort, SliceInfo, SlicePort};

const OWN_NODE: &str = "n0";
/// Prefixes of a cluster that never changes: more than a chunk has, and more than have a route each.
const MANY: u16 = 700;
/// Remote clusters that change.
const CLUSTERS: u8 = 4;
/// The cluster with Antrea gateways.
const ANTREA: &str = "c3";

/// Public keys of nodes.
static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let key = |n| PeerSecrets::new([n; 32]).public_key().to_string();
    (1..8).map(key).collect()
});

/// A change of one object, of the host or of the maps. Numbers select the object and its value.
#[derive(Clone, Debug)]
enum Change {
    /// Adds or removes a remote cluster.
    Cluster(u8),
    /// Adds or removes an import of a cluster with the ID of another object.
    Twin(u8),
    /// Adds or removes a prefix of a cluster; it is another cluster's with a small probability.
    Prefix(u8, u8),
    /// Adds a text that is no valid prefix, or removes it.
    InvalidPrefix(u8),
    ServiceCidr(u8, u8),
    Created(u8, u8),
    RemoteGateway(u8, u8),
    /// Adds or removes a Node.
    Node(u8),
    NodeAddress(u8, u8),
    PodCidr(u8, u8),
    /// Adds or removes a Gateway.
    Gateway(u8),
    GatewayIp(u8, u8),
    Key(u8),
    /// The number of the Pods' label, a cluster without identities, or unreadable ones.
    Identity(u8),
    /// The mode of network policies.
    Mode(u8),
    /// A network policy with this number.
    Policy(u8),
    Pod(u8, u8),
    /// An exported Service, none, or unknown ones.
    Services(u8),
    Endpoint(u8),
    /// Adds or removes a foreign route.
    ForeignRoute(u8),
    /// Another program removes an entry of the prefix map, or changes its cluster or group.
    Entry(u16, u8),
    /// Another program changes the ID of a group.
    Group(u8),
}

fn change() -> impl Strategy<Value = Change> {
    let (cluster, node) = (0..CLUSTERS, 0..4_u8);
    let few = 0..6_u8;
    prop_oneof![
        2 => cluster.clone().prop_map(Change::Cluster),
        1 => cluster.clone().prop_map(Change::Twin),
        6 => (cluster.clone(), 0..40_u8).prop_map(|(a, b)| Change::Prefix(a, b)),
        1 => cluster.clone().prop_map(Change::InvalidPrefix),
        2 => (cluster.clone(), few.clone()).prop_map(|(a, b)| Change::ServiceCidr(a, b)),
        1 => (cluster.clone(), 0..3_u8).prop_map(|(a, b)| Change::Created(a, b)),
        2 => (cluster, few.clone()).prop_map(|(a, b)| Change::RemoteGateway(a, b)),
        1 => node.clone().prop_map(Change::Node),
        1 => (node.clone(), few.clone()).prop_map(|(a, b)| Change::NodeAddress(a, b)),
        1 => (node.clone(), few.clone()).prop_map(|(a, b)| Change::PodCidr(a, b)),
        1 => node.clone().prop_map(Change::Gateway),
        1 => (node.clone(), few.clone()).prop_map(|(a, b)| Change::GatewayIp(a, b)),
        1 => node.clone().prop_map(Change::Key),
        1 => (0..4_u8).prop_map(Change::Identity),
        1 => (0..3_u8).prop_map(Change::Mode),
        1 => (0..3_u8).prop_map(Change::Policy),
        1 => (node.clone(), few.clone()).prop_map(|(a, b)| Change::Pod(a, b)),
        2 => (0..3_u8).prop_map(Change::Services),
        2 => node.prop_map(Change::Endpoint),
        1 => few.clone().prop_map(Change::ForeignRoute),
        1 => few.clone().prop_map(Change::Group),
        3 => (0..MANY + 20, 0..3_u8).prop_map(|(a, b)| Change::Entry(a, b)),
    ]
}

/// The prefix with this number of a cluster; 5 in 40 are prefixes of others.
fn prefix(cluster: u8, number: u8) -> String {
    match number {
        // The next cluster, a Node, nested prefixes of the cluster itself, the addresses of gateways.
        0 => format!("10.{}.1.0/24", 20 + (cluster + 1) % CLUSTERS),
        1 => "10.1.1.0/25".to_owned(),
        2 => format!("10.{}.0.0/16", 20 + cluster),
        3 => "203.0.113.0/28".to_owned(),
        4 => "20.0.0.0/23".to_owned(),
        5..10 => format!("fd00:{cluster}:{number}::/48"),
        _ => format!("10.{}.{number}.0/24", 20 + cluster),
    }
}

fn remote(cluster: u8) -> RemoteCluster {
    RemoteCluster {
        name: format!("c{cluster}-import"),
        created: None,
        cluster_id: format!("c{cluster}"),
        service_cidr: format!("10.{}.0.0/20", 100 + cluster),
        pod_cidrs: vec![prefix(cluster, 10), prefix(cluster, 11)],
        gateways: vec![remote_gateway(cluster, 1), remote_gateway(cluster, 2)],
    }
}

fn remote_gateway(cluster: u8, number: u8) -> RemoteGateway {
    RemoteGateway {
        ip: format!("203.0.{}.{}", 113 + cluster, number),
        weight: 1,
        public_key: KEYS[usize::from(cluster) % KEYS.len()].clone(),
    }
}

fn node(number: u8) -> NodeInfo {
    NodeInfo {
        name: format!("n{number}"),
        internal_ips: vec![format!("192.0.2.{}", 1 + number)],
        external_ips: Vec::new(),
        pod_cidrs: vec![format!("10.1.{number}.0/24")],
        host_addresses: Vec::new(),
    }
}

fn gateway(number: u8) -> GatewayInfo {
    GatewayInfo {
        name: format!("n{number}"),
        gateway_ip: format!("198.51.100.{}", 1 + number),
        internal_ip: format!("192.0.2.{}", 1 + number),
        service_cidr: "10.96.0.0/16".to_owned(),
        weight: 1,
        ..GatewayInfo::default()
    }
}

fn key(number: u8) -> NodeKeyInfo {
    NodeKeyInfo {
        name: format!("n{number}"),
        owned: true,
        public_key: KEYS[usize::from(number) % KEYS.len()].clone(),
    }
}

fn service() -> ExportedService {
    let endpoint = |node: u8| EndpointInfo {
        addresses: vec![format!("10.1.{node}.7")],
        node: Some(format!("n{node}")),
        ready: true,
        serving: true,
        terminating: false,
    };
    let name = "web".to_owned();
    ExportedService {
        service: ServiceInfo {
            namespace: "shop".to_owned(),
            name: name.clone(),
            cluster_ips: vec!["10.96.0.7".to_owned()],
            ports: vec![ServicePort {
                name: String::new(),
                port: 80,
                protocol: "TCP".to_owned(),
                node_port: None,
            }],
            ..ServiceInfo::default()
        },
        slices: vec![SliceInfo {
            namespace: "shop".to_owned(),
            name: name.clone(),
            service: name,
            ports: vec![SlicePort {
                name: String::new(),
                port: Some(8080),
                protocol: "TCP".to_owned(),
            }],
            endpoints: (0..4).map(endpoint).collect(),
        }],
    }
}

/// Unreadable label identities, none, or the one of the Pods' label with another number each.
fn identities(number: u8) -> Option<IdentityObjects> {
    let label = "ns:kubernetes.io/metadata.name=shop&pod:app=web";
    let name = object_name(&digest(label)).to_owned();
    let identity = IdentityInfo {
        name: name.clone(),
        label_name: name,
        label: label.to_owned(),
        id: number.into(),
        ..IdentityInfo::default()
    };
    let namespace = NamespaceInfo {
        name: "shop".to_owned(),
        ..NamespaceInfo::default()
    };
    (number > 0).then(|| IdentityObjects {
        namespaces: vec![Arc::new(namespace)],
        identities: (number > 1).then(|| Arc::new(identity)).into_iter().collect(),
    })
}

/// A policy for the Pods: the first drops them for all senders, the others for those of a label.
fn policy(number: u8) -> Arc<Parsed<Policy>> {
    let from = json!([{"scope": "ClusterSet", "podSelector": {"matchLabels": {"app": "web"}}}]);
    let rule = if number == 0 {
        json!({"action": "Drop"})
    } else {
        json!({"action": "Allow", "from": from, "ports": [{"protocol": "TCP", "port": number}]})
    };
    cluster_network_policy(&ClusterNetworkPolicy {
        metadata: ObjectMeta {
            name: Some(format!("p{number}")),
            ..ObjectMeta::default()
        },
        spec: json!({"priority": 5, "appliedTo": [{"podSelector": {}}], "ingress": [rule]}),
        ..ClusterNetworkPolicy::default()
    })
}

/// Adds a value to a list, or removes the one with its key.
fn toggle<T, K: PartialEq>(list: &mut Vec<T>, value: T, key: impl Fn(&T) -> K) {
    match list.iter().position(|other| key(other) == key(&value)) {
        Some(at) => drop(list.remove(at)),
        None => list.push(value),
    }
}

/// The objects, the host and the node of an agent.
struct World {
    objects: Objects,
    foreign: BTreeSet<IpNet>,
    node: ObservedState,
}

impl World {
    fn new(is_gateway: bool) -> Self {
        let many = (0..MANY).map(|n| format!("20.{}.{}.0/24", n / 256, n % 256));
        let big = RemoteCluster {
            name: "big-import".to_owned(),
            cluster_id: "big".to_owned(),
            pod_cidrs: many.collect(),
            gateways: vec![remote_gateway(100, 1)],
            ..RemoteCluster::default()
        };
        Self {
            objects: Objects {
                nodes: (0..3).map(node).collect(),
                gateways: if is_gateway {
                    vec![gateway(0), gateway(1)]
                } else {
                    vec![gateway(1)]
                },
                remotes: vec![Arc::new(big), Arc::new(remote(0)), Arc::new(remote(3))],
                services: Some(vec![service()]),
                node_keys: (0..4).map(key).collect(),
                policy_mode: Some(Mode::All),
                ..Objects::default()
            },
            foreign: BTreeSet::new(),
            node: ObservedState::default(),
        }
    }

    fn change(&mut self, change: &Change) {
        self.change_clusters(change);
        self.change_local(change);
        self.change_node(change);
    }

    /// Changes of ClusterInfoImports.
    fn change_clusters(&mut self, change: &Change) {
        let objects = &mut self.objects;
        match *change {
            Change::Cluster(n) => {
                toggle(&mut objects.remotes, Arc::new(remote(n)), |one| one.name.clone());
            }
            Change::Twin(n) => {
                let mut twin = remote(n);
                twin.name = format!("twin-{n}");
                toggle(&mut objects.remotes, Arc::new(twin), |one| one.name.clone());
            }
            Change::Prefix(n, number) => self.change_remote(n, |remote| {
                toggle(&mut remote.pod_cidrs, prefix(n, number), String::clone);
            }),
            Change::InvalidPrefix(n) => self.change_remote(n, |remote| {
                toggle(&mut remote.pod_cidrs, "10.300.0.0/16".to_owned(), String::clone);
            }),
            Change::ServiceCidr(n, number) => self.change_remote(n, |remote| {
                remote.service_cidr = match number {
                    0 => String::new(),
                    // Overlaps that of the next cluster.
                    1 => format!("10.{}.8.0/21", 101 + n),
                    number => format!("10.{}.{}.0/24", 100 + n, number),
                };
            }),
            Change::Created(n, number) => self.change_remote(n, |remote| {
                let created = format!("2026-01-0{number}T00:00:00Z");
                remote.created = (number != 0).then_some(created);
            }),
            Change::RemoteGateway(n, number) => self.change_remote(n, |remote| {
                // The address of another cluster's gateway, one in the cluster's own prefix, one in another one's, and
                // that of a Node.
                let new = match number {
                    0 => remote_gateway((n + 1) % CLUSTERS, 1),
                    3 | 4 => RemoteGateway {
                        ip: format!("10.{}.10.{number}", 20 + (n + number % 2) % CLUSTERS),
                        ..remote_gateway(n, number)
                    },
                    5 => RemoteGateway {
                        ip: "192.0.2.2".to_owned(),
                        ..remote_gateway(n, 5)
                    },
                    number => remote_gateway(n, number),
                };
                toggle(&mut remote.gateways, new, |one| one.ip.clone());
            }),
            _ => {}
        }
    }

    /// Changes of objects of the local cluster.
    fn change_local(&mut self, change: &Change) {
        let objects = &mut self.objects;
        match *change {
            Change::Node(n) => {
                toggle(&mut objects.nodes, node(n.max(1)), |one| one.name.clone());
            }
            Change::NodeAddress(n, number) => {
                let address = match number {
                    0 => "10.20.10.7".to_owned(),
                    1 => "20.0.1.7".to_owned(),
                    number => format!("192.0.2.{}", 10 * n + number),
                };
                if let Some(node) = objects.nodes.get_mut(usize::from(n)) {
                    node.internal_ips = vec![address];
                }
            }
            Change::PodCidr(n, number) => {
                let cidr = match number {
                    0 => "10.23.10.0/26".to_owned(),
                    1 => "10.0.0.0/8".to_owned(),
                    number => format!("10.1.{}.0/24", 8 * n + number),
                };
                if let Some(node) = objects.nodes.get_mut(usize::from(n)) {
                    toggle(&mut node.pod_cidrs, cidr, String::clone);
                }
            }
            Change::Gateway(n) => {
                toggle(&mut objects.gateways, gateway(n), |one| one.name.clone());
            }
            Change::GatewayIp(n, number) => {
                let ip = match number {
                    0 => "10.20.10.9".to_owned(),
                    number => format!("198.51.100.{}", 10 * n + number),
                };
                if let Some(gateway) = objects.gateways.get_mut(usize::from(n)) {
                    gateway.gateway_ip = ip;
                }
            }
            Change::Key(n) => {
                toggle(&mut objects.node_keys, key(n), |one| one.name.clone());
            }
            Change::Identity(n) => objects.identities = identities(n),
            Change::Mode(n) => {
                objects.policy_mode = match n {
                    0 => None,
                    1 => Some(Mode::ClusterSetOnly),
                    _ => Some(Mode::All),
                };
            }
            Change::Policy(n) => {
                toggle(&mut objects.policies.policies, policy(n), |one| one.key.clone());
            }
            Change::Pod(n, number) => {
                let ip = match number {
                    0 => "10.20.10.8".to_owned(),
                    number => format!("10.2.{n}.{number}"),
                };
                let pod = PodInfo {
                    name: format!("shop/p{n}"),
                    node: format!("n{n}"),
                    ips: vec![ip],
                    labels: "app=web".into(),
                    ..PodInfo::default()
                };
                toggle(&mut objects.pods, Arc::new(pod), |one| one.name.clone());
            }
            Change::Services(n) => {
                objects.services = match n {
                    0 => None,
                    1 => Some(Vec::new()),
                    _ => Some(vec![service()]),
                };
            }
            Change::Endpoint(n) => {
                let slices = objects
                    .services
                    .iter_mut()
                    .flatten()
                    .flat_map(|service| &mut service.slices);
                for endpoint in slices.filter_map(|slice| slice.endpoints.get_mut(usize::from(n))) {
                    endpoint.ready = !endpoint.ready;
                }
            }
            _ => {}
        }
    }

    /// Changes of the host and of the maps.
    fn change_node(&mut self, change: &Change) {
        match *change {
            Change::ForeignRoute(n) => {
                let texts = [
                    "20.0.7.0/24",
                    "20.1.0.0/25",
                    "20.0.0.0/20",
                    "10.20.0.0/16",
                    "10.20.10.0/24",
                    "fd00::/8",
                ];
                let net = texts[usize::from(n) % texts.len()].parse().unwrap();
                if !self.foreign.remove(&net) {
                    self.foreign.insert(net);
                }
            }
            Change::Group(n) => {
                if let Some(group) = self.node.groups.values_mut().nth(n.into()) {
                    group.id ^= 1;
                }
            }
            Change::Entry(n, kind) => {
                let entry = self.node.prefixes.iter().nth(n.into());
                let Some((key, mut prefix)) = entry.map(|(key, prefix)| (*key, *prefix)) else {
                    return;
                };
                match kind {
                    0 => prefix.cluster ^= 1,
                    1 => prefix.group += 1,
                    _ => {}
                }
                self.node.prefixes.set(key, (kind < 2).then_some(prefix));
            }
            _ => {}
        }
    }

    fn change_remote(&mut self, cluster: u8, change: impl FnOnce(&mut RemoteCluster)) {
        let name = format!("c{cluster}-import");
        let remote = self.objects.remotes.iter_mut().find(|remote| remote.name == name);
        if let Some(remote) = remote {
            change(Arc::make_mut(remote));
        }
    }

    /// A host with a route to every next hop and peer.
    fn host(&self, desired: &DesiredState) -> HostInputs {
        let mut inputs = connected_host(desired, [192, 0, 2, 1].into());
        inputs.foreign_destinations = self.foreign.clone();
        let taken = self.foreign.iter().filter(|net| desired.routes.contains(net));
        inputs.foreign_routes = taken.map(|net| (*net, "bird".to_owned())).collect();
        inputs
    }
}

/// The caches of all stages.
#[derive(Default)]
struct Caches {
    desired: DesiredCache,
    resolved: ResolutionCache,
    plan: PlanCache,
}

/// Reconciles the node; each stage has the same result without earlier ones.
fn reconcile(world: &mut World, caches: &mut Caches, secrets: &mut PeerSecrets) {
    let me = LocalNode {
        node_name: OWN_NODE.to_owned(),
        cluster_id: Some("east".to_owned()),
        pod_lookup: PodLookup::Auto,
        antrea_clusters: [ANTREA.to_owned()].into(),
        ..LocalNode::default()
    };
    let established = Established::new([0; 16], world.node.prefixes.clone());
    let (desired, rejected) = compute(&world.objects, &me, &established, &mut caches.desired).unwrap();
    let full = compute(&world.objects, &me, &established, &mut DesiredCache::default()).unwrap();
    assert_eq!(rejected, full.1);
    assert_eq!(desired, full.0);
    secrets.retain(&desired.public_keys());
    let host = world.host(&desired);
    for _ in 0..6 {
        let settings = settings(OWN_NODE, secrets, &world.node.groups);
        let resolution = resolve(&desired, &host, &settings, &mut caches.resolved);
        assert_eq!(
            resolution,
            resolve(&desired, &host, &settings, &mut ResolutionCache::default())
        );
        let plan_with = |cache| plan(&world.node, &resolution.state, "mc0", cache).unwrap();
        let (plan, full) = (plan_with(&mut caches.plan), plan_with(&mut PlanCache::default()));
        assert_eq!(plan, full);
        if plan.actions.is_empty() {
            return;
        }
        for action in plan.actions {
            execute_in_memory(&mut world.node, action);
        }
    }
    panic!("not converged");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After any changes of objects, of the host and of the maps.
    #[test]
    fn incremental_results_are_the_full_ones(
        is_gateway: bool,
        steps in prop::collection::vec(prop::collection::vec(change(), 1..3), 1..16),
    ) {
        let mut world = World::new(is_gateway);
        let mut caches = Caches::default();
        let mut secrets = PeerSecrets::new([9; 32]);
        reconcile(&mut world, &mut caches, &mut secrets);
        for changes in steps {
            for change in &changes {
                world.change(change);
            }
            reconcile(&mut world, &mut caches, &mut secrets);
        }
    }
}
