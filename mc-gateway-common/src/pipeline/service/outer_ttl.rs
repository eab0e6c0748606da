//! TTL or hop limit of the outer packet.

use crate::packet::{
    Packet, eth,
    offsets::{ipv4, ipv6},
};

/// TTL or hop limit of the outer packet, which is IPv6 or IPv4.
#[inline(always)]
pub(super) fn outer_ttl<P: Packet>(packet: &P, v6: bool) -> u8 {
    let [ttl] = packet
        .load::<1>(eth::END.wrapping_add(if v6 { ipv6::HOP_LIMIT } else { ipv4::TTL }))
        .unwrap_or([0]);
    ttl
}
