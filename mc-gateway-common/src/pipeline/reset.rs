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

/// Turns the first segment of a connection into the reset that its destination would send, with the link addresses
/// swapped. The segment has no payload and is behind an IP header without options or extensions. `None` for any other
/// packet, which may be changed and must be dropped.
///
/// The reset has the length and the TCP options of the segment, which a receiver ignores: the kernel does not trim a
/// packet that is still marked as tunnelled (`bpf_skb_change_tail`, net/core/filter.c).
#[inline(always)]
pub(super) fn reset<P: Packet>(packet: &mut P) -> Option<()> {
    if packet.is_gso() {
        return None;
    }
    match packet.ethertype() {
        eth::IPV4 => reset_v4(packet),
        eth::IPV6 => reset_v6(packet),
        _ => None,
    }
}

#[inline(always)]
fn reset_v4<P: Packet>(packet: &mut P) -> Option<()> {
    let header = packet.load::<20>(eth::END)?;
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
    ] = header;
    if version != 0x45 || proto != ip::TCP || f0 & 0x3f != 0 || f1 != 0 {
        return None;
    }
    let length = u32::from(u16::from_be_bytes([l0, l1])).checked_sub(ipv4::LEN)?;
    answer(packet, eth::END.wrapping_add(ipv4::LEN), length)?;
    let mut new = [
        version, tos, l0, l1, i0, i1, f0, f1, HOP_LIMIT, proto, 0, 0, d0, d1, d2, d3, s0, s1, s2, s3,
    ];
    [new[10], new[11]] = checksum::header_checksum(&new);
    packet.store(eth::END, &new)?;
    swap_addresses(packet)
}

#[inline(always)]
fn reset_v6<P: Packet>(packet: &mut P) -> Option<()> {
    let [l0, l1, next_header, _] = packet.load::<4>(eth::END.wrapping_add(ipv6::PAYLOAD_LEN))?;
    if next_header != ip::TCP {
        return None;
    }
    let src = packet.load::<16>(eth::END.wrapping_add(ipv6::SRC))?;
    let dst = packet.load::<16>(eth::END.wrapping_add(ipv6::DST))?;
    let length = u32::from(u16::from_be_bytes([l0, l1]));
    answer(packet, eth::END.wrapping_add(ipv6::LEN), length)?;
    packet.store(
        eth::END.wrapping_add(ipv6::PAYLOAD_LEN),
        &[l0, l1, ip::TCP, HOP_LIMIT],
    )?;
    packet.store(eth::END.wrapping_add(ipv6::SRC), &dst)?;
    packet.store(eth::END.wrapping_add(ipv6::DST), &src)?;
    swap_addresses(packet)
}

/// Turns the TCP header of a first segment of `length` bytes at `at` into the answer to it. The swapped addresses leave
/// the sum of the pseudo header as it is.
#[inline(always)]
fn answer<P: Packet>(packet: &mut P, at: u32, length: u32) -> Option<()> {
    let old = packet.load::<16>(at)?;
    let [p0, p1, q0, q1, n0, n1, n2, n3, _, _, _, _, offset, flags, _, _] = old;
    if !tcp::opens_connection(flags) || length != tcp::header_len(offset) || length < tcp::LEN {
        return None;
    }
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
