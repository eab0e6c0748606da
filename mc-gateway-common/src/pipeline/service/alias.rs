//! Aliases of Antrea gateways.
//!
//! An Antrea gateway sends the packets of its clients from its own address, which is not routable inside this cluster.
//! An unused address of the gateway's cluster, the alias, replaces it one to one between this gateway and the nodes of
//! this cluster. The rewrite keeps no state and changes one address, never a port.

use super::{
    super::{
        decision::{Decision, PackedDecision},
        subprograms::Subprograms,
    },
    l4::{Side, address, is_v6},
    l4_header::L4Kind,
    rewrite,
};
use crate::{
    abi::{Peer, addr::Addr},
    maps::Maps,
    packet::{Address, L4ChecksumDelta, OuterFamily, Packet, UDP_CHECK_TO_INNER, checksum, eth, ip},
    verdict::DropReason,
};

/// Rewrites the alias of a packet in a tunnel over IPv4 according to the decision, or undoes that. Returns the
/// decision, or a drop.
#[inline(always)]
pub fn rewrite_ingress_alias<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    decision: PackedDecision,
    undo: bool,
) -> PackedDecision {
    let source = decision.has_source_alias();
    let Some(peer) = antrea_gateway(packet, maps, decision) else {
        // The group has no next hop: selection drops the packet.
        return decision;
    };
    // The alias replaces the gateway's address on ingress; the gateway's address replaces the alias on egress.
    let to = if source == undo {
        peer
    } else {
        maps.peer(peer).map_or(peer, Peer::alias)
    };
    match packet.rewrite_alias(OuterFamily::V4.inner_at(), source, to.v4_u32()) {
        Ok(()) => decision,
        Err(reason) => PackedDecision::drop(reason),
    }
}

/// The Antrea gateway that is the sender or the next hop of the packet.
#[inline(always)]
fn antrea_gateway<P: Packet, M: Maps>(packet: &P, maps: &M, decision: PackedDecision) -> Option<Address> {
    if decision.has_source_alias() {
        return address(packet, false, eth::END, Side::Source).map(Address::from);
    }
    let Decision::Forward { group, .. } = decision.unpack() else {
        return None;
    };
    // An alias belongs to the only next hop of a group.
    let [first, ..] = maps.group(group)?.next_hops;
    maps.next_hop(first).map(|next_hop| next_hop.addr.into())
}

/// Replaces the source or destination of the IPv4 packet with the header at `at`, also in the packet quoted in an ICMP
/// error. `to` is the address as a little-endian number.
#[inline(always)]
pub fn rewrite_alias<P: Subprograms>(
    packet: &mut P,
    at: u32,
    source: bool,
    to: u32,
) -> Result<(), DropReason> {
    // The maps do not distinguish an IPv4 address from a mapped address in an IPv6 header.
    if is_v6(packet, at) {
        return Err(DropReason::InnerSource);
    }
    let (side, other) = if source {
        (Side::Source, Side::Destination)
    } else {
        (Side::Destination, Side::Source)
    };
    rewrite_and_update_checksums(packet, at, side, other, &Address::v4(to).bytes())
        .ok_or(DropReason::WriteFailed)
}

#[inline(always)]
fn rewrite_and_update_checksums<P: Subprograms>(
    packet: &mut P,
    at: u32,
    side: Side,
    other: Side,
    to: &Addr,
) -> Option<()> {
    let l4 = packet.parse_l4(false, at).unpack();
    let old = address(packet, false, at, side)?;
    let sum = rewrite::rewrite_address(packet, false, at, side, to)?;
    match l4.kind {
        L4Kind::Unfragmented | L4Kind::FirstFragment => {
            let udp = l4.proto == ip::UDP;
            if udp && packet.load::<2>(l4.check_at())? == [0, 0] {
                return Some(());
            }
            let pseudo = L4ChecksumDelta {
                sum,
                pseudo: true,
                udp,
            };
            packet.update_l4_checksum(l4.check_at(), pseudo)?;
            update_outer_checksum(packet, at, sum)
        }
        L4Kind::IcmpError => {
            let quote_at = l4.quote_at();
            // The quoted packet is untrusted. The sum of its IPv4 header with the checksum does not change, and
            // ICMP for IPv4 has no pseudo header.
            if address(packet, false, quote_at, other) == Some(old) {
                rewrite::rewrite_address(packet, false, quote_at, other, to)?;
            }
            Some(())
        }
        // Only the header's own checksum covers the address.
        L4Kind::LaterFragment | L4Kind::Other | L4Kind::Truncated | L4Kind::Sctp => Some(()),
    }
}

/// Updates the outer UDP checksum, if there is one. The sum of the inner payload decreased by `sum`, like its own
/// checksum; the sum of the inner IP header did not change.
#[inline(always)]
fn update_outer_checksum<P: Packet>(packet: &mut P, at: u32, sum: u32) -> Option<()> {
    if at == eth::END {
        return Some(());
    }
    let check_at = at.wrapping_sub(UDP_CHECK_TO_INNER);
    let check = packet.load::<2>(check_at)?;
    if check == [0, 0] {
        return Some(());
    }
    let difference = checksum::difference_of_sums(u64::from(sum), 0);
    packet.store(
        check_at,
        &checksum::nonzero_for_udp(checksum::update(check, difference)),
    )
}
