//! IP headers of both versions as one struct, and addresses in the maps' form.

use network_types::ip::{IpProto, Ipv4Hdr, Ipv6Hdr};

use super::{
    access::Packet,
    checksum, eth,
    header_words::{self, HeaderWords},
    offsets::{ipv4, ipv6},
};
use crate::abi::{Addr, Address};

/// Length of an IPv4 header without options.
pub const V4_LEN: usize = Ipv4Hdr::LEN;
/// Length of the IPv6 header.
pub const V6_LEN: usize = Ipv6Hdr::LEN;

/// Protocol number of ICMP.
pub const ICMP: u8 = IpProto::Icmp as u8;
/// Protocol number of TCP.
pub const TCP: u8 = IpProto::Tcp as u8;
/// Protocol number of UDP.
pub const UDP: u8 = IpProto::Udp as u8;
/// Protocol number of the IPv6 fragment header (RFC 8200 section 4.5).
pub const FRAGMENT: u8 = IpProto::Ipv6Frag as u8;
/// Protocol number of SCTP.
pub const SCTP: u8 = IpProto::Sctp as u8;
/// Protocol number of `ICMPv6` (RFC 4443).
pub const ICMPV6: u8 = IpProto::Ipv6Icmp as u8;

/// "More fragments" and the fragment offset: nonzero in a fragment (RFC 791).
const FRAGMENTED: u16 = 0x3fff;

/// An IPv4 address in the maps' form.
///
/// Arithmetic on one number, so that the programs store words instead of bytes.
#[inline(always)]
#[must_use]
pub const fn mapped(address: [u8; 4]) -> Addr {
    (0xffff_0000_0000 | u32::from_be_bytes(address) as u128).to_be_bytes()
}

/// The IPv4 address of a mapped [`Addr`]; the last four bytes of any other.
#[inline(always)]
#[must_use]
pub const fn unmapped(address: &Addr) -> [u8; 4] {
    match address.last_chunk() {
        Some(last) => *last,
        None => [0; 4],
    }
}

/// Whether an [`Addr`] is an IPv4 address.
#[inline(always)]
#[must_use]
pub const fn is_v4(address: &Addr) -> bool {
    u128::from_be_bytes(*address) >> 32 == 0xffff
}

/// An IPv4 header without options, DF set, with its checksum: `total` is the length field.
#[inline(always)]
#[must_use]
pub fn v4_header(tos: u8, total: [u8; 2], ttl: u8, proto: u8, src: [u8; 4], dst: [u8; 4]) -> [u8; V4_LEN] {
    let (src, dst) = (u32::from_le_bytes(src), u32::from_le_bytes(dst));
    header_words::to_bytes(v4_words(tos, total, ttl, proto, src, dst)).0
}

/// [`v4_header`] as words, the last one with four bytes; addresses are little-endian numbers.
#[inline(always)]
#[must_use]
pub fn v4_words(tos: u8, total: [u8; 2], ttl: u8, proto: u8, src: u32, dst: u32) -> [u64; 3] {
    let [t0, t1] = total;
    let first = u64::from_le_bytes([0x45, tos, t0, t1, 0, 0, 0x40, 0]);
    let second = u64::from_le_bytes([ttl, proto, 0, 0, 0, 0, 0, 0]) | u64::from(src) << 32;
    let third = u64::from(dst);
    let check = !checksum::fold(checksum::sum_words([first, second, third]));
    [first, second | u64::from(check) << 16, third]
}

/// The fields of an IPv4 or IPv6 header that the pipelines need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// IPv6, else IPv4: by the ethertype, not by the version field.
    pub v6: bool,
    /// Version field: 4 or 6 in a valid packet.
    pub version: u8,
    /// Length of the header in bytes, without IPv6 extension headers.
    pub len: u32,
    /// DSCP and ECN (type of service, traffic class).
    pub tos: u8,
    /// Raw length field in bytes: the whole IPv4 packet, or the payload of the IPv6 header.
    pub length: u16,
    /// Flags and fragment offset of IPv4; 0 for IPv6, whose fragments have `proto` [`FRAGMENT`].
    pub flags_and_offset: u16,
    /// Time to live, hop limit.
    pub ttl: u8,
    /// Protocol of the payload, next header.
    pub proto: u8,
    /// Source address.
    pub src: Address,
    /// Destination address.
    pub dst: Address,
}

impl Header {
    /// Parses the fixed part of an IPv4 header, without checks.
    #[inline(always)]
    #[must_use]
    pub fn v4(bytes: &[u8; V4_LEN]) -> Self {
        Self::v4_at(&HeaderWords::<3>::from_bytes(bytes), 0)
    }

    /// Parses an IPv6 header, without checks.
    #[inline(always)]
    #[must_use]
    pub fn v6(bytes: &[u8; V6_LEN]) -> Self {
        Self::v6_at(&HeaderWords::<5>::from_bytes(bytes), 0)
    }

    /// [`Self::v4`] of the header at `at`.
    #[inline(always)]
    #[must_use]
    pub const fn v4_at<const W: usize>(words: &HeaderWords<W>, at: usize) -> Self {
        let vihl = words.u8(at);
        Self {
            v6: false,
            version: vihl >> 4,
            len: (vihl as u32 & 0xf).wrapping_mul(4),
            tos: words.u8(at.wrapping_add(ipv4::TOS as usize)),
            length: words.u16_be(at.wrapping_add(ipv4::TOTAL_LEN as usize)),
            flags_and_offset: words.u16_be(at.wrapping_add(ipv4::FRAGS as usize)),
            ttl: words.u8(at.wrapping_add(ipv4::TTL as usize)),
            proto: words.u8(at.wrapping_add(ipv4::PROTO as usize)),
            src: words.v4(at.wrapping_add(ipv4::SRC as usize)),
            dst: words.v4(at.wrapping_add(ipv4::DST as usize)),
        }
    }

    /// [`Self::v6`] of the header at `at`.
    #[inline(always)]
    #[must_use]
    pub const fn v6_at<const W: usize>(words: &HeaderWords<W>, at: usize) -> Self {
        let (first, second) = (words.u8(at), words.u8(at.wrapping_add(1)));
        Self {
            v6: true,
            version: first >> 4,
            len: ipv6::LEN,
            tos: first << 4 | second >> 4,
            length: words.u16_be(at.wrapping_add(ipv6::PAYLOAD_LEN as usize)),
            flags_and_offset: 0,
            ttl: words.u8(at.wrapping_add(ipv6::HOP_LIMIT as usize)),
            proto: words.u8(at.wrapping_add(ipv6::NEXT_HEADER as usize)),
            src: words.v6(at.wrapping_add(ipv6::SRC as usize)),
            dst: words.v6(at.wrapping_add(ipv6::DST as usize)),
        }
    }

    /// Parses the header at `offset` of a packet with this ethertype. `None` if the packet is too short or not
    /// IP.
    #[inline(always)]
    pub fn load<P: Packet>(packet: &P, ethertype: u16, offset: u32) -> Option<Self> {
        match ethertype {
            eth::IPV4 => Some(Self::v4(&packet.load(offset)?)),
            eth::IPV6 => Some(Self::v6(&packet.load(offset)?)),
            _ => None,
        }
    }

    /// Whether this is a fragment, the first one included.
    #[inline(always)]
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.flags_and_offset & FRAGMENTED != 0 || (self.v6 && self.proto == FRAGMENT)
    }

    /// Offset of this IPv4 fragment in the packet, in units of eight bytes.
    #[inline(always)]
    #[must_use]
    pub const fn fragment_offset(&self) -> u16 {
        self.flags_and_offset & 0x1fff
    }

    /// Whether an IPv4 header has no options; true for every IPv6 header.
    #[inline(always)]
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        if self.v6 {
            self.version == 6
        } else {
            self.version == 4 && self.len == ipv4::LEN
        }
    }

    /// Whether version and lengths are consistent with the `available` bytes from the start of the header.
    ///
    /// An IPv6 header with an IPv4-mapped address never fits: to the maps it is that IPv4 address, and such addresses
    /// do not appear on the wire (RFC 4942 section 2.2).
    ///
    /// The length is 0 in a GSO packet above 64 KiB (`BIG TCP`, Linux 5.19 for IPv6, 6.3 for IPv4) and in an
    /// IPv6 packet without payload.
    #[inline(always)]
    #[must_use]
    pub const fn fits(&self, available: u32) -> bool {
        let length = self.length as u32;
        if self.v6 {
            return self.version == 6
                && !self.src.is_v4()
                && !self.dst.is_v4()
                && available >= ipv6::LEN
                && length <= available.wrapping_sub(ipv6::LEN);
        }
        let length_fits = if length == 0 {
            available > 0xffff
        } else {
            length >= self.len && length <= available
        };
        self.version == 4 && self.len >= ipv4::LEN && self.len <= available && length_fits
    }

    /// Whether the packet ends exactly with the `available` bytes, by its length field: 0 stands for more than the
    /// field can name (`BIG TCP`). Requires that the header [`fits`](Self::fits).
    #[inline(always)]
    #[must_use]
    pub const fn fills(&self, available: u32) -> bool {
        let named = if self.v6 {
            available.wrapping_sub(ipv6::LEN)
        } else {
            available
        };
        self.length as u32 == if named > 0xffff { 0 } else { named }
    }
}

/// Whether the packet with an IP header at `at` is IPv6, by the ethertype in front of the header. In a tunnel
/// that is the inner ethertype.
#[inline(always)]
pub fn is_v6_at<P: Packet>(packet: &P, at: u32) -> Option<bool> {
    let ethertype_at = at.wrapping_sub(eth::END.wrapping_sub(eth::ETHERTYPE));
    Some(u16::from_be_bytes(packet.load(ethertype_at)?) == eth::IPV6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_recognised() {
        assert!(is_v4(&mapped([192, 0, 2, 1])));
        assert_eq!(unmapped(&mapped([192, 0, 2, 1])), [192, 0, 2, 1]);
        assert!(!is_v4(&[0; 16]));
        assert!(!is_v4(&[0xff; 16]));
    }

    #[test]
    fn a_written_header_parses_back_with_a_valid_checksum() {
        let bytes = v4_header(0xb9, [1, 2], 61, UDP, [10, 0, 0, 1], [10, 0, 0, 2]);
        assert!(checksum::is_valid(&bytes));
        let header = Header::v4(&bytes);
        assert_eq!(
            (header.tos, header.length, header.ttl, header.proto),
            (0xb9, 0x0102, 61, UDP)
        );
        assert_eq!(
            (header.src, header.dst),
            (mapped([10, 0, 0, 1]).into(), mapped([10, 0, 0, 2]).into())
        );
        assert!(header.is_plain() && !header.is_fragment());
    }

    #[test]
    fn the_length_field_names_the_end_of_the_packet() {
        let header = |v6: bool, length: u16| {
            let mut header = if v6 {
                Header::v6(&[0x60; V6_LEN])
            } else {
                Header::v4(&[0x45; V4_LEN])
            };
            header.length = length;
            header
        };
        for (v6, length, fills, short, long) in [
            (false, 60, 60, 59, 61),
            (false, 0xffff, 0xffff, 0xfffe, 0x1_0000),
            (false, 0, 0x1_0000, 0xffff, 0x8_0000),
            (true, 20, 60, 59, 61),
            (true, 0, 40, 41, 0xffff + 40),
            (true, 0xffff, 0xffff + 40, 0xfffe + 40, 0x1_0000 + 40),
            (true, 0, 0x1_0000 + 40, 0xffff + 40, 41),
        ] {
            let header = header(v6, length);
            assert!(header.fills(fills), "{length} of {fills}, IPv6 {v6}");
            assert!(!header.fills(short), "{length} of {short}, IPv6 {v6}");
            // Every length above 64 KiB has the field 0.
            assert_eq!(
                header.fills(long),
                long == 0x8_0000,
                "{length} of {long}, IPv6 {v6}"
            );
        }
    }

    #[test]
    fn fields_of_both_versions() {
        let v4 = Header::v4(&[
            0x46, 0xb9, 0x01, 0x02, 0, 0, 0x20, 0x05, 61, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        assert_eq!((v4.version, v4.len, v4.tos, v4.length), (4, 24, 0xb9, 0x0102));
        assert_eq!((v4.ttl, v4.proto, v4.fragment_offset()), (61, UDP, 5));
        assert!(v4.is_fragment() && !v4.is_plain());
        assert_eq!(
            (v4.src, v4.dst),
            (mapped([10, 0, 0, 1]).into(), mapped([10, 0, 0, 2]).into())
        );
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&[0x6b, 0x91, 0x23, 0x45, 0x01, 0x02, 44, 9]);
        bytes[8] = 0xfd;
        bytes[39] = 7;
        let v6 = Header::v6(&bytes);
        assert_eq!((v6.version, v6.len, v6.tos, v6.length), (6, 40, 0xb9, 0x0102));
        assert_eq!((v6.ttl, v6.proto), (9, FRAGMENT));
        assert!(v6.is_fragment() && v6.is_plain());
        assert_eq!((v6.src.bytes()[0], v6.dst.bytes()[15]), (0xfd, 7));
    }
}
