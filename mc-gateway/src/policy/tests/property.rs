//! Random sets of policies and packets: the tables give the verdict of the evaluator.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::super::tables::OTHER_PROTOCOL;
use super::super::{Mode, Tables};
use super::generate::{overlapping_policy, policy_set, some_packet};
use super::*;

const PACKETS: usize = 50;

/// Properties that hold for all tables.
fn check_tables(tables: &Tables) -> Result<(), TestCaseError> {
    let sets = tables.pods.values().chain(tables.egress_pods.values());
    let sets: BTreeSet<u32> = sets.copied().collect();
    let count = u32::try_from(tables.sets.len()).unwrap();
    prop_assert!(sets.iter().copied().eq(1..=count), "sets are dense");
    for (key, value) in &tables.rules {
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
    set.identities.reverse();
    set
}

/// Checks a set and packets, and counts the verdicts.
fn check(
    set: &PolicySet,
    packets: Vec<Packet>,
    actions: &mut BTreeMap<char, usize>,
) -> Result<(), TestCaseError> {
    let (tables, issues) = compile(set);
    check_tables(&tables)?;
    prop_assert_eq!(
        &compile(&reversed(set)),
        &(tables.clone(), issues),
        "the order of lists is irrelevant"
    );
    for packet in packets {
        let expected = evaluate(set, &packet);
        prop_assert_eq!(&look_up(&tables, &packet), &expected, "{:?}", packet);
        *actions.entry(letter(&expected)).or_default() += 1;
    }
    Ok(())
}

/// Checks random cases, in which these actions occur.
fn check_all(cases: &impl Strategy<Value = (PolicySet, Vec<Packet>)>, occurring: &str) {
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
    check_all(&(policy_set(), vec(some_packet(), PACKETS)), "ADRP.U");
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
    check_all(&(sets, vec(packet, PACKETS)), "ADRP.U");
}
