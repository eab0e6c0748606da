//! MSS clamping of connections through a tunnel, in SYN and SYN-ACK at every hop.
//!
//! Both packets pass every hop, so both directions use the smallest MTU of the path. A SYN with data (TCP Fast Open)
//! does not change: its connection learns the MTU from an ICMP error.

use super::subprograms::{MapSubprograms, Subprograms};
use crate::{
    abi::GROUP_NEXT_HOPS,
    maps::Maps,
    packet::{
        Packet, ip,
        offsets::{ipv4, ipv6},
        tcp,
    },
    verdict::{DropReason, Event},
};

/// Bytes of IP and TCP headers without options, not part of an MSS (RFC 9293 section 3.7.1).
const V4_HEADERS: u32 = ipv4::LEN.wrapping_add(tcp::LEN);
const V6_HEADERS: u32 = ipv6::LEN.wrapping_add(tcp::LEN);

/// Whether a packet may be a SYN without data, by its headers' lengths.
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

/// Lowers the MSS of a packet that [`can_be_syn`] to the payload of an IP packet of `mtu` bytes; 0 is an unknown
/// MTU. The IP header is at `at`.
#[inline(always)]
pub(super) fn clamp_to_mtu<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    at: u32,
    mtu: u32,
) -> Result<(), DropReason> {
    if packet.clamp_mss(at, mtu).ok_or(DropReason::WriteFailed)? {
        maps.count(Event::MssLowered);
    }
    Ok(())
}

/// Lowers the MSS of a delivered packet to the MTU of the return path: the smallest of all next hops of
/// `return_group`, since each may be selected. 0 is no group.
#[inline(always)]
pub(super) fn clamp_to_return_path<P: Subprograms, M: MapSubprograms>(
    packet: &mut P,
    maps: &M,
    at: u32,
    return_group: u32,
) -> Result<(), DropReason> {
    if return_group == 0 {
        return Ok(());
    }
    match maps.smallest_mtu(return_group) {
        0 => Ok(()),
        mtu => clamp_to_mtu(packet, maps, at, mtu),
    }
}

/// Lowers the MSS of the SYN with the IP header at `at`; see `clamp_to_mtu`. Returns whether the packet
/// changed; `None` if it cannot be written.
#[inline(always)]
pub fn clamp_mss<P: Packet>(packet: &mut P, at: u32, mtu: u32) -> Option<bool> {
    let v6 = ip::is_v6_at(packet, at)?;
    let [first, _, l0, l1, l2, l3] = packet.load::<6>(at)?;
    let (headers, ip, segment) = if v6 {
        (V6_HEADERS, ipv6::LEN, u32::from(u16::from_be_bytes([l2, l3])))
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

/// The smallest known MTU of the next hops of the group in slot `group`; 0 if none is known.
#[inline(always)]
pub fn smallest_mtu<M: Maps>(maps: &M, group: u32) -> u32 {
    let Some(group) = maps.group(group) else {
        return 0;
    };
    let mut smallest = 0;
    let mut i = 0;
    while i < GROUP_NEXT_HOPS {
        if u32::try_from(i).is_ok_and(|i| i >= group.len) {
            break;
        }
        // The mask proves the bound to the verifier.
        if let Some(slot) = group.next_hops.get(i & (GROUP_NEXT_HOPS - 1))
            && let Some(next_hop) = maps.next_hop(*slot)
            && next_hop.mtu != 0
            && (smallest == 0 || next_hop.mtu < smallest)
        {
            smallest = next_hop.mtu;
        }
        i = i.wrapping_add(1);
    }
    smallest
}
