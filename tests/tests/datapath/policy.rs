//! The policy maps in the kernel.

use std::time::Instant;

use aya::{
    Ebpf, Pod,
    maps::{Array, HashMap, LpmTrie, MapData, PerCpuHashMap, PerCpuValues, lpm_trie::Key},
    util::nr_cpus,
};
use mc_gateway_common::{
    abi::Addr,
    abi::policy::{
        ADDRESS_CLASSES, AddressClassKey, EXPORTERS, ExporterKey, IDENTITIES, LabelIdentity, PEER_RULES,
        POLICY_FLOWS, POLICY_PODS, POLICY_RULES, POLICY_STATE, PeerRules, PeerRulesKey, PolicyPod,
        PolicyPodKey, PolicyState, PortRule, RULE_COUNTERS, Rule, RuleCounter, RuleKey, UNSELECTED_PODS,
        half_slot,
    },
    abi::service::ReplyKey,
    maps::{MemoryMaps, policy::PolicyMaps},
};

use crate::{cases, fixture::Shape, kernel::Kernel};

fn hash<'e, K: Pod, V: Pod>(ebpf: &'e mut Ebpf, name: &str) -> HashMap<&'e mut MapData, K, V> {
    ebpf.map_mut(name).expect(name).try_into().expect(name)
}

fn counters(ebpf: &mut Ebpf) -> PerCpuHashMap<&mut MapData, u32, RuleCounter> {
    let map = ebpf.map_mut(RULE_COUNTERS).expect(RULE_COUNTERS);
    map.try_into().expect(RULE_COUNTERS)
}

fn set_state(ebpf: &mut Ebpf, state: PolicyState) {
    let map = ebpf.map_mut(POLICY_STATE).expect(POLICY_STATE);
    let mut map: Array<_, PolicyState> = map.try_into().expect(POLICY_STATE);
    map.set(0, state, 0).expect(POLICY_STATE);
}

fn unselected(ebpf: &mut Ebpf) -> Array<&mut MapData, Addr> {
    let map = ebpf.map_mut(UNSELECTED_PODS).expect(UNSELECTED_PODS);
    map.try_into().expect(UNSELECTED_PODS)
}

fn identities(ebpf: &mut Ebpf) -> Array<&mut MapData, LabelIdentity> {
    let map = ebpf.map_mut(IDENTITIES).expect(IDENTITIES);
    map.try_into().expect(IDENTITIES)
}

/// Writes the tables and the flows.
pub(crate) fn fill(ebpf: &mut Ebpf, tables: &PolicyMaps) {
    set_state(ebpf, tables.state);
    let mut pods: HashMap<_, PolicyPodKey, PolicyPod> = hash(ebpf, POLICY_PODS);
    for (key, pod) in &tables.pods {
        pods.insert(key, pod, 0).expect(POLICY_PODS);
    }
    let mut unselected = unselected(ebpf);
    for (slot, addr) in &tables.unselected {
        unselected.set(*slot, *addr, 0).expect(UNSELECTED_PODS);
    }
    let mut identities = identities(ebpf);
    for (slot, identity) in &tables.identities {
        identities.set(*slot, *identity, 0).expect(IDENTITIES);
    }
    let mut exporters: HashMap<_, ExporterKey, u32> = hash(ebpf, EXPORTERS);
    for key in &tables.exporters {
        exporters.insert(key, 1, 0).expect(EXPORTERS);
    }
    let map = ebpf.map_mut(ADDRESS_CLASSES).expect(ADDRESS_CLASSES);
    let mut classes: LpmTrie<_, AddressClassKey, u32> = map.try_into().expect(ADDRESS_CLASSES);
    for ((len, key), class) in &tables.address_classes {
        classes
            .insert(&Key::new(*len, *key), class, 0)
            .expect(ADDRESS_CLASSES);
    }
    let mut peer_rules: HashMap<_, PeerRulesKey, PeerRules> = hash(ebpf, PEER_RULES);
    for (key, rules) in &tables.peer_rules {
        peer_rules.insert(key, rules, 0).expect(PEER_RULES);
    }
    let map = ebpf.map_mut(POLICY_RULES).expect(POLICY_RULES);
    let mut rules: LpmTrie<_, RuleKey, Rule> = map.try_into().expect(POLICY_RULES);
    for ((len, key), rule) in &tables.rules {
        rules.insert(&Key::new(*len, *key), rule, 0).expect(POLICY_RULES);
    }
    let mut counters = counters(ebpf);
    let by_port = tables.peer_rules.values().flat_map(PeerRules::rules);
    let counted = by_port.map(PortRule::rule);
    for rule in counted.chain(tables.rules.values().copied()) {
        let zeros = vec![RuleCounter::default(); nr_cpus().expect("CPUs")];
        let zeros = PerCpuValues::try_from(zeros).expect("one per CPU");
        counters.insert(rule.rule, zeros, 0).expect(RULE_COUNTERS);
    }
    let mut flows: HashMap<_, ReplyKey, u64> = hash(ebpf, POLICY_FLOWS);
    for (key, time) in &*tables.flows.borrow() {
        flows.insert(key, time, 0).expect(POLICY_FLOWS);
    }
}

/// Undoes [`fill`].
pub(crate) fn clear(ebpf: &mut Ebpf, tables: &PolicyMaps) {
    set_state(ebpf, PolicyState::default());
    let mut pods: HashMap<_, PolicyPodKey, PolicyPod> = hash(ebpf, POLICY_PODS);
    for key in tables.pods.keys() {
        pods.remove(key).expect(POLICY_PODS);
    }
    let mut unselected = unselected(ebpf);
    for slot in tables.unselected.keys() {
        unselected.set(*slot, [0; 16], 0).expect(UNSELECTED_PODS);
    }
    let mut identities = identities(ebpf);
    for slot in tables.identities.keys() {
        identities
            .set(*slot, LabelIdentity::default(), 0)
            .expect(IDENTITIES);
    }
    let mut exporters: HashMap<_, ExporterKey, u32> = hash(ebpf, EXPORTERS);
    for key in &tables.exporters {
        exporters.remove(key).expect(EXPORTERS);
    }
    let map = ebpf.map_mut(ADDRESS_CLASSES).expect(ADDRESS_CLASSES);
    let mut classes: LpmTrie<_, AddressClassKey, u32> = map.try_into().expect(ADDRESS_CLASSES);
    for (len, key) in tables.address_classes.keys() {
        classes.remove(&Key::new(*len, *key)).expect(ADDRESS_CLASSES);
    }
    let mut peer_rules: HashMap<_, PeerRulesKey, PeerRules> = hash(ebpf, PEER_RULES);
    for key in tables.peer_rules.keys() {
        peer_rules.remove(key).expect(PEER_RULES);
    }
    let map = ebpf.map_mut(POLICY_RULES).expect(POLICY_RULES);
    let mut rules: LpmTrie<_, RuleKey, Rule> = map.try_into().expect(POLICY_RULES);
    for (len, key) in tables.rules.keys() {
        rules.remove(&Key::new(*len, *key)).expect(POLICY_RULES);
    }
    let mut counters = counters(ebpf);
    let known: Vec<u32> = counters.keys().filter_map(Result::ok).collect();
    for rule in known {
        counters.remove(&rule).expect(RULE_COUNTERS);
    }
    clear_flows(ebpf);
}

/// Removes all flows.
pub(crate) fn clear_flows(ebpf: &mut Ebpf) {
    let mut flows: HashMap<_, ReplyKey, u64> = hash(ebpf, POLICY_FLOWS);
    let known: Vec<ReplyKey> = flows.keys().filter_map(Result::ok).collect();
    for key in known {
        flows.remove(&key).expect(POLICY_FLOWS);
    }
}

/// Adds rules and identities of other Pods and clusters, each identity of two clusters.
fn enlarge(policies: &mut PolicyMaps, rules: u32, identities: u32) {
    let half = policies.state.half;
    for number in 0..rules {
        let key = RuleKey {
            peer: PeerRulesKey {
                set: 3 + number / 100,
                class: number % 100,
                half: u8::from(half != 0),
                proto: 6,
                ..PeerRulesKey::default()
            },
            port: (1_000 + (number % 5_000) as u16).to_be_bytes(),
            ..RuleKey::default()
        };
        cases::from_remote::insert_rule(policies, key, 16, Rule::default());
    }
    for number in 0..identities {
        let set = 1_000 + number % 250;
        let identity = LabelIdentity {
            class: 3,
            exporters: set,
        };
        let slot = half_slot(number, half);
        policies.identities.entry(slot).or_insert(identity);
        for cluster in [7_000, 7_001] {
            let cluster = cluster + u64::from(set);
            policies.exporters.insert(ExporterKey { cluster, set, half });
        }
    }
}

/// Largest time with many rules, as a percentage of that with few.
const MAX_GROWTH_PERCENT: u128 = 130;
/// Largest time of a first packet beyond that of a packet that no policy concerns, in nanoseconds.
const MAX_FIRST_NS: u128 = 250;
/// Largest time of a packet of an open flow beyond that of a packet that no policy concerns, in nanoseconds. The
/// promise is 60; a quarter is for slower machines.
const MAX_OPEN_NS: u128 = 75;
/// Largest time of a packet of a Pod that no policy selects beyond that of ARP, in nanoseconds. The promise is 10; a
/// quarter is for slower machines, and the clock counts whole nanoseconds.
const MAX_UNSELECTED_NS: u128 = 13;

/// The time of a packet depends on its kind, not on the number of rules and identities.
#[test]
#[ignore = "timing: with `cargo xtask test --long`, on a quiet machine"]
fn time_of_packets_with_policies() {
    let small = cases::from_remote::tables(Shape::default(), 0);
    let mut large = small.clone();
    enlarge(&mut large.policies, 10_000, 100_000);
    let few = times("20 rules", &small);
    let many = times("10,000 rules and 100,000 identities", &large);
    // At the devices of Pods, ARP follows.
    let mut unconcerned = few[0].1;
    for ((what, few), (_, many)) in few.into_iter().zip(many) {
        assert!(
            many * 100 <= few * MAX_GROWTH_PERCENT,
            "{what}: {few} ns, then {many}"
        );
        let max = match what {
            _ if what.contains("ARP") => {
                unconcerned = few;
                continue;
            }
            _ if what.contains("another Pod") => MAX_UNSELECTED_NS,
            _ if what.contains("first") => MAX_FIRST_NS,
            _ if what.contains("known") || what.contains("established") => MAX_OPEN_NS,
            _ => continue,
        };
        assert!(
            many <= unconcerned + max,
            "{what}: {many} ns, {unconcerned} without a policy"
        );
    }
}

/// The median time of each kind of packet in nanoseconds; the first kind is one that no policy concerns.
fn times(name: &str, tables: &MemoryMaps) -> Vec<(String, u128)> {
    let start = Instant::now();
    let kernel = Kernel::load(tables);
    println!("{name}: loaded in {:?}", start.elapsed());
    let from_remote = cases::from_remote::timed_frames()
        .into_iter()
        .map(|(what, frame)| (cases::Program::FromRemote, what, frame));
    let median = |(program, what, frame): (cases::Program, &str, Vec<u8>)| {
        let program = program.name();
        let mut times: Vec<u128> = (0..9).map(|_| kernel.time(program, &frame)).collect();
        times.sort_unstable();
        println!("{name}: {program}: {what}: {} ns", times[4]);
        (format!("{program}: {what}"), times[4])
    };
    from_remote
        .chain(cases::pods::timed_frames())
        .map(median)
        .collect()
}
