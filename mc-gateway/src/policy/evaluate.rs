//! The decision on a packet in plain code: the specification of [`super::compile()`]. It reads every rule for every
//! packet and serves tests and explanations.

use std::net::IpAddr;

use mc_api::label_identity::{Labels, NAMESPACE_NAME};
use mc_api::network_policy::{NamespaceMatch, PodMatch, Service};

use super::model::{
    ContainerPort, Direction, HOST_IDENTITY, ICMP, ICMPV6, Packet, PolicySet, ServicePeer, Verdict,
};
use super::order::{EnforcedRule, RulePeer, enforced_rules};
use super::selection::{LabelledPod, applies_to, by_address, has_account, identities, namespaces};

/// The other side of a packet.
struct Other<'a> {
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

/// The decision on a packet: the first matching rule, in the order of Tier, priority, creation and name of the policy
/// and then of the rules.
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
        identity: identity.map(|identity| PeerPod {
            namespace: &identity.namespace,
            labels: &identity.pod,
            service_account: None,
            ports: &[],
        }),
        in_cluster: in_cluster(packet.peer),
    };
    // A packet to each endpoint of the Services at the address and port.
    let ports = set
        .services
        .iter()
        .filter(|service| service.ips.contains(&packet.peer));
    let ports = ports.flat_map(|service| &service.ports);
    let endpoints: Vec<Vec<Packet>> = ports
        .filter(|port| (port.protocol, port.number) == (packet.protocol, packet.port))
        .map(|port| {
            let endpoints = port.endpoints.iter();
            endpoints
                .filter(|to| to.is_ipv4() == packet.peer.is_ipv4())
                .map(|to| Packet {
                    peer: to.ip(),
                    port: to.port(),
                    ..*packet
                })
                .collect()
        })
        .collect();
    let mut drop_unknown = false;
    for rule in enforced_rules(set).0 {
        if rule.name.direction != packet.direction || !applies_to(&rule, pod) {
            continue;
        }
        let by_endpoint = |to: &Packet| {
            let other = Other {
                identity: None,
                in_cluster: in_cluster(to.peer),
            };
            matches(&rule, pod, &other, to)
        };
        let by_endpoints = |endpoints: &Vec<Packet>| {
            if rule.rule.action.denies() {
                endpoints.iter().any(by_endpoint)
            } else {
                !endpoints.is_empty() && endpoints.iter().all(by_endpoint)
            }
        };
        if matches(&rule, pod, &other, packet)
            || rule.compares_endpoints() && endpoints.iter().any(by_endpoints)
        {
            return Verdict::of_rule(rule.rule.action, rule.name);
        }
        drop_unknown |= rule.has_label_peers;
    }
    Verdict::without_rule(drop_unknown && is_unknown)
}

fn matches(rule: &EnforcedRule<'_>, of: &LabelledPod<'_>, other: &Other<'_>, packet: &Packet) -> bool {
    let matches_peer = rule.peers.iter().any(|peer| match peer {
        RulePeer::Every => true,
        RulePeer::Block(block) => block.contains(packet.peer),
        RulePeer::RemotePods(pods) => other.identity.is_some_and(|peer| matches_pod(pods, of, &peer)),
        RulePeer::ClusterPods(pods) => other.in_cluster.is_some_and(|peer| matches_pod(pods, of, &peer)),
        RulePeer::Service(service) => is_to_service(service, packet),
    });
    let services = rule.rule.services.as_ref();
    // Named ports are those of the destination.
    let ports = match packet.direction {
        Direction::Ingress => &of.pod.ports,
        Direction::Egress => other.in_cluster.map_or(&[][..], |peer| peer.ports),
    };
    matches_peer
        && services.is_none_or(|list| list.iter().any(|service| matches_service(service, ports, packet)))
}

fn is_to_service(service: &ServicePeer, packet: &Packet) -> bool {
    let mut ports = service.ports.iter();
    service.ips.contains(&packet.peer)
        && ports.any(|port| (port.protocol, port.number) == (packet.protocol, packet.port))
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
