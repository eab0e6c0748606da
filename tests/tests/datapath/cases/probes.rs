//! Probes: reflected, consumed and dropped; and next-hop selection by liveness.

use mc_gateway_common::{
    abi::{
        CONFIG_VXLAN, MAX_NEXT_HOPS,
        liveness::{ProbeReply, ProbeSent},
    },
    maps::MemoryMaps,
    verdict::DropReason::{
        self, OuterChecksum, ProbeMalformed, ProbeNextHop, ProbeStale, ProbeUnsent, Truncated, UnknownPeer,
    },
};

use super::{Case, Expect, Program, case_from_underlay, to_remote::encapsulated, web};
use crate::{
    fixture::{
        self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, NORTH_GATEWAY, OTHER_GATEWAY, POD_HERE, POD_NORTH,
        POD_WEST, STRANGER, Shape, WEST_GATEWAY, WEST_GATEWAY_2,
    },
    packets::{Ip, Tunnel},
};

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const SIZE_REQUEST: u8 = 3;
const SIZE_REPLY: u8 = 4;

/// A probe, field by field, independent of the code under test.
#[derive(Clone, Copy, Debug)]
struct Probe {
    version: u8,
    kind: u8,
    size: u16,
    slot: u32,
    id: u32,
    sequence: u32,
    sent_at: u64,
    padding: usize,
}

impl Probe {
    /// The reply of next hop 1 (the gateway of west) to probe 10, the last one sent.
    fn new(kind: u8) -> Self {
        Self {
            version: 1,
            kind,
            size: 0,
            slot: 1,
            id: 1_007,
            sequence: 10,
            sent_at: 1,
            padding: 16,
        }
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes = vec![self.version, self.kind];
        bytes.extend(self.size.to_be_bytes());
        for field in [self.slot, self.id, self.sequence] {
            bytes.extend(field.to_be_bytes());
        }
        bytes.extend(self.sent_at.to_be_bytes());
        bytes.resize(24 + self.padding, 0);
        bytes
    }

    /// In a tunnel from `src` to `dst`.
    fn tunnel(self, shape: Shape, src: [u8; 4], dst: [u8; 4]) -> Tunnel {
        let mut tunnel = Tunnel::new(shape.outer(src), shape.outer(dst), &web(POD_WEST, POD_HERE));
        tunnel.vxlan = shape.vxlan;
        tunnel.dst_port = shape.port();
        tunnel.inner_type = 0x88b5;
        tunnel.inner = self.bytes();
        tunnel
    }
}

/// Sets the last sent and the last answered probe of a next hop.
fn probed(tables: &mut MemoryMaps, slot: u32, sent: u32, seen: u32) {
    let id = tables.next_hops[&slot].id;
    let config = tables.config.as_mut().expect("a configuration");
    config.detect = 3;
    config.hold_down_ms = 1_000;
    tables.health.now = fixture::now();
    tables.health.sent.insert(slot, ProbeSent { id, sequence: sent });
    let seen = ProbeReply {
        id,
        sequence: seen,
        ..ProbeReply::default()
    };
    tables.health.seen.borrow_mut().insert(slot, seen);
}

/// The gateway with next hop 1 probed up to 10 and answered up to 8.
pub(crate) fn gateway() -> MemoryMaps {
    let mut tables = fixture::gateway();
    probed(&mut tables, 1, 10, 8);
    tables
}

/// The reply of the gateway of west to the last probe.
pub(super) fn reply_of_west(shape: Shape) -> Tunnel {
    Probe::new(REPLY).tunnel(shape, WEST_GATEWAY, GATEWAY_OUTSIDE)
}

/// A request from `src` to this node at `dst`, and the reply.
pub(super) fn request_and_reply(shape: Shape, src: [u8; 4], dst: [u8; 4]) -> (Tunnel, Tunnel) {
    let request = Probe::new(REQUEST);
    let reply = Probe {
        kind: REPLY,
        ..request
    };
    let mut reply = reply.tunnel(shape, dst, src);
    reply.inner_src = fixture::sent_mac_to(reply.dst).bytes();
    (request.tunnel(shape, src, dst), reply)
}

pub(crate) fn probes(cases: &mut Vec<Case>) {
    for shape in Shape::all().filter(|shape| !shape.inner_v6) {
        for udp_checksum in [false, true] {
            let name = |what: &str| {
                let sum = if udp_checksum { "summed" } else { "unsummed" };
                format!("{}: probe {sum}: {what}", shape.name())
            };
            let tables = shape.tables(gateway());
            let mut reflected = |what: &str, probe: Probe, answer: u8, src, dst| {
                let mut request = probe.tunnel(shape, src, dst);
                request.udp_checksum = udp_checksum;
                request.ttl = 3;
                let mut reply = Probe {
                    kind: answer,
                    ..probe
                }
                .tunnel(shape, dst, src);
                reply.udp_checksum = udp_checksum;
                reply.inner_src = fixture::sent_mac_to(reply.dst).bytes();
                let expect = Expect::Reflect(reply.frame());
                cases.push(case_from_underlay(
                    name(what),
                    tables.clone(),
                    request.frame(),
                    expect,
                ));
            };
            let plain = Probe::new(REQUEST);
            reflected(
                "remote gateway's request",
                plain,
                REPLY,
                WEST_GATEWAY,
                GATEWAY_OUTSIDE,
            );
            reflected("node's request", plain, REPLY, NODE, GATEWAY_INSIDE);
            reflected(
                "other gateway's request",
                plain,
                REPLY,
                OTHER_GATEWAY,
                GATEWAY_INSIDE,
            );
            let size = Probe {
                size: 1_400,
                padding: 1_300,
                ..Probe::new(SIZE_REQUEST)
            };
            reflected("size request", size, SIZE_REPLY, WEST_GATEWAY, GATEWAY_OUTSIDE);

            let mut reply = reply_of_west(shape);
            reply.udp_checksum = udp_checksum;
            let taken = Expect::Consume {
                slot: 1,
                sequence: 10,
                size: 0,
            };
            cases.push(case_from_underlay(
                name("reply"),
                tables.clone(),
                reply.frame(),
                taken,
            ));
        }
        size_reply(cases, shape);
    }
    dropped(cases);
    selection(cases);
}

fn size_reply(cases: &mut Vec<Case>, shape: Shape) {
    let mut probe = Probe {
        padding: 1_000,
        ..Probe::new(SIZE_REPLY)
    };
    let frame = |probe: Probe| probe.tunnel(shape, WEST_GATEWAY, GATEWAY_OUTSIDE).frame();
    probe.size = u16::try_from(frame(probe).len() - 14).expect("a size");
    let expect = Expect::Consume {
        slot: 1,
        sequence: 8,
        size: probe.size.into(),
    };
    let name = format!("{}: probe: size reply", shape.name());
    cases.push(case_from_underlay(
        name,
        shape.tables(gateway()),
        frame(probe),
        expect,
    ));
    probe.size += 1;
    let name = format!("{}: probe: size reply with a wrong size", shape.name());
    let expect = Expect::Drop(ProbeMalformed);
    cases.push(case_from_underlay(
        name,
        shape.tables(gateway()),
        frame(probe),
        expect,
    ));
}

fn dropped(cases: &mut Vec<Case>) {
    let shape = Shape::default();
    let mut drop = |name: &str, tables: MemoryMaps, tunnel: &Tunnel, reason: DropReason| {
        let name = format!("probe: {name}");
        cases.push(case_from_underlay(
            name,
            tables,
            tunnel.frame(),
            Expect::Drop(reason),
        ));
    };
    let from_west = |probe: Probe| probe.tunnel(shape, WEST_GATEWAY, GATEWAY_OUTSIDE);
    let reply = Probe::new(REPLY);
    for (name, probe) in [
        ("version 0", Probe { version: 0, ..reply }),
        ("version 2", Probe { version: 2, ..reply }),
        ("kind 0", Probe { kind: 0, ..reply }),
        ("kind 5", Probe { kind: 5, ..reply }),
        ("one byte short", Probe { padding: 15, ..reply }),
        (
            "request, one byte short",
            Probe {
                padding: 15,
                ..Probe::new(REQUEST)
            },
        ),
        (
            "sent in the future",
            Probe {
                sent_at: u64::MAX,
                ..reply
            },
        ),
    ] {
        drop(name, gateway(), &from_west(probe), ProbeMalformed);
    }
    let mut cut = from_west(reply);
    cut.inner.truncate(19);
    drop("cut off in its first fields", gateway(), &cut, Truncated);
    for (name, probe) in [
        (
            "slot beyond the map",
            Probe {
                slot: MAX_NEXT_HOPS,
                ..reply
            },
        ),
        (
            "slot far beyond the map",
            Probe {
                slot: u32::MAX,
                ..reply
            },
        ),
        ("slot 0", Probe { slot: 0, ..reply }),
        (
            "empty slot",
            Probe {
                slot: 9,
                id: 0,
                ..reply
            },
        ),
        ("another next hop's slot", Probe { slot: 3, ..reply }),
        (
            "another next hop's slot and id",
            Probe {
                slot: 3,
                id: 3_007,
                ..reply
            },
        ),
        ("another id", Probe { id: 1_008, ..reply }),
    ] {
        drop(name, gateway(), &from_west(probe), ProbeNextHop);
    }
    let inside = reply.tunnel(shape, WEST_GATEWAY, GATEWAY_INSIDE);
    drop("reply to another local address", gateway(), &inside, ProbeNextHop);
    let north = reply.tunnel(shape, NORTH_GATEWAY, GATEWAY_OUTSIDE);
    drop(
        "reply from another next hop's address",
        gateway(),
        &north,
        ProbeNextHop,
    );
    let own = Probe::new(REQUEST).tunnel(shape, GATEWAY_OUTSIDE, GATEWAY_OUTSIDE);
    drop("own request looped back", gateway(), &own, UnknownPeer);
    let stranger = Probe::new(REQUEST).tunnel(shape, STRANGER, GATEWAY_OUTSIDE);
    drop("request of an unknown peer", gateway(), &stranger, UnknownPeer);
    let mut forged = from_west(Probe::new(REQUEST));
    forged.outer_checksum_error = 1;
    drop("request with a wrong checksum", gateway(), &forged, OuterChecksum);
    for (name, sequence, reason) in [
        ("duplicate reply", 8, ProbeStale),
        ("late reply", 7, ProbeStale),
        ("very late reply", 0x8000_000b, ProbeStale),
        ("reply to the next probe", 11, ProbeUnsent),
        ("reply to a far later probe", 0x7fff_ffff, ProbeUnsent),
    ] {
        drop(name, gateway(), &from_west(Probe { sequence, ..reply }), reason);
    }
    drop(
        "reply without any probe",
        fixture::gateway(),
        &from_west(reply),
        ProbeUnsent,
    );
    let mut reused = gateway();
    reused.health.sent.get_mut(&1).expect("sent").id = 5;
    drop(
        "reply for the slot's previous owner",
        reused,
        &from_west(reply),
        ProbeUnsent,
    );
    let mut other = from_west(Probe::new(REQUEST));
    other.mac = [0xff; 6];
    let frame = other.frame();
    cases.push(case_from_underlay(
        "probe: another MAC address passes",
        gateway(),
        frame,
        Expect::Pass,
    ));
    let mut vxlan = gateway();
    vxlan.config.as_mut().expect("a configuration").flags |= CONFIG_VXLAN;
    let frame = from_west(Probe::new(REQUEST)).frame();
    let expect = Expect::Drop(DropReason::TunnelHeader);
    cases.push(case_from_underlay("probe: Geneve to VXLAN", vxlan, frame, expect));
}

/// Flows to north, with next hops 3 and 4.
fn selection(cases: &mut Vec<Case>) {
    let inner = Ip::new(POD_HERE, POD_NORTH, 17, crate::packets::udp(40_002, 53, b"x"));
    let mut to = |name: &str, tables: MemoryMaps, gateway: [u8; 4]| {
        let expect = Expect::Encap(encapsulated(&inner, GATEWAY_OUTSIDE, gateway).frame());
        cases.push(Case {
            gso_size: 0,
            name: format!("selection: {name}"),
            program: Program::ToRemote,
            tables,
            frame: inner.frame(),
            expect,
        });
    };
    let with = |dead: &[u32], weights: [u32; 2]| {
        let mut tables = fixture::gateway();
        for (slot, weight) in [3, 4].into_iter().zip(weights) {
            probed(&mut tables, slot, 14, if dead.contains(&slot) { 10 } else { 11 });
            tables.next_hops.get_mut(&slot).expect("a next hop").weight = weight;
        }
        tables
    };
    to("both alive", with(&[], [1, 1]), FIRST);
    to("the other is dead", with(&[SECOND_SLOT], [1, 1]), FIRST);
    to("the first is dead", with(&[FIRST_SLOT], [1, 1]), SECOND);
    to("both are dead", with(&[3, 4], [1, 1]), FIRST);
    to("3 is drained", with(&[], [0, 1]), WEST_GATEWAY_2);
    to("4 is drained", with(&[], [1, 0]), NORTH_GATEWAY);
    to("both are drained", with(&[], [0, 0]), FIRST);
    to("3 is drained, 4 is dead", with(&[4], [0, 1]), NORTH_GATEWAY);
    to(
        "3 is drained, both are dead",
        with(&[3, 4], [0, 1]),
        WEST_GATEWAY_2,
    );
    to("weights 1 and 1000000", with(&[], [1, 1_000_000]), WEST_GATEWAY_2);
    to("weights 1000000 and 1", with(&[], [1_000_000, 1]), NORTH_GATEWAY);
    let held = with(&[], [1, 1]);
    held.health
        .seen
        .borrow_mut()
        .get_mut(&FIRST_SLOT)
        .expect("seen")
        .held_since = 1;
    to("the first is held down", held, SECOND);
    let mut off = with(&[3, 4], [1, 1]);
    off.config.as_mut().expect("a configuration").detect = 0;
    to("liveness is off", off, FIRST);
    let mut reused = with(&[FIRST_SLOT], [1, 1]);
    reused.health.sent.get_mut(&FIRST_SLOT).expect("sent").id = 1;
    to("the slot's previous owner was dead", reused, FIRST);
}

/// The flow's preferred next hop and the second one.
const FIRST_SLOT: u32 = 4;
const SECOND_SLOT: u32 = 3;
const FIRST: [u8; 4] = WEST_GATEWAY_2;
const SECOND: [u8; 4] = NORTH_GATEWAY;
