//! The destinations of egress rules that Pods determine: Services by their endpoints, and Pods by their named ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use mc_api::label_identity::Labels;
use mc_api::network_policy::{IpBlock, Service};

use super::identity_classes::LabelPeer;
use super::model::{ContainerPort, ServicePeer};
use super::order::{EnforcedRule, RulePeer};
use super::selection::LabelledPod;

/// A protocol and a port.
type Port = (u8, u16);

/// Pods that no rule distinguishes.
#[derive(Debug)]
struct Workload<'a> {
    pod: LabelledPod<'a>,
    addrs: Vec<IpAddr>,
}

/// An address of a Service with one of its ports.
#[derive(Debug)]
struct ServiceAddress {
    addr: IpAddr,
    port: Port,
    /// The endpoints of the address family, each with the index of its workload.
    endpoints: Vec<(SocketAddr, Option<usize>)>,
}

/// The Pods and Services of the cluster.
#[derive(Debug, Default)]
pub(super) struct Destinations<'a> {
    workloads: Vec<Workload<'a>>,
    services: Vec<ServiceAddress>,
}

/// The peers of a rule for one of the Pods that it applies to.
struct Peers<'a> {
    every: bool,
    blocks: Vec<&'a IpBlock>,
    /// Whether the rule selects a workload by labels, by its index.
    workloads: Vec<bool>,
}

// === impl Destinations ===

impl<'a> Destinations<'a> {
    pub(super) fn new(pods: &BTreeMap<IpAddr, LabelledPod<'a>>, services: &[ServicePeer]) -> Self {
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
        let mut addresses = Vec::new();
        for service in services {
            for port in &service.ports {
                for addr in &service.ips {
                    let endpoints = port.endpoints.iter().filter(|to| to.is_ipv4() == addr.is_ipv4());
                    addresses.push(ServiceAddress {
                        addr: *addr,
                        port: (port.protocol, port.number),
                        endpoints: endpoints
                            .map(|to| (*to, by_addr.get(&to.ip()).copied()))
                            .collect(),
                    });
                }
            }
        }
        Self {
            workloads,
            services: addresses,
        }
    }

    /// Whether any Pod of the cluster has this named port.
    pub(super) fn has_port(&self, protocol: u8, name: &str) -> bool {
        let mut ports = self.workloads.iter().flat_map(|workload| &workload.pod.pod.ports);
        ports.any(|port| is_named(port, protocol, name))
    }

    /// The addresses that a rule for egress matches at these ports, beside those that its peers name with the ports
    /// that it states: Services by their endpoints, and Pods by their named ports.
    pub(super) fn matching(
        &self,
        rule: &EnforcedRule<'a>,
        of: &LabelledPod<'a>,
    ) -> BTreeMap<Vec<IpAddr>, Vec<Port>> {
        let peers = Peers::new(rule, of, &self.workloads);
        let services = rule.rule.services.as_deref();
        let mut by_port: BTreeMap<Port, BTreeSet<IpAddr>> = BTreeMap::new();
        for (index, workload) in self.workloads.iter().enumerate() {
            let is_open = |port: &&ContainerPort| {
                services.unwrap_or_default().iter().any(|service| match service {
                    Service::Named { protocol, name } => is_named(port, protocol.number(), name),
                    _ => false,
                })
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
        for service in &self.services {
            let matches = |(to, workload): &(SocketAddr, Option<usize>)| {
                peers.contain(to.ip(), *workload)
                    && services.is_none_or(|services| {
                        self.matches_port(services, (service.port.0, to.port()), *workload)
                    })
            };
            let mut endpoints = service.endpoints.iter();
            let is_matched = if rule.rule.action.denies() {
                endpoints.any(matches)
            } else {
                !service.endpoints.is_empty() && endpoints.all(matches)
            };
            if is_matched {
                by_port.entry(service.port).or_default().insert(service.addr);
            }
        }
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

    /// Whether one of the entries contains the port of an endpoint.
    fn matches_port(&self, services: &[Service], (protocol, port): Port, workload: Option<usize>) -> bool {
        services.iter().any(|service| match service {
            Service::Ports {
                protocol: of,
                first,
                last,
            } => of.number() == protocol && (*first..=*last).contains(&port),
            Service::Named { protocol: of, name } => {
                let workload = workload.and_then(|index| self.workloads.get(index));
                of.number() == protocol
                    && workload.is_some_and(|workload| {
                        let mut ports = workload.pod.pod.ports.iter();
                        ports.any(|own| own.number == port && is_named(own, protocol, name))
                    })
            }
            Service::Icmp { .. } | Service::Unsupported => false,
        })
    }
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
                RulePeer::RemotePods(_) | RulePeer::Service(_) => {}
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
