//! Unfragmented packets with a transport header behind an IP header without options or extensions: most packets. Words
//! at constant offsets cost less than the loads of the parser, which reads all others.

use super::service::l4_header::{L4Header, L4Kind};
use crate::{
    abi::Addr,
    packet::{
        Frame, eth, ip,
        offsets::{TCP_FLAGS, ipv4, ipv6},
        tcp,
    },
};

/// A frame as its words at constant offsets show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainPacket {
    v6: bool,
    content: Content,
}

/// Content behind the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// A TCP segment that opens no connection.
    OpenSegment,
    /// A TCP segment that opens a connection.
    Syn,
    /// A UDP datagram.
    Udp,
    /// An SCTP packet.
    Sctp,
    /// An ICMP message.
    Icmp,
    /// Another one, a fragment, or outside of the linear part of the packet.
    Unknown,
}

impl PlainPacket {
    #[inline(always)]
    pub(super) fn read<P: Frame>(packet: &P, v6: bool) -> Self {
        let content = match protocol(packet, v6) {
            ip::TCP => match flags(packet, v6) {
                Some(flags) if tcp::opens_connection(flags) => Content::Syn,
                Some(_) => Content::OpenSegment,
                None => Content::Unknown,
            },
            ip::UDP => Content::Udp,
            ip::SCTP => Content::Sctp,
            ip::ICMP | ip::ICMPV6 => Content::Icmp,
            _ => Content::Unknown,
        };
        Self { v6, content }
    }

    /// Whether it is a TCP segment that opens no connection.
    #[inline(always)]
    pub(super) const fn is_open_segment(self) -> bool {
        matches!(self.content, Content::OpenSegment)
    }

    /// Source and destination of a packet that may open a flow, and in which the parser finds no fault.
    #[inline(always)]
    pub(super) fn addresses<P: Frame>(self, packet: &P) -> Option<[Addr; 2]> {
        if matches!(self.content, Content::OpenSegment | Content::Unknown) {
            return None;
        }
        self.transport(packet)?;
        addresses(packet, self.v6)
    }

    /// The transport header of a packet with ports, as the parser reads it, with source and destination.
    #[inline(always)]
    pub(super) fn header<P: Frame>(self, packet: &P) -> Option<(L4Header, [Addr; 2])> {
        let (proto, kind) = match self.content {
            Content::OpenSegment | Content::Syn => (ip::TCP, L4Kind::Unfragmented),
            Content::Udp => (ip::UDP, L4Kind::Unfragmented),
            Content::Sctp => (ip::SCTP, L4Kind::Sctp),
            Content::Icmp | Content::Unknown => return None,
        };
        let [s0, s1, d0, d1, ..] = self.transport(packet)?;
        let header = L4Header {
            kind,
            v6: self.v6,
            syn: matches!(self.content, Content::Syn),
            open: matches!(self.content, Content::OpenSegment | Content::Udp),
            proto,
            at: eth::END.wrapping_add(if self.v6 { ipv6::LEN } else { ipv4::LEN }),
            src_port: u16::from_be_bytes([s0, s1]),
            dst_port: u16::from_be_bytes([d0, d1]),
        };
        Some((header, addresses(packet, self.v6)?))
    }

    /// The first bytes behind the IP header: ports, or the header of an echo message.
    #[inline(always)]
    fn transport<P: Frame>(self, packet: &P) -> Option<[u8; 8]> {
        let words = if self.v6 {
            packet.load_words::<{ at(ipv6::LEN) }, 1>()
        } else {
            packet.load_words::<{ at(ipv4::LEN) }, 1>()
        };
        words.map(|words| words.word(0).to_le_bytes())
    }
}

/// Offset in the frame of a byte at `offset` in the IP header or behind it.
const fn at(offset: u32) -> u32 {
    eth::END.wrapping_add(offset)
}

/// The protocol behind an IPv4 header without options, of no fragment, or behind an IPv6 header; an extension is no
/// protocol of [`PlainPacket`]. 0 without such a header.
#[inline(always)]
fn protocol<P: Frame>(packet: &P, v6: bool) -> u8 {
    const PLAIN_V4: u8 = 0x45;
    // Offset and "more fragments" (RFC 791 section 3.1) in the first two bytes.
    const FRAGMENT: [u8; 2] = [0x3f, 0xff];
    if v6 {
        let word = packet.load_u32::<{ at(ipv6::NEXT_HEADER) }>();
        return word.map_or(0, |word| word.to_le_bytes()[0]);
    }
    let first = packet.load_u32::<{ at(0) }>().map(u32::to_le_bytes);
    let fragment = packet.load_u32::<{ at(ipv4::FRAGS) }>().map(u32::to_le_bytes);
    match (first, fragment) {
        (Some([PLAIN_V4, ..]), Some([f0, f1, _, proto]))
            if f0 & FRAGMENT[0] == 0 && f1 & FRAGMENT[1] == 0 =>
        {
            proto
        }
        _ => 0,
    }
}

/// The flags of the TCP header.
#[inline(always)]
fn flags<P: Frame>(packet: &P, v6: bool) -> Option<u8> {
    let word = if v6 {
        packet.load_u32::<{ last_of_word(ipv6::LEN) }>()
    } else {
        packet.load_u32::<{ last_of_word(ipv4::LEN) }>()
    };
    word.map(|word| word.to_le_bytes()[3])
}

/// Offset of the word that ends with the flags of TCP, behind an IP header of `len` bytes.
const fn last_of_word(len: u32) -> u32 {
    at(len).wrapping_add(TCP_FLAGS).wrapping_sub(3)
}

/// Source and destination.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "halves of a word")]
fn addresses<P: Frame>(packet: &P, v6: bool) -> Option<[Addr; 2]> {
    if v6 {
        let words = packet.load_words::<{ at(ipv6::SRC) }, 4>()?;
        let addr = |i: usize| {
            let (low, high) = (words.word(i), words.word(i.wrapping_add(1)));
            (u128::from(low) | u128::from(high) << 64).to_le_bytes()
        };
        return Some([addr(0), addr(2)]);
    }
    let word = packet.load_words::<{ at(ipv4::SRC) }, 1>()?.word(0);
    let addr = |half: u64| ip::mapped((half as u32).to_le_bytes());
    Some([addr(word), addr(word >> 32)])
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{
        packet::SlicePacket,
        pipeline::{
            policy_flow::{flow_key, opening},
            subprograms::Subprograms,
        },
    };

    /// A packet behind an IP header of 20 or 40 bytes, of which some bytes are replaced. Bytes behind it are flags of
    /// TCP at offset 13, and zero.
    fn frame(v6: bool, proto: u8, flags: u8, changes: &[(usize, u8)]) -> SlicePacket {
        let mut bytes = vec![0; 12];
        bytes.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        let mut header = if v6 { vec![0; 40] } else { vec![0; 20] };
        header[0] = if v6 { 0x60 } else { 0x45 };
        header[if v6 { 6 } else { 9 }] = proto;
        bytes.extend(header);
        let mut segment = [0; 20];
        (segment[12], segment[13]) = (0x50, flags);
        bytes.extend(segment);
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(14 + at) {
                *byte = *value;
            }
        }
        SlicePacket::new(bytes)
    }

    #[test]
    fn the_flags_of_a_plain_segment_decide() {
        for v6 in [false, true] {
            for flags in 0..=u8::MAX {
                let opens = flags & 0x12 == 0x02;
                let plain = PlainPacket::read(&frame(v6, ip::TCP, flags, &[]), v6);
                assert_eq!(plain.is_open_segment(), !opens);
            }
        }
    }

    #[test]
    fn the_words_of_each_protocol_with_ports_suffice() {
        for v6 in [false, true] {
            for proto in [ip::TCP, ip::UDP, ip::SCTP] {
                let packet = frame(v6, proto, 2, &[]);
                let plain = PlainPacket::read(&packet, v6);
                let l4 = packet.parse_l4(v6, eth::END).unpack();
                assert_eq!(plain.header(&packet).map(|(header, _)| header), Some(l4));
            }
            let icmp = frame(v6, if v6 { ip::ICMPV6 } else { ip::ICMP }, 0, &[]);
            let plain = PlainPacket::read(&icmp, v6);
            assert_eq!(plain.header(&icmp), None);
            assert!(plain.addresses(&icmp).is_some());
        }
    }

    proptest! {
        #[test]
        fn words_and_parser_find_the_same(
            v6: bool,
            proto in prop::sample::select(vec![ip::TCP, ip::UDP, ip::SCTP, ip::ICMP, ip::ICMPV6, 0, 44, 51, 132, 255]),
            flags: u8,
            changes in vec((0_usize..60, any::<u8>()), 0..6),
            length in 14_usize..80,
            reverse: bool,
        ) {
            let mut bytes = frame(v6, proto, flags, &changes).bytes().to_vec();
            bytes.truncate(length);
            let packet = SlicePacket::new(bytes);
            let plain = PlainPacket::read(&packet, v6);
            let unknown = PlainPacket { v6, content: Content::Unknown };
            let parsed = opening(&packet, unknown, v6, reverse);
            prop_assert_eq!(opening(&packet, plain, v6, reverse), parsed);
            let l4 = packet.parse_l4(v6, eth::END).unpack();
            if let Some((header, _)) = plain.header(&packet) {
                prop_assert_eq!(header, l4);
            }
            if let Some([src, dst]) = plain.addresses(&packet) {
                prop_assert!(parsed.is_ok());
                let key = flow_key(&packet, &l4, false);
                prop_assert_eq!(key.map(|key| (key.client, key.pod)), Some((src, dst)));
            }
        }
    }
}
