//! IP version of the outer packet, and the bytes that encapsulation adds over it.

use network_types::{
    eth::EthHdr,
    ip::{Ipv4Hdr, Ipv6Hdr},
    udp::UdpHdr,
};

use super::{eth, offsets::udp, tunnel};

/// Bytes between the outer IP header and the inner one: UDP, tunnel header, inner Ethernet.
pub const TUNNEL_OVERHEAD: usize = UdpHdr::LEN + tunnel::LEN + EthHdr::LEN;
/// Distance from the outer UDP checksum to the inner IP header.
#[expect(clippy::cast_possible_truncation, reason = "30")]
pub(crate) const UDP_CHECK_TO_INNER: u32 = (TUNNEL_OVERHEAD as u32).wrapping_sub(udp::CHECK);
/// Bytes encapsulation adds in front of the inner IP packet over IPv4.
pub const ENCAP_LEN_V4: usize = Ipv4Hdr::LEN + TUNNEL_OVERHEAD;
/// Bytes encapsulation adds in front of the inner IP packet over IPv6.
pub const ENCAP_LEN_V6: usize = Ipv6Hdr::LEN + TUNNEL_OVERHEAD;

/// IP version of the outer packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OuterFamily {
    /// Encapsulation adds [`ENCAP_LEN_V4`] bytes.
    V4,
    /// Encapsulation adds [`ENCAP_LEN_V6`] bytes.
    V6,
}

impl OuterFamily {
    /// The family of an outer IPv6 packet, else of an IPv4 packet.
    #[inline(always)]
    #[must_use]
    pub const fn new(v6: bool) -> Self {
        if v6 { Self::V6 } else { Self::V4 }
    }

    /// Length of the outer headers behind the outer Ethernet header.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "50 and 70")]
    pub const fn encap_len(self) -> u32 {
        match self {
            Self::V4 => ENCAP_LEN_V4 as u32,
            Self::V6 => ENCAP_LEN_V6 as u32,
        }
    }

    /// Offset of the inner IP header in the frame.
    #[inline(always)]
    #[must_use]
    pub const fn inner_at(self) -> u32 {
        eth::END.wrapping_add(self.encap_len())
    }

    /// Ethertype of the outer packet.
    #[inline(always)]
    #[must_use]
    pub const fn ethertype(self) -> u16 {
        match self {
            Self::V4 => eth::IPV4,
            Self::V6 => eth::IPV6,
        }
    }
}
