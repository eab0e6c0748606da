//! The decision on a packet by compiled policies: the specification of the programs.

use super::model::{Direction, Packet, Verdict};
use super::port_prefixes::mask;
use super::tables::{Dimension, PodSets, RuleKey, RuleValue, Tables, UNKNOWN_CLASS, protocol_key};

/// The decision on a packet: the rule of smaller precedence at the class of its identity and at that of its address. If
/// that one is audited, the rules in force are looked up.
pub fn look_up(tables: &Tables, packet: &Packet) -> Verdict {
    let sets = match packet.direction {
        Direction::Ingress => &tables.pods,
        Direction::Egress => &tables.egress_pods,
    };
    let Some(PodSets { all, enforced }) = sets.get(&packet.pod) else {
        return Verdict::without_rule(false);
    };
    let identity = tables.identities.get(&packet.identity).copied();
    let identity = identity.unwrap_or(UNKNOWN_CLASS);
    let address = address_class(tables, packet);
    let first = |set| {
        let by_identity = find_rule(tables, set, Dimension::Identity, identity, packet).into_iter();
        let by_address = find_rule(tables, set, Dimension::Address, address, packet);
        by_identity.chain(by_address).min_by_key(|value| value.precedence)
    };
    let rule = first(*all);
    let audited = rule.filter(|value| value.is_audited);
    let rule = if audited.is_some() { first(*enforced) } else { rule };
    let name = |value: &RuleValue| {
        let index = usize::try_from(value.rule).ok()?;
        tables.rule_names.get(index).cloned()
    };
    let named = rule.and_then(|value| Some(Verdict::of_rule(value.action, name(value)?)));
    let verdict = named.unwrap_or_else(|| {
        Verdict::without_rule(identity == UNKNOWN_CLASS && drops_unknown(tables, *enforced))
    });
    verdict.with_audited(audited.and_then(name))
}

fn drops_unknown(tables: &Tables, set: u32) -> bool {
    let index = usize::try_from(set).ok().and_then(|set| set.checked_sub(1));
    let info = index.and_then(|index| tables.sets.get(index));
    info.is_some_and(|info| info.drop_unknown)
}

fn address_class(tables: &Tables, packet: &Packet) -> u32 {
    let prefixes = tables.address_classes.iter();
    let containing = prefixes.filter(|(prefix, _)| prefix.contains(&packet.peer));
    let longest = containing.max_by_key(|(prefix, _)| prefix.prefix_len());
    longest.map_or(UNKNOWN_CLASS, |(_, class)| *class)
}

/// The entry with the longest prefix that contains the packet's port.
fn find_rule<'a>(
    tables: &'a Tables,
    set: u32,
    dimension: Dimension,
    class: u32,
    packet: &Packet,
) -> Option<&'a RuleValue> {
    (0..=16).rev().find_map(|port_bits| {
        tables.rules.get(&RuleKey {
            set,
            dimension,
            class,
            protocol: protocol_key(packet.protocol),
            port: mask(packet.port, port_bits),
            port_bits,
        })
    })
}
