//! The headers of an encapsulated packet as it arrives, from the outer IP header to the inner one.

use super::{
    Aligned, Packet, checksum,
    encap::{ROOM_V4, ROOM_V6, Room, TAIL},
    eth,
    eth::Mac,
    ip, tunnel,
};

/// Bytes of an encapsulated packet over IPv4 up to the end of an inner IPv4 header without options.
pub const HEADERS_V4: usize = ROOM_V4 + ip::V4_LEN;
/// Bytes of an encapsulated packet over IPv6 up to the end of an inner IPv4 header without options.
pub const HEADERS_V6: usize = ROOM_V6 + ip::V4_LEN;

/// Offset of the outer TTL or hop limit in the IP header, and of what a gateway writes anew behind it.
const V6_HOP_LIMIT: u32 = 7;
/// Offset of the TTL in an IPv4 header.
const V4_TTL: u32 = 8;

/// A field of `L` bytes at a constant offset.
#[inline(always)]
fn field<const N: usize, const L: usize>(bytes: &[u8; N], at: usize) -> [u8; L] {
    match bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(field) => *field,
        None => [0; L],
    }
}

/// Headers of an encapsulated packet: `N` is [`HEADERS_V4`] or [`HEADERS_V6`], which makes every offset a
/// constant.
#[derive(Clone, Copy, Debug)]
pub struct Headers<const N: usize> {
    bytes: Aligned<[u8; N]>,
    /// The outer IP header.
    pub outer: ip::Header,
}

impl<const N: usize> Headers<N> {
    /// Length of the outer IP header.
    const IP: usize = N.wrapping_sub(TAIL).wrapping_sub(ip::V4_LEN);
    const UDP: usize = Self::IP;
    const TUNNEL: usize = Self::UDP.wrapping_add(8);
    const ETH: usize = Self::TUNNEL.wrapping_add(tunnel::LEN);
    const INNER: usize = Self::ETH.wrapping_add(eth::LEN);
    /// Whether the outer packet is IPv6.
    pub const V6: bool = Self::IP == ip::V6_LEN;
    /// The room the outer headers take.
    pub const ROOM: Room = if Self::V6 { Room::V6 } else { Room::V4 };
    /// Offset of the inner IP packet in the frame.
    pub const INNER_AT: u32 = eth::END.wrapping_add(Self::ROOM.bytes());
    /// Offset of the inner Ethernet header in a frame whose tunnel header has no options.
    pub const INNER_ETH_AT: u32 = Self::INNER_AT.wrapping_sub(eth::END);
    /// Offset of the outer UDP checksum in the frame.
    pub const UDP_CHECK_AT: u32 = Self::INNER_ETH_AT.wrapping_sub(10);

    /// Loads them; `None` where the frame is shorter.
    #[inline(always)]
    pub fn load<P: Packet>(packet: &P) -> Option<Self> {
        let bytes = Aligned(packet.head::<{ eth::END }, N>()?);
        let outer = if Self::V6 {
            ip::Header::v6(&field(&bytes.0, 0))
        } else {
            ip::Header::v4(&field(&bytes.0, 0))
        };
        Some(Self { bytes, outer })
    }

    /// UDP source port.
    #[inline(always)]
    #[must_use]
    pub fn udp_src(&self) -> u16 {
        u16::from_be_bytes(field(&self.bytes.0, Self::UDP))
    }

    /// UDP destination port.
    #[inline(always)]
    #[must_use]
    pub fn udp_dst(&self) -> u16 {
        u16::from_be_bytes(field(&self.bytes.0, Self::UDP.wrapping_add(2)))
    }

    /// UDP checksum; zero means none.
    #[inline(always)]
    #[must_use]
    pub fn udp_check(&self) -> [u8; 2] {
        field(&self.bytes.0, Self::UDP.wrapping_add(6))
    }

    /// The tunnel header.
    #[inline(always)]
    #[must_use]
    pub fn tunnel(&self, format: tunnel::Format) -> tunnel::Header {
        tunnel::Header::new(format, field(&self.bytes.0, Self::TUNNEL))
    }

    /// Inner Ethernet destination, where the tunnel header has no options.
    #[inline(always)]
    #[must_use]
    pub fn inner_mac(&self) -> Mac {
        field(&self.bytes.0, Self::ETH)
    }

    /// Inner Ethernet source, where the tunnel header has no options.
    #[inline(always)]
    #[must_use]
    pub fn inner_src_mac(&self) -> Mac {
        field(&self.bytes.0, Self::ETH.wrapping_add(6))
    }

    /// Inner ethertype.
    #[inline(always)]
    #[must_use]
    pub fn inner_ethertype(&self) -> u16 {
        u16::from_be_bytes(field(&self.bytes.0, Self::ETH.wrapping_add(12)))
    }

    /// The inner IP header; `None` where it is no IP packet or too short for one.
    #[inline(always)]
    pub fn inner<P: Packet>(&self, packet: &P) -> Option<ip::Header> {
        match self.inner_ethertype() {
            eth::IPV4 => Some(ip::Header::v4(&field(&self.bytes.0, Self::INNER))),
            eth::IPV6 => Some(ip::Header::v6(&packet.load(Self::INNER_AT)?)),
            _ => None,
        }
    }

    /// Whether the outer IP header's checksum is right; IPv6 has none.
    #[inline(always)]
    #[must_use]
    pub fn checksum_is_valid(&self) -> bool {
        Self::V6 || checksum::is_valid(&field(&self.bytes.0, 0))
    }

    /// Turns the packet into one from `src` to `dst` with a TTL or hop limit one lower; everything else,
    /// the payload above all, stays.
    #[inline(always)]
    pub fn pass_on<P: Packet>(&self, packet: &mut P, src: &[u8; 16], dst: &[u8; 16]) -> Option<()> {
        let ttl = self.outer.ttl.wrapping_sub(1);
        if Self::V6 {
            packet.store(eth::END.wrapping_add(V6_HOP_LIMIT), &[ttl])?;
            let mut addresses = Aligned([0; 32]);
            let (first, second) = addresses.0.split_at_mut(16);
            first.copy_from_slice(src);
            second.copy_from_slice(dst);
            packet.store(eth::END.wrapping_add(V6_HOP_LIMIT).wrapping_add(1), &addresses.0)?;
        } else {
            let [vihl, tos, t0, t1, i0, i1, f0, f1, _, proto, ..] = field::<N, 20>(&self.bytes.0, 0);
            let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (ip::unmapped(src), ip::unmapped(dst));
            let mut header = Aligned([
                vihl, tos, t0, t1, i0, i1, f0, f1, ttl, proto, 0, 0, s0, s1, s2, s3, d0, d1, d2, d3,
            ]);
            let sum = checksum::of_header(&header.0);
            let [.., c0, c1, _, _, _, _, _, _, _, _] = &mut header.0;
            [*c0, *c1] = sum;
            packet.store(eth::END, &header.0)?;
        }
        let check = self.udp_check();
        if check == [0, 0] {
            return Some(());
        }
        // Mapped addresses differ only where the IPv4 addresses do.
        let difference = u64::from(checksum::difference(&self.outer.src, src))
            .wrapping_add(u64::from(checksum::difference(&self.outer.dst, dst)));
        let check = checksum::for_udp(checksum::update(check, u32::from(checksum::fold(difference))));
        packet.store(Self::UDP_CHECK_AT, &check)
    }

    /// Swaps source and destination and gives the packet a fresh TTL or hop limit. Sums over both
    /// addresses stay what they are, the UDP checksum's included.
    #[inline(always)]
    pub fn turn_back<P: Packet>(&self, packet: &mut P, ttl: u8) -> Option<()> {
        if Self::V6 {
            packet.store(eth::END.wrapping_add(V6_HOP_LIMIT), &[ttl])?;
            let mut addresses = Aligned([0; 32]);
            let (first, second) = addresses.0.split_at_mut(16);
            first.copy_from_slice(&self.outer.dst);
            second.copy_from_slice(&self.outer.src);
            return packet.store(eth::END.wrapping_add(V6_HOP_LIMIT).wrapping_add(1), &addresses.0);
        }
        let [old_ttl, proto, c0, c1] = field(&self.bytes.0, 8);
        let difference = checksum::difference(&[old_ttl, proto, 0, 0], &[ttl, proto, 0, 0]);
        let [c0, c1] = checksum::update([c0, c1], difference);
        let ([s0, s1, s2, s3], [d0, d1, d2, d3]) =
            (ip::unmapped(&self.outer.dst), ip::unmapped(&self.outer.src));
        let bytes = Aligned([ttl, proto, c0, c1, s0, s1, s2, s3, d0, d1, d2, d3]);
        packet.store(eth::END.wrapping_add(V4_TTL), &bytes.0)
    }
}
