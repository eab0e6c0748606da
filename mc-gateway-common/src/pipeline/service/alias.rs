//! Aliases of Antrea gateways.
//!
//! Such a gateway sends the packets of its clients from its own address, which means nothing inside our
//! cluster and must not be routed there. So an address of the gateway's own cluster that nobody has stands for
//! it, one to one: between the gateway that takes its packets and our nodes they are packets of that cluster
//! like any other. No state is kept, and only one address of a packet changes, never a port.

use super::{
    super::decision::Decision,
    inner_at,
    l4::{L4Header, L4Kind, Side, address, is_v6},
    rewrite,
};
use crate::{
    abi::{Addr, Peer},
    maps::Maps,
    packet::{Address, L4ChecksumDelta, Packet, checksum, eth, ip},
    verdict::DropReason,
};

/// Offset of the UDP checksum in a frame over IPv4, counted back from the inner IP header: behind it are the
/// tunnel header and the inner Ethernet header.
const OUTER_CHECK: u32 = 2 + 8 + 14;

/// Does what a packed finding about a packet in a tunnel over IPv4 says of its addresses, or takes that `back`.
/// Returns the finding, or a refusal.
#[inline(always)]
pub fn rewrite_ingress_alias<P: Packet, T: Maps>(
    packet: &mut P,
    tables: &T,
    finding: u64,
    back: bool,
) -> u64 {
    let source = Decision::renames_source(finding);
    let Some(peer) = antrea_gateway(packet, tables, finding) else {
        // Nobody is there to send it to, which is found out in a moment.
        return finding;
    };
    // Whatever is renamed on its way to us is renamed back on its way there.
    let to = if source == back {
        peer
    } else {
        tables.peer(peer).map_or(peer, Peer::alias)
    };
    match packet.rewrite_alias(inner_at(false), source, to.v4_u32()) {
        Ok(()) => finding,
        Err(reason) => Decision::Drop(reason).pack(),
    }
}

/// The Antrea gateway that has sent the packet, or that it goes to.
#[inline(always)]
fn antrea_gateway<P: Packet, T: Maps>(packet: &P, tables: &T, finding: u64) -> Option<Address> {
    if Decision::renames_source(finding) {
        return address(packet, false, eth::END, Side::Source).map(Address::from);
    }
    let Decision::Forward { group, .. } = Decision::unpack(finding) else {
        return None;
    };
    // An alias stands for the only next hop of a group.
    let [first, ..] = tables.group(group)?.next_hops;
    tables.nexthop(first).map(|next_hop| next_hop.addr.into())
}

/// Replaces the source or destination of the IPv4 packet whose header is at `at` by the address whose four
/// bytes `to` is, read as a little-endian number; in what an ICMP error quotes, too.
#[inline(always)]
pub fn rewrite_alias<P: Packet>(packet: &mut P, at: u32, source: bool, to: u32) -> Result<(), DropReason> {
    // A mapped address in an IPv6 header looks the same to the tables.
    if is_v6(packet, at) {
        return Err(DropReason::InnerSource);
    }
    let (end, other) = if source {
        (Side::Source, Side::Destination)
    } else {
        (Side::Destination, Side::Source)
    };
    rewrite_and_update_checksums(packet, at, end, other, &Address::v4(to).bytes())
        .ok_or(DropReason::WriteFailed)
}

#[inline(always)]
fn rewrite_and_update_checksums<P: Packet>(
    packet: &mut P,
    at: u32,
    end: Side,
    other: Side,
    to: &Addr,
) -> Option<()> {
    let transport = L4Header::unpack(packet.parse_l4(false, at));
    let old = address(packet, false, at, end)?;
    let sum = rewrite::rewrite_address(packet, false, at, end, to)?;
    match transport.kind {
        L4Kind::Unfragmented | L4Kind::FirstFragment => {
            let udp = transport.proto == ip::UDP;
            if udp && packet.load::<2>(transport.check_at())? == [0, 0] {
                return Some(());
            }
            let pseudo = L4ChecksumDelta {
                sum,
                pseudo: true,
                udp,
            };
            packet.update_l4_checksum(transport.check_at(), pseudo)?;
            update_outer_checksum(packet, at, sum)
        }
        L4Kind::IcmpError => {
            let quote_at = transport.quote_at();
            // Of a quote nothing is certain. Its IPv4 header sums to the same as before, its checksum included,
            // and ICMP for IPv4 knows no pseudo header.
            if address(packet, false, quote_at, other) == Some(old) {
                rewrite::rewrite_address(packet, false, quote_at, other, to)?;
            }
            Some(())
        }
        // No checksum covers the address but the header's own.
        L4Kind::LaterFragment | L4Kind::Other | L4Kind::Truncated => Some(()),
    }
}

/// Brings the outer UDP checksum up to date, where there is one: what is behind the inner IP header has lost
/// `sum`, because its own checksum has, and the header sums to the same as before.
#[inline(always)]
fn update_outer_checksum<P: Packet>(packet: &mut P, at: u32, sum: u32) -> Option<()> {
    if at == eth::END {
        return Some(());
    }
    let check_at = at.wrapping_sub(OUTER_CHECK);
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
