//! Packets drawn from the bytes of an input, before their encoding.

use std::net::IpAddr;

use crate::{
    headers::checksum_at,
    packets::{Ip, checksum, tcp_syn, udp, with_checksum},
};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// The bytes of an input, followed by zeros.
pub(crate) struct Bytes<'d>(pub(crate) &'d [u8]);

impl Bytes<'_> {
    pub(crate) fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub(crate) fn choose<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T {
        choices[usize::from(self.next()) % N]
    }
}

/// A packet between a client and a Service or a Pod.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArbitraryPacket {
    pub(crate) src: (IpAddr, u16),
    pub(crate) dst: (IpAddr, u16),
    pub(crate) proto: u8,
    /// TCP flags.
    pub(crate) flags: u8,
    pub(crate) len: usize,
    /// The UDP checksum is omitted.
    pub(crate) without_checksum: bool,
    /// The checksum is wrong.
    pub(crate) wrong_checksum: bool,
}

impl ArbitraryPacket {
    pub(crate) fn new(bytes: &mut Bytes<'_>, src: (IpAddr, u16), dst: (IpAddr, u16), proto: u8) -> Self {
        let bits = bytes.next();
        Self {
            src,
            dst,
            proto,
            flags: [0x02, 0x10, 0x11, 0x12][usize::from(bits & 3)],
            len: usize::from(bytes.next()),
            // Mandatory in IPv6 (RFC 8200 section 8.1).
            without_checksum: bits & 4 != 0 && src.0.is_ipv4(),
            wrong_checksum: bits & 0x38 == 0x38,
        }
    }

    /// Header and payload of the transport protocol.
    pub(crate) fn message(self) -> Vec<u8> {
        let payload: Vec<u8> = (0..self.len).map(|at| at.to_le_bytes()[0] ^ 0x5a).collect();
        let (src, dst) = (self.src.1, self.dst.1);
        let mut message = if self.proto == TCP {
            let mut segment = tcp_syn(src, dst);
            segment[13] = self.flags;
            segment.extend(&payload);
            segment
        } else {
            udp(src, dst, &payload)
        };
        let at = checksum_at(self.proto).expect("a checksum");
        if self.proto == TCP || !self.without_checksum {
            message = with_checksum(self.src.0, self.dst.0, self.proto, message, at);
            if self.proto == UDP && message[at..at + 2] == [0, 0] {
                message[at..at + 2].fill(0xff);
            }
            if self.wrong_checksum {
                // Not the other representation of zero.
                message[at] ^= 0x40;
            }
        }
        message
    }

    pub(crate) fn to_ip(self) -> Ip {
        Ip::new(self.src.0, self.dst.0, self.proto, self.message())
    }

    /// The packet in two fragments, the first one with `cut` times eight bytes.
    pub(crate) fn fragments(self, cut: usize) -> [Ip; 2] {
        let message = self.message();
        let at = (cut * 8).min((message.len() - 1) / 8 * 8);
        let (first, later) = message.split_at(at);
        let place = u16::try_from(at).expect("small");
        let fragment = |payload: &[u8], place: u16, more: bool| {
            let mut packet = Ip::new(self.src.0, self.dst.0, self.proto, payload);
            if self.src.0.is_ipv4() {
                packet.frags = (place / 8) | if more { 0x2000 } else { 0 };
            } else {
                // RFC 8200 section 4.5.
                let [high, low] = (place | u16::from(more)).to_be_bytes();
                packet.options = vec![self.proto, 0, high, low, 0, 0, 0x12, 0x34];
                packet.proto = 44;
            }
            packet
        };
        [fragment(first, 0, true), fragment(later, place, false)]
    }

    pub(crate) fn to(self, dst: (IpAddr, u16)) -> Self {
        Self { dst, ..self }
    }

    /// The reverse direction.
    pub(crate) fn reply(self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            flags: 0x12,
            ..self
        }
    }

    /// Whether this is the first packet of a connection.
    pub(crate) fn opens_connection(self) -> bool {
        self.proto == TCP && self.flags & 0x12 == 0x02
    }

    pub(crate) fn has_wrong_checksum(self) -> bool {
        self.wrong_checksum && (self.proto == TCP || !self.without_checksum)
    }
}

/// An ICMP error of `from` that quotes a packet with source `src` and `len` bytes of its payload.
pub(crate) fn icmp_error_about(from: IpAddr, about: &ArbitraryPacket, src: (IpAddr, u16), len: usize) -> Ip {
    let mut message = about.message();
    message[..2].copy_from_slice(&src.1.to_be_bytes());
    let quoted = Ip::new(src.0, about.dst.0, about.proto, message).bytes();
    let header = if from.is_ipv4() { 20 } else { 40 };
    let quoted = &quoted[..(header + len).min(quoted.len())];
    if from.is_ipv4() {
        let mut error = vec![3, 1, 0, 0, 0, 0, 0, 0];
        error.extend(quoted);
        let sum = checksum(&error);
        error[2..4].copy_from_slice(&sum.to_be_bytes());
        return Ip::new(from, src.0, 1, error);
    }
    let mut error = vec![1, 0, 0, 0, 0, 0, 0, 0];
    error.extend(quoted);
    Ip::new(from, src.0, 58, with_checksum(from, src.0, 58, error, 2))
}
