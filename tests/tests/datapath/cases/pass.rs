//! `from_underlay`: other traffic passes unmodified.

use mc_gateway_common::maps::MemoryMaps;

use super::{Case, Expect, case_from_underlay, web};
use crate::{
    fixture::{self, GATEWAY_OUTSIDE, POD_HERE, POD_WEST, STRANGER, WEST_GATEWAY},
    packets::{Ip, OUTER_DST, Tunnel, ethernet, udp},
};

pub(crate) fn pass(cases: &mut Vec<Case>) {
    let base = || Tunnel::new(WEST_GATEWAY, GATEWAY_OUTSIDE, &web(POD_WEST, POD_HERE));
    let mut pass = |name, tables, frame| cases.push(case_from_underlay(name, tables, frame, Expect::Pass));
    let g = fixture::gateway;
    let with = |change: fn(&mut Tunnel)| {
        let mut tunnel = base();
        change(&mut tunnel);
        tunnel.frame()
    };
    pass("other: not configured yet", MemoryMaps::default(), base().frame());
    pass(
        "other: tables of another ABI",
        fixture::foreign_abi(),
        base().frame(),
    );
    pass(
        "other: IPv6",
        g(),
        ethernet(OUTER_DST, OUTER_DST, 0x86dd, &[0x60; 120]),
    );
    pass(
        "other: ARP",
        g(),
        ethernet(OUTER_DST, OUTER_DST, 0x0806, &[0; 28]),
    );
    pass(
        "other: plain TCP to the node",
        g(),
        web(STRANGER, GATEWAY_OUTSIDE).frame(),
    );
    pass("other: another UDP port", g(), with(|t| t.dst_port = 4789));
    pass(
        "other: for another address",
        g(),
        with(|t| t.dst = [192, 168, 9, 77].into()),
    );
    pass(
        "other: a CNI's inner MAC",
        g(),
        with(|t| t.mac = [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]),
    );
    pass(
        "other: a CNI's packet with options",
        g(),
        with(|t| {
            t.mac = [2, 0, 0, 0, 0, 1];
            t.geneve[0] = 2;
            t.geneve_options = vec![0; 8];
        }),
    );
    pass(
        "other: payload is not Ethernet",
        g(),
        with(|t| t.geneve_type = 0x0800),
    );
    pass(
        "other: outer IP options",
        g(),
        with(|t| t.outer_options = vec![1, 1, 1, 1]),
    );
    pass("other: later fragment", g(), with(|t| t.frags = 0x0010));
    pass(
        "other: first fragment of a stranger",
        g(),
        with(|t| {
            t.frags = 0x2000;
            t.src = STRANGER.into();
        }),
    );
    pass(
        "other: GRE to the node",
        g(),
        Ip::new(WEST_GATEWAY, GATEWAY_OUTSIDE, 47, vec![0; 80]).frame(),
    );
    pass(
        "other: short UDP to another port",
        g(),
        Ip::new(WEST_GATEWAY, GATEWAY_OUTSIDE, 17, udp(1, 53, b"q")).frame(),
    );
    pass(
        "other: short Geneve of a stranger",
        g(),
        Ip::new(STRANGER, GATEWAY_OUTSIDE, 17, udp(1, 6081, b"q")).frame(),
    );
    pass("other: short frame of a CNI", g(), {
        let mut frame = with(|t| t.mac = [2, 0, 0, 0, 0, 1]);
        frame.truncate(14 + 50);
        frame
    });
    pass(
        "other: an Ethernet header with a type and nothing else",
        g(),
        ethernet(OUTER_DST, OUTER_DST, 0x0800, &[0x45; 20]),
    );
}
