//! Header parser independent of the data path, used to check its results.

use std::net::IpAddr;

use crate::packets::{checksum, l4_checksum};

/// An IP packet, split at the end of its header and at its total length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ip<'p> {
    pub(crate) v6: bool,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) proto: u8,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) fragment: bool,
    pub(crate) header: &'p [u8],
    pub(crate) payload: &'p [u8],
    /// Bytes behind the total length.
    pub(crate) rest: &'p [u8],
}

pub(crate) fn ip(bytes: &[u8]) -> Option<Ip<'_>> {
    match bytes.first()? >> 4 {
        4 => v4(bytes),
        6 => v6(bytes),
        _ => None,
    }
}

/// Like [`ip`], but with the payload up to the end of the frame: the outer length is not used on the path, and the
/// inner one is validated before forwarding.
pub(crate) fn outer_ip(bytes: &[u8]) -> Option<Ip<'_>> {
    let mut whole = bytes.to_vec();
    let at = if bytes.first()? >> 4 == 6 { 4 } else { 2 };
    let len = bytes.len() - if at == 4 { 40.min(bytes.len()) } else { 0 };
    let len = u16::try_from(len).ok()?;
    whole.get_mut(at..at + 2)?.copy_from_slice(&len.to_be_bytes());
    let read = ip(&whole)?;
    let len = read.header.len();
    Some(Ip {
        v6: read.v6,
        src: read.src,
        dst: read.dst,
        proto: read.proto,
        tos: read.tos,
        ttl: read.ttl,
        fragment: read.fragment,
        header: &bytes[..len],
        payload: &bytes[len..],
        rest: &[],
    })
}

/// Whether a packet's length and its payload's checksum are valid.
pub(crate) fn checksum_is_valid(bytes: &[u8]) -> bool {
    ip(bytes).is_some_and(|packet| packet.payload_checksum_is_valid())
}

fn v4(bytes: &[u8]) -> Option<Ip<'_>> {
    let len = usize::from(bytes.first()? & 15) * 4;
    if len < 20 || bytes.len() < len {
        return None;
    }
    let total = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
    let payload = bytes.get(len..total)?;
    let address = |at: usize| IpAddr::from([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Some(Ip {
        v6: false,
        src: address(12),
        dst: address(16),
        proto: bytes[9],
        tos: bytes[1],
        ttl: bytes[8],
        fragment: bytes[6] & 0x3f != 0 || bytes[7] != 0,
        header: &bytes[..len],
        payload,
        rest: &bytes[total..],
    })
}

fn v6(bytes: &[u8]) -> Option<Ip<'_>> {
    let header = bytes.get(..40)?;
    let total = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let address =
        |at: usize| IpAddr::from(<[u8; 16]>::try_from(&header[at..at + 16]).expect("sixteen bytes"));
    Some(Ip {
        v6: true,
        src: address(8),
        dst: address(24),
        proto: header[6],
        tos: header[0] << 4 | header[1] >> 4,
        ttl: header[7],
        fragment: false,
        header,
        payload: bytes.get(40..total)?,
        rest: &bytes[total..],
    })
}

impl Ip<'_> {
    /// Whether the IPv4 header checksum is valid; IPv6 has none.
    pub(crate) fn header_checksum_is_valid(&self) -> bool {
        self.v6 || checksum(self.header) == 0
    }

    /// Whether the checksum over pseudo header and payload is valid.
    pub(crate) fn payload_checksum_is_valid(&self) -> bool {
        l4_checksum(self.src, self.dst, self.proto, self.payload) == 0
    }

    pub(crate) fn ethertype(&self) -> [u8; 2] {
        if self.v6 { [0x86, 0xdd] } else { [8, 0] }
    }
}

/// Offset of the checksum in a transport header.
pub(crate) fn checksum_at(proto: u8) -> Option<usize> {
    match proto {
        6 => Some(16),
        17 => Some(6),
        58 => Some(2),
        _ => None,
    }
}

/// Offset and value of a segment's MSS option.
pub(crate) fn mss(segment: &[u8]) -> Option<(usize, u16)> {
    let end = usize::from(segment.get(12)? >> 4) * 4;
    let mut at = 20;
    while at < end.min(segment.len()) {
        let len = match segment[at] {
            0 => return None,
            1 => 1,
            kind => {
                let len = usize::from(*segment.get(at + 1)?);
                if kind == 2 && len == 4 {
                    return Some((
                        at + 2,
                        u16::from_be_bytes([*segment.get(at + 2)?, *segment.get(at + 3)?]),
                    ));
                }
                len.max(2)
            }
        };
        at += len;
    }
    None
}
