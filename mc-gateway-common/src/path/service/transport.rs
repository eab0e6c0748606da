//! What a packet to or from a Service says of its flow.

use crate::{
    abi::{
        Addr,
        service::{FlowKey, FragmentKey, ReplyKey},
    },
    packet::{Packet, eth, ip},
    path::mss,
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
pub(super) enum End {
    Source,
    Destination,
}

/// Offset of an address in an IP header.
#[inline(always)]
pub(super) const fn address_at(v6: bool, end: End) -> u32 {
    match (v6, end) {
        (true, End::Source) => 8,
        (true, End::Destination) => 24,
        (false, End::Source) => 12,
        (false, End::Destination) => 16,
    }
}

/// An address of the IP header at `at`.
#[inline(always)]
pub(super) fn address<P: Packet>(packet: &P, v6: bool, at: u32, end: End) -> Option<Addr> {
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
pub(super) enum Kind {
    /// A TCP or UDP header.
    Whole = 0,
    /// The first fragment of a packet: a TCP or UDP header, and more of the packet to come.
    First = 1,
    /// A later fragment: no header.
    Later = 2,
    /// An ICMP error, which quotes another packet.
    Error = 3,
    /// Something that has no ports, or none we know.
    Other = 4,
    /// Cut off before its ports.
    Short = 5,
}

/// The transport header of a packet as far as Services need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transport {
    pub(super) kind: Kind,
    /// The packet is IPv6.
    pub(super) v6: bool,
    /// The first packet of a TCP connection.
    pub(super) opens: bool,
    pub(super) proto: u8,
    /// Offset of the transport header, below 65,536.
    pub(super) at: u32,
    pub(super) src_port: u16,
    pub(super) dst_port: u16,
}

/// The flow of the packet whose IP header is at `at`: a packed [`Transport`].
#[inline(always)]
pub fn flow_at<P: Packet>(packet: &P, v6: bool, at: u32) -> u64 {
    Transport::read(packet, v6, at).pack()
}

impl Transport {
    #[inline(always)]
    fn read<P: Packet>(packet: &P, v6: bool, at: u32) -> Self {
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        let found = packet.locate(v6, at);
        let mut transport = Self {
            kind: Kind::Other,
            v6,
            opens: false,
            proto: found.proto,
            at: found.at,
            src_port: 0,
            dst_port: 0,
        };
        if !found.first {
            transport.kind = Kind::Later;
            return transport;
        }
        if !matches!(found.proto, ip::TCP | ip::UDP) {
            let icmp = if v6 { ip::ICMPV6 } else { ip::ICMP };
            if found.proto == icmp && !found.fragment {
                transport.kind = match packet.load::<1>(found.at) {
                    Some([message]) if is_error(v6, message) => Kind::Error,
                    Some(_) => Kind::Other,
                    None => Kind::Short,
                };
            }
            return transport;
        }
        let Some([s0, s1, d0, d1]) = packet.load(found.at) else {
            transport.kind = Kind::Short;
            return transport;
        };
        transport.kind = if found.fragment { Kind::First } else { Kind::Whole };
        transport.src_port = u16::from_be_bytes([s0, s1]);
        transport.dst_port = u16::from_be_bytes([d0, d1]);
        if found.proto == ip::TCP
            && let Some([flags]) = packet.load::<1>(found.at.wrapping_add(13))
        {
            transport.opens = flags & (SYN | ACK) == SYN;
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
            | (self.opens as u64) << 61
    }

    /// The reverse of [`Self::pack`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]
    pub(super) const fn unpack(word: u64) -> Self {
        Self {
            kind: match (word >> 56) as u8 & 0xf {
                0 => Kind::Whole,
                1 => Kind::First,
                2 => Kind::Later,
                3 => Kind::Error,
                4 => Kind::Other,
                _ => Kind::Short,
            },
            v6: word & 1 << 60 != 0,
            opens: word & 1 << 61 != 0,
            proto: (word >> 48) as u8,
            at: (word >> 32) as u32 & 0xffff,
            src_port: word as u16,
            dst_port: (word >> 16) as u16,
        }
    }

    /// Whether the ports are known.
    #[inline(always)]
    pub(super) const fn has_ports(&self) -> bool {
        matches!(self.kind, Kind::Whole | Kind::First)
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
        let [(client, client_port), (service, service_port)] = self.ends(packet, at, back)?;
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
        let [(client, client_port), (pod, pod_port)] = self.ends(packet, at, back)?;
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
    fn ends<P: Packet>(&self, packet: &P, at: u32, back: bool) -> Option<[(Addr, u16); 2]> {
        let src = (address(packet, self.v6, at, End::Source)?, self.src_port);
        let dst = (address(packet, self.v6, at, End::Destination)?, self.dst_port);
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
            src: address(packet, self.v6, at, End::Source)?,
            dst: address(packet, self.v6, at, End::Destination)?,
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
            kind in prop::sample::select(vec![Kind::Whole, Kind::First, Kind::Later, Kind::Error, Kind::Other, Kind::Short]),
            (v6, opens, proto, src_port, dst_port) in any::<(bool, bool, u8, u16, u16)>(),
            at in 0_u32..65_536,
        ) {
            let transport = Transport { kind, v6, opens, proto, at, src_port, dst_port };
            prop_assert_eq!(Transport::unpack(transport.pack()), transport);
        }
    }
}
