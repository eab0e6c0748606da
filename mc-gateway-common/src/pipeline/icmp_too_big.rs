//! Packets above the MTU of the next hop: an ICMP error to the sender, through the tunnel, announces the MTU.
//!
//! A program cannot fragment, so the error also replies to IPv4 packets without DF: the host then lowers its path MTU
//! and fragments itself (Linux does so regardless of DF). The error never announces less than 1,280 bytes to an
//! IPv6 host; a smaller packet above the MTU is dropped with a separate reason.

use super::{
    config::{fixed_tos, hop_limit, load_config},
    link_header::address_to_mc0,
    peer_limit::source_address,
    subprograms::Subprograms,
};
use crate::{
    abi::{CONFIG_UDP_CHECKSUM, Config, DeliveredMac, IDENTITY_HOST, SourceMac},
    maps::{Maps, rate_limit::PeerLimit},
    nexthop_select,
    packet::{
        Aligned, OuterFamily, Packet, checksum, ecn,
        encap::{TUNNEL_OVERHEAD, source_port},
        eth,
        icmp::{self, ErrorHeader, V6_MIN_MTU},
        ip,
        offsets::{TCP_DATA_OFFSET, ipv4, ipv6, udp},
        tcp,
        tunnel::{self, Format},
    },
    verdict::{DropReason, Outcome, Verdict},
};

/// `gso_size` of a GSO packet with segments of different sizes (`GSO_BY_FRAGS`), each sized by the sender.
const BY_FRAGS: u32 = 0xffff;
/// [`TUNNEL_OVERHEAD`] as an offset.
#[expect(clippy::cast_possible_truncation, reason = "30")]
const OVERHEAD: u32 = TUNNEL_OVERHEAD as u32;
/// [`tunnel::LEN`] as an offset.
#[expect(clippy::cast_possible_truncation, reason = "8")]
const TUNNEL_LEN: u32 = tunnel::LEN as u32;

/// A packet above the MTU of the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketTooBig {
    /// Offset of its IP header: [`eth::END`], or behind outer headers if the packet is in a tunnel.
    pub at: u32,
    /// Its size on the wire.
    pub size: u32,
    /// MTU of the next hop.
    pub mtu: u32,
    /// Device to send the error from, or `mc0`.
    pub ifindex: u32,
}

impl PacketTooBig {
    /// Turns the packet into the error.
    #[inline(always)]
    pub fn reply<P: Subprograms, M: Maps>(self, packet: &mut P, maps: &M) -> Verdict {
        let (outcome, ifindex) = (Outcome::TooBig, self.ifindex);
        match packet.reply_too_big(maps, self.at, self.size, self.mtu) {
            Err(reason) => Verdict::Drop(reason),
            Ok(()) if self.at == eth::END => Verdict::Deliver { outcome, ifindex },
            Ok(()) => Verdict::Send {
                outcome,
                ifindex,
                addressed: false,
            },
        }
    }
}

/// Size of the packet on the wire if it exceeds `mtu`, else `None`. For a GSO packet it is the size of a segment.
/// An unknown MTU (0) has no limit.
#[inline(always)]
pub(super) fn exceeds<P: Subprograms>(packet: &P, at: u32, mtu: u32) -> Option<u32> {
    let len = packet.frame_len().wrapping_sub(at);
    if len <= mtu || mtu == 0 {
        return None;
    }
    let segment = match packet.gso_size() {
        0 => len,
        BY_FRAGS => return None,
        size => size.wrapping_add(packet.segment_headers_len(at)),
    };
    (segment > mtu).then_some(segment)
}

/// Length of the headers repeated in every segment of a GSO packet.
#[inline(always)]
pub fn segment_headers_len<P: Subprograms>(packet: &P, at: u32) -> u32 {
    let location = packet.locate_l4(ip::is_v6_at(packet, at).unwrap_or(false), at);
    let len = match location.proto {
        ip::TCP => match packet.load::<1>(location.at.wrapping_add(TCP_DATA_OFFSET)) {
            Some([offset]) => tcp::header_len(offset),
            None => tcp::LEN,
        },
        _ => udp::LEN,
    };
    location.at.wrapping_sub(at).wrapping_add(len)
}

/// Turns the packet with the IP header at `at` into an ICMP error to its sender. In a tunnel (`at` behind outer
/// headers) the error is for the peer that sent the packet, else for this node's stack, which routes it to the
/// sender.
///
/// `size` is from `exceeds`, `mtu` is the MTU of the next hop.
#[inline(always)]
pub fn reply_too_big<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    at: u32,
    size: u32,
    mtu: u32,
) -> Result<(), DropReason> {
    let v6 = ip::is_v6_at(packet, at).ok_or(DropReason::InnerMalformed)?;
    if v6 && size <= V6_MIN_MTU {
        return Err(DropReason::BelowIpv6Minimum);
    }
    let location = packet.locate_l4(v6, at);
    if !icmp::may_report(packet, v6, at, &location) {
        return Err(DropReason::TooBig);
    }
    let allowed = if at == eth::END {
        maps.allow_icmp_error()
    } else {
        packet.take_peer_token(maps, PeerLimit::IcmpErrors)
    };
    if !allowed {
        return Err(DropReason::TooBigLimited);
    }
    let quoted = icmp::quoted_len(v6, packet.frame_len().wrapping_sub(at));
    let sum = packet.sum_bytes(at, quoted).ok_or(DropReason::WriteFailed)?;
    let sum = packet
        .finalize_checksum(at, quoted, sum, location)
        .ok_or(DropReason::WriteFailed)?;
    packet
        .resize(at.wrapping_add(quoted))
        .ok_or(DropReason::DecapFailed)?;
    // The quoted packet stays in place; all headers in front of it are rewritten.
    packet
        .insert(icmp::headers_len(v6))
        .ok_or(DropReason::EncapFailed)?;
    if at == eth::END {
        // An error passes policies; it is this node's own.
        let sender = DeliveredMac {
            identity: IDENTITY_HOST,
            evaluated: false,
        };
        address_to_mc0(packet, load_config(maps)?, sender.to_bits())?;
    } else {
        packet
            .write_return_encap(maps, v6, at)
            .ok_or(DropReason::WriteFailed)?;
    }
    packet
        .store_icmp_error(v6, at, ErrorHeader::icmp_too_big(v6, mtu), sum)
        .ok_or(DropReason::WriteFailed)
}

/// Writes the outer headers of the error at `at`, to the sender of the packet. The outer headers of the packet are
/// behind the Ethernet header and the space inserted for the error.
///
/// Writes piece by piece, because little of the BPF stack is left in this subprogram.
#[inline(always)]
pub fn write_return_encap<P: Packet, M: Maps>(packet: &mut P, maps: &M, v6: bool, at: u32) -> Option<()> {
    let config = maps.config()?;
    let len = packet.frame_len().wrapping_sub(at);
    let received_at = eth::END.wrapping_add(icmp::headers_len(v6));
    let [n0, n1, n2, n3, n4, n5] = reply_mac(packet, maps, received_at)?.bytes();
    let addresses = if packet.ethertype() == eth::IPV6 {
        return_over_v6(packet, config, len, received_at)?
    } else {
        return_over_v4(packet, config, len, received_at)?
    };
    let [s0, s1] = source_port(nexthop_select::mix(u32::from(checksum::fold(addresses)), 0)).to_be_bytes();
    let [d0, d1] = config.port.to_be_bytes();
    let [l2, l3, l0, l1] = len.wrapping_add(OVERHEAD).to_be_bytes();
    let mut udp = Aligned([s0, s1, d0, d1, l0, l1, 0, 0]);
    let tunnel = Aligned(Format::from_config(config).header(IDENTITY_HOST));
    let [m0, m1, m2, m3, m4, m5] = eth::MULTICLUSTER_MAC;
    let [e0, e1] = if v6 { eth::IPV6 } else { eth::IPV4 }.to_be_bytes();
    let inner = Aligned([m0, m1, m2, m3, m4, m5, n0, n1, n2, n3, n4, n5, e0, e1, 0, 0]);
    if config.flags & CONFIG_UDP_CHECKSUM != 0 {
        let sum = addresses
            .wrapping_add(checksum::sum(&[l2, l3, l0, l1, 0, ip::UDP, 0, 0]))
            .wrapping_add(checksum::sum(&udp.0))
            .wrapping_add(checksum::sum(&tunnel.0))
            .wrapping_add(checksum::sum(&inner.0))
            .wrapping_add(icmp::icmp_error_sum(v6, len));
        let [.., c0, c1] = &mut udp.0;
        [*c0, *c1] = checksum::nonzero_for_udp((!checksum::fold(sum)).to_ne_bytes());
    }
    let [
        ..,
        i0,
        i1,
        i2,
        i3,
        i4,
        i5,
        i6,
        i7,
        i8,
        i9,
        i10,
        i11,
        i12,
        i13,
        _,
        _,
    ] = inner.0;
    packet.store(at.wrapping_sub(OVERHEAD), &udp.0)?;
    packet.store(at.wrapping_sub(eth::END).wrapping_sub(TUNNEL_LEN), &tunnel.0)?;
    packet.store(
        at.wrapping_sub(eth::END),
        &Aligned([i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12, i13]).0,
    )
}

/// Inner source MAC address of packets to the sender of the packet, whose outer IP header is at `received_at`.
#[inline(always)]
fn reply_mac<P: Packet, M: Maps>(packet: &P, maps: &M, received_at: u32) -> Option<SourceMac> {
    let sender = source_address(packet, received_at)?;
    Some(SourceMac::from_bits(maps.peer(sender)?.reply_mac))
}

/// Writes the outer IPv4 header and returns the sum of its addresses. The received header is at `received_at`.
#[inline(always)]
fn return_over_v4<P: Packet>(packet: &mut P, config: &Config, len: u32, received_at: u32) -> Option<u64> {
    let addresses = packet.load::<8>(received_at.wrapping_add(ipv4::SRC))?;
    let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
    let [_, _, t0, t1] = len.wrapping_add(OuterFamily::V4.encap_len()).to_be_bytes();
    let (tos, ttl) = (ecn::outer(icmp::TOS, fixed_tos(config)), hop_limit(config));
    let (from, to) = ([d0, d1, d2, d3], [s0, s1, s2, s3]);
    let header = Aligned(ip::v4_header(tos, [t0, t1], ttl, ip::UDP, from, to));
    packet.store(eth::END, &header.0)?;
    Some(checksum::sum(&addresses))
}

/// As [`return_over_v4`], over IPv6.
#[inline(always)]
fn return_over_v6<P: Packet>(packet: &mut P, config: &Config, len: u32, received_at: u32) -> Option<u64> {
    let [_, _, l0, l1] = len.wrapping_add(OVERHEAD).to_be_bytes();
    let (tos, ttl) = (ecn::outer(icmp::TOS, fixed_tos(config)), hop_limit(config));
    packet.store(eth::END, &[0x60 | tos >> 4, tos << 4, 0, 0, l0, l1, ip::UDP, ttl])?;
    // The new source does not overlap the addresses still to be read.
    let dst = Aligned(packet.load::<16>(received_at.wrapping_add(ipv6::DST))?);
    packet.store(eth::END.wrapping_add(ipv6::SRC), &dst.0)?;
    let src = Aligned(packet.load::<16>(received_at.wrapping_add(ipv6::SRC))?);
    packet.store(eth::END.wrapping_add(ipv6::DST), &src.0)?;
    Some(checksum::sum(&dst.0).wrapping_add(checksum::sum(&src.0)))
}
