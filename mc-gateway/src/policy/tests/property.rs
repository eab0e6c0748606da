//! Random sets of policies and packets: the tables give the verdict of the evaluator.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use mc_api::network_policy::{EnforcementAction, Peer};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

use super::super::tables::OTHER_PROTOCOL;
use super::super::{Mode, RulePart, RuleRef, Tables};
use super::generate::{overlapping_policy, policy_set, some_packet};
use super::*;

const PACKETS: usize = 50;

/// Properties that hold for all tables.
fn check_tables(tables: &Tables) -> Result<(), TestCaseError> {
    let sets = tables.pods.values().chain(tables.egress_pods.values());
    let sets: BTreeSet<u32> = sets
        .flat_map(|sets| [sets.all, sets.enforced])
        .filter(|set| *set != 0)
        .collect();
    let count = u32::try_from(tables.sets.len()).unwrap();
    prop_assert!(sets.iter().copied().eq(1..=count), "sets are dense");
    for (key, value) in tables.rules.iter() {
        prop_assert!(sets.contains(&key.set) && key.port_bits <= 16);
        prop_assert!(key.protocol != OTHER_PROTOCOL || key.port_bits == 0, "{key:?}");
        prop_assert!(usize::try_from(value.rule).unwrap() < tables.rule_names.len());
    }
    let used: BTreeSet<u32> = tables.identities.values().copied().collect();
    prop_assert!(
        used.iter().copied().eq(1..=u32::try_from(used.len()).unwrap()),
        "classes are dense"
    );
    Ok(())
}

/// The same set in another order.
fn reversed(set: &PolicySet) -> PolicySet {
    let mut set = set.clone();
    set.policies.reverse();
    set.groups.reverse();
    set.local_pods.reverse();
    set.cluster_pods.reverse();
    set.services.reverse();
    set.node_ips.reverse();
    set.identities.reverse();
    set
}

/// Packets, some of them for one of the Services, if there are any.
fn packets() -> impl Strategy<Value = Vec<(Packet, Option<Index>)>> {
    vec((some_packet(), option::of(any::<Index>())), PACKETS)
}

/// A packet for egress to a Service.
fn to_service(set: &PolicySet, packet: Packet, index: Option<Index>) -> Packet {
    let services = set.services.iter();
    let destinations: Vec<_> = services
        .flat_map(|to| {
            let ports = to.ports.iter();
            ports.flat_map(|port| {
                to.addresses(port, &set.node_ips)
                    .map(|addr| (addr, port.protocol))
            })
        })
        .filter(|(addr, _)| addr.is_ipv4() == packet.pod.is_ipv4())
        .collect();
    match index {
        Some(index) if packet.direction == Direction::Egress && !destinations.is_empty() => {
            let (addr, protocol) = index.get(&destinations);
            Packet {
                peer: addr.ip(),
                protocol: *protocol,
                port: addr.port(),
                ..packet
            }
        }
        _ => packet,
    }
}

/// Packets to the endpoints of the Services at the destination of a packet.
fn to_endpoints(set: &PolicySet, packet: &Packet) -> Vec<Packet> {
    let to = SocketAddr::new(packet.peer, packet.port);
    let services = set.services.iter();
    let ports = services.flat_map(|of| of.ports.iter().map(move |port| (of, port)));
    let ports = ports.filter(|(of, port)| {
        port.protocol == packet.protocol && of.addresses(port, &set.node_ips).any(|addr| addr == to)
    });
    let endpoints = ports.flat_map(|(_, port)| &port.endpoints);
    endpoints
        .filter(|to| to.is_ipv4() == packet.peer.is_ipv4())
        .map(|to| Packet {
            peer: to.ip(),
            port: to.port(),
            ..*packet
        })
        .collect()
}

fn passes(verdict: &Verdict) -> bool {
    matches!(letter(verdict), 'A' | 'P' | '.')
}

/// Checks that a packet to a Service passes only if packets to each of its endpoints pass, unless a rule lets packets
/// to named Services pass. Counts verdicts that depend on Services as `s`, and compared endpoints as `e`.
fn check_service(
    set: &PolicySet,
    packet: &Packet,
    verdict: &Verdict,
    actions: &mut BTreeMap<char, usize>,
) -> Result<(), TestCaseError> {
    let without_services = PolicySet {
        services: Vec::new(),
        ..set.clone()
    };
    let rules = set.policies.iter().flat_map(|policy| &policy.egress);
    let rules = rules.filter(|rule| !rule.action.denies());
    let mut peers = rules.filter_map(|rule| rule.peers.as_ref()).flatten();
    if passes(verdict) && !peers.any(|peer| matches!(peer, Peer::Service(_))) {
        for to in to_endpoints(set, packet) {
            let direct = evaluate(&without_services, &to);
            prop_assert!(passes(&direct), "{to:?}: {direct:?}, to the Service {verdict:?}");
            *actions.entry('e').or_default() += 1;
        }
    }
    if evaluate(&without_services, packet) != *verdict {
        *actions.entry('s').or_default() += 1;
    }
    Ok(())
}

/// Checks that audited policies change no decision, and that one is named if it would decide were it enforced. Counts
/// packets that pass, but would not: those of unknown senders without a rule as `u`, others as `a`.
fn check_audited(
    set: &PolicySet,
    packet: &Packet,
    verdict: &Verdict,
    actions: &mut BTreeMap<char, usize>,
) -> Result<(), TestCaseError> {
    let audited: BTreeSet<String> = set
        .policies
        .iter()
        .filter(|policy| policy.is_audited())
        .map(Policy::object)
        .collect();
    if audited.is_empty() {
        prop_assert_eq!(&verdict.audited, &None);
        return Ok(());
    }
    let (mut without, mut all) = (set.clone(), set.clone());
    without.policies.retain(|policy| !policy.is_audited());
    for policy in &mut all.policies {
        policy.enforcement = EnforcementAction::Enforce;
    }
    let mut alone = all.clone();
    alone.policies.retain(|policy| audited.contains(&policy.object()));
    let [without, all, alone] = [&without, &all, &alone].map(|set| evaluate(set, packet));
    prop_assert_eq!((without.action, &without.rule), (verdict.action, &verdict.rule));
    let is_rule = |rule: &RuleRef| rule.part == RulePart::Rule;
    let named = all.rule.clone().filter(|rule| audited.contains(&*rule.policy));
    prop_assert_eq!(verdict.audited.clone().filter(is_rule), named);
    let drops_unknown = [&all, &alone].map(|verdict| verdict.action) == [VerdictAction::UnknownIdentity; 2];
    let names_unknown = verdict.audited.as_ref().is_some_and(|rule| !is_rule(rule));
    prop_assert_eq!(names_unknown, drops_unknown);
    if verdict.audited.is_some() && passes(verdict) && !passes(&all) {
        *actions.entry(if names_unknown { 'u' } else { 'a' }).or_default() += 1;
    }
    Ok(())
}

/// Checks a set and packets, and counts the verdicts.
fn check(
    set: &PolicySet,
    packets: Vec<(Packet, Option<Index>)>,
    actions: &mut BTreeMap<char, usize>,
) -> Result<(), TestCaseError> {
    let (tables, issues) = compile(set);
    check_tables(&tables)?;
    prop_assert_eq!(
        &compile(&reversed(set)),
        &(tables.clone(), issues),
        "the order of lists is irrelevant"
    );
    for (packet, index) in packets {
        let packet = to_service(set, packet, index);
        let expected = evaluate(set, &packet);
        prop_assert_eq!(&look_up(&tables, &packet), &expected, "{:?}", packet);
        *actions.entry(letter(&expected)).or_default() += 1;
        check_audited(set, &packet, &expected, actions)?;
        if packet.direction == Direction::Egress {
            check_service(set, &packet, &expected, actions)?;
        }
    }
    Ok(())
}

/// Checks random cases, in which these actions occur.
fn check_all(cases: &impl Strategy<Value = (PolicySet, Vec<(Packet, Option<Index>)>)>, occurring: &str) {
    let actions = RefCell::new(BTreeMap::new());
    let config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    let check = |(set, packets)| check(&set, packets, &mut actions.borrow_mut());
    if let Err(failure) = TestRunner::new(config).run(cases, check) {
        panic!("{failure}");
    }
    let actions = actions.into_inner();
    println!("{actions:?}");
    assert!(
        occurring.chars().all(|action| actions.contains_key(&action)),
        "{actions:?}"
    );
}

#[test]
fn tables_give_the_verdict_of_the_evaluator() {
    check_all(&(policy_set(), packets()), "ADRP.Useau");
}

#[test]
fn tables_give_the_verdict_of_the_evaluator_for_overlapping_rules() {
    let sets = (policy_set(), overlapping_policy()).prop_map(|(mut set, policy)| {
        set.policies = vec![policy];
        set.mode = Mode::All;
        set
    });
    let packet = (some_packet(), 0_u16..80).prop_map(|(packet, port)| Packet {
        protocol: TCP,
        port,
        ..packet
    });
    let packets = vec((packet, option::of(any::<Index>())), PACKETS);
    check_all(&(sets, packets), "ADRP.Use");
}
