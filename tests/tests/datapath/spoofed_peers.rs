//! Outer sources that are no address, with inner addresses that this node has just sent itself and that the caches of
//! its programs hold.

use std::net::IpAddr;

use mc_gateway_common::{
    abi::SourceMac,
    packet::eth,
    verdict::{DropReason, Verdict},
};

use crate::{
    TC_ACT_REDIRECT, TC_ACT_SHOT,
    cases::{Program, web},
    fixture::{
        self, GATEWAY_OUTSIDE, NODE, PERIOD, POD_HERE, POD_NODE, POD_WEST, Shape, WEST_GATEWAY, received_mac,
    },
    kernel::Kernel,
    packets::Tunnel,
    run_on_host,
};

/// The admission of the right packet is cached; a packet with the same addresses has the same entry.
#[test]
fn a_cached_admission_admits_no_packet_with_another_secret() {
    for outer_v6 in [false, true] {
        let shape = Shape {
            outer_v6,
            ..Shape::default()
        };
        let tables = shape.tables(fixture::keyed(fixture::gateway()));
        let mut kernel = Kernel::load(&tables);
        let inner = web(POD_WEST, POD_NODE);
        let frame = |mac: SourceMac| {
            let mut tunnel = Tunnel::new(shape.outer(WEST_GATEWAY), shape.outer(GATEWAY_OUTSIDE), &inner);
            tunnel.inner_src = mac.bytes();
            tunnel.frame()
        };
        let right = received_mac(WEST_GATEWAY, PERIOD);
        let mut bytes = right.bytes();
        bytes[5] ^= 1;
        for _ in 0..2 {
            assert_eq!(kernel.run("from_underlay", &frame(right)).action, TC_ACT_REDIRECT);
        }
        for wrong in [
            SourceMac::from_bits(eth::mac_to_u64(bytes)),
            SourceMac::UNKEYED,
            received_mac(NODE, PERIOD),
            received_mac(WEST_GATEWAY, PERIOD + 2),
        ] {
            let before = kernel.counts();
            assert_eq!(
                kernel.run("from_underlay", &frame(wrong)).action,
                TC_ACT_SHOT,
                "{wrong:?}"
            );
            let after = kernel.counts();
            let reason = DropReason::PeerSecret as usize;
            assert_eq!(after.drops[reason], before.drops[reason] + 1, "{wrong:?}");
            assert_eq!(kernel.run("from_underlay", &frame(right)).action, TC_ACT_REDIRECT);
        }
    }
}

#[test]
fn an_unspecified_outer_source_is_no_peer_though_this_node_sends_the_same_packet() {
    for outer_v6 in [false, true] {
        let shape = Shape {
            outer_v6,
            ..Shape::default()
        };
        let tables = shape.tables(fixture::gateway());
        let mut kernel = Kernel::load(&tables);
        let inner = web(POD_HERE, POD_WEST);
        for _ in 0..2 {
            assert_eq!(kernel.run("to_remote", &inner.frame()).action, TC_ACT_REDIRECT);
        }
        let unspecified: IpAddr = if outer_v6 { [0; 16].into() } else { [0; 4].into() };
        let frame = Tunnel::new(unspecified, shape.outer(GATEWAY_OUTSIDE), &inner).frame();
        let expected = Verdict::Drop(DropReason::UnknownPeer);
        assert_eq!(run_on_host(Program::FromUnderlay, &tables, &frame).0, expected);
        let before = kernel.counts();
        assert_eq!(kernel.run("from_underlay", &frame).action, TC_ACT_SHOT);
        let after = kernel.counts();
        let reason = DropReason::UnknownPeer as usize;
        assert_eq!(after.drops[reason], before.drops[reason] + 1);
    }
}
