//! Builders of test frames, independent of the code under test.

use std::net::IpAddr;

use bytes::{BufMut as _, Bytes, BytesMut};

/// Multi-cluster inner destination address, deliberately a copy.
pub const F0: [u8; 6] = [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xf0];
/// Addresses of the outer Ethernet header, which no program reads.
pub const OUTER_DST: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
/// Source address of the outer Ethernet header, which no program reads.
pub const OUTER_SRC: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
const INNER_SRC: [u8; 6] = [2, 0, 0, 0, 0, 0x33];

/// RFC 1071 checksum in the slow and obvious form.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

/// An IPv4 or IPv6 packet, field by field.
#[derive(Clone, Debug)]
pub struct Ip {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Protocol number, or next header.
    pub proto: u8,
    /// TTL, or hop limit.
    pub ttl: u8,
    /// TOS byte, or traffic class.
    pub tos: u8,
    /// IPv4 identification.
    pub id: u16,
    /// IPv4 flags and fragment offset.
    pub frags: u16,
    /// IPv4 options, or IPv6 extension headers.
    pub options: Vec<u8>,
    /// IPv6 flow label.
    pub label: u32,
    /// Overrides the first byte of an IPv4 header.
    pub vihl: Option<u8>,
    /// Overrides the length field.
    pub total: Option<u16>,
    /// Added to the correct checksum.
    pub checksum_error: u16,
    /// Bytes after the header and its options.
    pub payload: Vec<u8>,
}

impl Ip {
    /// A packet that is not fragmented, with TTL 64.
    pub fn new(
        src: impl Into<IpAddr>,
        dst: impl Into<IpAddr>,
        proto: u8,
        payload: impl Into<Vec<u8>>,
    ) -> Self {
        Self {
            src: src.into(),
            dst: dst.into(),
            proto,
            ttl: 64,
            tos: 0,
            id: 0x1234,
            frags: 0x4000,
            options: Vec::new(),
            label: 0,
            vihl: None,
            total: None,
            checksum_error: 0,
            payload: payload.into(),
        }
    }

    /// The packet, with correct lengths and checksum unless overridden.
    pub fn bytes(&self) -> Bytes {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.v4(src.octets(), dst.octets()),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.v6(src.octets(), dst.octets()),
            (src, dst) => panic!("{src} and {dst} are of different versions"),
        }
    }

    fn v6(&self, src: [u8; 16], dst: [u8; 16]) -> Bytes {
        let length = u16::try_from(self.options.len() + self.payload.len()).unwrap_or(0);
        let mut out = BytesMut::new();
        out.put_u32(6 << 28 | u32::from(self.tos) << 20 | self.label);
        out.put_u16(self.total.unwrap_or(length));
        out.put_u8(self.proto);
        out.put_u8(self.ttl);
        out.put_slice(&src);
        out.put_slice(&dst);
        out.put_slice(&self.options);
        out.put_slice(&self.payload);
        out.freeze()
    }

    fn v4(&self, src: [u8; 4], dst: [u8; 4]) -> Bytes {
        let header_len = 20 + self.options.len();
        let total = u16::try_from(header_len + self.payload.len()).unwrap_or(0);
        let mut out = BytesMut::new();
        out.put_u8(
            self.vihl
                .unwrap_or(0x40 | u8::try_from(header_len / 4).expect("at most 60 bytes")),
        );
        out.put_u8(self.tos);
        out.put_u16(self.total.unwrap_or(total));
        out.put_u16(self.id);
        out.put_u16(self.frags);
        out.put_u8(self.ttl);
        out.put_u8(self.proto);
        out.put_u16(0);
        out.put_slice(&src);
        out.put_slice(&dst);
        out.put_slice(&self.options);
        let sum = checksum(&out).wrapping_add(self.checksum_error);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
        out.put_slice(&self.payload);
        out.freeze()
    }

    /// The packet with an Ethernet header, as sent on `mc0`.
    pub fn frame(&self) -> Vec<u8> {
        ethernet(OUTER_DST, OUTER_SRC, self.ethertype(), &self.bytes())
    }

    /// Ethernet type of the packet.
    pub fn ethertype(&self) -> u16 {
        if self.src.is_ipv4() { 0x0800 } else { 0x86dd }
    }
}

/// UDP with a payload and without a checksum.
pub fn udp(src: u16, dst: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    out.put_u16(src);
    out.put_u16(dst);
    out.put_u16(u16::try_from(8 + payload.len()).unwrap_or(0));
    out.put_u16(0);
    out.put_slice(payload);
    out.to_vec()
}

/// A TCP SYN without options.
pub fn tcp_syn(src: u16, dst: u16) -> Vec<u8> {
    let mut out = BytesMut::new();
    out.put_u16(src);
    out.put_u16(dst);
    out.put_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    out.to_vec()
}

/// A frame with an Ethernet header.
pub fn ethernet(dst: [u8; 6], src: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    out.put_slice(&dst);
    out.put_slice(&src);
    out.put_u16(ethertype);
    out.put_slice(payload);
    out.to_vec()
}

/// An encapsulated packet, field by field.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// TOS byte, or traffic class.
    pub tos: u8,
    /// TTL, or hop limit.
    pub ttl: u8,
    /// Outer IPv6 flow label.
    pub label: u32,
    /// VXLAN instead of Geneve.
    pub vxlan: bool,
    /// IPv4 flags and fragment offset.
    pub frags: u16,
    /// Outer IPv4 options, or outer IPv6 extension headers.
    pub outer_options: Vec<u8>,
    /// Protocol field of the outer header.
    pub outer_next: u8,
    /// Added to the correct checksum of the outer IPv4 header.
    pub outer_checksum_error: u16,
    /// Outer UDP source port.
    pub src_port: u16,
    /// Outer UDP destination port.
    pub dst_port: u16,
    /// Include a UDP checksum instead of 0.
    pub udp_checksum: bool,
    /// First two bytes of the Geneve header: version and options length, flags.
    pub geneve: [u8; 2],
    /// Protocol type of the Geneve header.
    pub geneve_type: u16,
    /// Virtual network identifier, 24 bits.
    pub vni: u32,
    /// Options of the Geneve header.
    pub geneve_options: Vec<u8>,
    /// Inner destination MAC address.
    pub mac: [u8; 6],
    /// Inner source MAC address.
    pub inner_src: [u8; 6],
    /// Inner Ethernet type.
    pub inner_type: u16,
    /// The inner IP packet.
    pub inner: Vec<u8>,
}

impl Tunnel {
    /// A Geneve packet without options and UDP checksum, to this project's inner MAC address.
    pub fn new(src: impl Into<IpAddr>, dst: impl Into<IpAddr>, inner: &Ip) -> Self {
        Self {
            src: src.into(),
            dst: dst.into(),
            tos: 0,
            ttl: 64,
            label: 0,
            vxlan: false,
            frags: 0x4000,
            outer_options: Vec::new(),
            outer_next: 17,
            outer_checksum_error: 0,
            src_port: 0xc123,
            dst_port: 6081,
            udp_checksum: false,
            geneve: [0, 0],
            geneve_type: 0x6558,
            vni: 0,
            geneve_options: Vec::new(),
            mac: F0,
            inner_src: INNER_SRC,
            inner_type: inner.ethertype(),
            inner: inner.bytes().to_vec(),
        }
    }

    /// The encapsulated packet with an Ethernet header, as received from the underlay.
    #[must_use]
    pub fn frame(&self) -> Vec<u8> {
        let mut tunnel = BytesMut::new();
        if self.vxlan {
            tunnel.put_u32(0x0800_0000);
        } else {
            tunnel.put_slice(&self.geneve);
            tunnel.put_u16(self.geneve_type);
        }
        tunnel.put_u32(self.vni << 8);
        tunnel.put_slice(&self.geneve_options);
        tunnel.put_slice(&ethernet(self.mac, self.inner_src, self.inner_type, &self.inner));
        let mut datagram = udp(self.src_port, self.dst_port, &tunnel);
        if self.udp_checksum {
            let sum = l4_checksum(self.src, self.dst, 17, &datagram);
            let sum = if sum == 0 { 0xffff } else { sum };
            datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        }
        let mut outer = Ip::new(self.src, self.dst, self.outer_next, datagram);
        outer.ttl = self.ttl;
        outer.tos = self.tos;
        outer.label = self.label;
        outer.id = 0;
        outer.frags = self.frags;
        outer.options.clone_from(&self.outer_options);
        outer.checksum_error = self.outer_checksum_error;
        outer.frame()
    }
}

/// Checksum over pseudo header and message of TCP, UDP or `ICMPv6` (RFC 9293, RFC 768, RFC 8200 section 8.1). The
/// message's checksum field is zero.
pub fn l4_checksum(src: IpAddr, dst: IpAddr, proto: u8, message: &[u8]) -> u16 {
    let mut all = BytesMut::new();
    for address in [src, dst] {
        match address {
            IpAddr::V4(address) => all.put_slice(&address.octets()),
            IpAddr::V6(address) => all.put_slice(&address.octets()),
        }
    }
    all.put_u32(u32::try_from(message.len()).expect("a message"));
    all.put_u32(proto.into());
    all.put_slice(message);
    checksum(&all)
}

/// A message with its checksum at offset `at`.
pub fn with_checksum(src: IpAddr, dst: IpAddr, proto: u8, mut message: Vec<u8>, at: usize) -> Vec<u8> {
    message[at..at + 2].fill(0);
    let sum = l4_checksum(src, dst, proto, &message);
    message[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    message
}
