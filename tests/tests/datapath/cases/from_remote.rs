//! `from_remote`: network policies on packets to Pods of this node.

use std::net::IpAddr;

use mc_gateway_common::{
    abi::{
        ACTION_DELIVER, CLUSTER_LOCAL, IDENTITY_UNKNOWN, PREFIX_POLICY, Prefix, V4_PREFIX_BITS,
        policy::{
            ADDRESS_CLASS_BITS, AddressClassKey, CLASS_UNKNOWN, DIMENSION_ADDRESS, DIMENSION_IDENTITY,
            DIRECTION_EGRESS, DIRECTION_INGRESS, ENFORCED_EGRESS, ENFORCED_INGRESS, ExporterKey,
            LabelIdentity, MAX_IDENTITIES, PEER_RULE_PORTS, POD_CLOSED, POD_DROPS_UNKNOWN, PROTO_OTHER,
            PeerRules, PeerRulesKey, PolicyPod, PolicyPodKey, PolicyState, PortRule, RULE_ALLOW,
            RULE_AUDITED, RULE_BITS, RULE_DROP, RULE_PASS, RULE_REJECT, Rule, RuleKey, SET_BY_PREFIX,
            half_slot, unselected_slot,
        },
        service::ReplyKey,
    },
    maps::{MemoryMaps, policy::PolicyMaps},
    verdict::DropReason::{self, IdentityForged, IdentityUnknown, InnerMalformed, Policy},
};

use super::{Case, Expect, Program, from_underlay::delivered_mac};
use crate::{
    fixture::{self, MC0_MAC, POD_NODE, POD_WEST, Shape, WEST},
    packets::{Ip, ethernet, udp, with_checksum},
};

/// Pods of this node that no policy selects, and a closed one, with the same slot in `mc_unselected`: only the first
/// one has its entry there.
pub(super) const FREE: [u8; 4] = [10, 1, 0, 6];
pub(super) const FREE_WITHOUT_SLOT: [u8; 4] = [10, 1, 4, 6];
pub(super) const NEIGHBOR_OF_FREE: [u8; 4] = [10, 1, 8, 6];
/// Identities of west: one with rules, one without, and one that only another cluster exports.
pub(crate) const CLIENT: u32 = 0x0001_2345;
pub(crate) const OTHER: u32 = 9;
pub(crate) const FOREIGN: u32 = 0x0001_cdef;
/// Sets of exporters.
const OF_WEST: u32 = 1;
const OF_OTHERS: u32 = 0;
/// Classes of the first two.
const CLASS_HOST: u32 = 1;
const CLASS_CLIENT: u32 = 2;
/// The sets of rules of the Pod for ingress and egress.
const SET: u32 = 1;
const EGRESS_SET: u32 = 2;
/// Rules by protocol, first port, common bits, class and precedence.
type RuleRow = (u8, u16, u32, (u8, u32), u32, u32);

/// A Pod of the own cluster, and a Service, as peers.
pub(crate) const PEER_POD: [u8; 4] = [10, 1, 0, 9];
pub(crate) const SERVICE: [u8; 4] = [10, 96, 0, 80];
const CLASS_PEER: u32 = 2;
const CLASS_SERVICE: u32 = 3;

const TCP: u8 = 6;
const UDP: u8 = 17;
const SCTP: u8 = 132;
const IDENTITY: u8 = DIMENSION_IDENTITY;
const RULES: [RuleRow; 17] = [
    (TCP, 80, 16, (IDENTITY, CLASS_CLIENT), RULE_ALLOW, 10),
    (TCP, 0x1f00, 8, (IDENTITY, CLASS_CLIENT), RULE_PASS, 11),
    (TCP, 8_080, 16, (IDENTITY, CLASS_CLIENT), RULE_REJECT, 9),
    (TCP, 0, 0, (IDENTITY, CLASS_CLIENT), RULE_DROP, 50),
    (TCP, 0, 0, (IDENTITY, CLASS_HOST), RULE_DROP, 50),
    (UDP, 53, 16, (IDENTITY, CLASS_CLIENT), RULE_ALLOW, 12),
    (UDP, 54, 16, (IDENTITY, CLASS_CLIENT), RULE_DROP, 12),
    (1, 0x0800, 16, (IDENTITY, CLASS_CLIENT), RULE_DROP, 13),
    (PROTO_OTHER, 0, 0, (IDENTITY, CLASS_CLIENT), RULE_DROP, 14),
    (TCP, 443, 16, (DIMENSION_ADDRESS, 1), RULE_ALLOW, 20),
    (TCP, 80, 16, (DIMENSION_ADDRESS, 1), RULE_DROP, 20),
    (TCP, 80, 16, (DIMENSION_ADDRESS, CLASS_PEER), RULE_ALLOW, 5),
    (UDP, 55, 16, (IDENTITY, CLASS_HOST), RULE_DROP, 15),
    (TCP, 82, 16, (IDENTITY, CLASS_HOST), RULE_REJECT, 16),
    (UDP, 82, 16, (IDENTITY, CLASS_HOST), RULE_REJECT, 17),
    (SCTP, 82, 16, (IDENTITY, CLASS_HOST), RULE_REJECT, 18),
    (1, 0x0800, 16, (IDENTITY, CLASS_HOST), RULE_REJECT, 19),
];
/// Rules for packets from the Pod.
const EGRESS_RULES: [RuleRow; 8] = [
    (TCP, 80, 16, (DIMENSION_ADDRESS, CLASS_SERVICE), RULE_DROP, 1),
    (UDP, 53, 16, (DIMENSION_ADDRESS, CLASS_SERVICE), RULE_DROP, 2),
    (TCP, 8_080, 16, (IDENTITY, CLASS_HOST), RULE_DROP, 3),
    (TCP, 8_080, 16, (DIMENSION_ADDRESS, CLASS_PEER), RULE_ALLOW, 2),
    (TCP, 82, 16, (IDENTITY, CLASS_HOST), RULE_REJECT, 4),
    (UDP, 82, 16, (IDENTITY, CLASS_HOST), RULE_REJECT, 5),
    (SCTP, 82, 16, (IDENTITY, CLASS_HOST), RULE_REJECT, 6),
    (1, 0x0800, 16, (IDENTITY, CLASS_HOST), RULE_REJECT, 7),
];

/// Sets of the rules in force, where others are audited.
const SET_IN_FORCE: u32 = 3;
const EGRESS_SET_IN_FORCE: u32 = 4;
/// Audited rules, which change no decision.
const AUDITED: [RuleRow; 5] = [
    (TCP, 80, 16, (DIMENSION_ADDRESS, 1), RULE_DROP, 1),
    (TCP, 81, 16, (IDENTITY, CLASS_CLIENT), RULE_ALLOW, 1),
    (TCP, 443, 16, (DIMENSION_ADDRESS, 1), RULE_REJECT, 1),
    (UDP, 55, 16, (IDENTITY, CLASS_CLIENT), RULE_DROP, 1),
    (TCP, 80, 16, (IDENTITY, CLASS_UNKNOWN), RULE_PASS, 1),
];
const AUDITED_EGRESS: [RuleRow; 2] = [
    (TCP, 80, 16, (DIMENSION_ADDRESS, CLASS_SERVICE), RULE_ALLOW, 0),
    (UDP, 54, 16, (DIMENSION_ADDRESS, CLASS_SERVICE), RULE_DROP, 0),
];

/// Tables of a node whose Pod is selected, in one half of the maps; the other half drops everything. The second half
/// has audited rules as well.
pub(crate) fn tables(shape: Shape, half: u32) -> MemoryMaps {
    let mut tables = shape.tables(fixture::node());
    let addr = |address: [u8; 4]| match shape.inner(address) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    };
    for prefix in tables.prefixes.values_mut() {
        if prefix.action == ACTION_DELIVER {
            prefix.flags |= PREFIX_POLICY;
        }
    }
    // A Pod that no policy selects.
    let unselected = Prefix {
        cluster: CLUSTER_LOCAL,
        group: 0,
        action: ACTION_DELIVER,
        flags: 0,
        identity: 0,
    };
    tables.prefixes.insert((128, addr([10, 1, 0, 6])), unselected);
    let mut policies = PolicyMaps {
        state: PolicyState {
            half,
            enforced: ENFORCED_INGRESS | ENFORCED_EGRESS,
        },
        ..PolicyMaps::default()
    };
    let mut pod = |address, direction, half: u32, flags| {
        let key = PolicyPodKey {
            addr: addr(address),
            half: u16::from(half != 0),
            direction,
        };
        let (set, in_force) = if direction == DIRECTION_EGRESS {
            (EGRESS_SET, EGRESS_SET_IN_FORCE)
        } else {
            (SET, SET_IN_FORCE)
        };
        let (set, enforced) = if half == 0 {
            (set, set)
        } else {
            (set | SET_BY_PREFIX, in_force)
        };
        policies.pods.insert(
            key,
            PolicyPod {
                set,
                enforced,
                flags,
                instance: 0,
            },
        );
    };
    for direction in [DIRECTION_INGRESS, DIRECTION_EGRESS] {
        pod(POD_NODE, direction, half, POD_DROPS_UNKNOWN);
        pod(POD_NODE, direction, 1 - half, POD_CLOSED);
        pod([10, 1, 0, 7], direction, half, POD_CLOSED);
    }
    // Only rules for ingress select this one.
    pod([10, 1, 0, 8], DIRECTION_INGRESS, half, 0);
    pod(NEIGHBOR_OF_FREE, DIRECTION_INGRESS, half, POD_CLOSED);
    pod(NEIGHBOR_OF_FREE, DIRECTION_EGRESS, half, POD_CLOSED);
    // No policy selects these.
    for free in [FREE, FREE_WITHOUT_SLOT] {
        let key = PolicyPodKey {
            addr: addr(free),
            half: u16::from(half != 0),
            direction: DIRECTION_INGRESS,
        };
        policies.pods.insert(key, PolicyPod::UNSELECTED);
    }
    // In the half that is not in use, none selects the Pod of this node.
    for (pod, half) in [(FREE, half), (POD_NODE, 1 - half)] {
        let slot = unselected_slot(&addr(pod), half);
        policies.unselected.insert(slot, addr(pod));
    }
    for (number, class, exporters) in [
        (CLIENT, CLASS_CLIENT, OF_WEST),
        (OTHER, CLASS_HOST, OF_WEST),
        (FOREIGN, CLASS_HOST, OF_OTHERS),
        (0, CLASS_HOST, OF_WEST),
    ] {
        let slot = half_slot(number, half);
        policies
            .identities
            .insert(slot, LabelIdentity { class, exporters });
        // In the half that is not in use, other clusters export all of them.
        let exporters = OF_OTHERS;
        let slot = half_slot(number, 1 - half);
        policies
            .identities
            .insert(slot, LabelIdentity { class, exporters });
    }
    for (cluster, set, half) in [
        (WEST, OF_WEST, half),
        (WEST + 1, OF_OTHERS, half),
        (WEST, OF_OTHERS, 1 - half),
    ] {
        policies.exporters.insert(ExporterKey { cluster, set, half });
    }
    let block = AddressClassKey {
        half,
        addr: addr([10, 2, 9, 0]),
    };
    policies
        .address_classes
        .insert((ADDRESS_CLASS_BITS + V4_PREFIX_BITS + 24, block), 1);
    for (address, class) in [(PEER_POD, CLASS_PEER), (SERVICE, CLASS_SERVICE)] {
        let key = AddressClassKey {
            half,
            addr: addr(address),
        };
        policies
            .address_classes
            .insert((ADDRESS_CLASS_BITS + 128, key), class);
    }
    let of_set = |set, rules: &[RuleRow]| rules.iter().map(move |row| (set, *row)).collect::<Vec<_>>();
    let by_map = |set| if half == 0 { set } else { set | SET_BY_PREFIX };
    let mut rules = of_set(by_map(SET), &RULES);
    rules.extend(of_set(by_map(EGRESS_SET), &EGRESS_RULES));
    if half != 0 {
        rules.extend(of_set(SET_IN_FORCE, &RULES));
        rules.extend(of_set(EGRESS_SET_IN_FORCE, &EGRESS_RULES));
        let audited = of_set(by_map(SET), &AUDITED)
            .into_iter()
            .chain(of_set(by_map(EGRESS_SET), &AUDITED_EGRESS));
        rules.extend(
            audited.map(|(set, (proto, port, bits, class, action, precedence))| {
                (set, (proto, port, bits, class, action | RULE_AUDITED, precedence))
            }),
        );
    }
    for (rule, (set, (proto, port, bits, (dimension, class), action, precedence))) in (0..).zip(rules) {
        let key = RuleKey {
            peer: PeerRulesKey {
                set,
                class,
                half: u8::from(half != 0),
                dimension,
                proto: if proto == 1 && shape.inner_v6 { 58 } else { proto },
                pad: 0,
            },
            pad_to_port: 0,
            port: (if proto == 1 && shape.inner_v6 {
                0x8000
            } else {
                port
            })
            .to_be_bytes(),
        };
        let rule = Rule {
            precedence,
            action,
            rule,
        };
        insert_rule(&mut policies, key, bits, rule);
    }
    // A flow that the Pod has opened.
    let flow = ReplyKey {
        pod: addr(POD_NODE),
        client: addr(POD_WEST),
        pod_port: 40_000,
        client_port: 53,
        proto: 17,
    };
    policies.flows.borrow_mut().insert(flow, u64::MAX);
    tables.policies = policies;
    tables
}

/// Adds a rule for the ports of a prefix to the map of its set.
pub(crate) fn insert_rule(policies: &mut PolicyMaps, key: RuleKey, bits: u32, rule: Rule) {
    if key.peer.set & SET_BY_PREFIX != 0 {
        policies.rules.insert((RULE_BITS + bits, key), rule);
        return;
    }
    let entry = policies.peer_rules.entry(key.peer).or_insert(PeerRules::NONE);
    assert!(
        entry.rules().count() < PEER_RULE_PORTS,
        "{key:?} has too many ports"
    );
    u8::try_from(rule.action).expect("an action");
    let rule = PortRule::new(&rule, key.port, u8::try_from(bits).expect("at most 16"));
    *entry = PeerRules::new(entry.rules().copied().chain([rule]));
}

/// Frames on `mc0` that take each way through `from_remote`, with its name.
pub(crate) fn timed_frames() -> Vec<(&'static str, Vec<u8>)> {
    let frame = |evaluated, proto, payload| {
        let packet = Ip::new(POD_WEST, POD_NODE, proto, payload);
        let mac = delivered_mac(CLIENT, evaluated);
        ethernet(MC0_MAC, mac, packet.ethertype(), &packet.bytes())
    };
    vec![
        ("no policy", frame(false, TCP, tcp(80, ACK))),
        ("established TCP", frame(true, TCP, tcp(80, ACK))),
        ("known datagram flow", frame(true, UDP, udp(53, 40_000, b"x"))),
        ("first TCP segment", frame(true, TCP, tcp(80, SYN))),
    ]
}

/// A TCP header with these flags, and a port of the destination.
pub(crate) fn tcp(port: u16, flags: u8) -> Vec<u8> {
    let mut header = vec![0; 20];
    header[..2].copy_from_slice(&40_000_u16.to_be_bytes());
    header[2..4].copy_from_slice(&port.to_be_bytes());
    header[4..8].copy_from_slice(&0xffff_fffe_u32.to_be_bytes());
    (header[12], header[13]) = (0x50, flags);
    header
}

pub(crate) const SYN: u8 = 2;
pub(crate) const ACK: u8 = 16;

pub(crate) fn cases(cases: &mut Vec<Case>) {
    for (shape, half) in Shape::all()
        .filter(|shape| !shape.outer_v6 && !shape.vxlan)
        .zip([0, 1])
    {
        decided(shape, half, cases);
    }
}

fn decided(shape: Shape, half: u32, cases: &mut Vec<Case>) {
    let name = shape.name();
    let mut resets = Vec::new();
    let mut push_frame = |what: &str, tables: MemoryMaps, frame: Vec<u8>, reason: Option<DropReason>| {
        cases.push(Case {
            gso_size: 0,
            name: format!("policy: {name}: {what}"),
            program: Program::FromRemote,
            tables,
            frame,
            expect: reason.map_or(Expect::Pass, Expect::Drop),
        });
    };
    let frame = |identity, evaluated, packet: &Ip| {
        let mac = delivered_mac(identity, evaluated);
        ethernet(MC0_MAC, mac, packet.ethertype(), &packet.bytes())
    };
    let packet = |src: [u8; 4], dst: [u8; 4], proto, payload: Vec<u8>| {
        Ip::new(shape.inner(src), shape.inner(dst), proto, payload)
    };
    let all = || tables(shape, half);
    let mut push = |what: &str, identity, packet: &Ip, reason| {
        push_frame(what, all(), frame(identity, true, packet), reason);
    };
    let syn = |port| packet(POD_WEST, POD_NODE, TCP, tcp(port, SYN));
    for (what, options) in [
        ("a rejected port in the range", &[][..]),
        ("a rejected segment with options", &[2, 4, 5, 180, 1, 1, 4, 2]),
    ] {
        let mut segment = syn(8_080);
        segment.payload.extend(options);
        segment.payload[12] = 0x50 + 4 * u8::try_from(options.len()).expect("a length");
        segment.payload = with_checksum(segment.src, segment.dst, TCP, segment.payload, 16);
        let received = frame(CLIENT, true, &segment);
        resets.push(Case {
            gso_size: 0,
            name: format!("policy: {name}: {what}"),
            program: Program::FromRemote,
            tables: all(),
            expect: Expect::Reset(reset_of(&received, &segment)),
            frame: received,
        });
    }
    push("an allowed port", CLIENT, &syn(80), None);
    push("another port", CLIENT, &syn(81), Some(Policy));
    push("a range of ports that passes", CLIENT, &syn(8_100), None);
    push("an identity without rules for it", OTHER, &syn(80), Some(Policy));
    push("a host", 0, &syn(80), Some(Policy));
    push(
        "an unknown identity",
        IDENTITY_UNKNOWN,
        &syn(80),
        Some(IdentityUnknown),
    );
    push("an identity of no cluster", 77, &syn(80), Some(IdentityUnknown));
    push(
        "the first number beyond the map",
        MAX_IDENTITIES,
        &syn(80),
        Some(IdentityUnknown),
    );
    let beyond = MAX_IDENTITIES + OTHER;
    push("a number beyond the map", beyond, &syn(80), Some(IdentityUnknown));
    let largest = IDENTITY_UNKNOWN - 1;
    push("the largest number", largest, &syn(80), Some(IdentityUnknown));
    push(
        "an identity of another cluster",
        FOREIGN,
        &syn(80),
        Some(IdentityForged),
    );
    let from = |src, port| packet(src, POD_NODE, TCP, tcp(port, SYN));
    push(
        "an allowed block",
        IDENTITY_UNKNOWN,
        &from([10, 2, 9, 5], 443),
        None,
    );
    push(
        "an earlier rule for the identity",
        CLIENT,
        &from([10, 2, 9, 5], 80),
        None,
    );
    push(
        "an earlier rule for the block",
        OTHER,
        &from([10, 2, 9, 5], 443),
        None,
    );
    push(
        "a source in no cluster",
        CLIENT,
        &from([172, 16, 0, 5], 80),
        Some(IdentityUnknown),
    );
    for flags in [ACK, SYN | ACK, 0, 1, 4] {
        let segment = packet(POD_WEST, POD_NODE, TCP, tcp(81, flags));
        push(&format!("a segment with flags {flags}"), CLIENT, &segment, None);
    }
    let odd = packet(POD_WEST, POD_NODE, TCP, tcp(81, SYN | 1));
    push("a segment with SYN and FIN", CLIENT, &odd, Some(Policy));
    let short = packet(POD_WEST, POD_NODE, TCP, tcp(81, SYN)[..13].to_vec());
    push("a TCP header without flags", CLIENT, &short, Some(InnerMalformed));
    let datagram = |src, dst, payload: &[u8]| packet(POD_WEST, POD_NODE, UDP, udp(src, dst, payload));
    push("an allowed datagram", CLIENT, &datagram(1, 53, b"x"), None);
    push("a dropped datagram", CLIENT, &datagram(1, 54, b"x"), Some(Policy));
    push("a datagram without a rule", CLIENT, &datagram(1, 55, b"x"), None);
    push("a reply", IDENTITY_UNKNOWN, &datagram(53, 40_000, b"x"), None);
    push(
        "no reply",
        IDENTITY_UNKNOWN,
        &datagram(53, 40_001, b"x"),
        Some(IdentityUnknown),
    );
    // A packet that passes opens its flow: each case has an identifier of its own.
    let echo = |kind: u8, id: u8| {
        let proto = if shape.inner_v6 { 58 } else { 1 };
        packet(POD_WEST, POD_NODE, proto, vec![kind, 0, 0, 0, 0, id, 0, 1])
    };
    let (request, reply, unreachable) = if shape.inner_v6 { (128, 129, 1) } else { (8, 0, 3) };
    push("an echo request", CLIENT, &echo(request, 1), Some(Policy));
    push("an echo reply without a rule", CLIENT, &echo(reply, 2), None);
    push(
        "an unknown echo",
        IDENTITY_UNKNOWN,
        &echo(reply, 3),
        Some(IdentityUnknown),
    );
    push("an ICMP error", IDENTITY_UNKNOWN, &echo(unreachable, 4), None);
    let other = packet(POD_WEST, POD_NODE, 47, vec![0; 8]);
    push("another protocol", CLIENT, &other, Some(Policy));
    push(
        "an address that the agent has not seen",
        CLIENT,
        &packet(POD_WEST, [10, 1, 0, 99], TCP, tcp(80, SYN)),
        Some(DropReason::PolicyPod),
    );
    push(
        "a Pod that no policy selects",
        IDENTITY_UNKNOWN,
        &packet(POD_WEST, [10, 1, 0, 6], TCP, tcp(80, SYN)),
        None,
    );
    push(
        "a Pod whose rules do not fit",
        CLIENT,
        &packet(POD_WEST, [10, 1, 0, 7], TCP, tcp(80, SYN)),
        Some(Policy),
    );
    if shape.inner_v6 {
        // Destination options in front of a TCP header that a rule drops.
        let behind = |options: usize| {
            let mut payload = Vec::new();
            for left in (0..options).rev() {
                payload.extend([if left == 0 { TCP } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
            }
            payload.extend(tcp(81, SYN));
            packet(POD_WEST, POD_NODE, 60, payload)
        };
        push("a TCP header behind options", CLIENT, &behind(6), Some(Policy));
        push(
            "more options than are parsed",
            CLIENT,
            &behind(7),
            Some(InnerMalformed),
        );
    }
    if !shape.inner_v6 {
        let mut first = datagram(1, 54, b"xxxxxxxx");
        first.frags = 0x2000;
        push("a first fragment", CLIENT, &first, Some(Policy));
        let mut tiny = packet(POD_WEST, POD_NODE, TCP, tcp(81, SYN)[..8].to_vec());
        tiny.frags = 0x2000;
        push("a first fragment without TCP flags", CLIENT, &tiny, Some(Policy));
        let mut later = packet(POD_WEST, POD_NODE, UDP, vec![0; 16]);
        later.frags = 0x0003;
        push("a later fragment", CLIENT, &later, None);
    }
    push_frame(
        "without evaluation",
        all(),
        frame(IDENTITY_UNKNOWN, false, &syn(81)),
        None,
    );
    let bytes = syn(80).bytes();
    let foreign = ethernet(MC0_MAC, [2, 0, 0, 0, 0, 1], syn(80).ethertype(), &bytes);
    push_frame(
        "an address of another program",
        all(),
        foreign,
        Some(IdentityUnknown),
    );
    let mut off = all();
    off.policies.state.enforced = 0;
    push_frame("no policies", off, frame(IDENTITY_UNKNOWN, true, &syn(81)), None);
    cases.extend(resets);
}

/// The reset that answers a frame with this first segment (RFC 9293 section 3.10.7.1).
pub(crate) fn reset_of(frame: &[u8], segment: &Ip) -> Vec<u8> {
    let sequence = <[u8; 4]>::try_from(&segment.payload[4..8]).expect("four bytes");
    let next = u32::from_be_bytes(sequence).wrapping_add(1);
    let mut answer = segment.payload.clone();
    answer[..2].copy_from_slice(&segment.payload[2..4]);
    answer[2..4].copy_from_slice(&segment.payload[..2]);
    answer[4..8].fill(0);
    answer[8..12].copy_from_slice(&next.to_be_bytes());
    answer[13] = 0x14;
    let (src, dst) = (segment.dst, segment.src);
    let ip = Ip::new(src, dst, TCP, with_checksum(src, dst, TCP, answer, 16));
    let [to, from] = [6..12, 0..6].map(|at| <[u8; 6]>::try_from(&frame[at]).expect("an address"));
    ethernet(to, from, ip.ethertype(), &ip.bytes())
}
