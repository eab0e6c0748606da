//! Limits of each peer, so that one cannot use up the tables and the ICMP errors of all.

use crate::{
    abi::Address,
    maps::{Maps, rate_limit::PeerLimit},
    packet::{
        Packet, eth, ip,
        offsets::{ipv4, ipv6},
    },
};

/// Takes a token of the peer that sent the encapsulated packet. Peers without a slot of their own share one.
#[inline(always)]
pub fn take_peer_token<P: Packet, M: Maps>(packet: &P, maps: &M, limit: PeerLimit) -> bool {
    let peer = source_address(packet, eth::END).and_then(|source| maps.peer(source));
    maps.take_peer_token(peer.map_or(0, |peer| peer.stats), limit)
}

/// Source of the IP header at `at`, which belongs to the ethertype of the frame.
#[inline(always)]
pub(super) fn source_address<P: Packet>(packet: &P, at: u32) -> Option<Address> {
    let bytes = if packet.ethertype() == eth::IPV6 {
        packet.load(at.wrapping_add(ipv6::SRC))?
    } else {
        ip::mapped(packet.load(at.wrapping_add(ipv4::SRC))?)
    };
    Some(bytes.into())
}
