//! The transport header of a packet as Service processing needs it.

use crate::{
    packed::impl_bits,
    packet::{
        icmp, ip,
        offsets::{tcp, udp},
    },
};

/// Content behind the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum L4Kind {
    /// A TCP or UDP header.
    Unfragmented = 0,
    /// The first fragment of a packet, with a TCP or UDP header.
    FirstFragment = 1,
    /// A later fragment, without a header.
    LaterFragment = 2,
    /// An ICMP error with a quoted packet.
    IcmpError = 3,
    /// A protocol without ports, or with unknown ports.
    Other = 4,
    /// Truncated before the ports.
    Truncated = 5,
    /// An SCTP header (RFC 9260), whose ports select a Service. The programs do not translate SCTP.
    Sctp = 6,
}

/// The transport header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct L4Header {
    pub(crate) kind: L4Kind,
    /// The packet is IPv6.
    pub(crate) v6: bool,
    /// The packet opens a TCP connection.
    pub(crate) syn: bool,
    /// The packet may belong to an open flow: an unfragmented datagram, or TCP segment other than a SYN.
    pub(crate) open: bool,
    pub(crate) proto: u8,
    /// Offset of the transport header, below 65,536.
    pub(crate) at: u32,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
}

/// An `L4Header` in one word, the form that a BPF subprogram can return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PackedL4Header(u64);

impl_bits!(PackedL4Header, u64);

const DST_PORT_SHIFT: u32 = 16;
const OFFSET_SHIFT: u32 = 32;
const OFFSET_MASK: u32 = 0xffff;
const PROTO_SHIFT: u32 = 48;
const KIND_SHIFT: u32 = 56;
const KIND_MASK: u8 = 0xf;
const V6_SHIFT: u32 = 60;
const SYN_SHIFT: u32 = 61;
const OPEN_SHIFT: u32 = 62;

impl PackedL4Header {
    /// Packs a header; its offset is below 65,536.
    #[inline(always)]
    pub(crate) const fn new(header: L4Header) -> Self {
        Self(
            header.src_port as u64
                | (header.dst_port as u64) << DST_PORT_SHIFT
                | ((header.at & OFFSET_MASK) as u64) << OFFSET_SHIFT
                | (header.proto as u64) << PROTO_SHIFT
                | (header.kind as u64) << KIND_SHIFT
                | (header.v6 as u64) << V6_SHIFT
                | (header.syn as u64) << SYN_SHIFT
                | (header.open as u64) << OPEN_SHIFT,
        )
    }

    /// 1 for a header with [`L4Header::open`], else 0: the verifier would follow both values of a flag through the
    /// rest of a program.
    #[inline(always)]
    pub(crate) const fn open_bit(self) -> u64 {
        self.0 >> OPEN_SHIFT & 1
    }

    /// 1 for an unfragmented datagram, else 0, as [`Self::open_bit`].
    #[inline(always)]
    pub(crate) const fn datagram_bit(self) -> u64 {
        // TCP and UDP have that bit, and of the two only the number of UDP is odd.
        const { assert!(ip::UDP & 1 == 1 && ip::TCP & 1 == 0) }
        self.0 >> PROTO_SHIFT & self.open_bit()
    }

    /// 1 for a segment that opens a TCP connection, else 0, as [`Self::open_bit`].
    #[inline(always)]
    pub(crate) const fn syn_bit(self) -> u64 {
        self.0 >> SYN_SHIFT & 1
    }

    /// 1 for a packet with ports that may open a flow, all but those of an open TCP connection, else 0, as
    /// [`Self::open_bit`].
    #[inline(always)]
    pub(crate) const fn opens_bit(self) -> u64 {
        // Of the three protocols with ports, only the number of TCP has the bit.
        const { assert!(ip::TCP & 2 == 2 && ip::UDP & 2 == 0 && ip::SCTP & 2 == 0) }
        self.syn_bit() | !(self.0 >> PROTO_SHIFT >> 1) & 1
    }

    /// The header given to [`Self::new`].
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields of a word")]
    pub(crate) const fn unpack(self) -> L4Header {
        let word = self.0;
        L4Header {
            kind: match (word >> KIND_SHIFT) as u8 & KIND_MASK {
                0 => L4Kind::Unfragmented,
                1 => L4Kind::FirstFragment,
                2 => L4Kind::LaterFragment,
                3 => L4Kind::IcmpError,
                4 => L4Kind::Other,
                6 => L4Kind::Sctp,
                _ => L4Kind::Truncated,
            },
            v6: word & 1 << V6_SHIFT != 0,
            syn: word & 1 << SYN_SHIFT != 0,
            open: self.open_bit() != 0,
            proto: (word >> PROTO_SHIFT) as u8,
            at: (word >> OFFSET_SHIFT) as u32 & OFFSET_MASK,
            src_port: word as u16,
            dst_port: (word >> DST_PORT_SHIFT) as u16,
        }
    }
}

impl L4Header {
    /// Whether the ports are known.
    #[inline(always)]
    pub(crate) const fn has_ports(&self) -> bool {
        matches!(self.kind, L4Kind::Unfragmented | L4Kind::FirstFragment)
    }

    /// Offset of the IP header of the packet quoted in an ICMP error.
    #[inline(always)]
    pub(crate) const fn quote_at(&self) -> u32 {
        self.at.wrapping_add(icmp::LEN)
    }

    /// Offset of the transport checksum.
    #[inline(always)]
    pub(crate) const fn check_at(&self) -> u32 {
        self.at.wrapping_add(if self.proto == ip::UDP {
            udp::CHECK
        } else {
            tcp::CHECK
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packing_loses_nothing(
            kind in prop::sample::select(vec![L4Kind::Unfragmented, L4Kind::FirstFragment, L4Kind::LaterFragment, L4Kind::IcmpError, L4Kind::Other, L4Kind::Truncated, L4Kind::Sctp]),
            (v6, syn, open, proto, src_port, dst_port) in any::<(bool, bool, bool, u8, u16, u16)>(),
            at in 0_u32..65_536,
        ) {
            let header = L4Header { kind, v6, syn, open, proto, at, src_port, dst_port };
            prop_assert_eq!(PackedL4Header::new(header).unpack(), header);
        }
    }
}
