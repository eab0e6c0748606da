//! Location of the transport header behind IPv4 options or IPv6 extension headers (RFC 8200 section 4).
//!
//! *Guarantees*: the number of steps is bounded. If an extension header cannot be parsed, the result is the
//! number of that header.

use network_types::ip::IpProto;

use super::{
    access::Packet,
    ip,
    offsets::{ipv4, ipv6},
};
use crate::packed::impl_bits;

const HOP_BY_HOP: u8 = IpProto::HopOpt as u8;
const ROUTING: u8 = IpProto::Ipv6Route as u8;
/// Authentication header (RFC 4302), with a length in words of four bytes.
const AUTHENTICATION: u8 = IpProto::Ah as u8;
const NO_NEXT_HEADER: u8 = IpProto::Ipv6NoNxt as u8;
const DESTINATION: u8 = IpProto::Ipv6Opts as u8;

/// Extension headers walked: the most RFC 8200 section 4.1 recommends.
pub const MAX_EXTENSIONS: u32 = 6;

/// Whether a protocol number is that of an IPv6 extension header: after [`locate_l4`], one that cannot be parsed, or
/// that is beyond [`MAX_EXTENSIONS`].
#[inline(always)]
#[must_use]
pub const fn is_extension(proto: u8) -> bool {
    matches!(
        proto,
        HOP_BY_HOP | ROUTING | DESTINATION | AUTHENTICATION | ip::FRAGMENT
    )
}

/// Location of the transport header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L4Location {
    /// Protocol number of the header at `at`.
    pub proto: u8,
    /// Offset in the frame.
    pub at: u32,
    /// The packet is a fragment, the first one included.
    pub fragment: bool,
    /// The transport header is at `at`: false for all fragments but the first.
    pub has_header: bool,
}

/// A [`L4Location`] in one number, the form that a BPF subprogram can return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PackedL4Location(u32);

impl_bits!(PackedL4Location, u32);

impl PackedL4Location {
    const FRAGMENT_SHIFT: u32 = 8;
    const HAS_HEADER_SHIFT: u32 = 9;
    const OFFSET_SHIFT: u32 = 16;

    /// Packs a location; its offset is below 65,536.
    #[inline(always)]
    #[must_use]
    pub const fn new(location: L4Location) -> Self {
        Self(
            location.at << Self::OFFSET_SHIFT
                | (location.has_header as u32) << Self::HAS_HEADER_SHIFT
                | (location.fragment as u32) << Self::FRAGMENT_SHIFT
                | location.proto as u32,
        )
    }

    /// The location given to [`Self::new`].
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the lowest byte")]
    pub const fn unpack(self) -> L4Location {
        L4Location {
            proto: self.0 as u8,
            at: self.0 >> Self::OFFSET_SHIFT,
            fragment: self.0 & 1 << Self::FRAGMENT_SHIFT != 0,
            has_header: self.0 & 1 << Self::HAS_HEADER_SHIFT != 0,
        }
    }
}

/// Finds the transport header of the packet with the IP header at `at`. Reads a few bytes at a time, because
/// little of the BPF stack is left in this subprogram.
#[inline(always)]
pub fn locate_l4<P: Packet>(packet: &P, v6: bool, at: u32) -> L4Location {
    if !v6 {
        return locate_l4_v4(packet, at);
    }
    let [proto] = packet
        .load::<1>(at.wrapping_add(ipv6::NEXT_HEADER))
        .unwrap_or([NO_NEXT_HEADER]);
    let mut found = L4Location {
        proto,
        at: at.wrapping_add(ipv6::LEN),
        fragment: false,
        has_header: true,
    };
    let mut step = 0;
    while step < MAX_EXTENSIONS {
        let words = match found.proto {
            proto if is_extension(proto) => packet.load::<4>(found.at),
            _ => return found,
        };
        let Some([next, len, high, low]) = words else {
            return found;
        };
        let len = match found.proto {
            ip::FRAGMENT => {
                found.fragment = true;
                found.has_header = u16::from_be_bytes([high, low]) & 0xfff8 == 0;
                8
            }
            AUTHENTICATION => u32::from(len).wrapping_add(2).wrapping_mul(4),
            _ => u32::from(len).wrapping_add(1).wrapping_mul(8),
        };
        found.proto = next;
        found.at = found.at.wrapping_add(len);
        if !found.has_header {
            return found;
        }
        step = step.wrapping_add(1);
    }
    found
}

#[inline(always)]
fn locate_l4_v4<P: Packet>(packet: &P, at: u32) -> L4Location {
    let [vihl] = packet.load::<1>(at).unwrap_or([0x45]);
    let [f0, f1, _, proto] =
        packet
            .load::<4>(at.wrapping_add(ipv4::FRAGS))
            .unwrap_or([0, 0, 0, NO_NEXT_HEADER]);
    let frags = u16::from_be_bytes([f0, f1]);
    L4Location {
        proto,
        at: at.wrapping_add((u32::from(vihl) & 0xf).wrapping_mul(4)),
        fragment: frags & 0x3fff != 0,
        has_header: frags << 3 == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::SlicePacket;

    fn located(next: u8, rest: &[u8]) -> L4Location {
        let mut frame = vec![0; 14];
        let mut header = [0; 40];
        header[0] = 0x60;
        header[6] = next;
        frame.extend(header);
        frame.extend(rest);
        let found = locate_l4(&SlicePacket::new(frame), true, 14);
        assert_eq!(PackedL4Location::new(found).unpack(), found);
        found
    }

    fn at(offset: u32, proto: u8) -> L4Location {
        L4Location {
            proto,
            at: 54 + offset,
            fragment: false,
            has_header: true,
        }
    }

    #[test]
    fn the_transport_header_follows_an_ipv6_header_without_extensions() {
        assert_eq!(located(ip::TCP, &[]), at(0, ip::TCP));
    }

    #[test]
    fn extensions_in_the_recommended_order() {
        let mut rest = vec![DESTINATION, 0, 1, 4, 0, 0, 0, 0]; // hop-by-hop
        rest.extend([ROUTING, 1].iter().chain(&[0; 14])); // destination options, 16 bytes
        rest.extend([AUTHENTICATION, 0].iter().chain(&[0; 6])); // routing
        rest.extend([DESTINATION, 4].iter().chain(&[0; 22])); // authentication, 24 bytes
        rest.extend([ip::UDP, 0].iter().chain(&[0; 6])); // destination options
        assert_eq!(located(HOP_BY_HOP, &rest), at(8 + 16 + 8 + 24 + 8, ip::UDP));
    }

    #[test]
    fn first_and_later_fragments_differ() {
        let first = located(ip::FRAGMENT, &[ip::UDP, 0, 0, 1, 0, 0, 0, 9]);
        assert_eq!(
            (first.proto, first.at, first.fragment, first.has_header),
            (ip::UDP, 62, true, true)
        );
        let later = located(ip::FRAGMENT, &[ip::UDP, 0, 0, 8, 0, 0, 0, 9]);
        assert_eq!((later.fragment, later.has_header), (true, false));
    }

    #[test]
    fn the_walk_is_bounded_and_ends_with_the_packet() {
        let chain = [HOP_BY_HOP, 0, 0, 0, 0, 0, 0, 0].repeat(20);
        assert_eq!(located(HOP_BY_HOP, &chain), at(48, HOP_BY_HOP));
        assert_eq!(located(DESTINATION, &[ip::UDP]), at(0, DESTINATION));
    }
}
