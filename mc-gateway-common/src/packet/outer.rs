//! Headers of a received encapsulated packet, from the outer IP header to the inner one.

#![expect(
    clippy::cast_possible_truncation,
    reason = "offsets below 200, and fields cut out of words"
)]

use core::array;

use super::{
    access::Frame,
    checksum,
    encap::{ENCAP_LEN_V4, ENCAP_LEN_V6, OuterFamily, TUNNEL_OVERHEAD},
    eth,
    header_words::HeaderWords,
    ip,
    offsets::{ipv4, ipv6, udp},
    outer_family::UDP_CHECK_TO_INNER,
    tunnel,
};
use crate::abi::{Address, NextHop, SourceMac};

/// Bytes of an encapsulated packet over IPv4 up to the end of an inner IPv4 header without options.
pub const HEADERS_V4: usize = ENCAP_LEN_V4 + ip::V4_LEN;
/// Bytes of an encapsulated packet over IPv6 up to the end of an inner IPv4 header without options.
pub const HEADERS_V6: usize = ENCAP_LEN_V6 + ip::V4_LEN;

/// Words of the headers; over IPv4 nine are used.
const WORDS: usize = 12;
/// Offset of the first word; the last one ends with the inner header.
const FROM_V4: u32 = eth::END.wrapping_add(HEADERS_V4 as u32).wrapping_sub(9 * 8);
/// As [`FROM_V4`], over IPv6.
const FROM_V6: u32 = eth::END
    .wrapping_add(HEADERS_V6 as u32)
    .wrapping_sub(WORDS as u32 * 8);
/// Offset of the outer IP header in the frame.
const IP: usize = eth::LEN;
/// Offset of TTL, protocol, checksum and addresses of an outer IPv4 header in the frame.
const V4_TTL: u32 = eth::END.wrapping_add(ipv4::TTL);
/// Offset of an inner IP header over IPv4 and over IPv6.
const INNER_V4: u32 = eth::END.wrapping_add(OuterFamily::V4.encap_len());
const INNER_V6: u32 = eth::END.wrapping_add(OuterFamily::V6.encap_len());

/// Offset of the inner Ethernet source over IPv4 and over IPv6.
const SOURCE_MAC_V4: u32 = INNER_V4.wrapping_sub(eth::END).wrapping_add(eth::SRC);
const SOURCE_MAC_V6: u32 = INNER_V6.wrapping_sub(eth::END).wrapping_add(eth::SRC);

/// Headers of an encapsulated packet. `N` is [`HEADERS_V4`] or [`HEADERS_V6`], so that every offset is a
/// constant.
#[derive(Clone, Copy, Debug)]
pub struct Headers<const N: usize> {
    words: HeaderWords<WORDS>,
    /// The outer IP header.
    pub outer: ip::Header,
}

impl<const N: usize> Headers<N> {
    /// Length of the outer IP header.
    const IP_LEN: usize = N.wrapping_sub(TUNNEL_OVERHEAD).wrapping_sub(ip::V4_LEN);
    /// Offsets in the frame.
    const UDP: usize = IP.wrapping_add(Self::IP_LEN);
    const TUNNEL: usize = Self::UDP.wrapping_add(udp::LEN as usize);
    const ETH: usize = Self::TUNNEL.wrapping_add(tunnel::LEN);
    const INNER: usize = Self::ETH.wrapping_add(eth::LEN);
    /// Whether the outer packet is IPv6.
    pub const V6: bool = Self::IP_LEN == ip::V6_LEN;
    /// Outer IP version.
    pub const FAMILY: OuterFamily = if Self::V6 {
        OuterFamily::V6
    } else {
        OuterFamily::V4
    };
    /// Offset of the inner IP packet in the frame.
    pub const INNER_AT: u32 = eth::END.wrapping_add(Self::FAMILY.encap_len());
    /// Offset of the inner Ethernet header in a frame whose tunnel header has no options.
    pub const INNER_ETH_AT: u32 = Self::INNER_AT.wrapping_sub(eth::END);
    /// Offset of the outer UDP checksum in the frame.
    pub const UDP_CHECK_AT: u32 = Self::INNER_AT.wrapping_sub(UDP_CHECK_TO_INNER);

    /// Loads the headers; `None` if the frame is shorter.
    #[inline(always)]
    pub fn load<F: Frame>(packet: &F) -> Option<Self> {
        if Self::V6 {
            let words = packet.load_words::<FROM_V6, WORDS>()?;
            let outer = ip::Header::v6_at(&words, IP);
            return Some(Self { words, outer });
        }
        let words = packet.load_words::<FROM_V4, 9>()?.padded();
        let outer = ip::Header::v4_at(&words, IP);
        Some(Self { words, outer })
    }

    /// UDP source port.
    #[inline(always)]
    #[must_use]
    pub fn udp_src(&self) -> u16 {
        self.words.u16_be(Self::UDP)
    }

    /// UDP destination port.
    #[inline(always)]
    #[must_use]
    pub fn udp_dst(&self) -> u16 {
        self.words.u16_be(Self::UDP.wrapping_add(udp::DST as usize))
    }

    /// The tunnel header.
    #[inline(always)]
    #[must_use]
    pub fn tunnel(&self, format: tunnel::Format) -> tunnel::Header {
        tunnel::Header::new(format, self.words.u64_le(Self::TUNNEL).to_le_bytes())
    }

    /// Whether the inner Ethernet destination is the multi-cluster MAC address. Requires a tunnel header without
    /// options.
    #[inline(always)]
    #[must_use]
    pub fn is_multicluster(&self) -> bool {
        const MAC: u64 = eth::mac_to_u64(eth::MULTICLUSTER_MAC);
        self.words.u64_le(Self::ETH) & eth::mac_to_u64([0xff; 6]) == MAC
    }

    /// Inner Ethernet source in the lower six bytes, inner ethertype in the upper two. Requires a tunnel header without
    /// options.
    #[inline(always)]
    #[must_use]
    pub fn source_mac_and_ethertype(&self) -> u64 {
        self.words.u64_le(Self::ETH.wrapping_add(eth::SRC as usize))
    }

    /// Inner Ethernet source. Requires a tunnel header without options.
    #[inline(always)]
    #[must_use]
    pub fn source_mac(&self) -> SourceMac {
        SourceMac::from_bits(self.source_mac_and_ethertype())
    }

    /// Inner ethertype.
    #[inline(always)]
    #[must_use]
    pub fn inner_ethertype(&self) -> u16 {
        self.words.u16_be(Self::ETH.wrapping_add(eth::ETHERTYPE as usize))
    }

    /// The inner IP header; `None` if the inner packet is too short or not IP.
    #[inline(always)]
    pub fn inner<F: Frame>(&self, packet: &F) -> Option<ip::Header> {
        match self.inner_ethertype() {
            eth::IPV4 => Some(ip::Header::v4_at(&self.words, Self::INNER)),
            eth::IPV6 => {
                let words = if Self::V6 {
                    packet.load_words::<INNER_V6, 5>()
                } else {
                    packet.load_words::<INNER_V4, 5>()
                };
                Some(ip::Header::v6_at(&words?, Self::INNER))
            }
            _ => None,
        }
    }

    /// Whether the checksum of the outer IP header is valid; IPv6 has none.
    #[inline(always)]
    #[must_use]
    pub fn checksum_is_valid(&self) -> bool {
        // The first word starts two bytes before the header, the third ends two bytes behind it.
        let [first, second, third] = [self.words.word(0), self.words.word(1), self.words.word(2)];
        const { assert!(FROM_V4 == eth::END - 2 && ip::V4_LEN == 3 * 8 - 4) }
        let header = [first >> 16, second, third << 16];
        Self::V6 || checksum::fold(checksum::sum_words(header)) == 0xffff
    }

    /// Swaps source and destination and sets the TTL or hop limit. Checksums over both addresses, such as UDP's,
    /// do not change.
    #[inline(always)]
    pub fn reflect<F: Frame>(&self, packet: &mut F, ttl: u8) -> Option<()> {
        let (src, dst) = (self.outer.dst, self.outer.src);
        let ip = if Self::V6 {
            rewrite_v6(packet, Some(ttl), src, dst)?
        } else {
            rewrite_v4(packet, Some(ttl), src, dst)?
        };
        packet.update_sum(ip.header);
        Some(())
    }
}

/// Rewrites the outer header and the inner Ethernet source of an encapsulated packet for the next hop: addresses, TTL
/// or hop limit one lower, and checksums. Nothing else changes. `N` is as in [`Headers`]; only the changed fields are
/// read.
///
/// `backend_mask` is all ones if the inner Ethernet source of the packet is a backend ID without a secret, which
/// remains; else 0.
#[inline(always)]
pub fn rewrite_outer<const N: usize, F: Frame>(
    packet: &mut F,
    next_hop: &NextHop,
    backend_mask: u64,
) -> Option<()> {
    let mac = rewrite_source_mac::<N, F>(packet, SourceMac::from_bits(next_hop.source_mac), backend_mask)?;
    let (src, dst) = (next_hop.local.into(), next_hop.addr.into());
    let ip = if Headers::<N>::V6 {
        rewrite_v6(packet, None, src, dst)?
    } else {
        rewrite_v4(packet, None, src, dst)?
    };
    // The device's sum changes once, because its update is a call of the kernel. The checksum of UDP makes up for the
    // changes that it covers.
    let change = if update_udp_check::<N, F>(packet, [ip.addresses, mac])? {
        checksum::sum_of_differences(ip.header, !ip.addresses)
    } else {
        checksum::sum_of_differences(ip.header, mac)
    };
    packet.update_sum(change);
    Some(())
}

/// Writes the inner Ethernet source, and returns the change of the sum. The offset from the UDP header is even, so the
/// bytes keep their places in the sum.
#[inline(always)]
fn rewrite_source_mac<const N: usize, F: Frame>(
    packet: &mut F,
    mac: SourceMac,
    backend_mask: u64,
) -> Option<u32> {
    // With the ethertype behind it, it is a word.
    let old = if Headers::<N>::V6 {
        packet.load_words::<SOURCE_MAC_V6, 1>()?.word(0)
    } else {
        packet.load_words::<SOURCE_MAC_V4, 1>()?.word(0)
    };
    let mac = mac.with_backend_of(SourceMac::from_bits(old), backend_mask);
    let new = mac.to_bits() | old >> 48 << 48;
    if Headers::<N>::V6 {
        packet.write_linear::<SOURCE_MAC_V6, 1, 8>([new])?;
    } else {
        packet.write_linear::<SOURCE_MAC_V4, 1, 8>([new])?;
    }
    Some(checksum::difference_of_words([old], [new]))
}

/// Updates the outer UDP checksum after changes of the bytes that it covers, and returns true; false if the packet has
/// none.
#[inline(always)]
fn update_udp_check<const N: usize, F: Frame>(packet: &mut F, changes: [u32; 2]) -> Option<bool> {
    let check = if Headers::<N>::V6 {
        packet.load_u32::<{ Headers::<HEADERS_V6>::UDP_CHECK_AT }>()?
    } else {
        packet.load_u32::<{ Headers::<HEADERS_V4>::UDP_CHECK_AT }>()?
    } as u16;
    if check == 0 {
        return Some(false);
    }
    let [addresses, mac] = changes;
    let sum = checksum::update(check.to_ne_bytes(), checksum::sum_of_differences(addresses, mac));
    let word = u64::from(u16::from_ne_bytes(checksum::nonzero_for_udp(sum)));
    if Headers::<N>::V6 {
        packet.write_linear::<{ Headers::<HEADERS_V6>::UDP_CHECK_AT }, 1, 2>([word])?;
    } else {
        packet.write_linear::<{ Headers::<HEADERS_V4>::UDP_CHECK_AT }, 1, 2>([word])?;
    }
    Some(true)
}

/// Changes of sums after a rewrite of the outer IP header.
#[derive(Clone, Copy)]
struct IpChange {
    /// Of the whole header.
    header: u32,
    /// Of the addresses alone, which the checksum of UDP covers.
    addresses: u32,
}

/// Rewrites an outer IPv4 header. Without `ttl`, the TTL is one lower.
#[inline(always)]
fn rewrite_v4<F: Frame>(packet: &mut F, ttl: Option<u8>, src: Address, dst: Address) -> Option<IpChange> {
    let fields = V4Rewrite::load(packet)?;
    let ttl = ttl.unwrap_or(fields.ttl().wrapping_sub(1));
    fields.apply(packet, ttl, src, dst)?;
    let pair = |src: Address, dst: Address| u64::from(src.v4_u32()) | u64::from(dst.v4_u32()) << 32;
    Some(IpChange {
        // With its checksum, the header sums to zero.
        header: 0,
        addresses: checksum::difference_of_words([pair(fields.src(), fields.dst())], [pair(src, dst)]),
    })
}

/// Rewrites an outer IPv6 header. Without `hop_limit`, the hop limit is one lower.
#[inline(always)]
fn rewrite_v6<F: Frame>(
    packet: &mut F,
    hop_limit: Option<u8>,
    src: Address,
    dst: Address,
) -> Option<IpChange> {
    let header = packet.load_words::<{ eth::END }, 5>()?;
    let received = header.u8(IP.wrapping_add(ipv6::HOP_LIMIT as usize));
    let hop_limit = hop_limit.unwrap_or(received.wrapping_sub(1));
    let [first, s0, s1, d0, d1] = array::from_fn(|i| header.word(i));
    let new_first = first & 0x00ff_ffff_ffff_ffff | u64::from(hop_limit) << 56;
    let ([t0, t1], [e0, e1]) = (src.words(), dst.words());
    packet.write_linear::<{ eth::END }, 5, 40>([new_first, t0, t1, e0, e1])?;
    let addresses = checksum::difference_of_words([s0, s1, d0, d1], [t0, t1, e0, e1]);
    let hop_limit = checksum::difference_of_words([first], [new_first]);
    Some(IpChange {
        header: checksum::sum_of_differences(addresses, hop_limit),
        addresses,
    })
}

/// The outer IPv4 fields that a gateway rewrites.
struct V4Rewrite(HeaderWords<2>);

impl V4Rewrite {
    /// The second word ends with the header.
    const FROM: u32 = eth::END.wrapping_add(ip::V4_LEN as u32 - 2 * 8);

    #[inline(always)]
    fn load<F: Frame>(packet: &F) -> Option<Self> {
        packet.load_words::<{ Self::FROM }, 2>().map(Self)
    }

    #[inline(always)]
    fn ttl(&self) -> u8 {
        self.0.u8(IP.wrapping_add(ipv4::TTL as usize))
    }

    #[inline(always)]
    fn src(&self) -> Address {
        self.0.v4(IP.wrapping_add(ipv4::SRC as usize))
    }

    #[inline(always)]
    fn dst(&self) -> Address {
        self.0.v4(IP.wrapping_add(ipv4::DST as usize))
    }

    /// Writes TTL and addresses, and updates the header checksum.
    #[inline(always)]
    fn apply<F: Frame>(&self, packet: &mut F, ttl: u8, src: Address, dst: Address) -> Option<()> {
        // TTL, protocol and checksum share half a word.
        let old = self.0.u32_le(IP.wrapping_add(ipv4::TTL as usize));
        let new = (old & !0xff) | u32::from(ttl);
        let sum = |half: u32, src: Address, dst: Address| {
            u64::from(half & 0xffff)
                .wrapping_add(u64::from(src.v4_u32()))
                .wrapping_add(u64::from(dst.v4_u32()))
        };
        let difference = checksum::difference_of_sums(sum(old, self.src(), self.dst()), sum(new, src, dst));
        let check = checksum::update(((old >> 16) as u16).to_ne_bytes(), difference);
        let half = (new & 0xffff) | u32::from(u16::from_ne_bytes(check)) << 16;
        let words = [
            u64::from(half) | u64::from(src.v4_u32()) << 32,
            u64::from(dst.v4_u32()),
        ];
        // An IPv4 header sums to zero before and after the change.
        packet.write_linear::<V4_TTL, 2, 12>(words)
    }
}
