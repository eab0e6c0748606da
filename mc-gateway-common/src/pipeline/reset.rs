//! The answer to a TCP connection that a policy rejects: a reset in the name of the destination (RFC 9293 section
//! 3.10.7.1).

use super::link_header::swap_addresses;
use crate::packet::{
    Packet,
    checksum::{self, L4ChecksumDelta},
    encap::HOP_LIMIT,
    eth, ip,
    offsets::{self, ipv4, ipv6},
    tcp,
};

/// RST and ACK.
const RESET: u8 = 0x14;

/// Result of [`reset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reset {
    /// The packet is the reset.
    Written,
    /// A reset cannot answer the packet, which is unchanged.
    Impossible,
    /// The packet may be changed and must be dropped.
    Failed,
}

/// Turns the first segment of a connection into the reset that its destination would send, with the link addresses
/// swapped. The segment has no payload and is behind an IP header without options or extensions.
///
/// The reset has the length and the TCP options of the segment, which a receiver ignores: the kernel does not trim a
/// packet that is still marked as tunnelled (`bpf_skb_change_tail`, net/core/filter.c).
#[inline(always)]
pub(super) fn reset<P: Packet>(packet: &mut P) -> Reset {
    let v6 = packet.ethertype() == eth::IPV6;
    let at = eth::END.wrapping_add(if v6 { ipv6::LEN } else { ipv4::LEN });
    let Some(segment) = first_segment(packet, v6, at) else {
        return Reset::Impossible;
    };
    match write(packet, v6, at, segment) {
        Some(()) => Reset::Written,
        None => Reset::Failed,
    }
}

/// The first bytes of the TCP header at `at`, which ends with the packet.
#[inline(always)]
fn first_segment<P: Packet>(packet: &P, v6: bool, at: u32) -> Option<[u8; 16]> {
    let length = if v6 {
        let [l0, l1, next_header, _] = packet.load::<4>(eth::END.wrapping_add(ipv6::PAYLOAD_LEN))?;
        (next_header == ip::TCP).then_some(u32::from(u16::from_be_bytes([l0, l1])))?
    } else {
        let [version, _, l0, l1, _, _, f0, f1, _, proto] = packet.load::<10>(eth::END)?;
        let plain = version == 0x45 && proto == ip::TCP && [f0 & 0x3f, f1] == [0; 2];
        let total = u32::from(u16::from_be_bytes([l0, l1]));
        plain.then_some(total.checked_sub(ipv4::LEN)?)?
    };
    let segment = packet.load::<16>(at)?;
    let [.., offset, flags, _, _] = segment;
    let answerable = tcp::opens_connection(flags) && length == tcp::header_len(offset) && length >= tcp::LEN;
    (answerable && !packet.is_gso()).then_some(segment)
}

#[inline(always)]
fn write<P: Packet>(packet: &mut P, v6: bool, at: u32, segment: [u8; 16]) -> Option<()> {
    answer(packet, at, segment)?;
    if v6 {
        turn_v6(packet)?;
    } else {
        turn_v4(packet)?;
    }
    swap_addresses(packet)
}

/// Makes the destination of an IPv4 header without options the sender.
#[inline(always)]
fn turn_v4<P: Packet>(packet: &mut P) -> Option<()> {
    let [
        version,
        tos,
        l0,
        l1,
        i0,
        i1,
        f0,
        f1,
        _,
        proto,
        _,
        _,
        s0,
        s1,
        s2,
        s3,
        d0,
        d1,
        d2,
        d3,
    ] = packet.load::<20>(eth::END)?;
    let mut new = [
        version, tos, l0, l1, i0, i1, f0, f1, HOP_LIMIT, proto, 0, 0, d0, d1, d2, d3, s0, s1, s2, s3,
    ];
    [new[10], new[11]] = checksum::header_checksum(&new);
    packet.store(eth::END, &new)
}

/// As [`turn_v4`], of an IPv6 header.
#[inline(always)]
fn turn_v6<P: Packet>(packet: &mut P) -> Option<()> {
    let src = packet.load::<16>(eth::END.wrapping_add(ipv6::SRC))?;
    let dst = packet.load::<16>(eth::END.wrapping_add(ipv6::DST))?;
    packet.store(eth::END.wrapping_add(ipv6::HOP_LIMIT), &[HOP_LIMIT])?;
    packet.store(eth::END.wrapping_add(ipv6::SRC), &dst)?;
    packet.store(eth::END.wrapping_add(ipv6::DST), &src)
}

/// Turns the TCP header of a first segment at `at` into the answer to it. The swapped addresses leave the sum of the
/// pseudo header as it is.
#[inline(always)]
fn answer<P: Packet>(packet: &mut P, at: u32, old: [u8; 16]) -> Option<()> {
    let [p0, p1, q0, q1, n0, n1, n2, n3, _, _, _, _, offset, ..] = old;
    // A SYN has one number of its own.
    let [a0, a1, a2, a3] = u32::from_be_bytes([n0, n1, n2, n3]).wrapping_add(1).to_be_bytes();
    let new = [q0, q1, p0, p1, 0, 0, 0, 0, a0, a1, a2, a3, offset, RESET, 0, 0];
    packet.store_summed(at, &new)?;
    let delta = L4ChecksumDelta {
        sum: checksum::difference(&old, &new),
        pseudo: false,
        udp: false,
    };
    packet.update_l4_checksum(at.wrapping_add(offsets::tcp::CHECK), delta)
}
