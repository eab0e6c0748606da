//! Exported Services: the backends of each port of each address, and their nodes.
//!
//! A gateway gets all backends, a regular Node those of its own Pods, ready or not: a Pod's node is prepared before a
//! gateway selects the Pod, and still translates after no gateway does. Ports that cannot be translated are left to the
//! service proxy, with a reason. Other clusters reach the ports listed here only.

mod location;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use mc_gateway_common::abi::service::{
    BACKEND_READY, Backend, MAGLEV_ENTRIES, MAX_BACKENDS, MAX_SERVICES, Maglev, ServiceKey,
};
use mc_gateway_common::packet::ip;

use crate::cidr::to_abi_addr;
use crate::ids::backend_id;
use crate::objects::FieldError;
use crate::service_objects::{EndpointInfo, ExportedService, ServiceInfo, ServicePort};
use location::EndpointLocation;
pub(super) use location::{EndpointNodes, NodeRef};

/// Protocols of Service ports with their IANA numbers.
const PROTOCOLS: [(&str, u8); 3] = [("TCP", ip::TCP), ("UDP", ip::UDP), ("SCTP", ip::SCTP)];

/// Longest time-out of session affinity in seconds (`ClientIPConfig`, core/v1): a day.
pub const MOST_AFFINITY_SECONDS: u32 = 86_400;

/// A port of a Service address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Time-out of `sessionAffinity: ClientIP` in seconds, 1 to [`MOST_AFFINITY_SECONDS`].
    pub affinity: Option<u32>,
    /// IDs of the backends that accept new flows. Without one the entry serves existing flows only, and new flows go to
    /// the service proxy, which rejects them.
    pub backends: BTreeSet<u64>,
    /// The port is left to the service proxy.
    pub stack: bool,
    /// Policies protect a Pod of the port from senders that the service proxy would hide: new flows are dropped.
    pub identity_lost: bool,
}

/// A port that is left to the service proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxiedPort {
    /// The Service in messages.
    pub object: String,
    /// Path of the port.
    pub field: String,
    /// Protocol and number.
    pub value: String,
    /// Addresses of its endpoints, regardless of their conditions.
    pub endpoints: BTreeSet<IpAddr>,
}

/// The endpoints of a port of a Service address on known Nodes, by ID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// Those that accept new flows.
    pub ready: BTreeSet<u64>,
    /// All, also unready and terminating ones.
    pub all: BTreeSet<u64>,
}

/// Desired contents of the Service maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services {
    /// Services by address, port and protocol; gateways only.
    pub services: BTreeMap<ServiceKey, Service>,
    /// Those of them that are left to the service proxy.
    pub proxied: BTreeMap<ServiceKey, ProxiedPort>,
    /// Endpoints of each port, on every Node.
    pub endpoints: BTreeMap<ServiceKey, Endpoints>,
    /// Past lookup tables by key and generation, from [`crate::service_history`]; gateways only.
    pub past: BTreeMap<ServiceKey, Arc<Maglev>>,
    /// Backends by ID; [`Backend::group`] is the stable ID of the Node's group, 0 for this node.
    pub backends: BTreeMap<u64, Backend>,
}

/// The Services so far, and the rejected fields.
struct ServiceBuilder<'a> {
    nodes: &'a EndpointNodes,
    gateway: bool,
    services: Services,
    rejected: Vec<FieldError>,
}

/// Builds the Service maps from all exported Services; `nodes` are the local cluster's.
pub(super) fn build(
    exported: &[ExportedService],
    nodes: &EndpointNodes,
    gateway: bool,
) -> (Services, Vec<FieldError>) {
    let mut builder = ServiceBuilder {
        nodes,
        gateway,
        services: Services::default(),
        rejected: Vec::new(),
    };
    for service in exported {
        builder.service(service);
    }
    (builder.services, builder.rejected)
}

impl ServiceBuilder<'_> {
    fn service(&mut self, exported: &ExportedService) {
        let service = &exported.service;
        for text in &service.cluster_ips {
            let Ok(addr) = text.parse::<IpAddr>() else {
                self.reject(service, "spec.clusterIPs", text, "is not an IP address");
                continue;
            };
            if service.local_only {
                let field = "spec.internalTrafficPolicy";
                self.reject(
                    service,
                    field,
                    "Local",
                    "keeps requests on the node they arrive at",
                );
            }
            for port in &service.ports {
                self.port(exported, addr, port);
                self.proxied(exported, addr, port);
            }
        }
    }

    fn port(&mut self, exported: &ExportedService, addr: IpAddr, port: &ServicePort) {
        let service = &exported.service;
        let field = field(port);
        let value = format!("{} {}", port.protocol, port.port);
        let Some(key) = key(addr, port) else {
            self.report(service, &field, &value, "is no port of TCP, UDP or SCTP: dropped");
            return;
        };
        if key.proto == ip::SCTP {
            self.reject(service, &field, &value, "is neither TCP nor UDP");
            self.insert(service, port, key, Service::of_proxy());
            return;
        }
        let endpoints = endpoints(exported, addr, port);
        // As in service proxies: terminating Pods are used if no Pod is ready.
        let any_ready = endpoints.iter().any(|(_, _, endpoint)| endpoint.ready);
        let takes_new = |endpoint: &EndpointInfo| {
            if service.local_only {
                // Existing connections keep their Pods.
                false
            } else if any_ready {
                endpoint.ready
            } else {
                endpoint.serving && endpoint.terminating
            }
        };
        let mut backends = BTreeMap::new();
        let mut known = Endpoints::default();
        let mut unplaced = BTreeSet::new();
        for (pod, pod_port, endpoint) in endpoints {
            let group = match self.nodes.locate(pod, endpoint) {
                EndpointLocation::Local => 0,
                EndpointLocation::Remote(group) => group,
                EndpointLocation::Unknown => {
                    if takes_new(endpoint) {
                        unplaced.insert(pod);
                    }
                    continue;
                }
            };
            let pod = to_abi_addr(pod);
            let id = backend_id(&key, &pod, pod_port);
            known.all.insert(id);
            if takes_new(endpoint) {
                known.ready.insert(id);
            }
            if group != 0 && !self.gateway {
                continue;
            }
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
            }
        }
        self.report_unplaced(service, &field, &unplaced, known.ready.is_empty());
        self.services.endpoints.insert(key, known.clone());
        self.add(service, port, key, known.ready, backends);
    }

    /// Keeps the endpoints of a port that is left to the service proxy.
    fn proxied(&mut self, exported: &ExportedService, addr: IpAddr, port: &ServicePort) {
        let Some(key) = key(addr, port) else {
            return;
        };
        if !self.services.services.get(&key).is_some_and(|entry| entry.stack) {
            return;
        }
        // The service proxy selects those of this node alone then.
        let local_only = exported.service.local_only;
        let mut endpoints = endpoints(exported, addr, port);
        endpoints.retain(|(pod, _, endpoint)| {
            !local_only || !matches!(self.nodes.locate(*pod, endpoint), EndpointLocation::Remote(_))
        });
        let port = ProxiedPort {
            object: object(&exported.service),
            field: field(port),
            value: format!("{} {}", port.protocol, port.port),
            endpoints: endpoints.into_iter().map(|(pod, ..)| pod).collect(),
        };
        self.services.proxied.insert(key, port);
    }

    /// Makes a port reachable from other clusters.
    fn insert(&mut self, service: &ServiceInfo, port: &ServicePort, key: ServiceKey, entry: Service) {
        if !self.gateway {
            return;
        }
        let full = self.services.services.len() >= usize::try_from(MAX_SERVICES).unwrap_or(usize::MAX);
        if full && !self.services.services.contains_key(&key) {
            let reason = format!("exceeds the capacity of {MAX_SERVICES} Service ports: dropped");
            self.report(service, &field(port), &key.port.to_string(), &reason);
            return;
        }
        self.services.services.insert(key, entry);
    }

    /// Reports endpoints on no reachable Node. The other endpoints keep serving: without them established connections
    /// would break whenever a Node is deleted before its endpoints, or an endpoint arrives before its Node.
    fn report_unplaced(&mut self, service: &ServiceInfo, field: &str, pods: &BTreeSet<IpAddr>, all: bool) {
        for pod in pods {
            let value = pod.to_string();
            if all {
                self.reject(service, field, &value, "is an endpoint on no reachable Node");
            } else {
                let reason = "is an endpoint on no reachable Node: it gets no flows from other clusters";
                self.report(service, field, &value, reason);
            }
        }
    }

    /// Adds a Service port with all its backends, or rejects it.
    fn add(
        &mut self,
        service: &ServiceInfo,
        port: &ServicePort,
        key: ServiceKey,
        ready: BTreeSet<u64>,
        backends: BTreeMap<u64, Backend>,
    ) {
        let field = field(port);
        let value = key.port.to_string();
        let used = self.services.backends.len().saturating_add(backends.len());
        if used > usize::try_from(MAX_BACKENDS).unwrap_or(usize::MAX) {
            let reason = format!("exceeds the capacity of {MAX_BACKENDS} endpoints");
            self.reject(service, &field, &value, &reason);
            self.insert(service, port, key, Service::of_proxy());
            return;
        }
        let taken = |(id, backend): (&u64, &Backend)| {
            self.services
                .backends
                .get(id)
                .is_some_and(|other| other != backend)
        };
        if backends.iter().any(taken) {
            let reason = "has an endpoint with the same ID as another Service's";
            self.reject(service, &field, &value, reason);
            self.insert(service, port, key, Service::of_proxy());
            return;
        }
        if ready.len() > MAGLEV_ENTRIES {
            let reason = format!(
                "has {} ready endpoints, of which {MAGLEV_ENTRIES} get flows from other clusters",
                ready.len()
            );
            self.report(service, &field, &value, &reason);
        }
        // Existing flows keep their backends while none is ready.
        let entry = if backends.is_empty() || service.local_only {
            Service::of_proxy()
        } else {
            Service {
                affinity: self.affinity(service),
                backends: ready,
                ..Service::default()
            }
        };
        self.services.backends.extend(backends);
        self.insert(service, port, key, entry);
    }

    /// Time-out of session affinity; one that the API server would refuse is reported and replaced.
    fn affinity(&mut self, service: &ServiceInfo) -> Option<u32> {
        let stated = service.affinity_seconds?;
        let seconds = u32::try_from(stated).unwrap_or(0).clamp(1, MOST_AFFINITY_SECONDS);
        if i64::from(seconds) != i64::from(stated) {
            let field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
            let reason = format!("is not between 1 and {MOST_AFFINITY_SECONDS}: {seconds} instead");
            self.report(service, field, &stated.to_string(), &reason);
        }
        Some(seconds)
    }

    /// Reports a Service port that is left to the service proxy.
    fn reject(&mut self, service: &ServiceInfo, field: &str, value: &str, reason: &str) {
        let reason = format!("{reason}: left to the service proxy, which hides the client's address");
        self.report(service, field, value, &reason);
    }

    /// Only gateways report: regular Nodes do not select.
    fn report(&mut self, service: &ServiceInfo, field: &str, value: &str, reason: &str) {
        if self.gateway {
            self.rejected.push(FieldError {
                object: object(service),
                field: field.to_owned(),
                value: value.to_owned(),
                reason: reason.to_owned(),
            });
        }
    }
}

impl Service {
    /// A port that is left to the service proxy.
    fn of_proxy() -> Self {
        Self {
            stack: true,
            ..Self::default()
        }
    }
}

impl Services {
    /// Addresses of the endpoints of ports that are left to the service proxy.
    #[must_use]
    pub fn proxied_endpoints(&self) -> BTreeSet<IpAddr> {
        let endpoints = self.proxied.values().flat_map(|port| &port.endpoints);
        endpoints.copied().collect()
    }

    /// Has new flows to ports with a protected endpoint dropped where the service proxy would hide their senders, and
    /// reports these ports.
    pub fn close_protected(&mut self, protected: &BTreeSet<IpAddr>) -> Vec<FieldError> {
        let mut closed = Vec::new();
        for (key, port) in &self.proxied {
            let mut endpoints = port.endpoints.iter();
            let Some(pod) = endpoints.find(|pod| protected.contains(pod)) else {
                continue;
            };
            if let Some(entry) = self.services.get_mut(key) {
                entry.identity_lost = true;
            }
            closed.push(FieldError {
                object: port.object.clone(),
                field: port.field.clone(),
                value: port.value.clone(),
                reason: format!(
                    "is closed to other clusters (identity-lost): the service proxy would hide their senders from the \
                     policies for its Pod {pod}"
                ),
            });
        }
        closed
    }
}

fn object(service: &ServiceInfo) -> String {
    format!("Service {}/{}", service.namespace, service.name)
}

fn field(port: &ServicePort) -> String {
    format!("spec.ports[{}]", port.name)
}

/// The key of a port; none if its protocol or number does not exist.
fn key(addr: IpAddr, port: &ServicePort) -> Option<ServiceKey> {
    let (_, proto) = PROTOCOLS.iter().find(|(name, _)| *name == port.protocol)?;
    Some(ServiceKey {
        addr: to_abi_addr(addr),
        port: u16::try_from(port.port).ok()?,
        proto: *proto,
        generation: 0,
    })
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
            // All addresses of an endpoint belong to one Pod: as in service proxies, the first is used.
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
