//! Frames for the cases, built from scratch: nothing here comes from the code under test.

use bytes::{BufMut as _, Bytes, BytesMut};

/// Multi-cluster inner destination address, on purpose written out again.
pub(crate) const F0: [u8; 6] = [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xf0];
/// Addresses of the outer Ethernet header; no program looks at them.
pub(crate) const OUTER_DST: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const OUTER_SRC: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
const INNER_SRC: [u8; 6] = [2, 0, 0, 0, 0, 0x33];

/// RFC 1071 over any bytes, the slow and obvious way.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded")
}

/// An IPv4 packet, field by field.
#[derive(Clone, Debug)]
pub(crate) struct Ip {
    pub(crate) src: [u8; 4],
    pub(crate) dst: [u8; 4],
    pub(crate) proto: u8,
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
    pub(crate) id: u16,
    pub(crate) frags: u16,
    pub(crate) options: Vec<u8>,
    /// Overrides the first byte.
    pub(crate) vihl: Option<u8>,
    /// Overrides the total length.
    pub(crate) total: Option<u16>,
    /// Added to the correct checksum.
    pub(crate) checksum_error: u16,
    pub(crate) payload: Vec<u8>,
}

impl Ip {
    pub(crate) fn new(src: [u8; 4], dst: [u8; 4], proto: u8, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            src,
            dst,
            proto,
            ttl: 64,
            tos: 0,
            id: 0x1234,
            frags: 0x4000,
            options: Vec::new(),
            vihl: None,
            total: None,
            checksum_error: 0,
            payload: payload.into(),
        }
    }

    pub(crate) fn bytes(&self) -> Bytes {
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
        out.put_slice(&self.src);
        out.put_slice(&self.dst);
        out.put_slice(&self.options);
        let sum = checksum(&out).wrapping_add(self.checksum_error);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
        out.put_slice(&self.payload);
        out.freeze()
    }

    /// The frame `mc0` would send: Ethernet in front.
    pub(crate) fn frame(&self) -> Vec<u8> {
        ethernet(OUTER_DST, OUTER_SRC, 0x0800, &self.bytes())
    }
}

/// UDP with a payload; the checksum is left out, as nothing here reads it.
pub(crate) fn udp(src: u16, dst: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    out.put_u16(src);
    out.put_u16(dst);
    out.put_u16(u16::try_from(8 + payload.len()).unwrap_or(0));
    out.put_u16(0);
    out.put_slice(payload);
    out.to_vec()
}

/// A TCP SYN without options.
pub(crate) fn tcp_syn(src: u16, dst: u16) -> Vec<u8> {
    let mut out = BytesMut::new();
    out.put_u16(src);
    out.put_u16(dst);
    out.put_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    out.to_vec()
}

pub(crate) fn ethernet(dst: [u8; 6], src: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    out.put_slice(&dst);
    out.put_slice(&src);
    out.put_u16(ethertype);
    out.put_slice(payload);
    out.to_vec()
}

/// An encapsulated packet, field by field.
#[derive(Clone, Debug)]
pub(crate) struct Tunnel {
    pub(crate) src: [u8; 4],
    pub(crate) dst: [u8; 4],
    pub(crate) ttl: u8,
    pub(crate) frags: u16,
    pub(crate) outer_options: Vec<u8>,
    pub(crate) outer_checksum_error: u16,
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    /// Write a UDP checksum instead of 0.
    pub(crate) udp_checksum: bool,
    /// First two bytes of the Geneve header: version and options length, flags.
    pub(crate) geneve: [u8; 2],
    pub(crate) geneve_type: u16,
    pub(crate) vni: u32,
    pub(crate) geneve_options: Vec<u8>,
    pub(crate) mac: [u8; 6],
    pub(crate) inner_type: u16,
    pub(crate) inner: Vec<u8>,
}

impl Tunnel {
    pub(crate) fn new(src: [u8; 4], dst: [u8; 4], inner: &Ip) -> Self {
        Self {
            src,
            dst,
            ttl: 64,
            frags: 0x4000,
            outer_options: Vec::new(),
            outer_checksum_error: 0,
            src_port: 0xc123,
            dst_port: 6081,
            udp_checksum: false,
            geneve: [0, 0],
            geneve_type: 0x6558,
            vni: 0,
            geneve_options: Vec::new(),
            mac: F0,
            inner_type: 0x0800,
            inner: inner.bytes().to_vec(),
        }
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut tunnel = BytesMut::new();
        tunnel.put_slice(&self.geneve);
        tunnel.put_u16(self.geneve_type);
        tunnel.put_u32(self.vni << 8);
        tunnel.put_slice(&self.geneve_options);
        tunnel.put_slice(&ethernet(self.mac, INNER_SRC, self.inner_type, &self.inner));
        let mut datagram = udp(self.src_port, self.dst_port, &tunnel);
        if self.udp_checksum {
            let sum = udp_checksum(self.src, self.dst, &datagram);
            datagram[6..8].copy_from_slice(&sum.to_be_bytes());
        }
        let mut outer = Ip::new(self.src, self.dst, 17, datagram);
        outer.ttl = self.ttl;
        outer.id = 0;
        outer.frags = self.frags;
        outer.options.clone_from(&self.outer_options);
        outer.checksum_error = self.outer_checksum_error;
        outer.frame()
    }
}

/// RFC 768: over pseudo header, header and payload; 0 is written as all ones.
pub(crate) fn udp_checksum(src: [u8; 4], dst: [u8; 4], datagram: &[u8]) -> u16 {
    let mut all = BytesMut::new();
    all.put_slice(&src);
    all.put_slice(&dst);
    all.put_u16(17);
    all.put_u16(u16::try_from(datagram.len()).expect("a datagram"));
    all.put_slice(&datagram[..6]);
    all.put_u16(0);
    all.put_slice(&datagram[8..]);
    match checksum(&all) {
        0 => 0xffff,
        sum => sum,
    }
}
