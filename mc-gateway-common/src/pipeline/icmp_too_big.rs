//! Packets that do not fit the next leg: their sender is told, in the tunnel, what does.
//!
//! A program cannot fragment, so IPv4 packets that permit it are answered as well: a host lowers its path
//! MTU then and fragments by itself (Linux does so whatever its packet said). IPv6 hosts are never told
//! less than 1,280 bytes; what a smaller leg cannot take is dropped under a reason of its own.

use super::{address_to_mc0, fixed_tos, hop_limit, load_config, mss::is_v6};
use crate::{
    abi::{CONFIG_UDP_CHECKSUM, Config},
    maps::Maps,
    nexthop_select,
    packet::{
        Aligned, Packet, checksum, ecn,
        encap::{OuterFamily, TUNNEL_OVERHEAD, source_port},
        eth,
        icmp::{self, V6_MIN_MTU},
        ip,
        l4::L4Location,
        tcp,
        tunnel::{Format, VNI_POLICY_OFF},
    },
    verdict::{DropReason, Outcome, Verdict},
};

/// `gso_size` of a super-packet whose segments differ in size (`GSO_BY_FRAGS`): each was made to fit by its
/// sender.
const BY_FRAGS: u32 = 0xffff;
/// Length of the headers between the outer and the inner IP header.
#[expect(clippy::cast_possible_truncation, reason = "30")]
const OVERHEAD: u32 = TUNNEL_OVERHEAD as u32;
/// Length of a UDP header.
const UDP_HEADER_LEN: u32 = 8;

/// A packet that is larger than the next hop takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketTooBig {
    /// Offset of its IP header: behind outer headers, the packet is in a tunnel.
    pub at: u32,
    /// Its size on the wire.
    pub size: u32,
    /// What the next hop takes.
    pub mtu: u32,
    /// Device the error leaves through, or `mc0`.
    pub ifindex: u32,
}

impl PacketTooBig {
    /// Turns the packet into the error.
    #[inline(always)]
    pub fn reply<P: Packet, T: Maps>(self, packet: &mut P, tables: &T) -> Verdict {
        let (path, ifindex) = (Outcome::TooBig, self.ifindex);
        match packet.reply_too_big(tables, self.at, self.size, self.mtu) {
            Err(reason) => Verdict::Drop(reason),
            Ok(()) if self.at == eth::END => Verdict::Deliver {
                outcome: path,
                ifindex,
            },
            Ok(()) => Verdict::Send {
                outcome: path,
                ifindex,
            },
        }
    }
}

/// The size in which a packet that is longer than `mtu` would reach the wire, if that is too long; `None`
/// where it fits. Of a super-packet it is the size of its segments that counts. An unknown MTU (0) takes
/// everything.
#[inline(always)]
pub(super) fn exceeds<P: Packet>(packet: &P, at: u32, mtu: u32) -> Option<u32> {
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

/// Length of the headers every segment of a super-packet repeats.
#[inline(always)]
pub fn segment_headers_len<P: Packet>(packet: &P, at: u32) -> u32 {
    let transport = packet.locate_l4(is_v6(packet, at).unwrap_or(false), at);
    let len = match transport.proto {
        ip::TCP => match packet.load::<1>(transport.at.wrapping_add(12)) {
            Some([offset]) => tcp::header_len(offset),
            None => tcp::LEN,
        },
        _ => UDP_HEADER_LEN,
    };
    transport.at.wrapping_sub(at).wrapping_add(len)
}

/// Turns the packet whose IP header is at `at` into an ICMP error to its sender. In a tunnel (`at` behind
/// outer headers) the error goes back to the peer the packet came from, else into this node's stack, which
/// knows the way to the sender.
///
/// `size` is what [`exceeds`] has found, `mtu` what the next hop takes.
#[inline(always)]
pub fn reply_too_big<P: Packet, T: Maps>(
    packet: &mut P,
    tables: &T,
    at: u32,
    size: u32,
    mtu: u32,
) -> Result<(), DropReason> {
    // The ethertype is right in front of the IP header, in a tunnel as well.
    let ethertype = packet
        .load(at.wrapping_sub(2))
        .ok_or(DropReason::InnerMalformed)?;
    let v6 = u16::from_be_bytes(ethertype) == eth::IPV6;
    if v6 && size <= V6_MIN_MTU {
        return Err(DropReason::BelowIpv6Minimum);
    }
    let transport = packet.locate_l4(v6, at);
    if !may_report(packet, v6, at, &transport) {
        return Err(DropReason::TooBig);
    }
    if !tables.allow_icmp_error() {
        return Err(DropReason::TooBigLimited);
    }
    let quoted = icmp::quoted_len(v6, packet.frame_len().wrapping_sub(at));
    let sum = packet.sum_bytes(at, quoted).ok_or(DropReason::WriteFailed)?;
    let sum = packet
        .finalize_checksum(at, quoted, sum, transport)
        .ok_or(DropReason::WriteFailed)?;
    packet
        .resize(at.wrapping_add(quoted))
        .ok_or(DropReason::DecapFailed)?;
    // Room in front of everything: the quoted packet stays where it is, what precedes it is written anew.
    packet
        .insert(icmp::headers_len(v6))
        .ok_or(DropReason::EncapFailed)?;
    if at == eth::END {
        address_to_mc0(packet, load_config(tables)?)?;
    } else {
        packet
            .write_return_encap(tables, v6, at)
            .ok_or(DropReason::WriteFailed)?;
    }
    packet
        .store_icmp_error(v6, at, mtu, sum)
        .ok_or(DropReason::WriteFailed)
}

/// RFC 1122 section 3.2.2, RFC 4443 section 2.4: no errors about errors, later fragments, or packets that
/// are from or for anything but one host.
#[inline(always)]
fn may_report<P: Packet>(packet: &P, v6: bool, at: u32, transport: &L4Location) -> bool {
    let addresses = at.wrapping_add(if v6 { 8 } else { 12 });
    let second = addresses.wrapping_add(if v6 { 16 } else { 4 });
    transport.has_header
        && is_single_host(packet, v6, addresses)
        && is_single_host(packet, v6, second)
        && !icmp::is_error(packet, v6, transport)
}

/// Whether the address at `at` is neither a multicast address nor "this host" or loopback.
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

/// Writes outer headers in front of the error at `at`: back to where the packet has come from. The outer
/// headers it came with stand behind the Ethernet header and the room made for the error.
///
/// Piece by piece, as this runs in a function of its own at the bottom of a program's stack.
#[inline(always)]
pub fn write_return_encap<P: Packet, T: Maps>(packet: &mut P, tables: &T, v6: bool, at: u32) -> Option<()> {
    let config = tables.config()?;
    let len = packet.frame_len().wrapping_sub(at);
    let came_with = eth::END.wrapping_add(icmp::headers_len(v6));
    let addresses = if packet.ethertype() == eth::IPV6 {
        return_over_v6(packet, config, len, came_with)?
    } else {
        return_over_v4(packet, config, len, came_with)?
    };
    let [s0, s1] = source_port(nexthop_select::mix(u32::from(checksum::fold(addresses)), 0)).to_be_bytes();
    let [d0, d1] = config.port.to_be_bytes();
    let [l2, l3, l0, l1] = len.wrapping_add(OVERHEAD).to_be_bytes();
    let mut udp = Aligned([s0, s1, d0, d1, l0, l1, 0, 0]);
    let tunnel = Aligned(Format::of(config).header(VNI_POLICY_OFF));
    let [m0, m1, m2, m3, m4, m5] = eth::MULTICLUSTER_MAC;
    let [n0, n1, n2, n3, n4, n5] = config.mc0_mac;
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
    packet.store(at.wrapping_sub(22), &tunnel.0)?;
    packet.store(
        at.wrapping_sub(eth::END),
        &Aligned([i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12, i13]).0,
    )
}

/// Writes the outer IPv4 header and returns the sum of its addresses; those it came with are at `came_with`.
#[inline(always)]
fn return_over_v4<P: Packet>(packet: &mut P, config: &Config, len: u32, came_with: u32) -> Option<u64> {
    let addresses = packet.load::<8>(came_with.wrapping_add(12))?;
    let [s0, s1, s2, s3, d0, d1, d2, d3] = addresses;
    let [_, _, t0, t1] = len.wrapping_add(OuterFamily::V4.encap_len()).to_be_bytes();
    let (tos, ttl) = (ecn::outer(icmp::TOS, fixed_tos(config)), hop_limit(config));
    let (from, to) = ([d0, d1, d2, d3], [s0, s1, s2, s3]);
    let header = Aligned(ip::v4_header(tos, [t0, t1], ttl, ip::UDP, from, to));
    packet.store(eth::END, &header.0)?;
    Some(checksum::sum(&addresses))
}

/// As [`back_over_v4`], over IPv6.
#[inline(always)]
fn return_over_v6<P: Packet>(packet: &mut P, config: &Config, len: u32, came_with: u32) -> Option<u64> {
    let [_, _, l0, l1] = len.wrapping_add(OVERHEAD).to_be_bytes();
    let (tos, ttl) = (ecn::outer(icmp::TOS, fixed_tos(config)), hop_limit(config));
    packet.store(eth::END, &[0x60 | tos >> 4, tos << 4, 0, 0, l0, l1, ip::UDP, ttl])?;
    // The new source does not reach into what is still to be read.
    let dst = Aligned(packet.load::<16>(came_with.wrapping_add(24))?);
    packet.store(eth::END.wrapping_add(8), &dst.0)?;
    let src = Aligned(packet.load::<16>(came_with.wrapping_add(8))?);
    packet.store(eth::END.wrapping_add(24), &src.0)?;
    Some(checksum::sum(&dst.0).wrapping_add(checksum::sum(&src.0)))
}
