//! Writing another address and port into a packet, with every checksum that covers them.

use super::l4::{self, L4Header, L4Kind, Side, address_at};
use crate::{
    abi::Addr,
    packet::{Address, L4ChecksumDelta, Packet, checksum, ip},
};

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) addr: Addr,
    pub(super) port: u16,
}

/// Changes one end of the packet whose IP header is at `at`; a later fragment has its address changed.
#[inline(always)]
pub(super) fn rewrite_packet<P: Packet>(
    packet: &mut P,
    at: u32,
    transport: L4Header,
    end: Side,
    to: &Endpoint,
) -> Option<()> {
    let sum = rewrite_address(packet, transport.v6, at, end, &to.addr)?;
    if transport.kind == L4Kind::LaterFragment {
        return Some(());
    }
    let udp = transport.proto == ip::UDP;
    let pseudo = L4ChecksumDelta {
        sum,
        pseudo: true,
        udp,
    };
    packet.update_l4_checksum(transport.check_at(), pseudo)?;
    let sum = rewrite_port(packet, transport.at, end, to.port)?;
    if sum == 0 {
        return Some(());
    }
    let covered = L4ChecksumDelta {
        sum,
        pseudo: false,
        udp,
    };
    packet.update_l4_checksum(transport.check_at(), covered)
}

/// Changes an ICMP error about a packet of the flow, `quote`: the error goes the other way than the packet it
/// quotes.
#[inline(always)]
pub(super) fn rewrite_icmp_error<P: Packet>(
    packet: &mut P,
    at: u32,
    transport: L4Header,
    quote: L4Header,
    end: Side,
    to: &Endpoint,
) -> Option<()> {
    let check_at = transport.at.wrapping_add(2);
    let other = match end {
        Side::Source => Side::Destination,
        Side::Destination => Side::Source,
    };
    let v6 = transport.v6;
    let sum = rewrite_address(packet, v6, at, end, &to.addr)?;
    let quoted_sum = rewrite_address(packet, v6, transport.quote_at(), other, &to.addr)?;
    let mut covered = L4ChecksumDelta {
        sum: rewrite_port(packet, quote.at, other, to.port)?,
        pseudo: false,
        udp: false,
    };
    // A quoted IPv4 header sums to the same as before, its checksum included, and ICMP for IPv4 knows no
    // pseudo header.
    packet.update_l4_checksum(check_at, covered)?;
    if v6 {
        covered.sum = quoted_sum;
        packet.update_l4_checksum(check_at, covered)?;
        covered.sum = sum;
        covered.pseudo = true;
        packet.update_l4_checksum(check_at, covered)?;
    }
    Some(())
}

/// Writes an address into the IP header at `at` and returns what that adds to a pseudo header's sum.
#[inline(always)]
pub(super) fn rewrite_address<P: Packet>(
    packet: &mut P,
    v6: bool,
    at: u32,
    end: Side,
    to: &Addr,
) -> Option<u32> {
    let from = l4::address(packet, v6, at, end)?;
    // Mapped addresses differ only where the IPv4 addresses do.
    let [old, new] = [from, *to].map(|address| checksum::sum_words(Address::from(address).words()));
    let difference = checksum::difference_of_sums(old, new);
    let address_at = at.wrapping_add(address_at(v6, end));
    if v6 {
        packet.store(address_at, to)?;
        return Some(difference);
    }
    packet.store(address_at, &ip::unmapped(to))?;
    let check_at = at.wrapping_add(10);
    let check = packet.load::<2>(check_at)?;
    packet.store(check_at, &checksum::update(check, difference))?;
    Some(difference)
}

/// Writes a port into the transport header at `at` and returns what that adds to its sum: 0 where it is the
/// port that was there.
#[inline(always)]
fn rewrite_port<P: Packet>(packet: &mut P, at: u32, end: Side, to: u16) -> Option<u32> {
    let at = match end {
        Side::Source => at,
        Side::Destination => at.wrapping_add(2),
    };
    let [f0, f1] = packet.load::<2>(at)?;
    let to @ [t0, t1] = to.to_be_bytes();
    if [f0, f1] == to {
        return Some(0);
    }
    packet.store_summed(at, &to)?;
    Some(checksum::difference(&[f0, f1, 0, 0], &[t0, t1, 0, 0]))
}
