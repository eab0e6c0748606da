//! `from_underlay`: GSO packets with one inner packet, and with several that the kernel has aggregated. Delivery of GSO
//! packets is in suite `netns` (`gso_packets_stay_unsegmented_on_every_leg`), because `PROG_RUN` sets no GSO type.

use mc_gateway_common::verdict::DropReason::Aggregated;

use super::{Case, Expect, case_from_underlay, from_underlay::forwarded};
use crate::{
    fixture::{self, GATEWAY_INSIDE, GATEWAY_OUTSIDE, NODE, POD_NODE, POD_WEST, Shape, WEST_GATEWAY},
    packets::{Ip, Tunnel, ethernet, udp},
};

/// Length of the UDP payload of one tunnel packet.
const SEGMENT: usize = 8 + 14 + 20 + 8 + 100;

/// Two tunnel packets with datagrams between the Pods, as UDP GRO joins them: the UDP payload of the second behind the
/// first.
fn aggregated(shape: Shape) -> Tunnel {
    let inner = Ip::new(
        shape.inner(POD_NODE),
        shape.inner(POD_WEST),
        17,
        udp(1_000, 2_000, &[0xa5; 100]),
    );
    let mut tunnel = Tunnel::new(shape.outer(NODE), shape.outer(GATEWAY_INSIDE), &inner);
    let frame = ethernet(tunnel.mac, tunnel.inner_src, tunnel.inner_type, &tunnel.inner);
    tunnel.inner.extend([0, 0, 0x65, 0x58, 0, 0, 0, 0]);
    tunnel.inner.extend(frame);
    tunnel.udp_checksum = true;
    tunnel
}

pub(crate) fn gso(cases: &mut Vec<Case>) {
    let mut push = |name: String, gso_size: usize, tables, frame, expect| {
        cases.push(Case {
            gso_size: u32::try_from(gso_size).expect("a length"),
            ..case_from_underlay(name, tables, frame, expect)
        });
    };
    for shape in Shape::all().filter(|shape| !shape.vxlan) {
        let (name, tables) = (shape.name(), || shape.tables(fixture::gateway()));
        let joined = aggregated(shape);
        let segment = SEGMENT + if shape.inner_v6 { 20 } else { 0 };
        let drop = Expect::Drop(Aggregated);
        push(
            format!("aggregated: {name}"),
            segment,
            tables(),
            joined.frame(),
            drop,
        );
        // Ordinary packets may have padding.
        let next = forwarded(&joined, shape.outer(GATEWAY_OUTSIDE), shape.outer(WEST_GATEWAY));
        let padded = format!("aggregated: {name}, not GSO");
        push(padded, 0, tables(), joined.frame(), Expect::Transit(next));

        let payload = vec![0xa5; 2_800];
        let inner = Ip::new(shape.inner(POD_NODE), shape.inner(POD_WEST), 6, payload);
        let whole = Tunnel::new(shape.outer(NODE), shape.outer(GATEWAY_INSIDE), &inner);
        let next = forwarded(&whole, shape.outer(GATEWAY_OUTSIDE), shape.outer(WEST_GATEWAY));
        let super_packet = format!("GSO: transit of {name}");
        push(
            super_packet,
            1_000,
            tables(),
            whole.frame(),
            Expect::Transit(next),
        );
    }
}
