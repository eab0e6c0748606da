//! The decision on a packet in plain code: the specification of [`super::compile()`]. It reads every rule for every
//! packet and serves tests and explanations.

use mc_api::label_identity::NAMESPACE_NAME;
use mc_api::network_policy::{NamespaceMatch, PodMatch, Service};

use super::model::{HOST_IDENTITY, ICMP, ICMPV6, Identity, Packet, PolicySet, Verdict};
use super::order::{EnforcedRule, Source, enforced_rules};
use super::selection::{Destination, applies_to, destinations, identities, namespaces};

/// The source of a packet by its label identity.
enum Origin<'a> {
    /// Pods with these labels.
    Pod(&'a Identity),
    /// A host.
    Host,
    /// Not known.
    Unknown,
}

/// The decision on a packet: the first matching rule, in the order of Tier, priority, creation and name of the policy
/// and then of the rules.
pub fn evaluate(set: &PolicySet, packet: &Packet) -> Verdict {
    let namespaces = namespaces(set);
    let destinations = destinations(set, &namespaces);
    let Some(destination) = destinations.get(&packet.destination) else {
        return Verdict::without_rule(false);
    };
    let (identities, _) = identities(set);
    let origin = match identities.get(&packet.identity) {
        Some(identity) => Origin::Pod(identity),
        None if packet.identity == HOST_IDENTITY => Origin::Host,
        None => Origin::Unknown,
    };
    let mut drop_unknown = false;
    for rule in enforced_rules(set).0 {
        if !applies_to(&rule, destination) {
            continue;
        }
        if matches(&rule, destination, &origin, packet) {
            return Verdict::of_rule(rule.rule.action, rule.name);
        }
        drop_unknown |= rule.has_label_peers;
    }
    Verdict::without_rule(drop_unknown && matches!(origin, Origin::Unknown))
}

fn matches(rule: &EnforcedRule<'_>, to: &Destination<'_>, origin: &Origin<'_>, packet: &Packet) -> bool {
    let matches_source = rule.sources.iter().any(|source| match source {
        Source::Every => true,
        Source::Block(block) => block.contains(packet.source),
        Source::Pods(pods) => match origin {
            Origin::Pod(identity) => matches_labels(pods, to, identity),
            Origin::Host | Origin::Unknown => false,
        },
    });
    let services = rule.rule.services.as_ref();
    matches_source
        && services.is_none_or(|list| list.iter().any(|service| matches_service(service, to, packet)))
}

fn matches_labels(pods: &PodMatch, to: &Destination<'_>, identity: &Identity) -> bool {
    let name = identity.namespace.get(NAMESPACE_NAME);
    let is_in_namespace = match &pods.namespaces {
        NamespaceMatch::Any => true,
        NamespaceMatch::Named(named) => name == Some(named),
        NamespaceMatch::Selector(selector) => selector.matches(&identity.namespace),
        NamespaceMatch::Same => name == Some(&to.pod.namespace),
        NamespaceMatch::SameLabels(keys) => keys.iter().all(|key| {
            let value = to.namespace.get(key);
            value.is_some() && value == identity.namespace.get(key)
        }),
    };
    is_in_namespace && pods.pods.matches(&identity.pod)
}

fn matches_service(service: &Service, to: &Destination<'_>, packet: &Packet) -> bool {
    match service {
        Service::Ports {
            protocol,
            first,
            last,
        } => protocol.number() == packet.protocol && (*first..=*last).contains(&packet.port),
        Service::Named { protocol, name } => to.pod.ports.iter().any(|port| {
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
