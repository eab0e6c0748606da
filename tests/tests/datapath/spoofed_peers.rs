//! Outer sources that are no address, with inner addresses that this node has just sent itself and that the caches of
//! its programs hold.

use std::net::IpAddr;

use mc_gateway_common::verdict::{DropReason, Verdict};

use crate::{
    TC_ACT_REDIRECT, TC_ACT_SHOT,
    cases::{Program, web},
    fixture::{self, GATEWAY_OUTSIDE, POD_HERE, POD_WEST, Shape},
    kernel::Kernel,
    packets::Tunnel,
    run_on_host,
};

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
