//! Flow hash of a packet.
//!
//! *Guarantees*: all packets of a flow have the same hash, as do all fragments of a packet. An ICMP error has the hash
//! of the replies to its quoted packet, which have the same direction. The two directions of a flow have different
//! hashes: different nodes select their next hops from different groups.

use crate::{
    nexthop_select::mix,
    packet::{
        Address, Packet, icmp, ip,
        l4::L4Location,
        offsets::{ipv4, ipv6},
    },
    pipeline::subprograms::Subprograms,
};

/// Hash of the packet with the IP header at `at`; `next` are the four bytes behind the header as a little-endian
/// number.
///
/// Fragments are hashed by their addresses and, in IPv4, their protocol, without ports. (The fragments of an IPv6
/// packet may have different protocol numbers, RFC 8200 section 4.5.)
#[inline(always)]
pub fn hash<P: Subprograms>(packet: &P, header: &ip::Header, at: u32, next: u32) -> u32 {
    match hash_fast(header, hash_addresses(header), next) {
        Some(hash) => hash,
        None => packet.hash_slow(header.v6, at),
    }
}

/// [`hash`] of a packet with ports directly behind its IP header and [`hash_addresses`]; `None` for other packets.
#[inline(always)]
#[must_use]
pub fn hash_fast(header: &ip::Header, addresses: u32, next: u32) -> Option<u32> {
    if has_ports(header.proto) && header.is_plain() && !header.is_fragment() {
        return Some(mix(next, addresses));
    }
    None
}

/// Hash of the addresses and the protocol.
#[inline(always)]
#[must_use]
pub fn hash_addresses(header: &ip::Header) -> u32 {
    hash_pair(header.src, header.dst, header.proto)
}

/// [`hash`] of any other packet: with options or extension headers, a fragment, ICMP.
#[inline(always)]
pub fn hash_slow<P: Subprograms>(packet: &P, v6: bool, at: u32) -> u32 {
    let location = packet.locate_l4(v6, at);
    if icmp::is_error(packet, v6, &location) {
        // The replies to the quoted packet: addresses and ports are swapped.
        let at = location.at.wrapping_add(icmp::LEN);
        let quoted = packet.locate_l4(v6, at);
        if let Some((src, dst)) = addresses(packet, v6, at) {
            let (proto, ports) = proto_and_ports(packet, v6, &quoted);
            return hash_tuple(dst, src, proto, ports.rotate_left(16));
        }
    }
    match addresses(packet, v6, at) {
        Some((src, dst)) => {
            let (proto, ports) = proto_and_ports(packet, v6, &location);
            hash_tuple(src, dst, proto, ports)
        }
        None => 0,
    }
}

/// Source and destination of the IP header at `at`.
#[inline(always)]
fn addresses<P: Packet>(packet: &P, v6: bool, at: u32) -> Option<(Address, Address)> {
    if v6 {
        let [s0, s1] = (
            packet.load(at.wrapping_add(ipv6::SRC))?,
            packet.load(at.wrapping_add(ipv6::SRC).wrapping_add(8))?,
        )
            .into();
        let [d0, d1] = (
            packet.load(at.wrapping_add(ipv6::DST))?,
            packet.load(at.wrapping_add(ipv6::DST).wrapping_add(8))?,
        )
            .into();
        let word = u64::from_le_bytes;
        return Some((
            Address::from_words(word(s0), word(s1)),
            Address::from_words(word(d0), word(d1)),
        ));
    }
    let src = u32::from_le_bytes(packet.load(at.wrapping_add(ipv4::SRC))?);
    let dst = u32::from_le_bytes(packet.load(at.wrapping_add(ipv4::DST))?);
    Some((Address::v4(src), Address::v4(dst)))
}

/// Protocol and ports in the hash.
#[inline(always)]
fn proto_and_ports<P: Packet>(packet: &P, v6: bool, location: &L4Location) -> (u8, u32) {
    if location.fragment {
        return (if v6 { ip::FRAGMENT } else { location.proto }, 0);
    }
    if !has_ports(location.proto) {
        return (location.proto, 0);
    }
    let ports = packet.load(location.at).unwrap_or([0; 4]);
    (location.proto, u32::from_le_bytes(ports))
}

#[inline(always)]
const fn has_ports(proto: u8) -> bool {
    matches!(proto, ip::TCP | ip::UDP | ip::SCTP)
}

#[inline(always)]
fn hash_tuple(src: Address, dst: Address, proto: u8, ports: u32) -> u32 {
    mix(ports, hash_pair(src, dst, proto))
}

#[inline(always)]
fn hash_pair(src: Address, dst: Address, proto: u8) -> u32 {
    mix(dst.fold(), mix(src.fold(), u32::from(proto)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::{SlicePacket, eth};

    fn v4(src: [u8; 4], dst: [u8; 4], proto: u8, frags: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
        let words = u8::try_from(5 + options.len() / 4).unwrap();
        let mut packet = vec![0x40 | words, 0, 0, 0, 0, 0];
        packet.extend(frags.to_be_bytes());
        packet.extend([64, proto, 0, 0]);
        packet.extend(src);
        packet.extend(dst);
        packet.extend(options);
        packet.extend(payload);
        packet
    }

    fn v6(src: [u8; 16], dst: [u8; 16], next: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        packet.extend(src);
        packet.extend(dst);
        packet.extend(payload);
        packet
    }

    fn hash_of(packet: &[u8]) -> u32 {
        let mut frame = vec![0; 14];
        frame.extend(packet);
        let packet = SlicePacket::new(frame);
        let v6 = packet.load::<1>(eth::END).unwrap()[0] >> 4 == 6;
        let header = ip::Header::load(&packet, if v6 { eth::IPV6 } else { eth::IPV4 }, eth::END).unwrap();
        let next = packet.load(eth::END + if v6 { 40 } else { 20 }).unwrap_or([0; 4]);
        hash(&packet, &header, eth::END, u32::from_le_bytes(next))
    }

    fn icmp_error(kind: u8, quoted: &[u8]) -> Vec<u8> {
        let mut message = vec![kind, 4, 0, 0, 0, 0, 0, 0];
        message.extend(quoted);
        message
    }

    fn ports(from: u16, to: u16) -> Vec<u8> {
        [from.to_be_bytes(), to.to_be_bytes(), [0; 2], [0; 2]].concat()
    }

    fn protocol() -> impl Strategy<Value = u8> {
        prop_oneof![Just(ip::TCP), Just(ip::UDP), Just(ip::SCTP)]
    }

    proptest! {
        #[test]
        fn options_and_extension_headers_do_not_change_the_hash(src: [u8; 4], dst: [u8; 4], from: u16, to: u16, proto in protocol(), s6: [u8; 16], d6: [u8; 16]) {
            let payload = ports(from, to);
            let plain = hash_of(&v4(src, dst, proto, 0x4000, &[], &payload));
            prop_assert_eq!(plain, hash_of(&v4(src, dst, proto, 0, &[1; 8], &payload)));
            let mut extended = vec![proto, 0, 1, 4, 0, 0, 0, 0];
            extended.extend(&payload);
            prop_assert_eq!(hash_of(&v6(s6, d6, proto, &payload)), hash_of(&v6(s6, d6, 0, &extended)));
        }

        #[test]
        fn fragments_of_a_packet_hash_alike(src: [u8; 4], dst: [u8; 4], proto in prop_oneof![protocol(), any::<u8>()], a: [u8; 8], b: [u8; 8], offset in 1..0x1fff_u16, s6: [u8; 16], d6: [u8; 16], next: u8) {
            prop_assert_eq!(
                hash_of(&v4(src, dst, proto, 0x2000, &[], &a)),
                hash_of(&v4(src, dst, proto, offset, &[], &b))
            );
            let fragment = |next: u8, offset: u16, payload: &[u8]| {
                let mut bytes = vec![next, 0];
                bytes.extend((offset << 3 | 1).to_be_bytes());
                bytes.extend([0, 0, 0, 9]);
                bytes.extend(payload);
                v6(s6, d6, ip::FRAGMENT, &bytes)
            };
            prop_assert_eq!(hash_of(&fragment(ip::UDP, 0, &a)), hash_of(&fragment(next, offset, &b)));
        }

        #[test]
        fn icmp_errors_hash_like_the_replies_of_the_flow(src: [u8; 4], dst: [u8; 4], router: [u8; 4], from: u16, to: u16, proto in protocol(), kind in prop_oneof![Just(3_u8), Just(11), Just(12)], k6 in 1..5_u8, s6: [u8; 16], d6: [u8; 16], r6: [u8; 16]) {
            let quoted = v4(src, dst, proto, 0x4000, &[], &ports(from, to));
            let error = v4(router, src, ip::ICMP, 0, &[], &icmp_error(kind, &quoted));
            prop_assert_eq!(hash_of(&error), hash_of(&v4(dst, src, proto, 0x4000, &[], &ports(to, from))));
            let quoted = v6(s6, d6, proto, &ports(from, to));
            let error = v6(r6, s6, ip::ICMPV6, &icmp_error(k6, &quoted));
            prop_assert_eq!(hash_of(&error), hash_of(&v6(d6, s6, proto, &ports(to, from))));
        }

        #[test]
        fn an_error_about_a_fragment_hashes_like_the_fragments(src: [u8; 4], dst: [u8; 4], router: [u8; 4], a: [u8; 8], b: [u8; 8]) {
            let error = v4(router, src, ip::ICMP, 0, &[], &icmp_error(3, &v4(src, dst, ip::UDP, 0x2000, &[], &a)));
            prop_assert_eq!(hash_of(&error), hash_of(&v4(dst, src, ip::UDP, 0x0010, &[], &b)));
        }
    }

    #[test]
    fn echo_requests_are_no_errors() {
        let echo = |id| {
            v4(
                [10, 0, 0, 1],
                [10, 0, 0, 2],
                ip::ICMP,
                0,
                &[],
                &[8, 0, 0, 0, 0, id, 0, 1],
            )
        };
        assert_eq!(hash_of(&echo(1)), hash_of(&echo(2)));
    }

    #[test]
    fn an_error_without_a_quote_hashes_by_its_own_addresses() {
        let short = v4(
            [10, 0, 0, 1],
            [10, 0, 0, 2],
            ip::ICMP,
            0,
            &[],
            &icmp_error(3, &[0x45; 10]),
        );
        assert_eq!(
            hash_of(&short),
            hash_of(&v4([10, 0, 0, 1], [10, 0, 0, 2], ip::ICMP, 0, &[], &[8, 0, 0, 0]))
        );
    }

    #[test]
    fn different_ports_have_different_hashes() {
        let tcp = |to| {
            v4(
                [10, 0, 0, 1],
                [10, 0, 0, 2],
                ip::TCP,
                0x4000,
                &[],
                &ports(40_000, to),
            )
        };
        assert_ne!(hash_of(&tcp(80)), hash_of(&tcp(81)));
    }
}
