//! Compilation of policies to tables.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use mc_api::network_policy::{IpBlock, L4Protocol, Service};

use super::address_classes::AddressClasses;
use super::identity_classes::{IdentityClasses, LabelPeer};
use super::model::{ICMP, ICMPV6, PROTOCOLS, PolicySet};
use super::numbers::Numbers;
use super::order::{EnforcedRule, Source, enforced_rules};
use super::port_prefixes::{PortPrefix, flatten, split};
use super::selection::{Destination, applies_to, destinations, identities, namespaces};
use super::tables::{Dimension, OTHER_PROTOCOL, RuleKey, RuleValue, SetInfo, Tables};
use crate::objects::FieldError;

/// A rule for one Pod, with all that depends on the Pod resolved.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PodRule {
    /// Its index among the rules in force.
    rule: u32,
    sources: Vec<SourceNumber>,
    /// Protocols and ports; `None` for all.
    ports: Option<Vec<PortRange>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SourceNumber {
    Every,
    Labels(u32),
    Block(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortRange {
    protocol: u8,
    first: u16,
    last: u16,
}

/// A named port that a Pod lacks: the first such Pod, and the number of others.
struct MissingPort {
    pod: String,
    others: u32,
}

#[derive(Default)]
struct Compiler<'a> {
    label_peers: Numbers<LabelPeer<'a>>,
    blocks: Numbers<&'a IpBlock>,
    sets: Numbers<Vec<PodRule>>,
    /// By rule and name of the port.
    missing_ports: BTreeMap<(u32, &'a str), MissingPort>,
}

/// The tables of these policies, and the issues of references in them: Tiers, groups, named ports and label identities.
#[must_use]
pub fn compile(set: &PolicySet) -> (Tables, Vec<FieldError>) {
    let (rules, mut issues) = enforced_rules(set);
    let namespaces = namespaces(set);
    let destinations = destinations(set, &namespaces);
    let (identities, ambiguous) = identities(set);
    issues.extend(ambiguous.into_iter().map(ambiguous_identity));

    let mut compiler = Compiler::default();
    let pods = compiler.assign_sets(&rules, &destinations);
    issues.extend(compiler.missing_ports(&rules));
    let by_identity = IdentityClasses::new(&identities, &compiler.label_peers.numbers);
    let by_address = AddressClasses::new(&compiler.blocks.numbers);

    let mut sets: Vec<_> = compiler.sets.numbers.into_iter().collect();
    sets.sort_by_key(|(_, number)| *number);
    let mut tables = Tables {
        pods,
        identities: by_identity.by_id.clone(),
        address_classes: by_address.by_prefix.clone(),
        rule_names: rules.iter().map(|rule| rule.name.clone()).collect(),
        ..Tables::default()
    };
    for (list, number) in sets {
        let used = list.iter().filter_map(|pod_rule| rule_at(&rules, pod_rule.rule));
        tables.sets.push(SetInfo {
            drop_unknown: used.into_iter().any(|rule| rule.has_label_peers),
        });
        let of_set = list.iter().filter_map(|pod_rule| rule_at(&rules, pod_rule.rule));
        tables
            .policies
            .extend(of_set.map(|rule| Arc::clone(&rule.name.policy)));
        tables
            .rules
            .extend(entries(number + 1, &list, &rules, &by_identity, &by_address));
    }
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
    /// The set of each address, from 1.
    fn assign_sets(
        &mut self,
        rules: &[EnforcedRule<'a>],
        destinations: &BTreeMap<IpAddr, Destination<'a>>,
    ) -> BTreeMap<IpAddr, u32> {
        let mut pods = BTreeMap::new();
        // Addresses of one Pod are assigned once.
        let mut assigned: BTreeMap<(&str, &str), Option<u32>> = BTreeMap::new();
        for (ip, destination) in destinations {
            let pod = destination.pod;
            let number = *assigned.entry((&pod.namespace, &pod.name)).or_insert_with(|| {
                let list = self.pod_rules(rules, destination);
                (!list.is_empty()).then(|| self.sets.number(list) + 1)
            });
            pods.extend(number.map(|number| (*ip, number)));
        }
        pods
    }

    fn pod_rules(&mut self, rules: &[EnforcedRule<'a>], to: &Destination<'a>) -> Vec<PodRule> {
        let applying = rules.iter().zip(0..).filter(|(rule, _)| applies_to(rule, to));
        applying
            .map(|(rule, index)| PodRule {
                rule: index,
                sources: self.sources(rule, to),
                ports: self.ports(rule, index, to),
            })
            .collect()
    }

    fn sources(&mut self, rule: &EnforcedRule<'a>, to: &Destination<'a>) -> Vec<SourceNumber> {
        let number = |source: &Source<'a>| match source {
            Source::Every => Some(SourceNumber::Every),
            Source::Pods(pods) => {
                LabelPeer::new(pods, to).map(|peer| SourceNumber::Labels(self.label_peers.number(peer)))
            }
            Source::Block(block) => Some(SourceNumber::Block(self.blocks.number(block))),
        };
        rule.sources.iter().filter_map(number).collect()
    }

    fn ports(&mut self, rule: &EnforcedRule<'a>, index: u32, to: &Destination<'a>) -> Option<Vec<PortRange>> {
        let services = rule.rule.services.as_ref()?;
        let mut ranges = Vec::new();
        for service in services {
            match service {
                Service::Unsupported => {}
                Service::Ports {
                    protocol,
                    first,
                    last,
                } => ranges.push(PortRange::new(protocol.number(), *first, *last)),
                Service::Named { protocol, name } => {
                    let named = named_ports(*protocol, name, to);
                    if named.is_empty() {
                        self.missing_port(index, name, to);
                    }
                    ranges.extend(named);
                }
                Service::Icmp { kind, code } => {
                    let first = u16::from_be_bytes([kind.unwrap_or(0), code.unwrap_or(0)]);
                    let last = u16::from_be_bytes([kind.unwrap_or(u8::MAX), code.unwrap_or(u8::MAX)]);
                    ranges.extend([ICMP, ICMPV6].map(|protocol| PortRange::new(protocol, first, last)));
                }
            }
        }
        ranges.sort_unstable();
        ranges.dedup();
        Some(ranges)
    }

    fn missing_port(&mut self, rule: u32, name: &'a str, to: &Destination<'_>) {
        self.missing_ports
            .entry((rule, name))
            .and_modify(|missing| missing.others += 1)
            .or_insert_with(|| MissingPort {
                pod: format!("{}/{}", to.pod.namespace, to.pod.name),
                others: 0,
            });
    }

    /// One issue for each rule and name.
    fn missing_ports(&self, rules: &[EnforcedRule<'_>]) -> Vec<FieldError> {
        let missing = self.missing_ports.iter();
        let issues = missing.filter_map(|((rule, name), MissingPort { pod, others })| {
            let rule = &rule_at(rules, *rule)?.name;
            Some(FieldError {
                object: rule.policy.to_string(),
                field: format!("spec.ingress[{}].ports", rule.index),
                value: (*name).to_owned(),
                reason: format!(
                    "is not a port of the Pod {pod} and {others} others, so it matches nothing there"
                ),
            })
        });
        issues.collect()
    }
}

fn named_ports(protocol: L4Protocol, name: &str, to: &Destination<'_>) -> Vec<PortRange> {
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
    let mut groups: BTreeMap<(Dimension, u32, u8), BTreeMap<PortPrefix, RuleValue>> = BTreeMap::new();
    for (pod_rule, precedence) in list.iter().zip(0..) {
        let Some(rule) = rule_at(rules, pod_rule.rule) else {
            continue;
        };
        let value = RuleValue {
            precedence,
            action: rule.rule.action,
            rule: pod_rule.rule,
        };
        let prefixes = pod_rule.prefixes();
        for source in &pod_rule.sources {
            let (dimension, classes) = match source {
                SourceNumber::Every => (Dimension::Identity, Some(&by_identity.all)),
                SourceNumber::Labels(peer) => (Dimension::Identity, by_identity.by_peer.get(peer)),
                SourceNumber::Block(block) => (Dimension::Address, by_address.by_block.get(block)),
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
