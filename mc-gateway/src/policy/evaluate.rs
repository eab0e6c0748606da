//! The decision on a packet in plain code: the specification of [`super::compile()`]. It reads every rule for every
//! packet and serves tests and explanations.

use std::net::{IpAddr, SocketAddr};

use mc_api::label_identity::{Labels, NAMESPACE_NAME};
use mc_api::network_policy::{NamespaceMatch, ObjectName, PodMatch, Service};

use super::model::{
    ContainerPort, Direction, HOST_IDENTITY, ICMP, ICMPV6, Packet, PolicySet, ServicePeerPort, Verdict,
};
use super::order::{EnforcedRule, RulePeer, enforced_rules};
use super::selection::{LabelledPod, applies_to, by_address, has_account, identities, namespaces};

/// The other side of a packet.
struct Other<'a> {
    /// Whether it is a sender in another cluster without a known label identity, and no host.
    is_unknown: bool,
    /// By the label identity of a sender in another cluster.
    identity: Option<PeerPod<'a>>,
    /// By the address of a Pod in the own cluster.
    in_cluster: Option<PeerPod<'a>>,
}

/// Labels of Namespace and Pod, and `ServiceAccount` and ports of a Pod in the own cluster.
#[derive(Clone, Copy)]
struct PeerPod<'a> {
    namespace: &'a Labels,
    labels: &'a Labels,
    service_account: Option<&'a str>,
    ports: &'a [ContainerPort],
}

/// A Service with one of its endpoints of the address family; without any, the Service alone.
struct Backend<'a> {
    service: &'a ObjectName,
    /// The packet behind the service proxy.
    endpoint: Option<Packet>,
}

/// The decision on a packet: the first matching rule, in the order of Tier, priority, creation and name of the policy
/// and then of the rules. A rule of an audited policy that would be it is named, and the first one of the others
/// decides. The service proxy selects a backend behind the programs, so a packet to a Service is denied by the first
/// rule that denies one of its backends; else the first rule that matches any of them decides.
pub fn evaluate(set: &PolicySet, packet: &Packet) -> Verdict {
    let namespaces = namespaces(set);
    let local = by_address(&set.local_pods, &namespaces);
    let Some(pod) = local.get(&packet.pod) else {
        return Verdict::without_rule(false);
    };
    let (identities, _) = identities(set);
    let identity = identities.get(&packet.identity);
    let is_unknown = identity.is_none() && packet.identity != HOST_IDENTITY;
    let cluster = by_address(&set.cluster_pods, &namespaces);
    let in_cluster = |addr: IpAddr| {
        cluster.get(&addr).map(|peer| PeerPod {
            namespace: peer.namespace,
            labels: &peer.pod.labels,
            service_account: Some(&peer.pod.service_account),
            ports: &peer.pod.ports,
        })
    };
    let other = Other {
        is_unknown,
        identity: identity.map(|identity| PeerPod {
            namespace: &identity.namespace,
            labels: &identity.pod,
            service_account: None,
            ports: &[],
        }),
        in_cluster: in_cluster(packet.peer),
    };
    let (rules, _) = enforced_rules(set);
    let applied = rules
        .iter()
        .filter(|rule| rule.name.direction == packet.direction && applies_to(rule, pod));
    let all: Vec<_> = applied.collect();
    let enforced: Vec<_> = all.iter().copied().filter(|rule| !rule.is_audited).collect();
    let matches_packet = |rule: &EnforcedRule<'_>| matches(rule, pod, &other, packet);
    // The first rule for a backend, which a rule that permits packets matches by its endpoint.
    let first_of_backend = |rules: &[&EnforcedRule<'_>], backend: &Backend<'_>| {
        rules.iter().position(|rule| {
            let by_endpoint = |to: &Packet| {
                let other = Other {
                    is_unknown: false,
                    identity: None,
                    in_cluster: in_cluster(to.peer),
                };
                matches(rule, pod, &other, to)
            };
            rule.action.denies() && matches_packet(rule)
                || rule.matches_every_packet()
                || rule.names(backend.service)
                || backend.endpoint.as_ref().is_some_and(by_endpoint)
        })
    };
    let backends = backends(set, packet);
    let first = |rules: &[&EnforcedRule<'_>]| {
        let of_backends = backends
            .iter()
            .filter_map(|backend| first_of_backend(rules, backend));
        let of_backends: Vec<usize> = of_backends.collect();
        let is_denial = |index: &&usize| rules.get(**index).is_some_and(|rule| rule.action.denies());
        let denial = of_backends.iter().filter(is_denial).min();
        let first = denial.or_else(|| of_backends.iter().min()).copied();
        first.or_else(|| rules.iter().position(|rule| matches_packet(rule)))
    };
    let audited = first(&all).and_then(|index| all.get(index));
    let audited = audited
        .filter(|rule| rule.is_audited)
        .map(|rule| rule.name.clone());
    if let Some(rule) = first(&enforced).and_then(|index| enforced.get(index)) {
        return Verdict::of_rule(rule.action, rule.name.clone()).with_audited(audited);
    }
    let drop_unknown = enforced.iter().any(|rule| rule.has_label_peers);
    Verdict::without_rule(drop_unknown && is_unknown).with_audited(audited)
}

/// The Services at the destination of a packet for egress, with their endpoints.
fn backends<'a>(set: &'a PolicySet, packet: &Packet) -> Vec<Backend<'a>> {
    let mut backends = Vec::new();
    if packet.direction == Direction::Ingress {
        return backends;
    }
    let to = SocketAddr::new(packet.peer, packet.port);
    for service in &set.services {
        let is_port = |port: &&ServicePeerPort| {
            port.protocol == packet.protocol && service.addresses(port, &set.node_ips).any(|of| of == to)
        };
        for port in service.ports.iter().filter(is_port) {
            let of_family = port
                .endpoints
                .iter()
                .filter(|to| to.is_ipv4() == packet.peer.is_ipv4());
            let mut endpoints: Vec<_> = of_family
                .map(|to| {
                    Some(Packet {
                        peer: to.ip(),
                        port: to.port(),
                        ..*packet
                    })
                })
                .collect();
            if endpoints.is_empty() {
                endpoints.push(None);
            }
            backends.extend(endpoints.into_iter().map(|endpoint| Backend {
                service: &service.name,
                endpoint,
            }));
        }
    }
    backends
}

fn matches(rule: &EnforcedRule<'_>, of: &LabelledPod<'_>, other: &Other<'_>, packet: &Packet) -> bool {
    let matches_peer = rule.peers.iter().any(|peer| match peer {
        RulePeer::Every => true,
        RulePeer::UnknownSenders => other.is_unknown,
        RulePeer::Block(block) => block.contains(packet.peer),
        RulePeer::RemotePods(pods) => other.identity.is_some_and(|peer| matches_pod(pods, of, &peer)),
        RulePeer::ClusterPods(pods) => other.in_cluster.is_some_and(|peer| matches_pod(pods, of, &peer)),
        // The Services at a destination are those of its backends.
        RulePeer::Service(_) => false,
    });
    let services = rule.services;
    // Named ports are those of the destination.
    let ports = match packet.direction {
        Direction::Ingress => &of.pod.ports,
        Direction::Egress => other.in_cluster.map_or(&[][..], |peer| peer.ports),
    };
    matches_peer
        && services.is_none_or(|list| list.iter().any(|service| matches_service(service, ports, packet)))
}

fn matches_pod(pods: &PodMatch, of: &LabelledPod<'_>, peer: &PeerPod<'_>) -> bool {
    let namespace = peer.namespace;
    let name = namespace.get(NAMESPACE_NAME);
    let is_in_namespace = match &pods.namespaces {
        NamespaceMatch::Any => true,
        NamespaceMatch::Named(named) => name == Some(named),
        NamespaceMatch::Selector(selector) => selector.matches(namespace),
        NamespaceMatch::Same => name == Some(&of.pod.namespace),
        NamespaceMatch::SameLabels(keys) => keys.iter().all(|key| {
            let value = of.namespace.get(key);
            value.is_some() && value == namespace.get(key)
        }),
    };
    is_in_namespace
        && has_account(pods.service_account.as_deref(), peer.service_account)
        && pods.pods.matches(peer.labels)
}

fn matches_service(service: &Service, ports: &[ContainerPort], packet: &Packet) -> bool {
    match service {
        Service::Ports {
            protocol,
            first,
            last,
        } => protocol.number() == packet.protocol && (*first..=*last).contains(&packet.port),
        Service::Named { protocol, name } => ports.iter().any(|port| {
            port.name == *name
                && port.protocol == protocol.number()
                && (port.protocol, port.number) == (packet.protocol, packet.port)
        }),
        Service::Icmp { kind, code } => {
            let [packet_kind, packet_code] = packet.port.to_be_bytes();
            matches!(packet.protocol, ICMP | ICMPV6)
                && kind.is_none_or(|kind| kind == packet_kind)
                && code.is_none_or(|code| code == packet_code)
        }
        Service::Unsupported => false,
    }
}
