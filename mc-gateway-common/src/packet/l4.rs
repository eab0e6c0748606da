//! Where the transport header of a packet is: behind IPv4 options or IPv6 extension headers (RFC 8200
//! section 4).
//!
//! Guarantees: a bounded number of steps, and whatever cannot be walked is named by the number of the
//! header the walk ended at.

use super::{Packet, ip};

/// Hop-by-hop options (IANA).
const HOP_BY_HOP: u8 = 0;
/// Routing header (IANA).
const ROUTING: u8 = 43;
/// Authentication header (RFC 4302), whose length counts words of four bytes.
const AUTHENTICATION: u8 = 51;
/// No next header (IANA).
const NO_NEXT_HEADER: u8 = 59;
/// Destination options (IANA).
const DESTINATION: u8 = 60;

/// Extension headers walked: the most RFC 8200 section 4.1 recommends.
pub const MAX_EXTENSIONS: u32 = 6;

/// What follows an IP header and its extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L4Location {
    /// Protocol number of the header at `at`.
    pub proto: u8,
    /// Offset in the frame.
    pub at: u32,
    /// Part of a fragmented packet, the first one included.
    pub fragment: bool,
    /// Whether `at` holds the header itself: false for all fragments but the first.
    pub has_header: bool,
}

impl L4Location {
    /// As one number, which is what a program's function can return.
    #[inline(always)]
    #[must_use]
    pub const fn pack(self) -> u32 {
        self.at << 16 | (self.has_header as u32) << 9 | (self.fragment as u32) << 8 | self.proto as u32
    }

    /// The inverse of [`Self::pack`]; offsets are below 65,536.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the lowest byte")]
    pub const fn unpack(packed: u32) -> Self {
        Self {
            proto: packed as u8,
            at: packed >> 16,
            fragment: packed & 1 << 8 != 0,
            has_header: packed & 1 << 9 != 0,
        }
    }
}

/// Finds the transport header of the packet whose IP header is at `at`. Reads a few bytes at a time: this
/// runs in a function of its own at the bottom of a program's stack.
#[inline(always)]
pub fn locate_l4<P: Packet>(packet: &P, v6: bool, at: u32) -> L4Location {
    if !v6 {
        return locate_l4_v4(packet, at);
    }
    let [proto] = packet.load::<1>(at.wrapping_add(6)).unwrap_or([NO_NEXT_HEADER]);
    let mut found = L4Location {
        proto,
        at: at.wrapping_add(40),
        fragment: false,
        has_header: true,
    };
    let mut step = 0;
    while step < MAX_EXTENSIONS {
        let words = match found.proto {
            HOP_BY_HOP | ROUTING | DESTINATION | AUTHENTICATION | ip::FRAGMENT => packet.load::<4>(found.at),
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
    let [f0, f1, _, proto] = packet
        .load::<4>(at.wrapping_add(6))
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
        assert_eq!(L4Location::unpack(found.pack()), found);
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
    fn headers_without_extensions_end_where_they_end() {
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
    fn fragments_are_told_apart() {
        let first = located(ip::FRAGMENT, &[ip::UDP, 0, 0, 1, 0, 0, 0, 9]);
        assert_eq!(
            (first.proto, first.at, first.fragment, first.has_header),
            (ip::UDP, 62, true, true)
        );
        let later = located(ip::FRAGMENT, &[ip::UDP, 0, 0, 8, 0, 0, 0, 9]);
        assert_eq!((later.fragment, later.has_header), (true, false));
    }

    #[test]
    fn the_walk_is_bounded_and_ends_where_the_packet_does() {
        let chain = [HOP_BY_HOP, 0, 0, 0, 0, 0, 0, 0].repeat(20);
        assert_eq!(located(HOP_BY_HOP, &chain), at(48, HOP_BY_HOP));
        assert_eq!(located(DESTINATION, &[ip::UDP]), at(0, DESTINATION));
    }
}
