//! Decapsulation by the kernel: super-packets and test packets left to the tunnel device, and packets on that device.

use mc_gateway_common::{
    abi::{Config, kernel_decap::test_key},
    maps::MemoryMaps,
    verdict::{DropReason::NotAdmitted, Outcome},
};

use super::{
    Case, Expect, Program, case_from_underlay,
    from_underlay::{decapsulated, delivered_mac},
    probes::{self, reply_of_west},
    web,
};
use crate::{
    fixture::{self, GATEWAY_OUTSIDE, MC0_MAC, POD_HERE, POD_WEST, STRANGER, Shape, WEST_GATEWAY},
    packets::{Ip, Tunnel, ethernet},
};

/// The secret of the node.
pub(crate) const SECRET: [u8; 6] = [0x5c, 1, 2, 3, 4, 5];
/// VNI of packets for the tunnel device.
const VNI: u32 = 0x006d_6367;
/// Ethertype of probes.
const PROBE: u16 = 0x88b5;

/// Tables of a node with a tunnel device; a test packet came through now or never.
fn with_device(mut tables: MemoryMaps, tested: bool) -> MemoryMaps {
    let config = tables.config.as_mut().expect("a configuration");
    *config = Config {
        tunnel_mac: SECRET,
        decap_test_ms: 3_600_000,
        ..*config
    };
    tables.health.now = fixture::now();
    if tested {
        for v6 in [false, true] {
            tables
                .decap_tests
                .borrow_mut()
                .insert(test_key(1, v6), fixture::now());
        }
    }
    tables
}

/// `tunnel` addressed to the tunnel device.
pub(crate) fn readdressed(tunnel: &Tunnel) -> Tunnel {
    Tunnel {
        vni: VNI,
        mac: if tunnel.inner_type == PROBE {
            MC0_MAC
        } else {
            delivered_mac(tunnel.vni, false)
        },
        inner_src: SECRET,
        ..tunnel.clone()
    }
}

pub(crate) fn cases(cases: &mut Vec<Case>) {
    for shape in Shape::all() {
        left_to_the_device(shape, cases);
        on_the_device(shape, cases);
    }
    for shape in Shape::all().filter(|shape| !shape.inner_v6) {
        tests(shape, cases);
    }
}

fn left_to_the_device(shape: Shape, cases: &mut Vec<Case>) {
    let name = shape.name();
    let gateway = |tested| with_device(shape.tables(fixture::gateway()), tested);
    let payload = vec![0xa5; 2_800];
    let inner = Ip::new(shape.inner(POD_WEST), shape.inner(POD_HERE), 6, payload);
    let mut bulk = Tunnel::new(shape.outer(WEST_GATEWAY), shape.outer(GATEWAY_OUTSIDE), &inner);
    bulk.vxlan = shape.vxlan;
    bulk.dst_port = shape.port();
    let frame = readdressed(&bulk).frame();
    cases.push(Case {
        gso_size: 1_000,
        ..case_from_underlay(
            format!("kernel decap: {name}: super-packet"),
            gateway(true),
            bulk.frame(),
            Expect::KernelDecap {
                frame,
                outcome: Outcome::KernelDecap,
            },
        )
    });
    let small = web(shape.inner(POD_WEST), shape.inner(POD_HERE));
    let mut packet = Tunnel::new(shape.outer(WEST_GATEWAY), shape.outer(GATEWAY_OUTSIDE), &small);
    packet.vxlan = shape.vxlan;
    packet.dst_port = shape.port();
    cases.push(case_from_underlay(
        format!("kernel decap: {name}: one packet keeps the short way"),
        gateway(true),
        packet.frame(),
        Expect::Deliver(decapsulated(&packet)),
    ));
    // From outside with the VNI, and with the secret as if it were known.
    for (what, src) in [("stranger", STRANGER), ("peer", WEST_GATEWAY)] {
        packet.src = shape.outer(src);
        let forged = readdressed(&packet).frame();
        cases.push(case_from_underlay(
            format!("kernel decap: {name}: forged by a {what}"),
            gateway(true),
            forged.clone(),
            Expect::Drop(NotAdmitted),
        ));
        cases.push(case_from_underlay(
            format!("kernel decap: {name}: VNI of a {what} without a tunnel device"),
            shape.tables(fixture::gateway()),
            forged,
            Expect::Pass,
        ));
    }
}

/// Replies to probes as test packets.
fn tests(shape: Shape, cases: &mut Vec<Case>) {
    let name = shape.name();
    for udp_checksum in [false, true] {
        for tested in [false, true] {
            let mut reply = reply_of_west(shape);
            reply.udp_checksum = udp_checksum;
            let tables = with_device(shape.tables(probes::gateway()), tested);
            let expect = if tested || udp_checksum {
                Expect::Consume {
                    slot: 1,
                    sequence: 10,
                    size: 0,
                }
            } else {
                let mut test = readdressed(&reply);
                let key = test_key(1, shape.outer_v6);
                test.inner[4..8].copy_from_slice(&key.to_be_bytes());
                Expect::KernelDecap {
                    frame: test.frame(),
                    outcome: Outcome::ProbeReply,
                }
            };
            cases.push(case_from_underlay(
                format!("kernel decap: {name}: reply to a probe, tested {tested}, checksum {udp_checksum}"),
                tables,
                reply.frame(),
                expect,
            ));
        }
    }
}

fn on_the_device(shape: Shape, cases: &mut Vec<Case>) {
    if shape.vxlan || shape.outer_v6 {
        return;
    }
    let name = shape.name();
    let mut push = |what: &str, tables: MemoryMaps, frame: Vec<u8>, expect: Expect| {
        cases.push(Case {
            program: Program::FromTunnel,
            ..case_from_underlay(format!("tunnel device: {name}: {what}"), tables, frame, expect)
        });
    };
    let gateway = || with_device(shape.tables(fixture::gateway()), false);
    let ethertype = if shape.inner_v6 { 0x86dd } else { 0x0800 };
    let ip = web(shape.inner(POD_WEST), shape.inner(POD_HERE)).bytes();
    let sender = delivered_mac(0x0012_3456, true);
    let admitted = ethernet(sender, SECRET, ethertype, &ip);
    push(
        "admitted",
        gateway(),
        admitted.clone(),
        Expect::Deliver(ethernet(MC0_MAC, sender, ethertype, &ip)),
    );
    let forged = ethernet(MC0_MAC, [0x5c, 1, 2, 3, 4, 6], ethertype, &ip);
    push("another secret", gateway(), forged, Expect::Drop(NotAdmitted));
    let zero = ethernet(MC0_MAC, [0; 6], ethertype, &ip);
    let unconfigured = shape.tables(fixture::gateway());
    push(
        "zeros without a secret",
        unconfigured,
        zero,
        Expect::Drop(NotAdmitted),
    );
    if shape.inner_v6 {
        return;
    }
    let mut test = vec![1, 2, 0, 0];
    test.extend(77_u32.to_be_bytes());
    test.resize(40, 0);
    push(
        "test packet",
        gateway(),
        ethernet(MC0_MAC, SECRET, PROBE, &test),
        Expect::Tested { key: 77 },
    );
    push(
        "forged test packet",
        gateway(),
        ethernet(MC0_MAC, MC0_MAC, PROBE, &test),
        Expect::Drop(NotAdmitted),
    );
}
