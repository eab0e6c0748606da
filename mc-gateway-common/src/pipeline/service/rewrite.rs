//! Rewriting of an address and port in a packet, with every checksum over them.

use super::{
    l4::{self, Side, address_at},
    l4_header::{L4Header, L4Kind},
};
use crate::{
    abi::addr::Addr,
    packet::{
        Address, L4ChecksumDelta, Packet, checksum, ip,
        offsets::{icmp, ipv4, udp},
    },
};

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) addr: Addr,
    pub(super) port: u16,
}

/// Rewrites the address and port on one side of the packet with the IP header at `at`; only the address of a later
/// fragment.
#[inline(always)]
pub(super) fn rewrite_packet<P: Packet>(
    packet: &mut P,
    at: u32,
    l4: L4Header,
    side: Side,
    to: &Endpoint,
) -> Option<()> {
    let sum = rewrite_address(packet, l4.v6, at, side, &to.addr)?;
    if l4.kind == L4Kind::LaterFragment {
        return Some(());
    }
    let udp = l4.proto == ip::UDP;
    if udp && packet.load::<2>(l4.check_at())? == [0, 0] {
        // Without a checksum, which stays so, the port changes the sum of the packet.
        return packet.store(port_at(l4.at, side), &to.port.to_be_bytes());
    }
    let pseudo = L4ChecksumDelta {
        sum,
        pseudo: true,
        udp,
    };
    packet.update_l4_checksum(l4.check_at(), pseudo)?;
    let sum = rewrite_port(packet, l4.at, side, to.port)?;
    if sum == 0 {
        return Some(());
    }
    let covered = L4ChecksumDelta {
        sum,
        pseudo: false,
        udp,
    };
    packet.update_l4_checksum(l4.check_at(), covered)
}

/// Rewrites an ICMP error about a packet of the flow, `quote`. The error has the opposite direction of the quoted
/// packet.
#[inline(always)]
pub(super) fn rewrite_icmp_error<P: Packet>(
    packet: &mut P,
    at: u32,
    l4: L4Header,
    quote: L4Header,
    side: Side,
    to: &Endpoint,
) -> Option<()> {
    let check_at = l4.at.wrapping_add(icmp::CHECK);
    let other = match side {
        Side::Source => Side::Destination,
        Side::Destination => Side::Source,
    };
    let v6 = l4.v6;
    let sum = rewrite_address(packet, v6, at, side, &to.addr)?;
    let quoted_sum = if v6 {
        rewrite_summed_address(packet, l4.quote_at(), other, &to.addr)?
    } else {
        rewrite_address(packet, v6, l4.quote_at(), other, &to.addr)?
    };
    let mut covered = L4ChecksumDelta {
        sum: rewrite_port(packet, quote.at, other, to.port)?,
        pseudo: false,
        udp: false,
    };
    // The sum of the quoted IPv4 header with its checksum does not change, and ICMP for IPv4 has no pseudo
    // header.
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

/// Writes an address into the IP header at `at` and returns the change of the pseudo header's sum.
#[inline(always)]
pub(super) fn rewrite_address<P: Packet>(
    packet: &mut P,
    v6: bool,
    at: u32,
    side: Side,
    to: &Addr,
) -> Option<u32> {
    let from = l4::address(packet, v6, at, side)?;
    // The prefix of a mapped address is constant.
    let [old, new] = [from, *to].map(|address| checksum::sum_words(Address::from(address).words()));
    let difference = checksum::difference_of_sums(old, new);
    let address_at = at.wrapping_add(address_at(v6, side));
    if v6 {
        packet.store(address_at, to)?;
        return Some(difference);
    }
    packet.store(address_at, &ip::unmapped(to))?;
    let check_at = at.wrapping_add(ipv4::CHECK);
    let check = packet.load::<2>(check_at)?;
    packet.store(check_at, &checksum::update(check, difference))?;
    Some(difference)
}

/// Writes an address into the quoted IPv6 header at `at`, which the checksum of the ICMP error covers, and returns the
/// change of its sum.
#[inline(always)]
fn rewrite_summed_address<P: Packet>(packet: &mut P, at: u32, side: Side, to: &Addr) -> Option<u32> {
    let from = l4::address(packet, true, at, side)?;
    let [old, new] = [from, *to].map(|address| checksum::sum_words(Address::from(address).words()));
    packet.store_summed(at.wrapping_add(address_at(true, side)), to)?;
    Some(checksum::difference_of_sums(old, new))
}

/// Offset of a port of the transport header at `at`.
#[inline(always)]
const fn port_at(at: u32, side: Side) -> u32 {
    match side {
        Side::Source => at,
        Side::Destination => at.wrapping_add(udp::DST),
    }
}

/// Writes a port into the transport header at `at` and returns the change of its sum: 0 if the port does not
/// change.
#[inline(always)]
fn rewrite_port<P: Packet>(packet: &mut P, at: u32, side: Side, to: u16) -> Option<u32> {
    let at = port_at(at, side);
    let [f0, f1] = packet.load::<2>(at)?;
    let to @ [t0, t1] = to.to_be_bytes();
    if [f0, f1] == to {
        return Some(0);
    }
    packet.store_summed(at, &to)?;
    Some(checksum::difference(&[f0, f1, 0, 0], &[t0, t1, 0, 0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        packet::{SlicePacket, eth},
        pipeline::Subprograms as _,
    };

    /// An ICMP error about a datagram, with addresses and ports that differ. Its checksums are arbitrary.
    fn icmp_error(v6: bool) -> Vec<u8> {
        let header = |proto: u8, seed: u8| -> Vec<u8> {
            let addresses = (seed..).step_by(7);
            if v6 {
                let fixed = [0x60, 0, 0, 0, 0, 56, proto, 64];
                fixed.into_iter().chain(addresses.take(32)).collect()
            } else {
                let fixed = [0x45, 0, 0, 56, 0, 0, 0x40, 0, 64, proto, 0x12, 0x34];
                fixed.into_iter().chain(addresses.take(8)).collect()
            }
        };
        let (icmp, message) = if v6 { (ip::ICMPV6, 1) } else { (ip::ICMP, 3) };
        let ethertype = if v6 { eth::IPV6 } else { eth::IPV4 };
        [
            &[0; 12][..],
            &ethertype.to_be_bytes(),
            &header(icmp, 3),
            &[message, 4, 0x77, 0x66, 0, 0, 0, 0],
            &header(ip::UDP, 5),
            &[0x9c, 0x40, 0, 53, 0, 8, 0x55, 0x44],
        ]
        .concat()
    }

    #[test]
    fn a_rewritten_icmp_error_keeps_the_sum_of_the_device() {
        let to = Endpoint {
            addr: ip::mapped([10, 1, 2, 3]),
            port: 8080,
        };
        for v6 in [false, true] {
            for side in [Side::Source, Side::Destination] {
                let mut packet = SlicePacket::new(icmp_error(v6));
                let l4 = packet.parse_l4(v6, eth::END).unpack();
                assert_eq!(l4.kind, L4Kind::IcmpError);
                let quote = packet.parse_l4(v6, l4.quote_at()).unpack();
                rewrite_icmp_error(&mut packet, eth::END, l4, quote, side, &to).unwrap();
                assert!(packet.has_valid_device_sum(), "IPv6 {v6}, {side:?}");
            }
        }
    }
}
