//! Compilation of policies to tables.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use mc_api::network_policy::{L4Protocol, Service};

use super::address_classes::{AddressClasses, AddressPeer};
use super::destinations::{Destinations, ServiceMatches};
use super::identity_classes::{IdentityClasses, LabelPeer};
use super::model::{Direction, ICMP, ICMPV6, PROTOCOLS, PolicySet};
use super::numbers::Numbers;
use super::order::{EnforcedRule, RulePeer, enforced_rules};
use super::port_prefixes::{PortPrefix, flatten, icmp_ports, split};
use super::selection::{LabelledPod, applies_to, by_address, identities, namespaces};
use super::tables::{
    Dimension, OTHER_PROTOCOL, PodSets, RuleKey, RuleValue, SetInfo, Tables, UNKNOWN_CLASS, UNMATCHED_CLASS,
};
use crate::objects::FieldError;

/// A rule for one Pod, with all that depends on the Pod resolved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodRule {
    /// Its index among the rules in force.
    rule: u32,
    peers: Vec<PeerNumber>,
    /// Protocols and ports; `None` for all.
    ports: Option<Vec<PortRange>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeerNumber {
    Every,
    UnknownSenders,
    Labels(u32),
    Addresses(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortRange {
    protocol: u8,
    first: u16,
    last: u16,
}

/// A named port that does not exist.
enum MissingPort {
    /// In Pods that the rule applies to: the first one, and the number of others.
    Own { pod: String, others: u32 },
    /// In any Pod of the cluster.
    Destination,
}

/// The index of a rule, and the Namespace of the Pods that it applies to if a peer depends on it.
type ScopedRule<'a> = (u32, Option<&'a str>);

#[derive(Default)]
struct Compiler<'a> {
    label_peers: Numbers<LabelPeer<'a>>,
    address_peers: Numbers<AddressPeer<'a>>,
    sets: Numbers<Vec<PodRule>>,
    /// By rule and name of the port.
    missing_ports: BTreeMap<(u32, &'a str), MissingPort>,
    destinations: Destinations<'a>,
    /// Rules for Pods by named ports.
    named_port_rules: BTreeMap<ScopedRule<'a>, Vec<PodRule>>,
    service_matches: BTreeMap<ScopedRule<'a>, ServiceMatches>,
    /// Rules for packets to Services, by the rules for the Pod.
    service_rules: BTreeMap<Vec<ScopedRule<'a>>, Vec<PodRule>>,
}

/// The tables of these policies, and the issues of references in them: Tiers, groups, named ports and label identities.
#[must_use]
pub fn compile(set: &PolicySet) -> (Tables, Vec<FieldError>) {
    let (rules, mut issues) = enforced_rules(set);
    let namespaces = namespaces(set);
    let local = by_address(&set.local_pods, &namespaces);
    let cluster = by_address(&set.cluster_pods, &namespaces);
    let (identities, ambiguous) = identities(set);
    issues.extend(ambiguous.into_iter().map(ambiguous_identity));

    let mut compiler = Compiler {
        destinations: Destinations::new(&cluster, &set.services, &set.node_ips, &rules),
        ..Compiler::default()
    };
    let pods = compiler.assign_sets(Direction::Ingress, &rules, &local);
    let egress_pods = compiler.assign_sets(Direction::Egress, &rules, &local);
    issues.extend(compiler.missing_ports(&rules));
    let by_identity = IdentityClasses::new(&identities, &compiler.label_peers.numbers);
    let by_address = AddressClasses::new(&compiler.address_peers.numbers, &cluster);

    let mut sets: Vec<_> = compiler.sets.numbers.into_iter().collect();
    sets.sort_by_key(|(_, number)| *number);
    let mut tables = Tables {
        pods,
        egress_pods,
        rule_names: rules.iter().map(|rule| rule.name.clone()).collect(),
        has_rules_in_force: rules.iter().any(|rule| !rule.is_audited),
        ..Tables::default()
    };
    for (list, number) in sets {
        let mut used = list.iter().filter_map(|pod_rule| rule_at(&rules, pod_rule.rule));
        tables.sets.push(SetInfo {
            drop_unknown: used.any(|rule| rule.has_label_peers),
        });
        let of_set = list.iter().filter_map(|pod_rule| rule_at(&rules, pod_rule.rule));
        tables
            .policies
            .extend(of_set.map(|rule| Arc::clone(&rule.name.policy)));
        tables
            .rules
            .extend(entries(number + 1, &list, &rules, &by_identity, &by_address));
    }
    tables.identities = by_identity.by_id;
    tables.address_classes = by_address.by_prefix;
    (tables, issues)
}

fn rule_at<'a, 'b>(rules: &'b [EnforcedRule<'a>], index: u32) -> Option<&'b EnforcedRule<'a>> {
    rules.get(usize::try_from(index).ok()?)
}

fn ambiguous_identity(id: u32) -> FieldError {
    FieldError {
        object: "LabelIdentity".to_owned(),
        field: "spec.id".to_owned(),
        value: id.to_string(),
        reason: "is the ID of several labels, so it is unknown".to_owned(),
    }
}

// === impl Compiler ===

impl<'a> Compiler<'a> {
    /// The sets of each address for a direction.
    fn assign_sets(
        &mut self,
        direction: Direction,
        rules: &[EnforcedRule<'a>],
        local: &BTreeMap<IpAddr, LabelledPod<'a>>,
    ) -> BTreeMap<IpAddr, PodSets> {
        let mut pods = BTreeMap::new();
        // Addresses of one Pod are assigned once.
        let mut assigned: BTreeMap<(&str, &str), Option<PodSets>> = BTreeMap::new();
        for (ip, labelled) in local {
            let pod = labelled.pod;
            let sets = *assigned
                .entry((&pod.namespace, &pod.name))
                .or_insert_with(|| self.pod_sets(direction, rules, labelled));
            pods.extend(sets.map(|sets| (*ip, sets)));
        }
        pods
    }

    /// The sets of a Pod; none if no rule applies to it.
    fn pod_sets(
        &mut self,
        direction: Direction,
        rules: &[EnforcedRule<'a>],
        of: &LabelledPod<'a>,
    ) -> Option<PodSets> {
        let applied = (0..).zip(rules);
        let applied: Vec<(u32, &EnforcedRule<'a>)> = applied
            .filter(|(_, rule)| rule.name.direction == direction && applies_to(rule, of))
            .collect();
        let by_peers = self.pod_rules(direction, &applied, of);
        if !applied.iter().any(|(_, rule)| rule.is_audited) {
            let all = self.set_number(direction, &applied, by_peers, of)?;
            return Some(PodSets { all, enforced: all });
        }
        let is_enforced = |index| rule_at(rules, index).is_some_and(|rule| !rule.is_audited);
        let enforced: Vec<_> = applied
            .iter()
            .copied()
            .filter(|(index, _)| is_enforced(*index))
            .collect();
        let enforced_by_peers = by_peers.iter().filter(|pod_rule| is_enforced(pod_rule.rule));
        let enforced_by_peers = enforced_by_peers.cloned().collect();
        let all = self.set_number(direction, &applied, by_peers, of)?;
        let enforced = self.set_number(direction, &enforced, enforced_by_peers, of);
        Some(PodSets {
            all,
            enforced: enforced.unwrap_or_default(),
        })
    }

    /// The number of the set of these rules for a Pod, from 1; none without a rule.
    fn set_number(
        &mut self,
        direction: Direction,
        applied: &[(u32, &EnforcedRule<'a>)],
        by_peers: Vec<PodRule>,
        of: &LabelledPod<'a>,
    ) -> Option<u32> {
        let mut list = Vec::new();
        if direction == Direction::Egress {
            // Each Service port is in one of them only, so their order is irrelevant.
            list.extend_from_slice(self.service_rules(applied, of));
        }
        list.extend(by_peers);
        (!list.is_empty()).then(|| self.sets.number(list) + 1)
    }

    /// The rules for a Pod by their peers, in their order.
    fn pod_rules(
        &mut self,
        direction: Direction,
        applied: &[(u32, &EnforcedRule<'a>)],
        of: &LabelledPod<'a>,
    ) -> Vec<PodRule> {
        let mut list = Vec::new();
        for (index, rule) in applied.iter().copied() {
            let peers = rule.peers.iter().filter_map(|peer| self.peer(peer, of));
            let peers = peers.collect();
            let ports = self.ports(rule, index, of);
            list.push(PodRule {
                rule: index,
                peers,
                ports,
            });
            if direction == Direction::Egress {
                list.extend_from_slice(self.named_port_rules(index, rule, of));
            }
        }
        list
    }

    fn peer(&mut self, peer: &RulePeer<'a>, of: &LabelledPod<'a>) -> Option<PeerNumber> {
        let mut addresses = |peer| Some(PeerNumber::Addresses(self.address_peers.number(peer)));
        match peer {
            RulePeer::Every => Some(PeerNumber::Every),
            RulePeer::UnknownSenders => Some(PeerNumber::UnknownSenders),
            RulePeer::RemotePods(pods) => {
                let peer = LabelPeer::new(pods, of)?;
                Some(PeerNumber::Labels(self.label_peers.number(peer)))
            }
            RulePeer::ClusterPods(pods) => LabelPeer::new(pods, of)
                .map(AddressPeer::Pods)
                .and_then(addresses),
            RulePeer::Block(block) => addresses(AddressPeer::Block(block)),
            RulePeer::Service(_) => None,
        }
    }

    /// The rules that precede all others for packets to Services.
    fn service_rules(&mut self, applied: &[(u32, &EnforcedRule<'a>)], of: &LabelledPod<'a>) -> &[PodRule] {
        let keys: Vec<_> = applied
            .iter()
            .map(|(index, rule)| scoped_rule(*index, rule, of))
            .collect();
        if !self.service_rules.contains_key(&keys) {
            for (key, (_, rule)) in keys.iter().zip(applied) {
                let matches = || self.destinations.service_matches(rule, of);
                self.service_matches.entry(*key).or_insert_with(matches);
            }
            let matches = keys
                .iter()
                .filter_map(|key| Some((key.0, self.service_matches.get(key)?)));
            let matches: Vec<_> = matches.collect();
            let mut rules = Vec::new();
            for (index, by_addrs) in self.destinations.service_decisions(&matches) {
                let by_addrs = by_addrs.into_iter();
                rules.extend(
                    by_addrs.map(|(addrs, ports)| self.addresses_rule(index, addrs, ports.into_iter())),
                );
            }
            self.service_rules.insert(keys.clone(), rules);
        }
        self.service_rules.get(&keys).map_or(&[], Vec::as_slice)
    }

    /// The rule for packets to these addresses and ports.
    fn addresses_rule(
        &mut self,
        rule: u32,
        addrs: Vec<IpAddr>,
        ports: impl Iterator<Item = (u8, u16)>,
    ) -> PodRule {
        let mut ports: Vec<_> = ports
            .map(|(protocol, port)| PortRange::new(protocol, port, port))
            .collect();
        ports.sort_unstable();
        ports.dedup();
        let peer = self.address_peers.number(AddressPeer::Addrs(addrs));
        PodRule {
            rule,
            peers: vec![PeerNumber::Addresses(peer)],
            ports: Some(ports),
        }
    }

    fn named_port_rules(&mut self, index: u32, rule: &EnforcedRule<'a>, of: &LabelledPod<'a>) -> &[PodRule] {
        let key = scoped_rule(index, rule, of);
        if !self.named_port_rules.contains_key(&key) {
            let matching = self.destinations.with_named_ports(rule, of).into_iter();
            let rules = matching.map(|(addrs, ports)| self.addresses_rule(index, addrs, ports.into_iter()));
            let rules = rules.collect();
            self.named_port_rules.insert(key, rules);
        }
        self.named_port_rules.get(&key).map_or(&[], Vec::as_slice)
    }

    fn ports(&mut self, rule: &EnforcedRule<'a>, index: u32, to: &LabelledPod<'a>) -> Option<Vec<PortRange>> {
        let services = rule.services?;
        let mut ranges = Vec::new();
        for service in services {
            match service {
                Service::Unsupported => {}
                Service::Ports {
                    protocol,
                    first,
                    last,
                } => ranges.push(PortRange::new(protocol.number(), *first, *last)),
                Service::Named { protocol, name } if rule.name.direction == Direction::Egress => {
                    if !self.destinations.has_port(protocol.number(), name) {
                        self.missing_ports.insert((index, name), MissingPort::Destination);
                    }
                }
                Service::Named { protocol, name } => {
                    let named = named_ports(*protocol, name, to);
                    if named.is_empty() {
                        self.missing_port(index, name, to);
                    }
                    ranges.extend(named);
                }
                Service::Icmp { kind, code } => {
                    let (first, last) = icmp_ports(*kind, *code).into_inner();
                    ranges.extend([ICMP, ICMPV6].map(|protocol| PortRange::new(protocol, first, last)));
                }
            }
        }
        ranges.sort_unstable();
        ranges.dedup();
        Some(ranges)
    }

    fn missing_port(&mut self, rule: u32, name: &'a str, to: &LabelledPod<'_>) {
        self.missing_ports
            .entry((rule, name))
            .and_modify(|missing| {
                if let MissingPort::Own { others, .. } = missing {
                    *others += 1;
                }
            })
            .or_insert_with(|| MissingPort::Own {
                pod: format!("{}/{}", to.pod.namespace, to.pod.name),
                others: 0,
            });
    }

    /// One issue for each rule and name.
    fn missing_ports(&self, rules: &[EnforcedRule<'_>]) -> Vec<FieldError> {
        let missing = self.missing_ports.iter();
        let issues = missing.filter_map(|((rule, name), missing)| {
            let rule = &rule_at(rules, *rule)?.name;
            Some(FieldError {
                object: rule.policy.to_string(),
                field: format!("{}.ports", rule.path()),
                value: (*name).to_owned(),
                reason: match missing {
                    MissingPort::Own { pod, others } => format!(
                        "is not a port of the Pod {pod} and {others} others, so it matches nothing there"
                    ),
                    MissingPort::Destination => {
                        "is not a port of any Pod of the cluster, so it matches nothing".to_owned()
                    }
                },
            })
        });
        issues.collect()
    }
}

fn scoped_rule<'a>(index: u32, rule: &EnforcedRule<'_>, of: &LabelledPod<'a>) -> ScopedRule<'a> {
    (index, rule.has_relative_peers().then_some(&*of.pod.namespace))
}

fn named_ports(protocol: L4Protocol, name: &str, to: &LabelledPod<'_>) -> Vec<PortRange> {
    let ports = to.pod.ports.iter();
    ports
        .filter(|port| port.name == name && port.protocol == protocol.number())
        .map(|port| PortRange::new(port.protocol, port.number, port.number))
        .collect()
}

/// The entries of one set.
fn entries(
    set: u32,
    list: &[PodRule],
    rules: &[EnforcedRule<'_>],
    by_identity: &IdentityClasses,
    by_address: &AddressClasses,
) -> Vec<(RuleKey, RuleValue)> {
    const ALL_PORTS: PortPrefix = (0, 0);
    let unmatched = vec![UNMATCHED_CLASS];
    let unknown = vec![UNKNOWN_CLASS];
    let mut groups: BTreeMap<(Dimension, u32, u8), BTreeMap<PortPrefix, RuleValue>> = BTreeMap::new();
    for (pod_rule, precedence) in list.iter().zip(0..) {
        let Some(rule) = rule_at(rules, pod_rule.rule) else {
            continue;
        };
        let value = RuleValue {
            precedence,
            action: rule.action,
            rule: pod_rule.rule,
            is_audited: rule.is_audited,
        };
        let prefixes = pod_rule.prefixes();
        for peer in &pod_rule.peers {
            let (dimension, classes) = match peer {
                PeerNumber::Every if rule.name.direction == Direction::Egress => {
                    (Dimension::Identity, Some(&unmatched))
                }
                PeerNumber::Every => (Dimension::Identity, Some(&by_identity.all)),
                PeerNumber::UnknownSenders => (Dimension::Identity, Some(&unknown)),
                PeerNumber::Labels(peer) => (Dimension::Identity, by_identity.by_peer.get(peer)),
                PeerNumber::Addresses(peer) => (Dimension::Address, by_address.by_peer.get(peer)),
            };
            for class in classes.into_iter().flatten() {
                for (protocol, prefix) in &prefixes {
                    let group = groups.entry((dimension, *class, *protocol)).or_default();
                    // Rules come in their order: an earlier one stays, and one for all ports decides on all of them.
                    if !group.contains_key(&ALL_PORTS) {
                        group.entry(*prefix).or_insert(value);
                    }
                }
            }
        }
    }
    let mut entries = Vec::new();
    for ((dimension, class, protocol), group) in groups {
        for ((port, port_bits), value) in flatten(group, |value| value.precedence) {
            let key = RuleKey {
                set,
                dimension,
                class,
                protocol,
                port,
                port_bits,
            };
            entries.push((key, value));
        }
    }
    entries
}

// === impl PodRule ===

impl PodRule {
    /// Protocols with prefixes of ports.
    fn prefixes(&self) -> Vec<(u8, PortPrefix)> {
        let Some(ports) = &self.ports else {
            let protocols = PROTOCOLS.into_iter().chain([OTHER_PROTOCOL]);
            return protocols.map(|protocol| (protocol, (0, 0))).collect();
        };
        let prefixes = ports.iter().flat_map(|range| {
            let prefixes = split(range.first, range.last).into_iter();
            prefixes.map(|prefix| (range.protocol, prefix))
        });
        prefixes.collect()
    }
}

// === impl PortRange ===

impl PortRange {
    fn new(protocol: u8, first: u16, last: u16) -> Self {
        Self {
            protocol,
            first,
            last,
        }
    }
}
