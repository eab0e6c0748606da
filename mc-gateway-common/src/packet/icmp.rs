//! ICMP: error detection, and errors about a packet: above the path MTU (RFC 1191, RFC 4443 section 3.2), or rejected
//! by a policy (RFC 1812 section 5.2.7.1, RFC 4443 section 3.1).

use super::{
    access::Packet,
    aligned::Aligned,
    checksum,
    encap::HOP_LIMIT,
    ip,
    l4::L4Location,
    offsets::{icmp, ipv4, ipv6},
};
use crate::packed::impl_bits;

/// Length of an ICMP header in front of the quoted packet.
pub const LEN: u32 = icmp::LEN;
/// Length of the headers of an ICMP error: IPv4 and ICMP.
pub const HEADERS_V4: u32 = ipv4::LEN.wrapping_add(icmp::LEN);
/// Length of the headers of an `ICMPv6` error: IPv6 and `ICMPv6`.
pub const HEADERS_V6: u32 = ipv6::LEN.wrapping_add(icmp::LEN);
/// Smallest MTU of an IPv6 link (RFC 8200 section 5). Errors never announce a smaller one, which would require
/// atomic fragments, deprecated by RFC 8021.
pub const V6_MIN_MTU: u32 = 1280;
/// Smallest MTU of an IPv4 link (RFC 791).
pub const V4_MIN_MTU: u32 = 68;

/// Largest ICMP error: 576 bytes for IPv4 (RFC 1812 section 4.3.2.3), 1280 for IPv6 (RFC 4443 section 2.4).
const V4_MAX_LEN: u32 = 576;
const V6_MAX_LEN: u32 = 1280;
/// Type of service of errors: precedence "internetwork control" (RFC 1812 section 4.3.2.5).
pub const TOS: u8 = 0xc0;

const V4_UNREACHABLE: u8 = 3;
const V6_UNREACHABLE: u8 = 1;
const FRAGMENTATION_NEEDED: u8 = 4;
/// "Communication with destination host administratively prohibited", as Antrea sends it.
const V4_PROHIBITED: u8 = 10;
/// "Communication with destination administratively prohibited".
const V6_PROHIBITED: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
/// A redirect of Neighbor Discovery (RFC 4861 section 4.5).
const V6_REDIRECT: u8 = 137;

/// The ICMP header of an error without its checksum, in one number, the form that a BPF subprogram can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct ErrorHeader(u64);

impl_bits!(ErrorHeader, u64);

impl ErrorHeader {
    /// The header of an error that announces the MTU of the next hop, in bytes.
    #[inline(always)]
    #[must_use]
    pub fn icmp_too_big(v6: bool, mtu: u32) -> Self {
        if v6 {
            let [m0, m1, m2, m3] = mtu.max(V6_MIN_MTU).to_be_bytes();
            return Self::new([PACKET_TOO_BIG, 0, 0, 0, m0, m1, m2, m3]);
        }
        let [_, _, m0, m1] = mtu.clamp(V4_MIN_MTU, 0xffff).to_be_bytes();
        Self::new([V4_UNREACHABLE, FRAGMENTATION_NEEDED, 0, 0, 0, 0, m0, m1])
    }

    /// The header of an error about a packet that a policy rejects.
    #[inline(always)]
    #[must_use]
    pub const fn rejected(v6: bool) -> Self {
        Self::new(if v6 {
            [V6_UNREACHABLE, V6_PROHIBITED, 0, 0, 0, 0, 0, 0]
        } else {
            [V4_UNREACHABLE, V4_PROHIBITED, 0, 0, 0, 0, 0, 0]
        })
    }

    #[inline(always)]
    const fn new(header: [u8; 8]) -> Self {
        Self(u64::from_ne_bytes(header))
    }
}

/// Whether the packet with this transport header is an ICMP error. A later fragment or a truncated header is
/// no error.
#[inline(always)]
pub fn is_error<P: Packet>(packet: &P, v6: bool, transport: &L4Location) -> bool {
    message_type(packet, v6, transport).is_some_and(|message| is_error_type(v6, message))
}

/// Type of an ICMP message that is not fragmented.
#[inline(always)]
fn message_type<P: Packet>(packet: &P, v6: bool, transport: &L4Location) -> Option<u8> {
    let icmp = if v6 { ip::ICMPV6 } else { ip::ICMP };
    if transport.proto != icmp || transport.fragment {
        return None;
    }
    packet.load::<1>(transport.at).map(|[message]| message)
}

#[inline(always)]
const fn is_error_type(v6: bool, message: u8) -> bool {
    if v6 {
        // RFC 4443 section 2.1: the high bit marks informational messages.
        message < 128
    } else {
        // Unreachable, source quench, redirect, time exceeded, parameter problem (RFC 1122 section 3.2.2).
        matches!(message, 3 | 4 | 5 | 11 | 12)
    }
}

/// Whether an error about the packet with the IP header at `at` is allowed. RFC 1122 section 3.2.2 and RFC 4443 section
/// 2.4 forbid errors about errors, redirects, later fragments, and packets from or to anything but a single host.
#[inline(always)]
pub fn may_report<P: Packet>(packet: &P, v6: bool, at: u32, location: &L4Location) -> bool {
    let src_at = at.wrapping_add(if v6 { ipv6::SRC } else { ipv4::SRC });
    let dst_at = at.wrapping_add(if v6 { ipv6::DST } else { ipv4::DST });
    let is_reportable = |message| !(is_error_type(v6, message) || v6 && message == V6_REDIRECT);
    location.has_header
        && is_single_host(packet, v6, src_at)
        && is_single_host(packet, v6, dst_at)
        && message_type(packet, v6, location).is_none_or(is_reportable)
}

/// Whether the address at `at` is neither multicast, "this host" nor loopback.
#[inline(always)]
fn is_single_host<P: Packet>(packet: &P, v6: bool, at: u32) -> bool {
    if !v6 {
        return match packet.load::<1>(at) {
            Some([first]) => first != 0 && first != 127 && first < 224,
            None => false,
        };
    }
    let (Some(high), Some(low)) = (packet.load::<8>(at), packet.load::<8>(at.wrapping_add(8))) else {
        return false;
    };
    let (high, low) = (u64::from_be_bytes(high), u64::from_be_bytes(low));
    high >> 56 != 0xff && (high != 0 || low > 1)
}

/// Length of an error's headers.
#[inline(always)]
#[must_use]
pub const fn headers_len(v6: bool) -> u32 {
    if v6 { HEADERS_V6 } else { HEADERS_V4 }
}

/// Most bytes that an error quotes: those up to the largest error, a multiple of four.
#[inline(always)]
#[must_use]
pub const fn max_quoted_len(v6: bool) -> u32 {
    if v6 {
        V6_MAX_LEN.wrapping_sub(HEADERS_V6)
    } else {
        V4_MAX_LEN.wrapping_sub(HEADERS_V4)
    }
}

/// Number of bytes that an error quotes of a packet of `len` bytes: whole words up to the largest error.
#[inline(always)]
#[must_use]
pub const fn quoted_len(v6: bool, len: u32) -> u32 {
    let most = max_quoted_len(v6);
    if len < most { len & !3 } else { most }
}

/// Sum of `len` bytes at `at`. No error quotes more than 1,280.
#[inline(always)]
pub fn sum_bytes<P: Packet>(packet: &P, at: u32, len: u32) -> Option<u16> {
    const CHUNK: u32 = 64;
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
    while i < CHUNK / 4 && len.wrapping_sub(done) >= 4 {
        sum = sum.wrapping_add(checksum::sum(&packet.load::<4>(at.wrapping_add(done))?));
        done = done.wrapping_add(4);
        i = i.wrapping_add(1);
    }
    // Zero bytes follow the last one (RFC 1071 section 4.1).
    let rest = at.wrapping_add(done);
    let last = match len & 3 {
        0 => [0; 4],
        1 => {
            let [b0] = packet.load::<1>(rest)?;
            [b0, 0, 0, 0]
        }
        2 => {
            let [b0, b1] = packet.load::<2>(rest)?;
            [b0, b1, 0, 0]
        }
        _ => {
            let [b0, b1, b2] = packet.load::<3>(rest)?;
            [b0, b1, b2, 0]
        }
    };
    sum = sum.wrapping_add(checksum::sum(&last));
    Some(checksum::fold(sum))
}

/// Sum of a whole error of `len` bytes, from its headers: an IPv4 header sums to zero, as does an ICMP message
/// with its pseudo header.
#[inline(always)]
#[must_use]
pub fn icmp_error_sum(v6: bool, len: u32) -> u64 {
    if !v6 {
        return 0;
    }
    let [p0, p1, p2, p3] = len.wrapping_sub(ipv6::LEN).to_be_bytes();
    // The addresses are in both the header and the pseudo header and cancel out.
    let header = checksum::sum(&[0x60 | TOS >> 4, TOS << 4, 0, 0, p2, p3, ip::ICMPV6, HOP_LIMIT]);
    let pseudo = checksum::sum(&[p0, p1, p2, p3, 0, 0, 0, ip::ICMPV6]);
    header.wrapping_add(u64::from(!checksum::fold(pseudo)))
}

/// Writes the IP and ICMP headers of an error at `at`, in front of the quoted packet, which ends with the frame.
/// `sum` is the sum of the quoted packet.
///
/// The source is the destination of the quoted packet: that address passes every check on the return path, and
/// connection tracking matches the flow by it.
#[inline(always)]
pub fn store_icmp_error<P: Packet>(
    packet: &mut P,
    v6: bool,
    at: u32,
    header: ErrorHeader,
    sum: u16,
) -> Option<()> {
    let len = packet.frame_len().wrapping_sub(at);
    let quote = at.wrapping_add(headers_len(v6));
    if v6 {
        store_v6(packet, at, quote, len, header, sum)
    } else {
        store_v4(packet, at, quote, len, header, sum)
    }
}

#[inline(always)]
fn store_v4<P: Packet>(
    packet: &mut P,
    at: u32,
    quote: u32,
    len: u32,
    header: ErrorHeader,
    sum: u16,
) -> Option<()> {
    let [s0, s1, s2, s3, d0, d1, d2, d3] = packet.load::<8>(quote.wrapping_add(ipv4::SRC))?;
    let [_, _, t0, t1] = len.to_be_bytes();
    let (from, to) = ([d0, d1, d2, d3], [s0, s1, s2, s3]);
    let ip = Aligned(ip::v4_header(TOS, [t0, t1], HOP_LIMIT, ip::ICMP, from, to));
    packet.store(at, &ip.0)?;
    store_icmp(packet, at.wrapping_add(ipv4::LEN), header, u64::from(sum))
}

#[inline(always)]
fn store_v6<P: Packet>(
    packet: &mut P,
    at: u32,
    quote: u32,
    len: u32,
    header: ErrorHeader,
    sum: u16,
) -> Option<()> {
    let payload = len.wrapping_sub(ipv6::LEN);
    let [p0, p1, p2, p3] = payload.to_be_bytes();
    packet.store(
        at,
        &[0x60 | TOS >> 4, TOS << 4, 0, 0, p2, p3, ip::ICMPV6, HOP_LIMIT],
    )?;
    let pseudo = checksum::sum(&[p0, p1, p2, p3, 0, 0, 0, ip::ICMPV6]);
    let mut sum = u64::from(sum).wrapping_add(pseudo);
    let address = Aligned(packet.load::<16>(quote.wrapping_add(ipv6::DST))?);
    sum = sum.wrapping_add(checksum::sum(&address.0));
    packet.store(at.wrapping_add(ipv6::SRC), &address.0)?;
    let address = Aligned(packet.load::<16>(quote.wrapping_add(ipv6::SRC))?);
    sum = sum.wrapping_add(checksum::sum(&address.0));
    packet.store(at.wrapping_add(ipv6::DST), &address.0)?;
    store_icmp(packet, at.wrapping_add(ipv6::LEN), header, sum)
}

#[inline(always)]
fn store_icmp<P: Packet>(packet: &mut P, at: u32, header: ErrorHeader, sum: u64) -> Option<()> {
    let mut header = header.to_bits().to_ne_bytes();
    let check = !checksum::fold(checksum::sum(&header).wrapping_add(sum));
    let [_, _, c0, c1, ..] = &mut header;
    [*c0, *c1] = check.to_ne_bytes();
    packet.store(at, &header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::SlicePacket;

    #[test]
    fn only_error_messages_are_errors() {
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
    fn the_sum_of_any_number_of_bytes() {
        let bytes: Vec<u8> = (0..1_300_u32)
            .map(|i| u8::try_from(i * 7 % 251).unwrap())
            .collect();
        let packet = SlicePacket::new(bytes.clone());
        for at in [0, 14] {
            for len in (0..200).chain(540..556).chain(1_224..=1_240) {
                let expected = checksum::reference_sum(&bytes[at..at + len]).to_be();
                let sum = sum_bytes(&packet, u32::try_from(at).unwrap(), u32::try_from(len).unwrap());
                assert_eq!(sum, Some(expected), "{len} bytes at {at}");
            }
        }
        assert_eq!(sum_bytes(&packet, 1_299, 2), None, "behind the end");
    }

    #[test]
    fn errors_are_about_messages_that_are_no_errors_and_no_redirects() {
        let reportable = |v6: bool, message: u8| {
            let mut frame = vec![0; 14 + if v6 { 40 } else { 20 }];
            for address in if v6 { [22, 38] } else { [26, 30] } {
                frame[address] = 10;
            }
            frame.push(message);
            let location = L4Location {
                proto: if v6 { ip::ICMPV6 } else { ip::ICMP },
                at: u32::try_from(frame.len() - 1).unwrap(),
                fragment: false,
                has_header: true,
            };
            may_report(&SlicePacket::new(frame), v6, 14, &location)
        };
        for message in [3, 4, 5, 11, 12] {
            assert!(!reportable(false, message), "{message}");
        }
        for message in [1, 2, 127, 137] {
            assert!(!reportable(true, message), "{message}");
        }
        assert!(
            reportable(false, 8) && reportable(true, 128) && reportable(false, 137) && reportable(true, 136)
        );
    }
}
