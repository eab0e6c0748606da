//! Rules that allow senders in other clusters, and that Antrea makes useless. Pure.
//!
//! Antrea enforces all rules without scope `ClusterSet`, also on packets from other clusters. Such a packet reaches it
//! without the label identity of its sender, so no rule with that scope matches it there, and a later rule drops it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use mc_api::network_policy::{Action, IpBlock, L4Protocol, Service};

use super::model::{Direction, Mode, PolicySet};
use super::order::{EnforcedRule, RulePeer, ordered_rules};
use super::port_prefixes::icmp_ports;
use super::selection::{LabelledPod, applies_to, by_address, namespaces};
use crate::objects::FieldError;

/// The rules that let senders in other clusters pass, and behind which Antrea drops packets from there to the same Pod
/// and port, with that rule. `remote` has the Pod CIDRs of the other clusters.
#[must_use]
pub fn shadowed(set: &PolicySet, remote: &[IpNet]) -> Vec<FieldError> {
    let (rules, _) = ordered_rules(set, Mode::All);
    let namespaces = namespaces(set);
    let mut found = BTreeMap::new();
    for pod in by_address(&set.local_pods, &namespaces).values() {
        for (rule, by) in of_pod(&rules, pod, remote) {
            found.entry(&rule.name).or_insert((rule, by));
        }
    }
    let errors = found.values().map(|(rule, by)| FieldError {
        object: rule.name.policy.to_string(),
        field: rule.name.path(),
        value: rule.action.name().to_owned(),
        reason: format!(
            "is shadowed: Antrea, which does not know the labels of senders in other clusters, drops their packets by \
             {} {}",
            by.name.policy,
            by.name.path()
        ),
    });
    errors.collect()
}

/// The shadowed rules for a Pod, each with the rule that drops packets.
fn of_pod<'r, 'a>(
    rules: &'r [EnforcedRule<'a>],
    pod: &LabelledPod<'a>,
    remote: &[IpNet],
) -> Vec<(&'r EnforcedRule<'a>, &'r EnforcedRule<'a>)> {
    let of_pod = rules
        .iter()
        .filter(|rule| rule.name.direction == Direction::Ingress && applies_to(rule, pod));
    // Behind a rule that lets every packet from other clusters pass, Antrea drops none.
    let decided: Vec<_> = of_pod.take_while(|rule| !passes_all(rule, remote)).collect();
    let mut found = Vec::new();
    for (index, rule) in decided.iter().enumerate() {
        let is_remote = rule
            .peers
            .iter()
            .any(|peer| matches!(peer, RulePeer::RemotePods(_)));
        if rule.action.denies() || !is_remote {
            continue;
        }
        let mut later = decided.iter().skip(index.saturating_add(1));
        let drop = later.find(|by| drops_some(by, remote) && ports_overlap(rule, by));
        found.extend(drop.map(|by| (*rule, *by)));
    }
    found
}

/// Whether Antrea lets every packet from other clusters pass by a rule.
fn passes_all(rule: &EnforcedRule<'_>, remote: &[IpNet]) -> bool {
    let contains_all = |block: &IpBlock| {
        remote.iter().all(|net| {
            let mut except = block.except.iter();
            block.cidr.contains(net) && !except.any(|except| overlap(except, net))
        })
    };
    matches!(rule.action, Action::Allow | Action::Pass)
        && rule.services.is_none()
        && rule.peers.iter().any(|peer| match peer {
            RulePeer::Every => true,
            RulePeer::Block(block) => contains_all(block),
            _ => false,
        })
}

/// Whether Antrea drops some packet from another cluster by a rule.
fn drops_some(rule: &EnforcedRule<'_>, remote: &[IpNet]) -> bool {
    let contains_some = |block: &IpBlock| {
        remote.iter().any(|net| {
            let mut except = block.except.iter();
            overlap(&block.cidr, net) && !except.any(|except| except.contains(net))
        })
    };
    rule.action.denies()
        && rule.peers.iter().any(|peer| match peer {
            RulePeer::Every => true,
            RulePeer::Block(block) => contains_some(block),
            _ => false,
        })
}

fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

/// Whether both rules may match packets to one port. The numbers of named ports differ between Pods.
fn ports_overlap(one: &EnforcedRule<'_>, other: &EnforcedRule<'_>) -> bool {
    let (Some(services), Some(others)) = (one.services, other.services) else {
        return true;
    };
    services
        .iter()
        .any(|service| others.iter().any(|other| services_overlap(service, other)))
}

fn services_overlap(one: &Service, other: &Service) -> bool {
    let (Some((protocol, ports)), Some((other_protocol, other_ports))) = (ports(one), ports(other)) else {
        return false;
    };
    protocol == other_protocol && ports.start() <= other_ports.end() && other_ports.start() <= ports.end()
}

/// Protocol and ports of packets that may match, all ports by name; no protocol with types and codes of ICMP.
fn ports(service: &Service) -> Option<(Option<L4Protocol>, RangeInclusive<u16>)> {
    match service {
        Service::Unsupported => None,
        Service::Icmp { kind, code } => Some((None, icmp_ports(*kind, *code))),
        Service::Ports {
            protocol,
            first,
            last,
        } => Some((Some(*protocol), *first..=*last)),
        Service::Named { protocol, .. } => Some((Some(*protocol), 0..=u16::MAX)),
    }
}
