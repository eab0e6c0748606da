//! Exported Services: which Pods are behind which port of which address, and on which node they run.
//!
//! A gateway gets all of them, a regular Node the Pods it runs, ready or not: a Pod's node is prepared
//! before a gateway chooses the Pod, and still translates when none does any more. What cannot be
//! translated is left to the service proxy, with the reason.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use mc_gateway_common::abi::Addr;
use mc_gateway_common::abi::service::{
    BACKEND_READY, Backend, MAGLEV_ENTRIES, MAX_BACKENDS, MAX_SERVICES, ServiceKey,
};

use crate::exported::{EndpointInfo, ExportedService, ServiceInfo, ServicePort};
use crate::ids::backend_id;
use crate::objects::Refusal;

/// Protocol numbers (IANA) of what can be translated.
const PROTOCOLS: [(&str, u8); 2] = [("TCP", 6), ("UDP", 17)];

/// A port of a Service address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// `sessionAffinity: ClientIP`.
    pub affinity: bool,
    /// Ids of the backends that take new flows; never empty.
    pub backends: BTreeSet<u64>,
}

/// Everything the Service maps of this node must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services {
    /// At a gateway: Services by address, port and protocol.
    pub services: BTreeMap<ServiceKey, Service>,
    /// Backends by id; [`Backend::group`] is the stable id of the Node's group, 0 for this node.
    pub backends: BTreeMap<u64, Backend>,
}

/// A Node Pods can run on.
#[derive(Clone, Debug)]
pub(super) struct Home<'a> {
    pub(super) name: &'a str,
    pub(super) pod_cidrs: &'a [IpNet],
    /// Stable id of its group; 0 for this node, none where it cannot be reached.
    pub(super) group: Option<u32>,
}

/// Where an endpoint runs.
enum Place {
    Here,
    /// Stable id of the Node's group.
    There(u32),
    Unknown,
}

/// What is read into.
pub(super) struct Reader<'a> {
    homes: &'a [Home<'a>],
    gateway: bool,
    services: Services,
    refusals: Vec<Refusal>,
}

/// Reads all exported Services; `homes` are the Nodes of our cluster.
pub(super) fn read(
    exported: &[ExportedService],
    homes: &[Home<'_>],
    gateway: bool,
) -> (Services, Vec<Refusal>) {
    let mut reader = Reader {
        homes,
        gateway,
        services: Services::default(),
        refusals: Vec::new(),
    };
    for service in exported {
        reader.service(service);
    }
    (reader.services, reader.refusals)
}

impl Reader<'_> {
    fn service(&mut self, exported: &ExportedService) {
        let service = &exported.service;
        for text in &service.cluster_ips {
            let Ok(addr) = text.parse::<IpAddr>() else {
                self.leave(service, "spec.clusterIPs", text, "is not an IP address");
                continue;
            };
            if service.local_only {
                let field = "spec.internalTrafficPolicy";
                self.leave(
                    service,
                    field,
                    "Local",
                    "keeps requests on the node they arrive at",
                );
                continue;
            }
            for port in &service.ports {
                self.port(exported, addr, port);
            }
        }
    }

    fn port(&mut self, exported: &ExportedService, addr: IpAddr, port: &ServicePort) {
        let service = &exported.service;
        let field = format!("spec.ports[{}]", port.name);
        let protocol = PROTOCOLS.iter().find(|(name, _)| *name == port.protocol);
        let (Some((_, proto)), Ok(number)) = (protocol, u16::try_from(port.port)) else {
            let value = format!("{} {}", port.protocol, port.port);
            self.leave(service, &field, &value, "is neither TCP nor UDP");
            return;
        };
        let key = ServiceKey {
            addr: mapped(addr),
            port: number,
            proto: *proto,
            pad: 0,
        };
        let endpoints = endpoints(exported, addr, port);
        // As service proxies have it: Pods that end are used while there is nothing else.
        let any_ready = endpoints.iter().any(|(_, _, endpoint)| endpoint.ready);
        let takes_new = |endpoint: &EndpointInfo| {
            if any_ready {
                endpoint.ready
            } else {
                endpoint.serving && endpoint.terminating
            }
        };
        let mut backends = BTreeMap::new();
        let mut ready = BTreeSet::new();
        for (pod, pod_port, endpoint) in endpoints {
            let group = match self.place(pod, endpoint) {
                Place::Here => 0,
                Place::There(group) if self.gateway => group,
                Place::Unknown if self.gateway && takes_new(endpoint) => {
                    let value = pod.to_string();
                    let reason = "is an endpoint on no Node that can be reached";
                    self.leave(service, &field, &value, reason);
                    return;
                }
                Place::There(_) | Place::Unknown => continue,
            };
            let pod = mapped(pod);
            let id = backend_id(&key, &pod, pod_port);
            let backend: &mut Backend = backends.entry(id).or_insert(Backend {
                pod,
                service: key.addr,
                group,
                pod_port,
                service_port: key.port,
                proto: key.proto,
                flags: 0,
                pad: 0,
            });
            if takes_new(endpoint) {
                backend.flags |= BACKEND_READY;
                ready.insert(id);
            }
        }
        self.add(service, &field, key, ready, backends);
    }

    /// Takes a port of a Service with all its backends, or leaves it.
    fn add(
        &mut self,
        service: &ServiceInfo,
        field: &str,
        key: ServiceKey,
        ready: BTreeSet<u64>,
        backends: BTreeMap<u64, Backend>,
    ) {
        let value = key.port.to_string();
        let room = |used: usize, more: usize, capacity: u32| {
            used.saturating_add(more) <= usize::try_from(capacity).unwrap_or(usize::MAX)
        };
        if !room(self.services.backends.len(), backends.len(), MAX_BACKENDS)
            || !room(self.services.services.len(), 1, MAX_SERVICES)
        {
            let reason = format!(
                "does not fit: {MAX_SERVICES} ports of Services and {MAX_BACKENDS} endpoints can be translated"
            );
            self.leave(service, field, &value, &reason);
            return;
        }
        let taken = |(id, backend): (&u64, &Backend)| {
            self.services
                .backends
                .get(id)
                .is_some_and(|other| other != backend)
        };
        if backends.iter().any(taken) {
            let reason = "has an endpoint with the same number as another Service's";
            self.leave(service, field, &value, reason);
            return;
        }
        self.services.backends.extend(backends);
        if self.gateway && ready.len() > MAGLEV_ENTRIES {
            self.refusals.push(Refusal {
                object: object(service),
                field: field.to_owned(),
                value,
                reason: format!(
                    "has {} ready endpoints, of which {MAGLEV_ENTRIES} get flows from other clusters",
                    ready.len()
                ),
            });
        }
        if self.gateway && !ready.is_empty() {
            let service = Service {
                affinity: service.client_ip_affinity,
                backends: ready,
            };
            self.services.services.insert(key, service);
        }
    }

    /// The Node an endpoint runs on: the one it names, else the one whose Pod CIDR holds it.
    fn place(&self, pod: IpAddr, endpoint: &EndpointInfo) -> Place {
        let home = match &endpoint.node {
            Some(name) => self.homes.iter().find(|home| home.name == name.as_str()),
            None => self
                .homes
                .iter()
                .find(|home| home.pod_cidrs.iter().any(|net| net.contains(&pod))),
        };
        match home.and_then(|home| home.group) {
            Some(0) => Place::Here,
            Some(group) => Place::There(group),
            None => Place::Unknown,
        }
    }

    /// Says why something is left to the service proxy. Only gateways have a choice to leave.
    fn leave(&mut self, service: &ServiceInfo, field: &str, value: &str, reason: &str) {
        if !self.gateway {
            return;
        }
        self.refusals.push(Refusal {
            object: object(service),
            field: field.to_owned(),
            value: value.to_owned(),
            reason: format!("{reason}: left to the service proxy, which hides the client's address"),
        });
    }
}

fn object(service: &ServiceInfo) -> String {
    format!("Service {}/{}", service.namespace, service.name)
}

/// Address and port of every endpoint of a Service port in the family of `addr`.
fn endpoints<'a>(
    exported: &'a ExportedService,
    addr: IpAddr,
    port: &ServicePort,
) -> Vec<(IpAddr, u16, &'a EndpointInfo)> {
    let mut found = Vec::new();
    for slice in &exported.slices {
        let same = slice
            .ports
            .iter()
            .find(|other| other.name == port.name && other.protocol == port.protocol);
        let Some(pod_port) = same
            .and_then(|same| same.port)
            .and_then(|port| u16::try_from(port).ok())
        else {
            continue;
        };
        for endpoint in &slice.endpoints {
            // All addresses of an endpoint are the same Pod's: the first one counts, as for service proxies.
            let pod = endpoint
                .addresses
                .first()
                .and_then(|text| text.parse::<IpAddr>().ok());
            if let Some(pod) = pod.filter(|pod| pod.is_ipv4() == addr.is_ipv4()) {
                found.push((pod, pod_port, endpoint));
            }
        }
    }
    found
}

fn mapped(addr: IpAddr) -> Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exported::{SliceInfo, SlicePort};

    fn endpoint(addr: &str, node: &str, ready: bool) -> EndpointInfo {
        EndpointInfo {
            addresses: vec![addr.into()],
            node: (!node.is_empty()).then(|| node.to_owned()),
            ready,
            serving: ready,
            terminating: false,
        }
    }

    fn web(endpoints: Vec<EndpointInfo>) -> ExportedService {
        let service = ServiceInfo {
            namespace: "shop".into(),
            name: "web".into(),
            cluster_ips: vec!["10.96.0.10".into(), "fd00:96::10".into()],
            ports: vec![
                ServicePort {
                    name: "http".into(),
                    port: 80,
                    protocol: "TCP".into(),
                },
                ServicePort {
                    name: "dns".into(),
                    port: 53,
                    protocol: "UDP".into(),
                },
            ],
            ..ServiceInfo::default()
        };
        let port = |name: &str, port, protocol: &str| SlicePort {
            name: name.into(),
            port: Some(port),
            protocol: protocol.into(),
        };
        let slice = SliceInfo {
            namespace: "shop".into(),
            name: "web-1".into(),
            service: "web".into(),
            ports: vec![port("http", 8080, "TCP"), port("dns", 5353, "UDP")],
            endpoints,
        };
        ExportedService {
            service,
            slices: vec![slice],
        }
    }

    fn key(addr: &str, port: u16, proto: u8) -> ServiceKey {
        ServiceKey {
            addr: mapped(addr.parse().unwrap()),
            port,
            proto,
            pad: 0,
        }
    }

    /// As gateway `gw` of a cluster with a regular Node `n`, or as that Node.
    fn read_at(node: &str, exported: &[ExportedService]) -> (Services, Vec<String>) {
        let nets = [["10.1.0.0/24".parse().unwrap()], ["10.1.1.0/24".parse().unwrap()]];
        let group = |name: &str| Some(if name == node { 0 } else { 77 });
        let homes = [
            Home {
                name: "gw",
                pod_cidrs: &nets[0],
                group: group("gw"),
            },
            Home {
                name: "n",
                pod_cidrs: &nets[1],
                group: group("n"),
            },
            Home {
                name: "lost",
                pod_cidrs: &[],
                group: None,
            },
        ];
        let (services, refusals) = read(exported, &homes, node == "gw");
        (services, refusals.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_gateway_gets_every_port_with_its_ready_endpoints() {
        let exported = web(vec![
            endpoint("10.1.1.5", "n", true),
            endpoint("10.1.0.5", "gw", true),
            endpoint("10.1.1.6", "n", false),
        ]);
        let (services, refusals) = read_at("gw", &[exported]);
        assert_eq!(refusals, [""; 0]);
        let keys: Vec<_> = services.services.keys().copied().collect();
        assert_eq!(keys, [key("10.96.0.10", 53, 17), key("10.96.0.10", 80, 6)]);
        let http = &services.services[&keys[1]];
        assert_eq!(http.backends.len(), 2, "the third one is not ready");
        assert_eq!(services.backends.len(), 6, "but keeps the flows it has");
        let groups: Vec<u32> = http
            .backends
            .iter()
            .map(|id| services.backends[id].group)
            .collect();
        assert!(groups.contains(&0) && groups.contains(&77), "{groups:?}");
        let backend = services.backends[http.backends.first().unwrap()];
        assert_eq!((backend.service_port, backend.pod_port), (80, 8080));
    }

    #[test]
    fn a_regular_node_gets_its_own_pods_ready_or_not() {
        let exported = web(vec![
            endpoint("10.1.1.5", "n", false),
            endpoint("10.1.1.7", "", true),
            endpoint("10.1.0.5", "gw", true),
            endpoint("10.9.9.9", "lost", true),
        ]);
        let (services, refusals) = read_at("n", &[exported]);
        assert_eq!(services.services, BTreeMap::new());
        assert_eq!(
            services.backends.len(),
            4,
            "two Pods with two ports: {services:?}"
        );
        assert!(services.backends.values().all(|backend| backend.group == 0));
        assert_eq!(refusals, [""; 0], "what is left out is the gateways' affair");
    }

    #[test]
    fn gateways_and_nodes_give_a_backend_the_same_id() {
        let exported = [web(vec![endpoint("10.1.1.5", "n", true)])];
        let ids = |node| {
            read_at(node, &exported)
                .0
                .backends
                .into_keys()
                .collect::<Vec<_>>()
        };
        assert_eq!(ids("gw"), ids("n"));
        assert!(ids("gw").iter().all(|id| *id != 0 && *id >> 40 == 0));
    }

    #[test]
    fn pods_that_end_are_used_while_there_is_nothing_else() {
        let mut ending = endpoint("10.1.1.5", "n", false);
        ending.serving = true;
        ending.terminating = true;
        let (services, _) = read_at("gw", &[web(vec![ending.clone()])]);
        assert_eq!(services.services[&key("10.96.0.10", 80, 6)].backends.len(), 1);
        let (services, _) = read_at("gw", &[web(vec![ending, endpoint("10.1.1.6", "n", true)])]);
        let http = &services.services[&key("10.96.0.10", 80, 6)];
        let pods: Vec<Addr> = http.backends.iter().map(|id| services.backends[id].pod).collect();
        assert_eq!(pods, [mapped("10.1.1.6".parse().unwrap())]);
    }

    #[test]
    fn without_a_ready_endpoint_the_service_proxy_answers() {
        let (services, refusals) = read_at("gw", &[web(vec![endpoint("10.1.1.5", "n", false)])]);
        assert_eq!(services.services, BTreeMap::new());
        assert_eq!(refusals, [""; 0], "nothing is wrong with that");
    }

    #[test]
    fn what_cannot_be_translated_is_left_with_a_reason() {
        let mut local = web(vec![endpoint("10.1.1.5", "n", true)]);
        local.service.local_only = true;
        local.service.cluster_ips.truncate(1);
        let (services, refusals) = read_at("gw", &[local]);
        assert_eq!(services, Services::default());
        assert_eq!(
            refusals,
            [
                "Service shop/web: spec.internalTrafficPolicy: \"Local\" keeps requests on the node they arrive at: \
              left to the service proxy, which hides the client's address"
            ]
        );

        let mut sctp = web(vec![endpoint("10.1.1.5", "n", true)]);
        sctp.service.ports[1].protocol = "SCTP".into();
        sctp.slices[0].ports[1].protocol = "SCTP".into();
        let (services, refusals) = read_at("gw", &[sctp]);
        assert_eq!(services.services.len(), 1, "the other port is translated");
        assert!(
            refusals[0].contains("spec.ports[dns]: \"SCTP 53\" is neither TCP nor UDP"),
            "{refusals:?}"
        );

        let lost = web(vec![
            endpoint("10.1.1.5", "n", true),
            endpoint("10.9.9.9", "lost", true),
        ]);
        let (services, refusals) = read_at("gw", &[lost]);
        assert_eq!(services.services, BTreeMap::new());
        assert!(
            refusals[0].contains("\"10.9.9.9\" is an endpoint on no Node"),
            "{refusals:?}"
        );
    }

    /// As many endpoints of the gateway.
    fn endpoints_at_gateway(n: u32) -> Vec<EndpointInfo> {
        let first = u32::from(std::net::Ipv4Addr::new(10, 16, 0, 0));
        let addr = |n: u32| std::net::Ipv4Addr::from(first + n).to_string();
        (0..n).map(|n| endpoint(&addr(n), "gw", true)).collect()
    }

    #[test]
    fn more_endpoints_than_the_lookup_table_has_places_are_named() {
        let many = u32::try_from(MAGLEV_ENTRIES).unwrap() + 1;
        let mut exported = web(endpoints_at_gateway(many));
        exported.service.ports.truncate(1);
        let (services, refusals) = read_at("gw", &[exported]);
        assert_eq!(services.services[&key("10.96.0.10", 80, 6)].backends.len(), 510);
        assert_eq!(
            refusals,
            [
                "Service shop/web: spec.ports[http]: \"80\" has 510 ready endpoints, of which 509 get flows from other clusters"
            ]
        );
    }

    #[test]
    fn what_does_not_fit_the_tables_is_left_and_the_rest_is_not() {
        let mut huge = web(endpoints_at_gateway(MAX_BACKENDS));
        huge.service.ports.truncate(1);
        let mut small = web(vec![endpoint("10.1.1.5", "n", true)]);
        small.service.name = "small".into();
        small.service.cluster_ips = vec!["10.96.0.11".into()];
        let (services, refusals) = read_at("gw", &[small, huge]);
        assert_eq!(services.services.len(), 2, "both ports of the small one");
        let [refusal] = &refusals[..] else {
            panic!("{refusals:?}")
        };
        assert!(
            refusal.contains("does not fit") && refusal.contains("left to the service proxy"),
            "{refusal}"
        );
    }

    #[test]
    fn affinity_is_passed_on() {
        let mut exported = web(vec![endpoint("10.1.1.5", "n", true)]);
        exported.service.client_ip_affinity = true;
        let (services, _) = read_at("gw", &[exported]);
        assert!(services.services.values().all(|service| service.affinity));
    }
}
