//! Flow of a packet to or from a Service.

use super::{
    super::subprograms::Subprograms,
    l4_header::{L4Header, L4Kind, PackedL4Header},
};
use crate::{
    abi::{
        addr::Addr,
        service::{FlowKey, FragmentKey, ReplyKey},
    },
    packet::{
        Packet, ip,
        offsets::{TCP_FLAGS, ipv4, ipv6},
        tcp::opens_connection,
    },
};

/// Distance of the identification in an IPv6 fragment header from the transport header (RFC 8200 section 4.5), if no
/// other extension header follows.
const V6_ID_LEN: u32 = 4;

/// Source or destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Offset of an address in an IP header.
#[inline(always)]
pub(super) const fn address_at(v6: bool, end: Side) -> u32 {
    match (v6, end) {
        (true, Side::Source) => ipv6::SRC,
        (true, Side::Destination) => ipv6::DST,
        (false, Side::Source) => ipv4::SRC,
        (false, Side::Destination) => ipv4::DST,
    }
}

/// An address of the IP header at `at`.
#[inline(always)]
pub(super) fn address<P: Packet>(packet: &P, v6: bool, at: u32, end: Side) -> Option<Addr> {
    let at = at.wrapping_add(address_at(v6, end));
    // One number, so that the programs write words instead of bytes.
    let address = if v6 {
        u128::from_ne_bytes(packet.load(at)?)
    } else {
        u128::from_ne_bytes(ip::mapped(packet.load(at)?))
    };
    Some(address.to_ne_bytes())
}

/// [`ip::is_v6_at`]; a packet too short for an ethertype is no IPv6 packet.
#[inline(always)]
pub(super) fn is_v6<P: Packet>(packet: &P, at: u32) -> bool {
    ip::is_v6_at(packet, at).unwrap_or(false)
}

/// Parses the transport header of the packet with the IP header at `at`.
#[inline(always)]
pub fn parse_l4<P: Subprograms>(packet: &P, v6: bool, at: u32) -> PackedL4Header {
    PackedL4Header::new(L4Header::read(packet, v6, at))
}

impl L4Header {
    #[inline(always)]
    fn read<P: Subprograms>(packet: &P, v6: bool, at: u32) -> Self {
        let found = packet.locate_l4(v6, at);
        let mut header = Self {
            kind: L4Kind::Other,
            v6,
            syn: false,
            open: false,
            proto: found.proto,
            at: found.at,
            src_port: 0,
            dst_port: 0,
        };
        if !found.has_header {
            header.kind = L4Kind::LaterFragment;
            return header;
        }
        if !matches!(found.proto, ip::TCP | ip::UDP | ip::SCTP) {
            let icmp = if v6 { ip::ICMPV6 } else { ip::ICMP };
            if found.proto == icmp && !found.fragment {
                header.kind = match packet.load::<1>(found.at) {
                    Some([message]) if is_error(v6, message) => L4Kind::IcmpError,
                    Some(_) => L4Kind::Other,
                    None => L4Kind::Truncated,
                };
            }
            return header;
        }
        let Some([s0, s1, d0, d1]) = packet.load(found.at) else {
            header.kind = L4Kind::Truncated;
            return header;
        };
        header.kind = if found.proto == ip::SCTP {
            L4Kind::Sctp
        } else if found.fragment {
            L4Kind::FirstFragment
        } else {
            L4Kind::Unfragmented
        };
        header.src_port = u16::from_be_bytes([s0, s1]);
        header.dst_port = u16::from_be_bytes([d0, d1]);
        if found.proto == ip::TCP
            && let Some([flags]) = packet.load::<1>(found.at.wrapping_add(TCP_FLAGS))
        {
            header.syn = opens_connection(flags);
        }
        header.open = matches!(found.proto, ip::TCP | ip::UDP) && !found.fragment && !header.syn;
        header
    }

    /// Key of a packet to a Service (from a Service if `reverse`) in the flow map of gateways. The IP header is at
    /// `at`.
    #[inline(always)]
    pub(super) fn flow_key<P: Packet>(&self, packet: &P, at: u32, reverse: bool) -> Option<FlowKey> {
        let [(client, client_port), (service, service_port)] = self.endpoints(packet, at, reverse)?;
        Some(FlowKey {
            client,
            service,
            client_port,
            service_port,
            proto: u32::from(self.proto),
        })
    }

    /// Key of a packet to a Pod (from a Pod if `reverse`) in the reply map of the Pod's node.
    #[inline(always)]
    pub(in crate::pipeline) fn reply_key<P: Packet>(
        &self,
        packet: &P,
        at: u32,
        reverse: bool,
    ) -> Option<ReplyKey> {
        let src = address(packet, self.v6, at, Side::Source)?;
        let dst = address(packet, self.v6, at, Side::Destination)?;
        Some(self.reply_key_of([src, dst], reverse))
    }

    /// As [`Self::reply_key`], of a packet with this source and destination.
    #[inline(always)]
    pub(in crate::pipeline) const fn reply_key_of(&self, [src, dst]: [Addr; 2], reverse: bool) -> ReplyKey {
        let (src, dst) = ((src, self.src_port), (dst, self.dst_port));
        let [(client, client_port), (pod, pod_port)] = if reverse { [dst, src] } else { [src, dst] };
        ReplyKey {
            pod,
            client,
            pod_port,
            client_port,
            proto: self.proto as u32,
        }
    }

    /// Address and port of the client and of the server. The client is the source, or the destination if `reverse`.
    #[inline(always)]
    fn endpoints<P: Packet>(&self, packet: &P, at: u32, reverse: bool) -> Option<[(Addr, u16); 2]> {
        let src = (address(packet, self.v6, at, Side::Source)?, self.src_port);
        let dst = (address(packet, self.v6, at, Side::Destination)?, self.dst_port);
        Some(if reverse { [dst, src] } else { [src, dst] })
    }

    /// Key of a fragment.
    #[inline(always)]
    pub(super) fn fragment_key<P: Packet>(&self, packet: &P, at: u32) -> Option<FragmentKey> {
        let id = if self.v6 {
            u32::from_ne_bytes(packet.load(self.at.wrapping_sub(V6_ID_LEN))?)
        } else {
            let [i0, i1] = packet.load(at.wrapping_add(ipv4::ID))?;
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
