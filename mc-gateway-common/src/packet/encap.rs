//! Outer headers of a packet to send: IPv4 or IPv6, UDP, tunnel header, inner Ethernet.

use super::{
    aligned::Aligned,
    checksum, eth, header_words, ip,
    offsets::{ipv4, ipv6},
    tunnel::Format,
};
use crate::abi::{Address, SourceMac};

pub use super::outer_family::{ENCAP_LEN_V4, ENCAP_LEN_V6, OuterFamily, TUNNEL_OVERHEAD};

/// Default TTL and hop limit of outer packets.
pub const HOP_LIMIT: u8 = 64;

/// Variable fields of the outer headers.
#[derive(Clone, Copy, Debug)]
pub struct Encap {
    /// Tunnel header.
    pub format: Format,
    /// Outer source.
    pub src: Address,
    /// Outer destination, of the same version as the source.
    pub dst: Address,
    /// DSCP and ECN of the outer header.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Hash of the flow: input of the UDP source port and the IPv6 flow label (RFC 6438).
    pub hash: u32,
    /// Outer UDP destination port.
    pub port: u16,
    /// Sum of the inner packet's bytes, if the outer packet carries a UDP checksum.
    pub inner_sum: Option<u64>,
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Inner Ethernet source.
    pub inner_src: SourceMac,
    /// Inner ethertype.
    pub inner_type: u16,
    /// Length of the inner IP packet in bytes. For a GSO packet whose length with the headers exceeds 16 bits,
    /// the outer lengths wrap; segmentation rewrites them per segment.
    pub inner_len: u32,
}

impl Encap {
    /// The bytes behind the outer Ethernet header over IPv4. DF is set: the sender fragments, not the
    /// underlay.
    #[inline(always)]
    #[must_use]
    pub fn over_v4(&self) -> Aligned<[u8; ENCAP_LEN_V4]> {
        header_words::to_bytes(self.words_v4())
    }

    /// [`Self::over_v4`] as words; the last one has two bytes.
    #[inline(always)]
    #[must_use]
    pub fn words_v4(&self) -> [u64; 7] {
        let total = wire_len(self.inner_len.wrapping_add(OuterFamily::V4.encap_len()));
        let (src, dst) = (self.src.v4_u32(), self.dst.v4_u32());
        let [first, second, third] = ip::v4_words(self.tos, total, self.ttl, ip::UDP, src, dst);
        let [udp, tunnel, macs, rest] = self.tunnel_words();
        [
            first,
            second,
            third | udp << 32,
            udp >> 32 | tunnel << 32,
            tunnel >> 32 | macs << 32,
            macs >> 32 | rest << 32,
            rest >> 32,
        ]
    }

    /// The bytes behind the outer Ethernet header over IPv6.
    #[inline(always)]
    #[must_use]
    pub fn over_v6(&self) -> Aligned<[u8; ENCAP_LEN_V6]> {
        header_words::to_bytes(self.words_v6())
    }

    /// [`Self::over_v6`] as words; the last one has six bytes.
    #[inline(always)]
    #[must_use]
    pub fn words_v6(&self) -> [u64; 9] {
        let [l0, l1] = wire_len(
            self.inner_len
                .wrapping_add(OuterFamily::V6.encap_len())
                .wrapping_sub(ipv6::LEN),
        );
        let first = 6 << 28 | u32::from(self.tos) << 20 | self.hash & 0x000f_ffff;
        let [f0, f1, f2, f3] = first.to_be_bytes();
        let first = u64::from_le_bytes([f0, f1, f2, f3, l0, l1, ip::UDP, self.ttl]);
        let ([s0, s1], [d0, d1]) = (self.src.words(), self.dst.words());
        let [udp, tunnel, macs, rest] = self.tunnel_words();
        [first, s0, s1, d0, d1, udp, tunnel, macs, rest]
    }

    /// The headers behind the outer IP header as words: one for UDP, one for the tunnel header, and two for the
    /// inner Ethernet header, the second with six bytes.
    #[inline(always)]
    fn tunnel_words(&self) -> [u64; 4] {
        let [sp0, sp1] = source_port(self.hash).to_be_bytes();
        let [dp0, dp1] = self.port.to_be_bytes();
        let [u0, u1] = self.udp_len();
        let udp = u64::from_le_bytes([sp0, sp1, dp0, dp1, u0, u1, 0, 0]);
        let tunnel = u64::from_le_bytes(self.format.header(self.vni));
        let [m0, m1, m2, m3, m4, m5] = eth::MULTICLUSTER_MAC;
        let source = self.inner_src.to_bits();
        let macs = u64::from_le_bytes([m0, m1, m2, m3, m4, m5, 0, 0]) | source << 48;
        let rest = source >> 16 | u64::from(self.inner_type.to_be()) << 32;
        let Some(inner) = self.inner_sum else {
            return [udp, tunnel, macs, rest];
        };
        let check = self.udp_checksum(inner, [udp, tunnel, macs, rest]);
        [
            udp | u64::from(u16::from_ne_bytes(check)) << 48,
            tunnel,
            macs,
            rest,
        ]
    }

    #[inline(always)]
    fn udp_len(&self) -> [u8; 2] {
        wire_len(
            self.inner_len
                .wrapping_add(OuterFamily::V4.encap_len())
                .wrapping_sub(ipv4::LEN),
        )
    }

    /// The UDP checksum over pseudo header, UDP, tunnel header, inner Ethernet and inner packet.
    #[inline(always)]
    fn udp_checksum(&self, inner: u64, tail: [u64; 4]) -> [u8; 2] {
        let [u0, u1] = self.udp_len();
        // The length is in the pseudo header and in the UDP header. The prefix of a mapped address adds
        // 0xffff, which is zero.
        let sum = checksum::sum(&[0, ip::UDP, u0, u1])
            .wrapping_add(checksum::sum_words(tail))
            .wrapping_add(checksum::sum_words(self.src.words()))
            .wrapping_add(checksum::sum_words(self.dst.words()))
            .wrapping_add(inner);
        checksum::nonzero_for_udp((!checksum::fold(sum)).to_ne_bytes())
    }
}

/// Outer UDP source port of a flow: the dynamic range 49152–65535 (RFC 6335), 14 bits of entropy.
#[inline(always)]
#[must_use]
pub const fn source_port(hash: u32) -> u16 {
    0xc000 | (hash & 0x3fff) as u16
}

#[inline(always)]
const fn wire_len(len: u32) -> [u8; 2] {
    let [_, _, high, low] = len.to_be_bytes();
    [high, low]
}
