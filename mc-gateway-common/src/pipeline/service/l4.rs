//! What a packet to or from a Service says of its flow.

use crate::{
    abi::{
        Addr,
        service::{FlowKey, FragmentKey, ReplyKey},
    },
    packet::{Packet, eth, ip},
    pipeline::mss,
};

/// Length of an ICMP or `ICMPv6` error in front of the packet it quotes (RFC 792, RFC 4443 section 3).
const ICMP_ERROR: u32 = 8;
/// Offset of the identification in an IPv4 header.
const V4_ID: u32 = 4;
/// How far in front of the transport header an IPv6 fragment header has its identification (RFC 8200 section
/// 4.5), where no other extension header follows it.
const V6_ID: u32 = 4;

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Offset of an address in an IP header.
#[inline(always)]
pub(super) const fn address_at(v6: bool, end: Side) -> u32 {
    match (v6, end) {
        (true, Side::Source) => 8,
        (true, Side::Destination) => 24,
        (false, Side::Source) => 12,
        (false, Side::Destination) => 16,
    }
}

/// An address of the IP header at `at`.
#[inline(always)]
pub(super) fn address<P: Packet>(packet: &P, v6: bool, at: u32, end: Side) -> Option<Addr> {
    let at = at.wrapping_add(address_at(v6, end));
    // As one number, so that programs write words instead of bytes.
    let address = if v6 {
        u128::from_ne_bytes(packet.load(at)?)
    } else {
        u128::from_ne_bytes(ip::mapped(packet.load(at)?))
    };
    Some(address.to_ne_bytes())
}

/// Whether the packet whose IP header is at `at` is IPv6, in a tunnel as well.
#[inline(always)]
pub(super) fn is_v6<P: Packet>(packet: &P, at: u32) -> bool {
    mss::is_v6(packet, at).unwrap_or(false)
}

/// What stands behind the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum L4Kind {
    /// A TCP or UDP header.
    Unfragmented = 0,
    /// The first fragment of a packet: a TCP or UDP header, and more of the packet to come.
    FirstFragment = 1,
    /// A later fragment: no header.
    LaterFragment = 2,
    /// An ICMP error, which quotes another packet.
    IcmpError = 3,
    /// Something that has no ports, or none we know.
    Other = 4,
    /// Cut off before its ports.
    Truncated = 5,
}

/// The transport header of a packet as far as Services need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct L4Header {
    pub(super) kind: L4Kind,
    /// The packet is IPv6.
    pub(super) v6: bool,
    /// The first packet of a TCP connection.
    pub(super) syn: bool,
    pub(super) proto: u8,
    /// Offset of the transport header, below 65,536.
    pub(super) at: u32,
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
}

/// The flow of the packet whose IP header is at `at`: a packed [`Transport`].
#[inline(always)]
pub fn parse_l4<P: Packet>(packet: &P, v6: bool, at: u32) -> u64 {
    L4Header::read(packet, v6, at).pack()
}

impl L4Header {
    #[inline(always)]
    fn read<P: Packet>(packet: &P, v6: bool, at: u32) -> Self {
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        let found = packet.locate_l4(v6, at);
        let mut transport = Self {
            kind: L4Kind::Other,
            v6,
            syn: false,
            proto: found.proto,
            at: found.at,
            src_port: 0,
            dst_port: 0,
        };
        if !found.has_header {
            transport.kind = L4Kind::LaterFragment;
            return transport;
        }
        if !matches!(found.proto, ip::TCP | ip::UDP) {
            let icmp = if v6 { ip::ICMPV6 } else { ip::ICMP };
            if found.proto == icmp && !found.fragment {
                transport.kind = match packet.load::<1>(found.at) {
                    Some([message]) if is_error(v6, message) => L4Kind::IcmpError,
                    Some(_) => L4Kind::Other,
                    None => L4Kind::Truncated,
                };
            }
            return transport;
        }
        let Some([s0, s1, d0, d1]) = packet.load(found.at) else {
            transport.kind = L4Kind::Truncated;
            return transport;
        };
        transport.kind = if found.fragment {
            L4Kind::FirstFragment
        } else {
            L4Kind::Unfragmented
        };
        transport.src_port = u16::from_be_bytes([s0, s1]);
        transport.dst_port = u16::from_be_bytes([d0, d1]);
        if found.proto == ip::TCP
            && let Some([flags]) = packet.load::<1>(found.at.wrapping_add(13))
        {
            transport.syn = flags & (SYN | ACK) == SYN;
        }
        transport
    }

    /// As one word: what a function of a program can return.
    #[inline(always)]
    const fn pack(self) -> u64 {
        self.src_port as u64
            | (self.dst_port as u64) << 16
            | (self.at as u64 & 0xffff) << 32
            | (self.proto as u64) << 48
            | (self.kind as u64) << 56
            | (self.v6 as u64) << 60
            | (self.syn as u64) << 61
    }

    /// The reverse of [`Self::pack`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]
    pub(super) const fn unpack(word: u64) -> Self {
        Self {
            kind: match (word >> 56) as u8 & 0xf {
                0 => L4Kind::Unfragmented,
                1 => L4Kind::FirstFragment,
                2 => L4Kind::LaterFragment,
                3 => L4Kind::IcmpError,
                4 => L4Kind::Other,
                _ => L4Kind::Truncated,
            },
            v6: word & 1 << 60 != 0,
            syn: word & 1 << 61 != 0,
            proto: (word >> 48) as u8,
            at: (word >> 32) as u32 & 0xffff,
            src_port: word as u16,
            dst_port: (word >> 16) as u16,
        }
    }

    /// Whether the ports are known.
    #[inline(always)]
    pub(super) const fn has_ports(&self) -> bool {
        matches!(self.kind, L4Kind::Unfragmented | L4Kind::FirstFragment)
    }

    /// Of an ICMP error: offset of the IP header of the packet it quotes.
    #[inline(always)]
    pub(super) const fn quote_at(&self) -> u32 {
        self.at.wrapping_add(ICMP_ERROR)
    }

    /// Offset of the transport checksum.
    #[inline(always)]
    pub(super) const fn check_at(&self) -> u32 {
        self.at.wrapping_add(if self.proto == ip::UDP { 6 } else { 16 })
    }

    /// Key of a packet to a Service in the gateways' flow table; of a packet from one, if `back`. The IP
    /// header is at `at`.
    #[inline(always)]
    pub(super) fn flow_key<P: Packet>(&self, packet: &P, at: u32, back: bool) -> Option<FlowKey> {
        let [(client, client_port), (service, service_port)] = self.endpoints(packet, at, back)?;
        Some(FlowKey {
            client,
            service,
            client_port,
            service_port,
            proto: u32::from(self.proto),
        })
    }

    /// Key of a packet to a Pod in its node's table of translated flows; of a packet from one, if `back`.
    #[inline(always)]
    pub(super) fn reply_key<P: Packet>(&self, packet: &P, at: u32, back: bool) -> Option<ReplyKey> {
        let [(client, client_port), (pod, pod_port)] = self.endpoints(packet, at, back)?;
        Some(ReplyKey {
            pod,
            client,
            pod_port,
            client_port,
            proto: u32::from(self.proto),
        })
    }

    /// Address and port of the client and of what it talks to: the source comes first, or last if `back`.
    #[inline(always)]
    fn endpoints<P: Packet>(&self, packet: &P, at: u32, back: bool) -> Option<[(Addr, u16); 2]> {
        let src = (address(packet, self.v6, at, Side::Source)?, self.src_port);
        let dst = (address(packet, self.v6, at, Side::Destination)?, self.dst_port);
        Some(if back { [dst, src] } else { [src, dst] })
    }

    /// Key of a fragment.
    #[inline(always)]
    pub(super) fn fragment_key<P: Packet>(&self, packet: &P, at: u32) -> Option<FragmentKey> {
        let id = if self.v6 {
            u32::from_ne_bytes(packet.load(self.at.wrapping_sub(V6_ID))?)
        } else {
            let [i0, i1] = packet.load(at.wrapping_add(V4_ID))?;
            u32::from_ne_bytes([i0, i1, 0, 0])
        };
        Some(FragmentKey {
            src: address(packet, self.v6, at, Side::Source)?,
            dst: address(packet, self.v6, at, Side::Destination)?,
            id,
            proto: u32::from(self.proto),
        })
    }
}

#[inline(always)]
const fn is_error(v6: bool, message: u8) -> bool {
    if v6 {
        // RFC 4443 section 2.1: destination unreachable, too big, time exceeded, parameter problem.
        matches!(message, 1..=4)
    } else {
        // RFC 792, the errors about a packet: unreachable, time exceeded, parameter problem.
        matches!(message, 3 | 11 | 12)
    }
}

const _: () = assert!(eth::END == 14);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packing_loses_nothing(
            kind in prop::sample::select(vec![L4Kind::Unfragmented, L4Kind::FirstFragment, L4Kind::LaterFragment, L4Kind::IcmpError, L4Kind::Other, L4Kind::Truncated]),
            (v6, syn, proto, src_port, dst_port) in any::<(bool, bool, u8, u16, u16)>(),
            at in 0_u32..65_536,
        ) {
            let transport = L4Header { kind, v6, syn, proto, at, src_port, dst_port };
            prop_assert_eq!(L4Header::unpack(transport.pack()), transport);
        }
    }
}
