//! `to_pod` and `from_pod`: network policies at the devices of this node's Pods.

use std::net::Ipv4Addr;

use mc_gateway_common::{
    abi::policy::unselected_slot,
    maps::MemoryMaps,
    packet::SlicePacket,
    pipeline,
    verdict::{
        DropReason::{self, InnerMalformed, InnerProtocol, Policy, PolicyPod},
        Verdict,
    },
};

use super::{
    Case, Expect, Program,
    from_remote::{
        ACK, FREE, FREE_WITHOUT_SLOT, NEIGHBOR_OF_FREE, PEER_POD, SERVICE, SYN, reset_of, tables, tcp,
    },
};
use crate::{
    TC_ACT_SHOT, TC_ACT_UNSPEC,
    fixture::{MC0_MAC, POD_NODE, POD_WEST, STRANGER, Shape},
    kernel::Kernel,
    packets::{Ip, ethernet, udp, with_checksum},
};

/// A device other than `mc0`, on which the node received a packet.
pub(crate) const POD_DEVICE: u32 = 3;
/// Addresses of this node: a Pod whose rules do not fit, one with rules for ingress only, and one that the agent has
/// not seen.
const CLOSED: [u8; 4] = [10, 1, 0, 7];
const INGRESS_ONLY: [u8; 4] = [10, 1, 0, 8];
const NEW: [u8; 4] = [10, 1, 0, 99];

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Frames at the device of a Pod that take each way through its programs, with its name.
pub(crate) fn timed_frames() -> Vec<(Program, &'static str, Vec<u8>)> {
    let of = |src, dst, proto, payload| frame(&packet(Shape::default(), src, dst, proto, payload));
    let arp = || ethernet(MC0_MAC, [2, 0, 0, 0, 0, 1], 0x0806, &[0; 28]);
    vec![
        (Program::ToPod, "ARP", arp()),
        (
            Program::ToPod,
            "another Pod",
            of(PEER_POD, FREE, TCP, tcp(80, SYN)),
        ),
        (
            Program::ToPod,
            "established TCP",
            of(PEER_POD, POD_NODE, TCP, tcp(80, ACK)),
        ),
        (
            Program::ToPod,
            "known datagram flow",
            of(POD_WEST, POD_NODE, UDP, udp(53, 40_000, b"x")),
        ),
        (
            Program::ToPod,
            "first TCP segment",
            of(PEER_POD, POD_NODE, TCP, tcp(80, SYN)),
        ),
        (Program::FromPod, "ARP", arp()),
        (
            Program::FromPod,
            "another Pod",
            of(FREE, PEER_POD, TCP, tcp(80, SYN)),
        ),
        (
            Program::FromPod,
            "established TCP",
            of(POD_NODE, PEER_POD, TCP, tcp(80, ACK)),
        ),
        (
            Program::FromPod,
            "known datagram flow",
            of(POD_NODE, POD_WEST, UDP, udp(40_000, 53, b"x")),
        ),
        (
            Program::FromPod,
            "first TCP segment",
            of(POD_NODE, PEER_POD, TCP, tcp(80, SYN)),
        ),
    ]
}

/// A frame on a Pod's device.
fn frame(packet: &Ip) -> Vec<u8> {
    ethernet(MC0_MAC, [2, 0, 0, 0, 0, 1], packet.ethertype(), &packet.bytes())
}

fn packet(shape: Shape, src: [u8; 4], dst: [u8; 4], proto: u8, payload: Vec<u8>) -> Ip {
    Ip::new(shape.inner(src), shape.inner(dst), proto, payload)
}

pub(crate) fn cases(cases: &mut Vec<Case>) {
    for (shape, half) in Shape::all()
        .filter(|shape| !shape.outer_v6 && !shape.vxlan)
        .zip([0, 1])
    {
        for program in [Program::ToPod, Program::FromPod] {
            // A frame with a second VLAN tag, which the receiver may remove, and ARP.
            for (ethertype, expect) in [
                (0x8100, Expect::Drop(InnerProtocol)),
                (0x88a8, Expect::Drop(InnerProtocol)),
                (0x0806, Expect::Pass),
            ] {
                let inner = syn_of(shape, program);
                cases.push(Case {
                    gso_size: 0,
                    name: format!("{}: {}: ethertype {ethertype:04x}", program.name(), shape.name()),
                    program,
                    tables: tables(shape, half),
                    frame: ethernet(MC0_MAC, [2, 0, 0, 0, 0, 1], ethertype, &inner.bytes()),
                    expect,
                });
            }
        }
        rejected(shape, half, cases);
        for (program, list) in [
            (Program::ToPod, to_pod(shape)),
            (Program::FromPod, from_pod(shape)),
        ] {
            for (what, packet, reason) in list {
                cases.push(Case {
                    gso_size: 0,
                    name: format!("{}: {}: {what}", program.name(), shape.name()),
                    program,
                    tables: tables(shape, half),
                    frame: frame(&packet),
                    expect: reason.map_or(Expect::Pass, Expect::Drop),
                });
            }
        }
    }
}

/// The first segment of a rejected connection is answered with a reset.
fn rejected(shape: Shape, half: u32, cases: &mut Vec<Case>) {
    let mut push = |what: &str, program: Program, packet: &Ip, expect: fn(Vec<u8>) -> Expect| {
        let received = frame(packet);
        cases.push(Case {
            gso_size: 0,
            name: format!("{}: {}: {what}", program.name(), shape.name()),
            program,
            tables: tables(shape, half),
            expect: expect(reset_of(&received, packet)),
            frame: received,
        });
    };
    let checked = |src, dst| {
        let mut segment = packet(shape, src, dst, TCP, tcp(82, SYN));
        segment.payload = with_checksum(segment.src, segment.dst, TCP, segment.payload, 16);
        segment
    };
    let to = checked(FREE, POD_NODE);
    push("a rejected port", Program::ToPod, &to, Expect::ResetToHost);
    let from = checked(POD_NODE, STRANGER);
    push("a rejected port", Program::FromPod, &from, Expect::Reset);
}

/// A segment that a rule drops.
fn syn_of(shape: Shape, program: Program) -> Ip {
    let (src, dst) = if program == Program::ToPod {
        (FREE, POD_NODE)
    } else {
        (POD_NODE, SERVICE)
    };
    packet(shape, src, dst, TCP, tcp(80, SYN))
}

type Row = (&'static str, Ip, Option<DropReason>);

fn to_pod(shape: Shape) -> Vec<Row> {
    let to = |src, dst, proto, payload| packet(shape, src, dst, proto, payload);
    let syn = |src, dst, port| to(src, dst, TCP, tcp(port, SYN));
    let datagram = |src, from, port| to(src, POD_NODE, UDP, udp(from, port, b"x"));
    let mut rows = vec![
        ("an allowed Pod", syn(PEER_POD, POD_NODE, 80), None),
        ("another port", syn(PEER_POD, POD_NODE, 81), Some(Policy)),
        ("another Pod", syn(FREE, POD_NODE, 80), Some(Policy)),
        ("a host", syn(STRANGER, POD_NODE, 80), Some(Policy)),
        ("an open connection", to(FREE, POD_NODE, TCP, tcp(80, ACK)), None),
        ("an answer", to(FREE, POD_NODE, TCP, tcp(80, SYN | ACK)), None),
        ("a dropped datagram", datagram(FREE, 1, 55), Some(Policy)),
        ("a datagram without a rule", datagram(FREE, 1, 56), None),
        ("a Pod that no policy selects", syn(PEER_POD, FREE, 81), None),
        (
            "a datagram to a Pod that no policy selects",
            to(PEER_POD, FREE, UDP, vec![0; 8]),
            None,
        ),
        (
            "a Pod whose rules do not fit",
            syn(PEER_POD, CLOSED, 80),
            Some(Policy),
        ),
        (
            "a Pod that the agent has not seen",
            syn(PEER_POD, NEW, 80),
            Some(PolicyPod),
        ),
        ("an address outside", syn(PEER_POD, STRANGER, 80), None),
        (
            "a TCP header without flags",
            to(FREE, POD_NODE, TCP, tcp(81, SYN)[..13].to_vec()),
            Some(InnerMalformed),
        ),
    ];
    if shape.inner_v6 {
        let solicitation = to(FREE, POD_NODE, 58, vec![135, 0, 0, 0, 0, 0, 0, 0]);
        rows.push(("a neighbor solicitation", solicitation, None));
    } else {
        let mut later = to(FREE, POD_NODE, UDP, vec![0; 16]);
        later.frags = 0x0003;
        rows.push(("a later fragment", later, None));
    }
    rows
}

fn from_pod(shape: Shape) -> Vec<Row> {
    let to = |src, dst, proto, payload| packet(shape, src, dst, proto, payload);
    let syn = |src, dst, port| to(src, dst, TCP, tcp(port, SYN));
    let datagram = |src, dst, port| to(src, dst, UDP, udp(7, port, b"x"));
    vec![
        ("a dropped Service", syn(POD_NODE, SERVICE, 80), Some(Policy)),
        ("another port of the Service", syn(POD_NODE, SERVICE, 81), None),
        (
            "a datagram to the Service",
            datagram(POD_NODE, SERVICE, 53),
            Some(Policy),
        ),
        ("another destination", syn(POD_NODE, STRANGER, 80), None),
        (
            "a port that is dropped",
            syn(POD_NODE, STRANGER, 8_080),
            Some(Policy),
        ),
        (
            "an earlier rule for the Pod",
            syn(POD_NODE, PEER_POD, 8_080),
            None,
        ),
        (
            "an open connection",
            to(POD_NODE, SERVICE, TCP, tcp(80, ACK)),
            None,
        ),
        ("a Pod that no policy selects", syn(FREE, SERVICE, 80), None),
        (
            "a Pod with rules for ingress",
            syn(INGRESS_ONLY, SERVICE, 80),
            None,
        ),
        (
            "a Pod whose rules do not fit",
            syn(CLOSED, STRANGER, 80),
            Some(Policy),
        ),
        (
            "a Pod that the agent has not seen",
            syn(NEW, STRANGER, 80),
            Some(PolicyPod),
        ),
        ("an address outside", syn(STRANGER, SERVICE, 80), None),
    ]
}

/// Host and kernel give one action to a packet that the node has received on a device.
fn run(kernel: &mut Kernel, tables: &MemoryMaps, program: Program, frame: &[u8], ifindex: u32) -> u32 {
    let mut packet = SlicePacket::new(frame.to_vec());
    packet.set_ingress_ifindex(ifindex);
    let verdict = match program {
        Program::ToPod => pipeline::to_pod(&mut packet, tables),
        _ => pipeline::from_pod(&mut packet, tables),
    };
    let action = kernel.run_received_on(program.name(), frame, ifindex).action;
    let expected = if matches!(verdict, Verdict::Pass) {
        TC_ACT_UNSPEC
    } else {
        TC_ACT_SHOT
    };
    assert_eq!(action, expected, "{verdict:?}");
    action
}

/// `from_remote` has decided on packets from other clusters, and the kubelet of the node probes its Pods.
#[test]
fn packets_of_the_node_and_through_mc0_pass_to_a_pod() {
    let shape = Shape::default();
    let tables = tables(shape, 0);
    let mc0 = tables.config.expect("a configuration").mc0_ifindex;
    let mut kernel = Kernel::load(&tables);
    let syn = frame(&packet(shape, STRANGER, POD_NODE, TCP, tcp(80, SYN)));
    for (ifindex, expected) in [
        (0, TC_ACT_UNSPEC),
        (mc0, TC_ACT_UNSPEC),
        (POD_DEVICE, TC_ACT_SHOT),
        (POD_DEVICE + 1, TC_ACT_SHOT),
    ] {
        assert_eq!(
            run(&mut kernel, &tables, Program::ToPod, &syn, ifindex),
            expected,
            "{ifindex}"
        );
    }
}

/// Replies to a datagram of a Pod pass to it, and replies of the Pod to one that rules allow.
#[test]
fn replies_pass_in_both_directions() {
    let shape = Shape::default();
    let tables = tables(shape, 0);
    let mut kernel = Kernel::load(&tables);
    let datagram = |src, dst, from, to| frame(&packet(shape, src, dst, UDP, udp(from, to, b"x")));
    let mut check = |program, frame: &[u8], expected| {
        assert_eq!(
            run(&mut kernel, &tables, program, frame, POD_DEVICE),
            expected,
            "{program:?}"
        );
    };
    let reply = datagram(STRANGER, POD_NODE, 99, 55);
    check(Program::ToPod, &reply, TC_ACT_SHOT);
    check(
        Program::FromPod,
        &datagram(POD_NODE, STRANGER, 55, 99),
        TC_ACT_UNSPEC,
    );
    check(Program::ToPod, &reply, TC_ACT_UNSPEC);
    // A client at the Service's address: rules for egress do not select replies.
    let reply = datagram(POD_NODE, SERVICE, 56, 53);
    check(Program::FromPod, &reply, TC_ACT_SHOT);
    check(
        Program::ToPod,
        &datagram(SERVICE, POD_NODE, 53, 56),
        TC_ACT_UNSPEC,
    );
    check(Program::FromPod, &reply, TC_ACT_UNSPEC);
}

/// The slot of a Pod that no policy selects opens that Pod only, and an unused slot none. Its packets that the programs
/// cannot read at constant offsets are dropped as before.
#[test]
fn a_slot_opens_the_pod_with_its_address_only() {
    let shape = Shape::default();
    let tables = tables(shape, 0);
    let slot = |pod| unselected_slot(&Ipv4Addr::from(pod).to_ipv6_mapped().octets(), 0);
    assert_eq!([FREE_WITHOUT_SLOT, NEIGHBOR_OF_FREE].map(slot), [slot(FREE); 2]);
    let mut kernel = Kernel::load(&tables);
    for (pod, expected) in [
        (FREE, TC_ACT_UNSPEC),
        (FREE_WITHOUT_SLOT, TC_ACT_UNSPEC),
        (NEIGHBOR_OF_FREE, TC_ACT_SHOT),
        (CLOSED, TC_ACT_SHOT),
        (NEW, TC_ACT_SHOT),
    ] {
        for proto in [TCP, UDP] {
            let payload = || {
                if proto == TCP {
                    tcp(9, SYN)
                } else {
                    udp(9, 9, b"x")
                }
            };
            let to = frame(&packet(shape, STRANGER, pod, proto, payload()));
            let from = frame(&packet(shape, pod, STRANGER, proto, payload()));
            for (program, frame) in [(Program::ToPod, to), (Program::FromPod, from)] {
                let found = run(&mut kernel, &tables, program, &frame, POD_DEVICE);
                assert_eq!(found, expected, "{pod:?} {proto} {program:?}");
            }
        }
    }
}

/// Without rules for a direction its packets pass, also those of Pods that the agent has not seen.
#[test]
fn a_direction_without_rules_is_open() {
    use mc_gateway_common::abi::policy::{ENFORCED_EGRESS, ENFORCED_INGRESS};

    let shape = Shape::default();
    let mut kernel = Kernel::load(&tables(shape, 0));
    let from = frame(&packet(shape, NEW, STRANGER, TCP, tcp(80, SYN)));
    let to = frame(&packet(shape, PEER_POD, NEW, TCP, tcp(80, SYN)));
    let mut last = tables(shape, 0);
    for enforced in [0, ENFORCED_INGRESS, ENFORCED_EGRESS] {
        let mut now = tables(shape, 0);
        now.policies.state.enforced = enforced;
        kernel.refill(&last, &now);
        let action = |flag| {
            if enforced & flag == 0 {
                TC_ACT_UNSPEC
            } else {
                TC_ACT_SHOT
            }
        };
        let found = run(&mut kernel, &now, Program::ToPod, &to, POD_DEVICE);
        assert_eq!(found, action(ENFORCED_INGRESS), "to a Pod, {enforced}");
        let found = run(&mut kernel, &now, Program::FromPod, &from, POD_DEVICE);
        assert_eq!(found, action(ENFORCED_EGRESS), "from a Pod, {enforced}");
        last = now;
    }
}
