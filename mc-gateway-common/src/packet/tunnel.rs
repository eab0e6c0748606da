//! The outer headers: IPv4, UDP and Geneve (RFC 8926), and the inner Ethernet header behind them.

use core::mem::offset_of;

use network_types::{eth::EthHdr, ip::Ipv4Hdr, udp::UdpHdr};

use super::{checksum, eth, eth::Mac, ip};

/// Length of the Geneve header without options (RFC 8926 section 3.4).
const GENEVE_LEN: usize = 8;
/// Geneve protocol type of an Ethernet payload: Transparent Ethernet Bridging.
const ETHERNET: u16 = 0x6558;
/// Bits of a Geneve header's second byte that demand processing: control packet, critical options.
const DEMANDING: u8 = 0xc0;

/// Bytes encapsulation adds in front of the inner IP packet.
pub const ROOM: usize = Ipv4Hdr::LEN + UdpHdr::LEN + GENEVE_LEN + EthHdr::LEN;
/// [`ROOM`] as a length on the wire.
#[expect(clippy::cast_possible_truncation, reason = "50")]
pub const ROOM_U32: u32 = ROOM as u32;
/// Bytes from the outer IP header to the end of an inner IPv4 header without options.
pub const HEADERS: usize = ROOM + Ipv4Hdr::LEN;
/// Offset of the outer UDP checksum in the frame.
#[expect(clippy::cast_possible_truncation, reason = "40")]
pub const UDP_CHECK: u32 = (EthHdr::LEN + Ipv4Hdr::LEN + offset_of!(UdpHdr, check)) as u32;
/// Offset of the inner Ethernet header in a frame whose tunnel header has no options.
#[expect(clippy::cast_possible_truncation, reason = "50")]
pub const INNER_ETH: u32 = (EthHdr::LEN + Ipv4Hdr::LEN + UdpHdr::LEN + GENEVE_LEN) as u32;

/// VNI while stretched policy is off, the same value an Antrea gateway sends.
pub const VNI_POLICY_OFF: u32 = 0;

/// UDP destination port of Geneve (IANA).
pub const GENEVE_PORT: u16 = 6081;

/// What differs between one encapsulated packet and the next.
#[derive(Clone, Copy, Debug)]
pub struct Encap {
    /// Outer source.
    pub src: [u8; 4],
    /// Outer destination.
    pub dst: [u8; 4],
    /// Outer UDP source port: the flow's entropy.
    pub src_port: u16,
    /// Outer UDP destination port.
    pub dst_port: u16,
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Inner Ethernet source.
    pub inner_src: Mac,
    /// Length of the inner IP packet in bytes. Above 65,485 (a GSO super-packet) the outer lengths wrap:
    /// segmentation writes them anew for every packet that reaches a wire.
    pub inner_len: u32,
}

impl Encap {
    /// The bytes to store behind the outer Ethernet header.
    ///
    /// DF is set and the UDP checksum is 0, which RFC 768 and RFC 8926 allow over IPv4.
    #[inline(always)]
    #[must_use]
    pub fn header(&self) -> [u8; ROOM] {
        let [t0, t1] = wire_len(self.inner_len.wrapping_add(ROOM_U32));
        let [u0, u1] = wire_len(self.inner_len.wrapping_add(ROOM_U32).wrapping_sub(20));
        let [s0, s1, s2, s3] = self.src;
        let [d0, d1, d2, d3] = self.dst;
        let [sp0, sp1] = self.src_port.to_be_bytes();
        let [dp0, dp1] = self.dst_port.to_be_bytes();
        let [_, v0, v1, v2] = self.vni.to_be_bytes();
        let [m0, m1, m2, m3, m4, m5] = eth::MULTICLUSTER_MAC;
        let [n0, n1, n2, n3, n4, n5] = self.inner_src;
        let [e0, e1] = ETHERNET.to_be_bytes();
        let [i0, i1] = eth::IPV4.to_be_bytes();
        let outer = [
            0x45,
            0,
            t0,
            t1,
            0,
            0,
            0x40,
            0,
            64,
            ip::UDP,
            0,
            0,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ];
        let [c0, c1] = checksum::of_header(&outer);
        [
            0x45,
            0,
            t0,
            t1,
            0,
            0,
            0x40,
            0,
            64,
            ip::UDP,
            c0,
            c1,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3, // IPv4
            sp0,
            sp1,
            dp0,
            dp1,
            u0,
            u1,
            0,
            0, // UDP
            0,
            0,
            e0,
            e1,
            v0,
            v1,
            v2,
            0, // Geneve
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
            i0,
            i1, // inner Ethernet
        ]
    }
}

#[inline(always)]
fn wire_len(len: u32) -> [u8; 2] {
    let [_, _, high, low] = len.to_be_bytes();
    [high, low]
}

/// Offsets behind the outer Ethernet header.
const UDP: usize = Ipv4Hdr::LEN;
const UDP_SRC_AT: usize = UDP + offset_of!(UdpHdr, src);
const UDP_DST_AT: usize = UDP + offset_of!(UdpHdr, dst);
const UDP_CHECK_AT: usize = UDP + offset_of!(UdpHdr, check);
const GENEVE_AT: usize = UDP + UdpHdr::LEN;
const GENEVE_TYPE_AT: usize = GENEVE_AT + 2;
const INNER_ETH_AT: usize = GENEVE_AT + GENEVE_LEN;
const INNER_TYPE_AT: usize = INNER_ETH_AT + offset_of!(EthHdr, ether_type);

/// A view of the headers of a frame that may be ours, from the outer IPv4 header on.
#[derive(Clone, Copy, Debug)]
pub struct Headers<'a>(&'a [u8; HEADERS]);

/// Reads `N` bytes at the constant `AT` of the headers; out of bounds does not compile.
macro_rules! field {
    ($headers:expr, $at:expr, $len:literal) => {{
        const AT: usize = $at;
        const _: () = assert!(HEADERS - AT >= $len);
        let (_, rest) = $headers.split_at(AT);
        match rest.first_chunk::<$len>() {
            Some(bytes) => *bytes,
            None => [0; $len],
        }
    }};
}

impl<'a> Headers<'a> {
    /// Views the bytes that follow the outer Ethernet header.
    #[inline(always)]
    #[must_use]
    pub const fn new(bytes: &'a [u8; HEADERS]) -> Self {
        Self(bytes)
    }

    /// The outer IPv4 header's bytes.
    #[inline(always)]
    #[must_use]
    pub fn outer_bytes(&self) -> [u8; 20] {
        field!(self.0, 0, 20)
    }

    /// UDP destination port.
    #[inline(always)]
    #[must_use]
    pub fn udp_dst(&self) -> u16 {
        u16::from_be_bytes(field!(self.0, UDP_DST_AT, 2))
    }

    /// UDP source port.
    #[inline(always)]
    #[must_use]
    pub fn udp_src(&self) -> u16 {
        u16::from_be_bytes(field!(self.0, UDP_SRC_AT, 2))
    }

    /// UDP checksum; zero means none.
    #[inline(always)]
    #[must_use]
    pub fn udp_check(&self) -> [u8; 2] {
        field!(self.0, UDP_CHECK_AT, 2)
    }

    /// Length of the Geneve options in bytes.
    #[inline(always)]
    #[must_use]
    pub fn options_len(&self) -> u32 {
        let [first] = field!(self.0, GENEVE_AT, 1);
        u32::from(first & 0x3f).wrapping_mul(4)
    }

    /// Whether the payload is Ethernet, the only kind of ours.
    #[inline(always)]
    #[must_use]
    pub fn carries_ethernet(&self) -> bool {
        u16::from_be_bytes(field!(self.0, GENEVE_TYPE_AT, 2)) == ETHERNET
    }

    /// Whether the Geneve header has version 0 and demands nothing we do not do.
    #[inline(always)]
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let [first, second] = field!(self.0, GENEVE_AT, 2);
        first >> 6 == 0 && second & DEMANDING == 0
    }

    /// Inner Ethernet destination, where the tunnel header has no options.
    #[inline(always)]
    #[must_use]
    pub fn inner_mac(&self) -> Mac {
        field!(self.0, INNER_ETH_AT, 6)
    }

    /// Inner ethertype.
    #[inline(always)]
    #[must_use]
    pub fn inner_ethertype(&self) -> u16 {
        u16::from_be_bytes(field!(self.0, INNER_TYPE_AT, 2))
    }

    /// Inner IPv4 header.
    #[inline(always)]
    #[must_use]
    pub fn inner(&self) -> ip::V4 {
        ip::V4::read(&field!(self.0, ROOM, 20))
    }
}

/// The outer IPv4 header of a packet passed on by a gateway: new addresses, TTL one lower, new checksum.
#[inline(always)]
#[must_use]
pub fn transit_header(outer: &[u8; 20], src: [u8; 4], dst: [u8; 4]) -> [u8; 20] {
    let [vihl, tos, t0, t1, i0, i1, f0, f1, ttl, proto, ..] = *outer;
    let [s0, s1, s2, s3] = src;
    let [d0, d1, d2, d3] = dst;
    let ttl = ttl.wrapping_sub(1);
    let mut header = [
        vihl, tos, t0, t1, i0, i1, f0, f1, ttl, proto, 0, 0, s0, s1, s2, s3, d0, d1, d2, d3,
    ];
    let sum = checksum::of_header(&header);
    let [.., c0, c1, _, _, _, _, _, _, _, _] = &mut header;
    [*c0, *c1] = sum;
    header
}
