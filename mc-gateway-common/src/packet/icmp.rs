//! ICMP: which messages are errors, and the error that tells a sender its packet is too big: fragmentation
//! needed (RFC 1191) or packet too big (RFC 4443 section 3.2).

use super::{Aligned, Packet, checksum, encap::HOP_LIMIT, ip, l4::L4Location};

/// Length of an ICMP header up to the packet it quotes.
pub const LEN: u32 = 8;
/// Length of the headers of an ICMP error: IPv4 and ICMP.
pub const HEADERS_V4: u32 = 28;
/// Length of the headers of an `ICMPv6` error: IPv6 and `ICMPv6`.
pub const HEADERS_V6: u32 = 48;
/// Smallest MTU of an IPv6 link (RFC 8200 section 5). A smaller one is never announced: what a host would
/// have to send then, atomic fragments, is deprecated (RFC 8021).
pub const V6_MIN_MTU: u32 = 1280;
/// Smallest MTU of an IPv4 link (RFC 791).
pub const V4_MIN_MTU: u32 = 68;

/// Largest ICMP error: 576 bytes for IPv4 (RFC 1812 section 4.3.2.3), 1280 for IPv6 (RFC 4443 section 2.4).
const V4_MAX_LEN: u32 = 576;
const V6_MAX_LEN: u32 = 1280;
/// Type of service of errors: precedence "internetwork control" (RFC 1812 section 4.3.2.5).
pub const TOS: u8 = 0xc0;

const DESTINATION_UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const PACKET_TOO_BIG: u8 = 2;

/// Whether the packet with this transport header is an ICMP error. Where that cannot be told (a later
/// fragment, a cut header) it is none.
#[inline(always)]
pub fn is_error<P: Packet>(packet: &P, v6: bool, transport: &L4Location) -> bool {
    let icmp = if v6 { ip::ICMPV6 } else { ip::ICMP };
    if transport.proto != icmp || transport.fragment {
        return false;
    }
    match packet.load::<1>(transport.at) {
        // RFC 4443 section 2.1: the high bit marks informational messages.
        Some([kind]) if v6 => kind < 128,
        // Unreachable, source quench, redirect, time exceeded, parameter problem (RFC 1122 section 3.2.2).
        Some([kind]) => matches!(kind, 3 | 4 | 5 | 11 | 12),
        None => false,
    }
}

/// Length of an error's headers.
#[inline(always)]
#[must_use]
pub const fn headers_len(v6: bool) -> u32 {
    if v6 { HEADERS_V6 } else { HEADERS_V4 }
}

/// Bytes an error quotes of a packet of `len` bytes: as much as it may hold, in whole words.
#[inline(always)]
#[must_use]
pub const fn quoted_len(v6: bool, len: u32) -> u32 {
    let most = if v6 {
        V6_MAX_LEN.wrapping_sub(HEADERS_V6)
    } else {
        V4_MAX_LEN.wrapping_sub(HEADERS_V4)
    };
    if len < most { len & !3 } else { most }
}

/// Sum of `len` bytes at `at`; both are multiples of four, and no error quotes more than 1,280.
#[inline(always)]
pub fn sum_bytes<P: Packet>(packet: &P, at: u32, len: u32) -> Option<u16> {
    const CHUNK: u32 = 32;
    let mut sum = 0_u64;
    let mut done = 0_u32;
    let mut i = 0;
    while i < V6_MAX_LEN / CHUNK && len.wrapping_sub(done) >= CHUNK {
        let chunk = Aligned(packet.load::<{ CHUNK as usize }>(at.wrapping_add(done))?);
        sum = sum.wrapping_add(checksum::sum(&chunk.0));
        done = done.wrapping_add(CHUNK);
        i = i.wrapping_add(1);
    }
    let mut i = 0;
    while i < CHUNK / 4 && done < len {
        sum = sum.wrapping_add(checksum::sum(&packet.load::<4>(at.wrapping_add(done))?));
        done = done.wrapping_add(4);
        i = i.wrapping_add(1);
    }
    Some(checksum::fold(sum))
}

/// Makes the quoted packet safe to send on, and returns its sum after that.
///
/// Where the checksum of the packet is still to be completed by a device (`CHECKSUM_PARTIAL`), the device
/// will do so in the quoted packet: there is no way to tell it not to. So the field gets the one value the
/// device will write anyway: with everything else from the transport header on summing to `s`, that is
/// half of its complement.
#[inline(always)]
pub fn finalize_checksum<P: Packet>(
    packet: &mut P,
    at: u32,
    quoted: u32,
    sum: u16,
    transport: L4Location,
) -> Option<u16> {
    let field = match transport.proto {
        ip::TCP => 16_u32,
        ip::UDP => 6,
        _ => return Some(sum),
    };
    let field = transport.at.wrapping_add(field);
    let inside = field.wrapping_add(2) <= at.wrapping_add(quoted);
    if transport.fragment || !inside || !packet.is_checksum_partial(field)? {
        return Some(sum);
    }
    let old = u16::from_ne_bytes(packet.load(field)?);
    let front = packet.sum_bytes(at, transport.at.wrapping_sub(at))?;
    let rest = u64::from(sum).wrapping_add(u64::from(!old));
    let others = rest.wrapping_add(u64::from(!front));
    let new = halve(!checksum::fold(others));
    packet.store(field, &new.to_ne_bytes())?;
    Some(checksum::fold(rest.wrapping_add(u64::from(new))))
}

/// Sum of a whole error of `len` bytes, which its headers tell: an IPv4 header sums to zero, and so does an
/// ICMP message with its pseudo header.
#[inline(always)]
#[must_use]
pub fn icmp_error_sum(v6: bool, len: u32) -> u64 {
    if !v6 {
        return 0;
    }
    let [p0, p1, p2, p3] = len.wrapping_sub(40).to_be_bytes();
    // The addresses are in the header and in the pseudo header: only the rest of both counts.
    let header = checksum::sum(&[0x60 | TOS >> 4, TOS << 4, 0, 0, p2, p3, ip::ICMPV6, HOP_LIMIT]);
    let pseudo = checksum::sum(&[p0, p1, p2, p3, 0, 0, 0, ip::ICMPV6]);
    header.wrapping_add(u64::from(!checksum::fold(pseudo)))
}

/// Writes IP and ICMP header at `at` in front of the quoted packet, which stands behind them already and
/// reaches to the end of the frame; `sum` is its sum, `mtu` what the next hop takes.
///
/// The error comes from the packet's own destination: that address passes every check on the way back, and
/// a connection tracker finds the flow by it.
#[inline(always)]
pub fn store_icmp_error<P: Packet>(packet: &mut P, v6: bool, at: u32, mtu: u32, sum: u16) -> Option<()> {
    let len = packet.frame_len().wrapping_sub(at);
    let quote = at.wrapping_add(headers_len(v6));
    if v6 {
        store_v6(packet, at, quote, len, mtu, sum)
    } else {
        store_v4(packet, at, quote, len, mtu, sum)
    }
}

#[inline(always)]
fn store_v4<P: Packet>(packet: &mut P, at: u32, quote: u32, len: u32, mtu: u32, sum: u16) -> Option<()> {
    let [s0, s1, s2, s3, d0, d1, d2, d3] = packet.load::<8>(quote.wrapping_add(12))?;
    let [_, _, t0, t1] = len.to_be_bytes();
    let (from, to) = ([d0, d1, d2, d3], [s0, s1, s2, s3]);
    let ip = Aligned(ip::v4_header(TOS, [t0, t1], HOP_LIMIT, ip::ICMP, from, to));
    packet.store(at, &ip.0)?;
    let mtu = if mtu < V4_MIN_MTU {
        V4_MIN_MTU
    } else {
        mtu.min(0xffff)
    };
    let [_, _, m0, m1] = mtu.to_be_bytes();
    let icmp = [DESTINATION_UNREACHABLE, FRAGMENTATION_NEEDED, 0, 0, 0, 0, m0, m1];
    store_icmp(packet, at.wrapping_add(20), icmp, u64::from(sum))
}

#[inline(always)]
fn store_v6<P: Packet>(packet: &mut P, at: u32, quote: u32, len: u32, mtu: u32, sum: u16) -> Option<()> {
    let payload = len.wrapping_sub(40);
    let [p0, p1, p2, p3] = payload.to_be_bytes();
    packet.store(
        at,
        &[0x60 | TOS >> 4, TOS << 4, 0, 0, p2, p3, ip::ICMPV6, HOP_LIMIT],
    )?;
    let pseudo = checksum::sum(&[p0, p1, p2, p3, 0, 0, 0, ip::ICMPV6]);
    let mut sum = u64::from(sum).wrapping_add(pseudo);
    let address = Aligned(packet.load::<16>(quote.wrapping_add(24))?);
    sum = sum.wrapping_add(checksum::sum(&address.0));
    packet.store(at.wrapping_add(8), &address.0)?;
    let address = Aligned(packet.load::<16>(quote.wrapping_add(8))?);
    sum = sum.wrapping_add(checksum::sum(&address.0));
    packet.store(at.wrapping_add(24), &address.0)?;
    let mtu = if mtu < V6_MIN_MTU { V6_MIN_MTU } else { mtu };
    let [m0, m1, m2, m3] = mtu.to_be_bytes();
    store_icmp(
        packet,
        at.wrapping_add(40),
        [PACKET_TOO_BIG, 0, 0, 0, m0, m1, m2, m3],
        sum,
    )
}

#[inline(always)]
fn store_icmp<P: Packet>(packet: &mut P, at: u32, mut header: [u8; 8], sum: u64) -> Option<()> {
    let check = !checksum::fold(checksum::sum(&header).wrapping_add(sum));
    let [_, _, c0, c1, ..] = &mut header;
    [*c0, *c1] = check.to_ne_bytes();
    packet.store(at, &header)
}

/// The number that, added to itself, gives `value` in the arithmetic of checksums (modulo 65,535).
#[inline(always)]
const fn halve(value: u16) -> u16 {
    if value & 1 == 0 {
        value >> 1
    } else {
        (value >> 1).wrapping_add(0x8000)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::{SlicePacket, eth};

    /// RFC 1071, the slow way; a message with a right checksum gives 0.
    fn checksum(bytes: &[u8]) -> u16 {
        let mut sum: u32 = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
            .sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !u16::try_from(sum).unwrap()
    }

    fn v4(proto: u8, payload: &[u8]) -> Vec<u8> {
        let total = u16::try_from(20 + payload.len()).unwrap();
        let mut packet = vec![0x45, 0];
        packet.extend(total.to_be_bytes());
        packet.extend([0, 1, 0x40, 0, 64, proto, 0, 0, 10, 1, 0, 5, 10, 2, 0, 5]);
        let check = checksum(&packet);
        packet[10..12].copy_from_slice(&check.to_be_bytes());
        packet.extend(payload);
        packet
    }

    fn v6(proto: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        packet.extend([proto, 64]);
        packet.extend([0xfd; 16]);
        packet.extend([0xfc; 16]);
        packet.extend(payload);
        packet
    }

    /// The error about a packet, as an IP packet, and what it quotes.
    fn error_about(packet: &[u8], mtu: u32, summed_later: bool) -> (Vec<u8>, Vec<u8>) {
        let v6 = packet[0] >> 4 == 6;
        let mut frame = vec![0; 14];
        frame.extend(packet);
        let mut frame = SlicePacket::new(frame);
        frame.set_checksum_partial(summed_later);
        let transport = frame.locate_l4(v6, eth::END);
        let quoted = quoted_len(v6, frame.frame_len() - eth::END);
        let sum = frame.sum_bytes(eth::END, quoted).unwrap();
        let sum = frame.finalize_checksum(eth::END, quoted, sum, transport).unwrap();
        frame.resize(eth::END + quoted).unwrap();
        frame.insert(headers_len(v6)).unwrap();
        frame.store_icmp_error(v6, eth::END, mtu, sum).unwrap();
        (
            frame.bytes()[14..].to_vec(),
            packet[..usize::try_from(quoted).unwrap()].to_vec(),
        )
    }

    /// What the `ICMPv6` checksum covers.
    fn with_pseudo_header(packet: &[u8]) -> Vec<u8> {
        let mut covered = packet[8..40].to_vec();
        covered.extend(u32::try_from(packet.len() - 40).unwrap().to_be_bytes());
        covered.extend([0, 0, 0, 58]);
        covered.extend(&packet[40..]);
        covered
    }

    #[test]
    fn fragmentation_needed_as_rfc_1191_draws_it() {
        let (bytes, quoted) = error_about(&v4(ip::UDP, &[7; 1400]), 1300, false);
        assert_eq!(bytes.len(), 576);
        assert_eq!(checksum(&bytes[..20]), 0);
        assert_eq!(checksum(&bytes[20..]), 0);
        assert_eq!(bytes[12..20], [10, 2, 0, 5, 10, 1, 0, 5]);
        assert_eq!(
            (bytes[9], &bytes[20..22], &bytes[24..28]),
            (1, &[3, 4][..], &[0, 0, 5, 20][..])
        );
        assert_eq!(bytes[28..], quoted);
    }

    #[test]
    fn packet_too_big_as_rfc_4443_draws_it() {
        let (bytes, quoted) = error_about(&v6(ip::UDP, &[7; 1400]), 1300, false);
        assert_eq!(bytes.len(), 1280);
        assert_eq!(checksum(&with_pseudo_header(&bytes)), 0);
        assert_eq!(
            (&bytes[40..42], &bytes[44..48]),
            (&[2, 0][..], &[0, 0, 5, 20][..])
        );
        assert_eq!((bytes[8], bytes[24]), (0xfc, 0xfd));
        assert_eq!(bytes[48..], quoted);
    }

    #[test]
    fn no_ipv6_host_is_told_less_than_1280() {
        let (error, _) = error_about(&v6(ip::UDP, &[7; 1400]), 1000, false);
        assert_eq!(error[44..48], [0, 0, 5, 0]);
        let (error, _) = error_about(&v4(ip::UDP, &[7; 1400]), 60, false);
        assert_eq!(error[24..28], [0, 0, 0, 68]);
    }

    #[test]
    fn errors_and_other_messages() {
        let is = |v6: bool, proto: u8, kind: u8, fragment: bool| {
            let mut frame = vec![0; 34];
            frame.push(kind);
            let transport = L4Location {
                proto,
                at: 34,
                fragment,
                has_header: true,
            };
            is_error(&SlicePacket::new(frame), v6, &transport)
        };
        for kind in [3, 4, 5, 11, 12] {
            assert!(is(false, ip::ICMP, kind, false), "{kind}");
        }
        for kind in [0, 8, 9, 13, 128] {
            assert!(!is(false, ip::ICMP, kind, false), "{kind}");
        }
        assert!(is(true, ip::ICMPV6, 2, false) && !is(true, ip::ICMPV6, 128, false));
        assert!(!is(true, ip::ICMP, 3, false) && !is(false, ip::ICMPV6, 2, false));
        assert!(!is(false, ip::ICMP, 3, true));
    }

    #[test]
    fn half_of_a_sum_added_to_itself_is_the_sum() {
        for value in 0..=u16::MAX {
            let twice = u32::from(halve(value)) * 2;
            assert_eq!(twice % 0xffff, u32::from(value) % 0xffff, "{value}");
        }
    }

    proptest! {
        #[test]
        fn checksums_are_right_for_any_packet(payload in prop::collection::vec(any::<u8>(), 0..1600), proto: u8, mtu: u32, later: bool) {
            let (bytes, _) = error_about(&v4(proto, &payload), mtu, later);
            prop_assert!(bytes.len() <= 576);
            prop_assert_eq!(checksum(&bytes[20..]), 0);
            let (bytes, _) = error_about(&v6(proto, &payload), mtu, later);
            prop_assert!(bytes.len() <= 1280);
            prop_assert_eq!(checksum(&with_pseudo_header(&bytes)), 0);
        }

        /// `CHECKSUM_PARTIAL`: what a device writes into the quoted packet is there already.
        #[test]
        fn a_device_that_completes_the_quoted_checksum_changes_nothing(payload in prop::collection::vec(any::<u8>(), 20..1600), tcp: bool, is_v6: bool) {
            let proto = if tcp { ip::TCP } else { ip::UDP };
            let packet = if is_v6 { v6(proto, &payload) } else { v4(proto, &payload) };
            let (bytes, _) = error_about(&packet, 1280, true);
            let start = if is_v6 { 48 + 40 } else { 28 + 20 };
            let field = start + if tcp { 16 } else { 6 };
            let written = match checksum(&bytes[start..]) {
                0 => 0xffff,
                check => check,
            };
            let there = u16::from_be_bytes([bytes[field], bytes[field + 1]]);
            prop_assert_eq!(written % 0xffff, there % 0xffff);
        }
    }
}
