//! The MSS of connections that cross a tunnel: lowered in SYN and SYN-ACK, on every leg of the way.
//!
//! The smallest MTU of the path wins in both directions, because both packets pass every leg. A SYN that
//! carries data (TCP Fast Open) is not looked for: its connection learns the MTU from an ICMP error.

use crate::{
    abi::GROUP_NEXT_HOPS,
    maps::Maps,
    packet::{Packet, eth, ip, tcp},
    verdict::{DropReason, Event},
};

/// Bytes of IP and TCP headers without options, which an MSS leaves out (RFC 9293 section 3.7.1).
const V4_HEADERS: u32 = 40;
const V6_HEADERS: u32 = 60;

/// Whether a packet can be a SYN without data: only those are looked into.
#[inline(always)]
pub(super) const fn can_be_syn(header: &ip::Header) -> bool {
    if header.proto != ip::TCP || header.is_fragment() {
        return false;
    }
    let segment = segment_len(header);
    segment > tcp::LEN && segment <= tcp::MAX_LEN
}

/// Bytes of TCP in a packet without extension headers.
#[inline(always)]
const fn segment_len(header: &ip::Header) -> u32 {
    if header.v6 {
        header.length as u32
    } else {
        (header.length as u32).wrapping_sub(header.len)
    }
}

/// Lowers the MSS of a packet that [`can_be_syn`] to what an IP packet of `mtu` bytes holds; 0 stands for
/// an unknown MTU. The IP header is at `at`.
#[inline(always)]
pub(super) fn clamp_to_mtu<P: Packet, T: Maps>(
    packet: &mut P,
    tables: &T,
    at: u32,
    mtu: u32,
) -> Result<(), DropReason> {
    if packet.clamp_mss(at, mtu).ok_or(DropReason::WriteFailed)? {
        tables.count(Event::MssLowered);
    }
    Ok(())
}

/// Lowers the MSS of a packet that is delivered here to the MTU of the way its answers take: the smallest
/// of the next hops of the group `back`, whichever of them will be chosen. 0 stands for no group.
#[inline(always)]
pub(super) fn clamp_to_return_path<P: Packet, T: Maps>(
    packet: &mut P,
    tables: &T,
    at: u32,
    back: u32,
) -> Result<(), DropReason> {
    if back == 0 {
        return Ok(());
    }
    match tables.smallest_mtu(back) {
        0 => Ok(()),
        mtu => clamp_to_mtu(packet, tables, at, mtu),
    }
}

/// Lowers the MSS of the SYN whose IP header is at `at`; see [`lower`]. Tells whether anything changed;
/// `None` where the packet cannot be written.
#[inline(always)]
pub fn clamp_mss<P: Packet>(packet: &mut P, at: u32, mtu: u32) -> Option<bool> {
    let v6 = is_v6(packet, at)?;
    let [first, _, l0, l1, l2, l3] = packet.load::<6>(at)?;
    let (headers, ip, segment) = if v6 {
        (V6_HEADERS, 40, u32::from(u16::from_be_bytes([l2, l3])))
    } else {
        let ip = (u32::from(first) & 0xf).wrapping_mul(4);
        let total = u32::from(u16::from_be_bytes([l0, l1]));
        (V4_HEADERS, ip, total.wrapping_sub(ip))
    };
    if mtu <= headers {
        return Some(false);
    }
    let most = mtu.wrapping_sub(headers).min(0xffff) as u16;
    tcp::lower_mss(packet, at.wrapping_add(ip), segment, most)
}

/// Whether the ethertype in front of the IP header at `at` is IPv6's, in a tunnel as well.
#[inline(always)]
pub(super) fn is_v6<P: Packet>(packet: &P, at: u32) -> Option<bool> {
    Some(u16::from_be_bytes(packet.load(at.wrapping_sub(2))?) == eth::IPV6)
}

/// The smallest known MTU of the next hops of the group in slot `group`; 0 where none is known.
#[inline(always)]
pub fn smallest_mtu<T: Maps>(tables: &T, group: u32) -> u32 {
    let Some(group) = tables.group(group) else {
        return 0;
    };
    let mut smallest = 0;
    let mut i = 0;
    while i < GROUP_NEXT_HOPS {
        if u32::try_from(i).is_ok_and(|i| i >= group.len) {
            break;
        }
        // The mask is what the verifier sees; `i` is below it anyway.
        if let Some(slot) = group.next_hops.get(i & (GROUP_NEXT_HOPS - 1))
            && let Some(next_hop) = tables.nexthop(*slot)
            && next_hop.mtu != 0
            && (smallest == 0 || next_hop.mtu < smallest)
        {
            smallest = next_hop.mtu;
        }
        i = i.wrapping_add(1);
    }
    smallest
}
