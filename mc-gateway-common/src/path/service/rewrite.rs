//! Writing another address and port into a packet, with every checksum that covers them.

use super::transport::{self, End, Kind, Transport, address_at};
use crate::{
    abi::Addr,
    packet::{Address, L4Difference, Packet, checksum, ip},
};

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) addr: Addr,
    pub(super) port: u16,
}

/// Changes one end of the packet whose IP header is at `at`; a later fragment has its address changed.
#[inline(always)]
pub(super) fn packet<P: Packet>(
    packet: &mut P,
    at: u32,
    transport: Transport,
    end: End,
    to: &Endpoint,
) -> Option<()> {
    let sum = address(packet, transport.v6, at, end, &to.addr)?;
    if transport.kind == Kind::Later {
        return Some(());
    }
    let udp = transport.proto == ip::UDP;
    let pseudo = L4Difference {
        sum,
        pseudo: true,
        udp,
    };
    packet.update_l4(transport.check_at(), pseudo)?;
    let sum = port(packet, transport.at, end, to.port)?;
    if sum == 0 {
        return Some(());
    }
    let covered = L4Difference {
        sum,
        pseudo: false,
        udp,
    };
    packet.update_l4(transport.check_at(), covered)
}

/// Changes an ICMP error about a packet of the flow, `quote`: the error goes the other way than the packet it
/// quotes.
#[inline(always)]
pub(super) fn error<P: Packet>(
    packet: &mut P,
    at: u32,
    transport: Transport,
    quote: Transport,
    end: End,
    to: &Endpoint,
) -> Option<()> {
    let check_at = transport.at.wrapping_add(2);
    let other = match end {
        End::Source => End::Destination,
        End::Destination => End::Source,
    };
    let v6 = transport.v6;
    let sum = address(packet, v6, at, end, &to.addr)?;
    let quoted_sum = address(packet, v6, transport.quote_at(), other, &to.addr)?;
    let mut covered = L4Difference {
        sum: port(packet, quote.at, other, to.port)?,
        pseudo: false,
        udp: false,
    };
    // A quoted IPv4 header sums to the same as before, its checksum included, and ICMP for IPv4 knows no
    // pseudo header.
    packet.update_l4(check_at, covered)?;
    if v6 {
        covered.sum = quoted_sum;
        packet.update_l4(check_at, covered)?;
        covered.sum = sum;
        covered.pseudo = true;
        packet.update_l4(check_at, covered)?;
    }
    Some(())
}

/// Writes an address into the IP header at `at` and returns what that adds to a pseudo header's sum.
#[inline(always)]
pub(super) fn address<P: Packet>(packet: &mut P, v6: bool, at: u32, end: End, to: &Addr) -> Option<u32> {
    let from = transport::address(packet, v6, at, end)?;
    // Mapped addresses differ only where the IPv4 addresses do.
    let [old, new] = [from, *to].map(|address| checksum::of_words(Address::from(address).words()));
    let difference = checksum::between(old, new);
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
fn port<P: Packet>(packet: &mut P, at: u32, end: End, to: u16) -> Option<u32> {
    let at = match end {
        End::Source => at,
        End::Destination => at.wrapping_add(2),
    };
    let [f0, f1] = packet.load::<2>(at)?;
    let to @ [t0, t1] = to.to_be_bytes();
    if [f0, f1] == to {
        return Some(0);
    }
    packet.store_summed(at, &to)?;
    Some(checksum::difference(&[f0, f1, 0, 0], &[t0, t1, 0, 0]))
}
