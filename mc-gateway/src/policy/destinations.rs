//! The destinations of egress rules that Pods determine: Services by their endpoints, and Pods by their named ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use mc_api::label_identity::Labels;
use mc_api::network_policy::{IpBlock, ObjectName, Service};

use super::identity_classes::LabelPeer;
use super::model::{ContainerPort, Direction, ServicePeer};
use super::node_addresses::NodeAddresses;
use super::order::{EnforcedRule, RulePeer};
use super::selection::LabelledPod;

/// A protocol and a port.
pub(super) type Port = (u8, u16);

/// Pods that no rule distinguishes.
#[derive(Debug)]
struct Workload<'a> {
    pod: LabelledPod<'a>,
    addrs: Vec<IpAddr>,
}

/// An address with a port, and the index of the workload at the address.
#[derive(Clone, Copy, Debug)]
struct Destination {
    addr: SocketAddr,
    protocol: u8,
    workload: Option<usize>,
}

/// A Service with one of its endpoints of the address family; without any, the Service alone.
#[derive(Debug)]
struct Backend<'a> {
    service: &'a ObjectName,
    endpoint: Option<Destination>,
}

/// An address of Services with one of their ports, or addresses of Nodes that no rule distinguishes with a node port.
#[derive(Debug)]
struct ServiceAddress<'a> {
    /// The first address.
    destination: Destination,
    backends: Vec<Backend<'a>>,
}

/// The Pods and Services of the cluster.
#[derive(Debug, Default)]
pub(super) struct Destinations<'a> {
    workloads: Vec<Workload<'a>>,
    named_ports: BTreeSet<(u8, &'a str)>,
    services: Vec<ServiceAddress<'a>>,
    nodes: NodeAddresses,
}

/// The packets to Services that a rule matches.
#[derive(Debug)]
pub(super) struct ServiceMatches {
    addresses: Addresses,
    /// Whether the rule denies packets.
    denies: bool,
}

/// The addresses of Services with packets that a rule matches.
#[derive(Debug)]
enum Addresses {
    /// All, with all backends.
    All,
    /// By the index of the address; addresses without a match are absent.
    Some(BTreeMap<usize, ServiceMatch>),
}

/// The packets to an address of a Service that a rule matches.
#[derive(Debug)]
struct ServiceMatch {
    /// Whether the rule matches the address and port regardless of the backends.
    address: bool,
    backends: Backends,
}

/// The backends of an address, packets to which a rule matches. Most rules match packets to all or none, and a cluster
/// has many pairs of a rule and an address.
#[derive(Debug)]
enum Backends {
    None,
    All,
    /// For each backend, whether the rule matches packets to it.
    Some(Box<[bool]>),
}

/// Every packet to an address.
const EVERY_PACKET: &ServiceMatch = &ServiceMatch {
    address: true,
    backends: Backends::All,
};

/// The peers of a rule for one of the Pods that it applies to.
struct Peers<'a> {
    every: bool,
    blocks: Vec<&'a IpBlock>,
    /// Whether the rule selects a workload by labels, by its index.
    workloads: Vec<bool>,
}

// === impl Destinations ===

impl<'a> Destinations<'a> {
    /// Services have addresses of their own, and those of Nodes.
    pub(super) fn new(
        pods: &BTreeMap<IpAddr, LabelledPod<'a>>,
        services: &'a [ServicePeer],
        node_ips: &[IpAddr],
        rules: &[EnforcedRule<'a>],
    ) -> Self {
        type Key<'a> = (&'a str, &'a Labels, &'a str, &'a [ContainerPort]);
        let mut numbers: BTreeMap<Key<'a>, usize> = BTreeMap::new();
        let mut by_addr = BTreeMap::new();
        let mut workloads: Vec<Workload<'a>> = Vec::new();
        for (addr, labelled) in pods {
            let pod = labelled.pod;
            let key = (&*pod.namespace, &*pod.labels, &*pod.service_account, &*pod.ports);
            let number = *numbers.entry(key).or_insert(workloads.len());
            match workloads.get_mut(number) {
                Some(workload) => workload.addrs.push(*addr),
                None => workloads.push(Workload {
                    pod: *labelled,
                    addrs: vec![*addr],
                }),
            }
            by_addr.insert(*addr, number);
        }
        let ports = workloads.iter().flat_map(|workload| &workload.pod.pod.ports);
        let of_services: BTreeSet<_> = services.iter().flat_map(|service| &service.ips).collect();
        let is_single = |addr: &IpAddr| of_services.contains(addr) || by_addr.contains_key(addr);
        let nodes = NodeAddresses::new(node_ips, is_single, egress_blocks(rules));
        Self {
            named_ports: ports.map(|port| (port.protocol, &*port.name)).collect(),
            services: service_addresses(services, nodes.firsts(), &by_addr),
            nodes,
            workloads,
        }
    }

    /// Whether any Pod of the cluster has this named port.
    pub(super) fn has_port(&self, protocol: u8, name: &str) -> bool {
        self.named_ports.contains(&(protocol, name))
    }

    /// The addresses of Pods that a rule matches at their named ports.
    pub(super) fn with_named_ports(
        &self,
        rule: &EnforcedRule<'a>,
        of: &LabelledPod<'a>,
    ) -> BTreeMap<Vec<IpAddr>, Vec<Port>> {
        let services = rule.services.unwrap_or_default();
        let names = services.iter().filter_map(|service| match service {
            Service::Named { protocol, name } => Some((protocol.number(), name)),
            Service::Ports { .. } | Service::Icmp { .. } | Service::Unsupported => None,
        });
        let names: Vec<_> = names.collect();
        if names.is_empty() {
            return BTreeMap::new();
        }
        let peers = Peers::new(rule, of, &self.workloads);
        let mut by_port: BTreeMap<Port, BTreeSet<IpAddr>> = BTreeMap::new();
        for (index, workload) in self.workloads.iter().enumerate() {
            let is_open = |port: &&ContainerPort| {
                let mut names = names.iter();
                names.any(|(protocol, name)| is_named(port, *protocol, name))
            };
            for port in workload.pod.pod.ports.iter().filter(is_open) {
                let addrs = workload.addrs.iter().copied();
                let matching = addrs.filter(|addr| peers.contain(*addr, Some(index)));
                by_port
                    .entry((port.protocol, port.number))
                    .or_default()
                    .extend(matching);
            }
        }
        by_addrs(by_port)
    }

    /// The packets to Services that a rule matches. One that denies matches the address and port of the Service as
    /// well as those of an endpoint. Others match endpoints, so that a block that contains the address of a Service
    /// does not open its Pods, unless they name the Service or match every packet.
    pub(super) fn service_matches(&self, rule: &EnforcedRule<'a>, of: &LabelledPod<'a>) -> ServiceMatches {
        let denies = rule.action.denies();
        if rule.matches_every_packet() {
            return ServiceMatches {
                addresses: Addresses::All,
                denies,
            };
        }
        let peers = Peers::new(rule, of, &self.workloads);
        let ports = rule.services;
        let matches = |to: &Destination| {
            peers.contain(to.addr.ip(), to.workload) && ports.is_none_or(|ports| self.matches_port(ports, to))
        };
        let mut by_address = BTreeMap::new();
        for (index, service) in self.services.iter().enumerate() {
            let address = matches(&service.destination);
            let is_matched = |backend: &Backend<'_>| {
                denies && address
                    || rule.names(backend.service)
                    || backend.endpoint.as_ref().is_some_and(matches)
            };
            let backends: Backends = service.backends.iter().map(is_matched).collect();
            if address || !matches!(backends, Backends::None) {
                by_address.insert(index, ServiceMatch { address, backends });
            }
        }
        ServiceMatches {
            addresses: Addresses::Some(by_address),
            denies,
        }
    }

    /// The rule that decides on packets to each Service, of rules in their order: the first one that denies a backend
    /// if it is the first match of one, else the first match of any. The agent does not know the backend that the
    /// service proxy selects. Addresses on which the same rule decides regardless of backends are absent.
    pub(super) fn service_decisions(
        &self,
        rules: &[(u32, &ServiceMatches)],
    ) -> BTreeMap<u32, BTreeMap<Vec<IpAddr>, Vec<Port>>> {
        let mut matched = BTreeSet::new();
        for (_, matches) in rules {
            match &matches.addresses {
                Addresses::All => matched.extend(0..self.services.len()),
                Addresses::Some(by_address) => matched.extend(by_address.keys().copied()),
            }
        }
        let mut by_rule: BTreeMap<u32, BTreeMap<Port, BTreeSet<IpAddr>>> = BTreeMap::new();
        for index in matched {
            let Some(service) = self.services.get(index) else {
                continue;
            };
            let matching: Vec<_> = rules
                .iter()
                .filter_map(|(rule, matches)| Some((*rule, matches.denies, matches.of_address(index)?)))
                .collect();
            let by_address = matching.iter().find(|(_, _, of_rule)| of_rule.address);
            let decision = service.decision(&matching);
            if let Some(rule) = decision
                && by_address.map(|(rule, ..)| *rule) != decision
            {
                let destination = &service.destination;
                let by_port = by_rule.entry(rule).or_default();
                let addrs = by_port.entry((destination.protocol, destination.addr.port()));
                addrs.or_default().insert(destination.addr.ip());
            }
        }
        let by_rule = by_rule.into_iter().map(|(rule, by_port)| {
            let by_addrs = by_addrs(by_port).into_iter();
            let with_groups = by_addrs.map(|(firsts, ports)| (self.nodes.members(&firsts), ports));
            (rule, with_groups.collect())
        });
        by_rule.collect()
    }

    /// Whether one of the entries contains the port of a destination.
    fn matches_port(&self, ports: &[Service], to: &Destination) -> bool {
        ports.iter().any(|service| match service {
            Service::Ports {
                protocol,
                first,
                last,
            } => protocol.number() == to.protocol && (*first..=*last).contains(&to.addr.port()),
            Service::Named { protocol, name } => {
                let workload = to.workload.and_then(|index| self.workloads.get(index));
                protocol.number() == to.protocol
                    && workload.is_some_and(|workload| {
                        let mut ports = workload.pod.pod.ports.iter();
                        ports.any(|own| own.number == to.addr.port() && is_named(own, to.protocol, name))
                    })
            }
            Service::Icmp { .. } | Service::Unsupported => false,
        })
    }
}

// === impl ServiceMatches ===

impl ServiceMatches {
    fn of_address(&self, index: usize) -> Option<&ServiceMatch> {
        match &self.addresses {
            Addresses::All => Some(EVERY_PACKET),
            Addresses::Some(by_address) => by_address.get(&index),
        }
    }
}

// === impl Backends ===

impl Backends {
    fn contain(&self, index: usize) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Some(matched) => matched.get(index) == Some(&true),
        }
    }
}

impl FromIterator<bool> for Backends {
    fn from_iter<I: IntoIterator<Item = bool>>(matched: I) -> Self {
        let matched: Box<[bool]> = matched.into_iter().collect();
        if !matched.contains(&true) {
            Self::None
        } else if matched.contains(&false) {
            Self::Some(matched)
        } else {
            Self::All
        }
    }
}

// === impl ServiceAddress ===

impl ServiceAddress<'_> {
    /// The rule that decides on packets to the address, of rules in their order, each with whether it denies packets.
    fn decision(&self, rules: &[(u32, bool, &ServiceMatch)]) -> Option<u32> {
        let firsts = (0..self.backends.len()).filter_map(|backend| {
            let mut rules = rules.iter();
            rules.find(|(_, _, of_rule)| of_rule.backends.contain(backend))
        });
        let (mut denied, mut permitted) = (None, None);
        for (rule, denies, _) in firsts {
            let first = if *denies { &mut denied } else { &mut permitted };
            *first = Some(first.map_or(*rule, |other: u32| other.min(*rule)));
        }
        denied.or(permitted)
    }
}

/// The addresses of Services with their backends; Services with the same address and port share an entry.
fn service_addresses<'a>(
    services: &'a [ServicePeer],
    node_ips: &[IpAddr],
    by_addr: &BTreeMap<IpAddr, usize>,
) -> Vec<ServiceAddress<'a>> {
    let destination = |addr: SocketAddr, protocol| Destination {
        addr,
        protocol,
        workload: by_addr.get(&addr.ip()).copied(),
    };
    let mut addresses: BTreeMap<(SocketAddr, u8), Vec<Backend<'a>>> = BTreeMap::new();
    for service in services {
        for port in &service.ports {
            for addr in service.addresses(port, node_ips) {
                let key = (addr, port.protocol);
                let of_family = port.endpoints.iter().filter(|to| to.is_ipv4() == addr.is_ipv4());
                let mut endpoints: Vec<_> = of_family
                    .map(|to| Some(destination(*to, port.protocol)))
                    .collect();
                if endpoints.is_empty() {
                    endpoints.push(None);
                }
                let backends = endpoints.into_iter().map(|endpoint| Backend {
                    service: &service.name,
                    endpoint,
                });
                addresses.entry(key).or_default().extend(backends);
            }
        }
    }
    let addresses = addresses.into_iter();
    addresses
        .map(|((addr, protocol), backends)| ServiceAddress {
            destination: destination(addr, protocol),
            backends,
        })
        .collect()
}

/// The blocks of addresses in rules for egress.
fn egress_blocks<'r, 'a>(rules: &'r [EnforcedRule<'a>]) -> impl Iterator<Item = &'a IpBlock> + 'r {
    let egress = rules
        .iter()
        .filter(|rule| rule.name.direction == Direction::Egress);
    egress.flat_map(|rule| &rule.peers).filter_map(|peer| match peer {
        RulePeer::Block(block) => Some(*block),
        _ => None,
    })
}

/// The ports of each set of addresses.
fn by_addrs(by_port: BTreeMap<Port, BTreeSet<IpAddr>>) -> BTreeMap<Vec<IpAddr>, Vec<Port>> {
    let mut by_addrs: BTreeMap<Vec<IpAddr>, Vec<Port>> = BTreeMap::new();
    for (port, addrs) in by_port {
        if !addrs.is_empty() {
            by_addrs
                .entry(addrs.into_iter().collect())
                .or_default()
                .push(port);
        }
    }
    by_addrs
}

fn is_named(port: &ContainerPort, protocol: u8, name: &str) -> bool {
    port.protocol == protocol && port.name == name
}

// === impl Peers ===

impl<'a> Peers<'a> {
    fn new(rule: &EnforcedRule<'a>, of: &LabelledPod<'a>, workloads: &[Workload<'a>]) -> Self {
        let (mut every, mut blocks, mut labels) = (false, Vec::new(), Vec::new());
        for peer in &rule.peers {
            match peer {
                RulePeer::Every => every = true,
                RulePeer::Block(block) => blocks.push(*block),
                RulePeer::ClusterPods(pods) => labels.extend(LabelPeer::new(pods, of)),
                RulePeer::UnknownSenders | RulePeer::RemotePods(_) | RulePeer::Service(_) => {}
            }
        }
        let is_selected = |Workload { pod, .. }: &Workload<'_>| {
            let (namespace, LabelledPod { pod, .. }) = (pod.namespace, pod);
            labels
                .iter()
                .any(|peer| peer.matches(namespace, &pod.labels, Some(&pod.service_account)))
        };
        Self {
            every,
            blocks,
            workloads: workloads.iter().map(is_selected).collect(),
        }
    }

    /// Whether an address is a peer, by the workload of its Pod if it is one.
    fn contain(&self, addr: IpAddr, workload: Option<usize>) -> bool {
        let is_selected = workload.and_then(|index| self.workloads.get(index));
        self.every || is_selected == Some(&true) || self.blocks.iter().any(|block| block.contains(addr))
    }
}
