//! The outer headers of a packet that leaves: IPv4 or IPv6, UDP, tunnel header, inner Ethernet.

use network_types::{
    eth::EthHdr,
    ip::{Ipv4Hdr, Ipv6Hdr},
    udp::UdpHdr,
};

use super::{checksum, eth, eth::Mac, ip, tunnel, tunnel::Format};
use crate::abi::Addr;

/// Bytes between the outer IP header and the inner one: UDP, tunnel header, inner Ethernet.
pub const TAIL: usize = UdpHdr::LEN + tunnel::LEN + EthHdr::LEN;
/// Bytes encapsulation adds in front of the inner IP packet over IPv4.
pub const ROOM_V4: usize = Ipv4Hdr::LEN + TAIL;
/// Bytes encapsulation adds in front of the inner IP packet over IPv6.
pub const ROOM_V6: usize = Ipv6Hdr::LEN + TAIL;

/// TTL and hop limit of outer packets where none is configured.
pub const HOP_LIMIT: u8 = 64;

/// Room for the outer headers, by outer IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// [`ROOM_V4`] bytes.
    V4,
    /// [`ROOM_V6`] bytes.
    V6,
}

impl Room {
    /// Its length in bytes.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "50 and 70")]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::V4 => ROOM_V4 as u32,
            Self::V6 => ROOM_V6 as u32,
        }
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

/// What differs between one encapsulated packet and the next.
#[derive(Clone, Copy, Debug)]
pub struct Encap {
    /// Tunnel header.
    pub format: Format,
    /// Outer source.
    pub src: Addr,
    /// Outer destination, of the same version as the source.
    pub dst: Addr,
    /// DSCP and ECN of the outer header.
    pub tos: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Hash of the flow: UDP source port and IPv6 flow label (RFC 6438) are made of it.
    pub hash: u32,
    /// Outer UDP destination port.
    pub port: u16,
    /// Sum of the inner packet's bytes where the outer packet shall carry a UDP checksum.
    pub inner_sum: Option<u64>,
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Inner Ethernet source.
    pub inner_src: Mac,
    /// Inner ethertype.
    pub inner_type: u16,
    /// Length of the inner IP packet in bytes. Where it does not fit 16 bits with the headers (a GSO
    /// super-packet) the outer lengths wrap: segmentation writes them anew for every packet on a wire.
    pub inner_len: u32,
}

impl Encap {
    /// The bytes behind the outer Ethernet header over IPv4. DF is set: what does not fit is the
    /// sender's business, not the underlay's.
    #[inline(always)]
    #[must_use]
    pub fn over_v4(&self) -> [u8; ROOM_V4] {
        let total = wire_len(self.inner_len.wrapping_add(Room::V4.bytes()));
        let (src, dst) = (ip::unmapped(&self.src), ip::unmapped(&self.dst));
        let outer = ip::v4_header(self.tos, total, self.ttl, ip::UDP, src, dst);
        let mut bytes = [0; ROOM_V4];
        let (head, tail) = bytes.split_at_mut(Ipv4Hdr::LEN);
        head.copy_from_slice(&outer);
        tail.copy_from_slice(&self.tail());
        bytes
    }

    /// The bytes behind the outer Ethernet header over IPv6.
    #[inline(always)]
    #[must_use]
    pub fn over_v6(&self) -> [u8; ROOM_V6] {
        let [l0, l1] = wire_len(self.inner_len.wrapping_add(Room::V6.bytes()).wrapping_sub(40));
        let first = 6 << 28 | u32::from(self.tos) << 20 | self.hash & 0x000f_ffff;
        let mut bytes = [0; ROOM_V6];
        let (head, tail) = bytes.split_at_mut(Ipv6Hdr::LEN);
        let (fixed, addresses) = head.split_at_mut(8);
        let [f0, f1, f2, f3] = first.to_be_bytes();
        fixed.copy_from_slice(&[f0, f1, f2, f3, l0, l1, ip::UDP, self.ttl]);
        let (src, dst) = addresses.split_at_mut(16);
        src.copy_from_slice(&self.src);
        dst.copy_from_slice(&self.dst);
        tail.copy_from_slice(&self.tail());
        bytes
    }

    #[inline(always)]
    fn tail(&self) -> [u8; TAIL] {
        let [sp0, sp1] = source_port(self.hash).to_be_bytes();
        let [dp0, dp1] = self.port.to_be_bytes();
        let [u0, u1] = self.udp_len();
        let [h0, h1, h2, h3, h4, h5, h6, h7] = self.format.header(self.vni);
        let [m0, m1, m2, m3, m4, m5] = eth::MULTICLUSTER_MAC;
        let [n0, n1, n2, n3, n4, n5] = self.inner_src;
        let [e0, e1] = self.inner_type.to_be_bytes();
        let mut tail = [
            sp0, sp1, dp0, dp1, u0, u1, 0, 0, // UDP
            h0, h1, h2, h3, h4, h5, h6, h7, // Geneve or VXLAN
            m0, m1, m2, m3, m4, m5, n0, n1, n2, n3, n4, n5, e0, e1, // inner Ethernet
        ];
        if let Some(inner) = self.inner_sum {
            let [_, _, _, _, _, _, c0, c1, ..] = &mut tail;
            [*c0, *c1] = self.udp_checksum(inner);
        }
        tail
    }

    #[inline(always)]
    fn udp_len(&self) -> [u8; 2] {
        wire_len(self.inner_len.wrapping_add(Room::V4.bytes()).wrapping_sub(20))
    }

    /// The UDP checksum over pseudo header, UDP, tunnel header, inner Ethernet and inner packet.
    #[inline(always)]
    fn udp_checksum(&self, inner: u64) -> [u8; 2] {
        let [u0, u1] = self.udp_len();
        let [sp0, sp1] = source_port(self.hash).to_be_bytes();
        let [dp0, dp1] = self.port.to_be_bytes();
        let [m0, m1, m2, m3, m4, m5] = eth::MULTICLUSTER_MAC;
        let [n0, n1, n2, n3, n4, n5] = self.inner_src;
        let [e0, e1] = self.inner_type.to_be_bytes();
        // The length counts twice: in the pseudo header and in the UDP header. Mapped addresses sum to
        // 0xffff more each, which is zero.
        let covered = [
            0,
            ip::UDP,
            u0,
            u1,
            u0,
            u1,
            sp0,
            sp1,
            dp0,
            dp1,
            m0,
            m1,
            m2,
            m3,
            m4,
            m5,
            n0,
            n1,
            n2,
            n3,
            n4,
            n5,
            e0,
            e1,
        ];
        let sum = checksum::sum(&covered)
            .wrapping_add(checksum::sum(&self.format.header(self.vni)))
            .wrapping_add(checksum::sum(&self.src))
            .wrapping_add(checksum::sum(&self.dst))
            .wrapping_add(inner);
        checksum::for_udp((!checksum::fold(sum)).to_ne_bytes())
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
