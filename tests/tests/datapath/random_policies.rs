//! Random policies from objects through the agent's maps to the programs: they give the verdict of the evaluator, which
//! walks the rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use mc_api::network_policy::Policy;
use mc_gateway::{
    cidr::to_abi_addr,
    desired::{DesiredCache, Established, LocalNode, compute},
    ids::cluster_id,
    maps::{PinnedMaps, RuleCounterMap},
    policy::{Direction, Packet, RuleRef, VerdictAction, compile, evaluate},
};
use mc_gateway_common::{
    abi::{
        ACTION_DELIVER, CLUSTER_LOCAL, IDENTITY_HOST, IDENTITY_UNKNOWN, Prefix, V4_PREFIX_BITS,
        policy::{RuleCounter, SET_BY_PREFIX},
    },
    maps::MemoryMaps,
    packet::ip::{ICMP, ICMPV6, TCP, UDP},
    verdict::{DropReason, Outcome},
};
use mc_tests::rng::Rng;

use crate::{
    TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC,
    cases::{Program, from_underlay::delivered_mac},
    fixture::{self, MC0_MAC},
    kernel::Kernel,
    packets::{Ip, ethernet, tcp_syn, udp},
    pins::Pins,
    policy_world::{
        IDENTITIES, NODE, PODS, SENDERS, World, neighbor_address, pod_address, sender_address,
        service_address, world,
    },
};

/// Packets of a run, and of one with `MC_LONG=1`.
const PACKETS: u64 = 100_000;
const LONG_PACKETS: u64 = 1_000_000;
/// Packets for each set of policies.
const PACKETS_PER_SET: u32 = 250;
/// Sets of policies after which a new agent opens the maps.
const SETS_PER_AGENT: u64 = 10;
const GRE: u8 = 47;
/// A packet, and the program that decides on it.
fn packet(rng: &mut Rng) -> (Program, Packet) {
    let v6 = rng.one_in(2);
    let program = *rng.pick(&[Program::FromRemote, Program::ToPod, Program::FromPod]);
    let mut last = |limit| u8::try_from(rng.below(limit)).expect("a byte");
    let (pod, sender) = (PODS.start() + last(4), last(256));
    let peer = match (program, last(4)) {
        (Program::FromRemote, _) | (_, 0) => sender_address(v6, sender),
        (Program::ToPod, 1) => pod_address(v6, PODS.start() + last(4)),
        (Program::ToPod, _) | (Program::FromPod, 1) => neighbor_address(v6, last(8)),
        _ => service_address(v6, last(8)),
    };
    let protocol = *rng.pick(&[TCP, TCP, UDP, if v6 { ICMPV6 } else { ICMP }, GRE]);
    let echo = if v6 { 128_u16 } else { 8 };
    let port = if matches!(protocol, ICMP | ICMPV6) {
        echo << 8
    } else if program == Program::FromPod && rng.one_in(2) {
        // That of the Service.
        match peer {
            IpAddr::V4(addr) => addr.octets()[3].into(),
            IpAddr::V6(addr) => addr.segments()[7],
        }
    } else {
        u16::try_from(rng.below(60)).expect("a port")
    };
    let identity = if program != Program::FromRemote {
        IDENTITY_HOST
    } else if rng.one_in(6) {
        *rng.pick(&[IDENTITY_HOST, IDENTITY_UNKNOWN, IDENTITIES + 1])
    } else {
        u32::try_from(rng.range(1, IDENTITIES.into())).expect("an identity")
    };
    let packet = Packet {
        direction: if program == Program::FromPod {
            Direction::Egress
        } else {
            Direction::Ingress
        },
        pod: pod_address(v6, pod),
        peer,
        identity,
        protocol,
        port,
    };
    (program, packet)
}

/// The packet as delivered to `mc0`, or on the device of a Pod, where its addresses count.
fn frame(packet: &Packet) -> Vec<u8> {
    let [kind, code] = packet.port.to_be_bytes();
    let payload = match packet.protocol {
        TCP => tcp_syn(40_000, packet.port),
        UDP => udp(40_000, packet.port, b"x"),
        ICMP | ICMPV6 => vec![kind, code, 0, 0, 0, 1, 0, 1],
        _ => vec![0; 8],
    };
    let (src, dst) = match packet.direction {
        Direction::Ingress => (packet.peer, packet.pod),
        Direction::Egress => (packet.pod, packet.peer),
    };
    let ip = Ip::new(src, dst, packet.protocol, payload);
    let mac = delivered_mac(packet.identity, true);
    ethernet(MC0_MAC, mac, ip.ethertype(), &ip.bytes())
}

/// The result of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Passed,
    Dropped(DropReason),
    /// The answer to the sender leaves by a redirect.
    Answered(Outcome),
}

impl Decision {
    fn action(self) -> u32 {
        match self {
            Self::Passed => TC_ACT_UNSPEC,
            Self::Dropped(_) => TC_ACT_SHOT,
            Self::Answered(_) => TC_ACT_REDIRECT,
        }
    }

    fn name(self) -> Option<&'static str> {
        match self {
            Self::Passed => None,
            Self::Dropped(reason) => Some(reason.name()),
            Self::Answered(outcome) => Some(outcome.name()),
        }
    }
}

/// The result for a packet, by the rules and the recorded exporters, and the rules that count it: the one that decides,
/// and an audited one that would.
fn expected(
    world: &World,
    selected: &BTreeSet<IpAddr>,
    program: Program,
    packet: &Packet,
) -> (Decision, Vec<RuleRef>) {
    if program == Program::FromRemote && !selected.contains(&packet.pod) {
        return (Decision::Passed, Vec::new());
    }
    let exports = |clusters: &BTreeSet<String>| clusters.contains(SENDERS);
    let identity = match world.exporters.get(&packet.identity) {
        _ if program != Program::FromRemote => packet.identity,
        Some(clusters) if !exports(clusters) => {
            return (Decision::Dropped(DropReason::IdentityForged), Vec::new());
        }
        // The senders' cluster is not known to announce identities.
        None if packet.identity == IDENTITY_HOST && !world.exporters.values().any(exports) => {
            IDENTITY_UNKNOWN
        }
        _ => packet.identity,
    };
    let verdict = evaluate(&world.set, &Packet { identity, ..*packet });
    let outcome = match verdict.action {
        VerdictAction::Allow | VerdictAction::Pass | VerdictAction::DefaultAllow => Decision::Passed,
        VerdictAction::Reject if packet.protocol == TCP => Decision::Answered(Outcome::Reset),
        VerdictAction::Reject => Decision::Answered(Outcome::Rejected),
        VerdictAction::Drop => Decision::Dropped(DropReason::Policy),
        VerdictAction::UnknownIdentity => Decision::Dropped(DropReason::IdentityUnknown),
    };
    (outcome, verdict.rule.into_iter().chain(verdict.audited).collect())
}

/// The prefixes of the Pods and of the senders' cluster.
fn tables(me: &LocalNode) -> MemoryMaps {
    let prefix = |cluster| Prefix {
        cluster,
        group: 0,
        action: ACTION_DELIVER,
        flags: 0,
        identity: 0,
    };
    let mut tables = MemoryMaps::default();
    let senders = prefix(cluster_id(&me.cluster_id_key, SENDERS));
    for (v6, len) in [(false, V4_PREFIX_BITS + 24), (true, 64)] {
        tables
            .prefixes
            .insert((len, to_abi_addr(sender_address(v6, 0))), senders);
        for last in PODS {
            let key = (128, to_abi_addr(pod_address(v6, last)));
            tables.prefixes.insert(key, prefix(CLUSTER_LOCAL));
        }
    }
    tables
}

#[test]
fn random_policies_get_the_verdict_of_the_evaluator_in_the_kernel() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("MC_SEED").unwrap_or(18);
    let gate = if number("MC_LONG") == Some(1) {
        LONG_PACKETS
    } else {
        PACKETS
    };
    let packets = number("MC_PACKETS").unwrap_or(gate);
    println!("seed {seed}, {packets} packets (MC_SEED and MC_PACKETS change them)");
    let mut rng = Rng::new(seed);
    let me = LocalNode {
        node_name: NODE.into(),
        ..LocalNode::default()
    };
    let mut kernel = Kernel::load(&tables(&me));
    let pins = Pins::new("random-policies");
    kernel.pin_maps(pins.dir());
    let mut maps = PinnedMaps::open(pins.dir()).expect("the maps");
    let counters = RuleCounterMap::open(pins.dir()).expect("the counters");
    let (mut counted_packets, mut audited_packets) = (0, 0);
    let (mut by_peer, mut by_prefix) = (0, 0);
    let mut cache = DesiredCache::default();
    let mut results: BTreeMap<(&str, Option<&str>), u64> = BTreeMap::new();
    // Errors without a limit.
    kernel.set_icmp_limit(&fixture::node());
    let mut counts = kernel.counts();
    for number in 0..packets / u64::from(PACKETS_PER_SET) {
        let world = world(&mut rng);
        let (desired, _) =
            compute(&world.objects, &me, &Established::default(), &mut cache).expect("a desired state");
        if number % SETS_PER_AGENT == 0 {
            // A new agent.
            maps = PinnedMaps::open(pins.dir()).expect("the maps");
        }
        let earlier = counters.read().expect("the counters");
        maps.set_policies(&desired.policies.tables).expect("the tables");
        let before = counters.read().expect("the counters");
        for (id, counter) in &before {
            let kept = earlier.get(id).copied().unwrap_or_default();
            assert_eq!(*counter, kept, "a counter outlives other tables and agents");
        }
        let audited = world.set.policies.iter().filter(|policy| policy.is_audited());
        let audited: BTreeSet<String> = audited.map(Policy::object).collect();
        let mut decided: BTreeMap<(String, String), RuleCounter> = BTreeMap::new();
        let tables = compile(&world.set).0;
        let selected: BTreeSet<IpAddr> = tables
            .pods
            .into_keys()
            .chain(tables.egress_pods.into_keys())
            .collect();
        for _ in 0..PACKETS_PER_SET {
            let (program, packet) = packet(&mut rng);
            let (wanted, rules) = expected(&world, &selected, program, &packet);
            let pods = match packet.direction {
                Direction::Ingress => &desired.policies.tables.pods,
                Direction::Egress => &desired.policies.tables.egress_pods,
            };
            if let Some(pod) = pods.get(&to_abi_addr(packet.pod)) {
                let by_map = if pod.set & SET_BY_PREFIX == 0 {
                    &mut by_peer
                } else {
                    &mut by_prefix
                };
                *by_map += 1;
            }
            let frame = frame(&packet);
            let action = kernel.run(program.name(), &frame).action;
            for rule in rules {
                audited_packets += u64::from(audited.contains(&*rule.policy));
                let counter = decided.entry((rule.policy.to_string(), rule.path())).or_default();
                counter.packets += 1;
                counter.bytes += u64::try_from(frame.len()).expect("a length");
                counted_packets += 1;
            }
            match wanted {
                Decision::Passed => {}
                Decision::Dropped(reason) => counts.drops[reason as usize] += 1,
                Decision::Answered(outcome) => {
                    let (packets, bytes) = &mut counts.paths[outcome as usize];
                    *packets += 1;
                    *bytes += u64::try_from(frame.len()).expect("a length");
                }
            }
            let context = || {
                format!(
                    "seed {seed}, set {number}: {packet:?}: {wanted:?}: {:#?}",
                    world.set.policies
                )
            };
            assert_eq!(action, wanted.action(), "{}", context());
            assert_eq!(kernel.counts(), counts, "{}", context());
            if packet.protocol != TCP {
                kernel.clear_policy_flows();
            }
            *results.entry((program.name(), wanted.name())).or_default() += 1;
        }
        let after = counters.read().expect("the counters");
        let ids: BTreeSet<u32> = after.keys().copied().collect();
        assert!(
            desired.policies.rules.keys().copied().eq(ids),
            "counters of all rules"
        );
        let counted = desired.policies.rules.iter().filter_map(|(id, rule)| {
            let (before, after) = (before[id], after[id]);
            let counter = RuleCounter {
                packets: after.packets - before.packets,
                bytes: after.bytes - before.bytes,
            };
            (counter.packets > 0).then(|| ((rule.policy.clone(), rule.rule.clone()), counter))
        });
        let counted: BTreeMap<_, _> = counted.collect();
        assert_eq!(counted, decided, "seed {seed}, set {number}");
    }
    println!("{results:?}; {counted_packets} counted by rules, {audited_packets} of them by audited ones");
    println!("{by_peer} compared with rules by peer, {by_prefix} with rules by prefix");
    assert!(by_peer > packets / 10, "{by_peer}");
    assert!(by_prefix > packets / 20, "{by_prefix}");
    assert!(counted_packets > packets / 10, "{counted_packets}");
    assert!(audited_packets > packets / 50, "{audited_packets}");
    let of_remote = [DropReason::IdentityUnknown, DropReason::IdentityForged];
    let of_remote = of_remote.map(|reason| (Program::FromRemote, Some(reason)));
    let of_all = [Program::FromRemote, Program::ToPod, Program::FromPod]
        .into_iter()
        .flat_map(|program| {
            let answers = [Outcome::Reset, Outcome::Rejected].map(|outcome| Some(outcome.name()));
            [None, Some(DropReason::Policy.name())]
                .into_iter()
                .chain(answers)
                .map(move |result| (program, result))
        });
    let of_remote = of_remote.map(|(program, reason)| (program, reason.map(DropReason::name)));
    for (program, result) in of_all.chain(of_remote) {
        let result = (program.name(), result);
        let count = results.get(&result).copied().unwrap_or_default();
        assert!(
            count > packets / 2_000,
            "{result:?} occurs too rarely: {results:?}"
        );
    }
}
