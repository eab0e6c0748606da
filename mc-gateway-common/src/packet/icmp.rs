//! ICMP: error detection, and the error about a packet above the path MTU: fragmentation needed (RFC 1191) or
//! packet too big (RFC 4443 section 3.2).

use super::{
    access::Packet,
    aligned::Aligned,
    checksum,
    encap::HOP_LIMIT,
    ip,
    l4::L4Location,
    offsets::{icmp, ipv4, ipv6},
};

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

const DESTINATION_UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
const PACKET_TOO_BIG: u8 = 2;

/// Whether the packet with this transport header is an ICMP error. A later fragment or a truncated header is
/// no error.
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

/// Number of bytes that an error quotes of a packet of `len` bytes: whole words up to the largest error.
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
/// `sum` is the sum of the quoted packet, `mtu` the MTU of the next hop.
///
/// The source is the destination of the quoted packet: that address passes every check on the return path, and
/// connection tracking matches the flow by it.
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
    let [s0, s1, s2, s3, d0, d1, d2, d3] = packet.load::<8>(quote.wrapping_add(ipv4::SRC))?;
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
    store_icmp(packet, at.wrapping_add(ipv4::LEN), icmp, u64::from(sum))
}

#[inline(always)]
fn store_v6<P: Packet>(packet: &mut P, at: u32, quote: u32, len: u32, mtu: u32, sum: u16) -> Option<()> {
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
    let mtu = if mtu < V6_MIN_MTU { V6_MIN_MTU } else { mtu };
    let [m0, m1, m2, m3] = mtu.to_be_bytes();
    store_icmp(
        packet,
        at.wrapping_add(ipv6::LEN),
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
}
