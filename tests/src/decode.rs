//! Decoder of captured frames, header by header, with a text format.

use std::{
    fmt::{self, Display, Formatter},
    net::IpAddr,
    str::FromStr,
};

use anyhow::{Context as _, Result};
use network_types::{
    eth::{EthHdr, EtherType},
    geneve::GeneveHdr,
    ip::{IpProto, Ipv4Hdr, Ipv6Hdr},
    udp::UdpHdr,
};

/// UDP port of Geneve (RFC 8926).
pub const GENEVE_PORT: u16 = 6081;
/// Inner destination MAC address of multi-cluster traffic.
pub const MULTI_CLUSTER_MAC: Mac = Mac([0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xf0]);
/// Geneve protocol type of an Ethernet frame ("transparent Ethernet bridging").
const TRANSPARENT_ETHERNET: u16 = 0x6558;
/// IPv4 flag "don't fragment" in the upper three bits of the fragment field.
const DONT_FRAGMENT: u8 = 0b010;

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// One Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Ethernet destination.
    pub to: Mac,
    /// Ethernet source.
    pub from: Mac,
    /// Ethernet type.
    pub ether_type: u16,
    /// The IP packet, if it is one.
    pub ip: Option<Ip>,
    /// Length of the frame in bytes.
    pub length: usize,
}

/// An IPv4 or IPv6 packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source address.
    pub from: IpAddr,
    /// Destination address.
    pub to: IpAddr,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class: DSCP and ECN.
    pub tos: u8,
    /// Whether "don't fragment" is set; always false for IPv6, which routers never fragment.
    pub dont_fragment: bool,
    /// Length in bytes with all headers.
    pub total_length: u32,
    /// IP protocol number, or the next header of the IPv6 header.
    pub protocol: u8,
    /// The payload.
    pub payload: Payload,
}

impl Ip {
    /// Whether this is a message of IPv6 about its own link: neighbor discovery (RFC 4861), or multicast listener
    /// discovery behind a hop-by-hop header (RFC 3810).
    #[must_use]
    pub const fn is_link_discovery(&self) -> bool {
        match self.payload {
            Payload::Icmpv6 { kind, .. } => matches!(kind, 133..=137),
            Payload::Other => self.from.is_ipv6() && self.protocol == 0,
            _ => false,
        }
    }
}

/// Payload of an IP packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// TCP.
    Tcp {
        /// Source port.
        from: u16,
        /// Destination port.
        to: u16,
        /// Flags, e.g. `SYN ACK`.
        flags: String,
    },
    /// UDP to any other port.
    Udp(Udp),
    /// UDP to the Geneve port.
    Geneve(Udp, Geneve),
    /// ICMP.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
    /// `ICMPv6`.
    Icmpv6 {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
    /// Another protocol, or truncated.
    Other,
}

/// A UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub from: u16,
    /// Destination port.
    pub to: u16,
    /// Length in bytes, header included.
    pub length: u16,
    /// Checksum; 0 means none.
    pub checksum: u16,
}

/// A Geneve header and its inner frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geneve {
    /// Virtual network identifier.
    pub vni: u32,
    /// Protocol type of the payload.
    pub protocol: u16,
    /// Bytes of options.
    pub options: usize,
    /// The inner frame.
    pub inner: Option<Box<Frame>>,
}

// === impl Mac ===

impl Display for Mac {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let octets = self.0.map(|octet| format!("{octet:02x}"));
        f.write_str(&octets.join(":"))
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let bytes: Option<Vec<u8>> = text
            .split(':')
            .map(|byte| {
                let digits = byte.len() == 2 && byte.bytes().all(|digit| digit.is_ascii_hexdigit());
                u8::from_str_radix(byte, 16).ok().filter(|_| digits)
            })
            .collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Self)
            .with_context(|| format!("`{text}` is no MAC address such as 02:00:00:00:00:01"))
    }
}

// === impl Frame ===

impl Frame {
    /// Decodes a frame; `None` if it is too short for an Ethernet header.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (to, rest) = bytes.split_first_chunk()?;
        let (from, rest) = rest.split_first_chunk()?;
        let (ether_type, packet) = rest.split_first_chunk()?;
        let header = EthHdr {
            dst_addr: *to,
            src_addr: *from,
            ether_type: u16::from_ne_bytes(*ether_type),
        };
        let ip = match header.ether_type() {
            Ok(EtherType::Ipv4) => Ip::decode_v4(packet),
            Ok(EtherType::Ipv6) => Ip::decode_v6(packet),
            _ => None,
        };
        Some(Self {
            to: Mac(header.dst_addr),
            from: Mac(header.src_addr),
            ether_type: u16::from_be(header.ether_type),
            ip,
            length: bytes.len(),
        })
    }

    /// The tunnel header of an encapsulated frame.
    #[must_use]
    pub fn geneve(&self) -> Option<&Geneve> {
        match &self.ip.as_ref()?.payload {
            Payload::Geneve(_, geneve) => Some(geneve),
            _ => None,
        }
    }

    /// The inner packet of an encapsulated frame.
    #[must_use]
    pub fn inner(&self) -> Option<&Ip> {
        self.geneve()?.inner.as_ref()?.ip.as_ref()
    }

    /// The inner packet of an encapsulated frame and its VNI; none of a probe.
    #[must_use]
    pub fn inner_with_vni(&self) -> Option<(&Ip, u32)> {
        let (inner, geneve) = (self.inner()?, self.geneve()?);
        (!self.is_probe()).then_some((inner, geneve.vni))
    }

    /// Whether this is an encapsulated probe or reply of a gateway (inner ethertype 0x88b5, IEEE local experimental).
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.geneve()
            .and_then(|geneve| geneve.inner.as_ref())
            .is_some_and(|inner| inner.ether_type == 0x88b5)
    }

    fn describe(&self, f: &mut Formatter<'_>, side: &str) -> fmt::Result {
        let mark = if self.to == MULTI_CLUSTER_MAC {
            "  (marks multi-cluster traffic)"
        } else {
            ""
        };
        write_line(
            f,
            side,
            "Ethernet",
            &format!("{} -> {}{mark}", self.from, self.to),
        )?;
        match &self.ip {
            Some(ip) => ip.describe(f, side),
            None => write_line(f, side, "payload", &format!("type {:#06x}", self.ether_type)),
        }
    }
}

/// One line per header, outermost first.
impl Display for Frame {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.describe(f, if self.geneve().is_some() { "outer" } else { "" })
    }
}

// === impl Ip ===

impl Ip {
    fn decode_v4(packet: &[u8]) -> Option<Self> {
        let [
            vihl,
            tos,
            l0,
            l1,
            i0,
            i1,
            f0,
            f1,
            ttl,
            proto,
            c0,
            c1,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ] = *packet.first_chunk()?;
        let header = Ipv4Hdr {
            vihl,
            tos,
            tot_len: [l0, l1],
            id: [i0, i1],
            frags: [f0, f1],
            ttl,
            proto,
            check: [c0, c1],
            src_addr: [s0, s1, s2, s3],
            dst_addr: [d0, d1, d2, d3],
        };
        let payload = packet.get(usize::from(header.ihl())..).unwrap_or_default();
        let later_fragment = header.frag_offset() != 0;
        Some(Self {
            from: header.src_addr().into(),
            to: header.dst_addr().into(),
            ttl,
            tos,
            dont_fragment: header.frag_flags() & DONT_FRAGMENT != 0,
            total_length: header.tot_len().into(),
            protocol: proto,
            payload: if later_fragment {
                None
            } else {
                Payload::decode(header.proto().ok(), payload)
            }
            .unwrap_or(Payload::Other),
        })
    }

    fn decode_v6(packet: &[u8]) -> Option<Self> {
        let (fields, rest) = packet.split_first_chunk::<8>()?;
        let (src_addr, rest) = rest.split_first_chunk()?;
        let (dst_addr, payload) = rest.split_first_chunk()?;
        let [v0, v1, v2, v3, l0, l1, next_hdr, hop_limit] = *fields;
        let header = Ipv6Hdr {
            vcf: [v0, v1, v2, v3],
            payload_len: [l0, l1],
            next_hdr,
            hop_limit,
            src_addr: *src_addr,
            dst_addr: *dst_addr,
        };
        Some(Self {
            from: header.src_addr().into(),
            to: header.dst_addr().into(),
            ttl: hop_limit,
            tos: (header.dscp() << 2) | header.ecn(),
            dont_fragment: false,
            total_length: 40 + u32::from(header.payload_len()),
            protocol: next_hdr,
            payload: Payload::decode(header.next_hdr().ok(), payload).unwrap_or(Payload::Other),
        })
    }

    fn describe(&self, f: &mut Formatter<'_>, side: &str) -> fmt::Result {
        let (name, ttl) = if self.from.is_ipv4() {
            ("IPv4", "TTL")
        } else {
            ("IPv6", "hop limit")
        };
        let fragment = if self.dont_fragment { ", DF" } else { "" };
        let text = format!(
            "{} -> {}, {ttl} {}{fragment}, {} bytes",
            self.from, self.to, self.ttl, self.total_length
        );
        write_line(f, side, name, &text)?;
        self.payload.describe(f, side)
    }
}

// === impl Payload ===

impl Payload {
    fn decode(protocol: Option<IpProto>, bytes: &[u8]) -> Option<Self> {
        match protocol? {
            IpProto::Tcp => {
                let [s0, s1, d0, d1, .., flags] = *bytes.first_chunk::<14>()?;
                let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
                let set = names
                    .iter()
                    .enumerate()
                    .filter(|(bit, _)| flags & (1 << bit) != 0);
                Some(Self::Tcp {
                    from: u16::from_be_bytes([s0, s1]),
                    to: u16::from_be_bytes([d0, d1]),
                    flags: set.map(|(_, name)| *name).collect::<Vec<_>>().join(" "),
                })
            }
            IpProto::Udp => {
                let (header, rest) = bytes.split_first_chunk::<{ UdpHdr::LEN }>()?;
                let [s0, s1, d0, d1, l0, l1, c0, c1] = *header;
                let header = UdpHdr {
                    src: [s0, s1],
                    dst: [d0, d1],
                    len: [l0, l1],
                    check: [c0, c1],
                };
                let udp = Udp {
                    from: header.src_port(),
                    to: header.dst_port(),
                    length: header.len(),
                    checksum: header.checksum(),
                };
                Some(match Geneve::decode(rest) {
                    Some(geneve) if udp.to == GENEVE_PORT => Self::Geneve(udp, geneve),
                    _ => Self::Udp(udp),
                })
            }
            IpProto::Icmp => {
                let [kind, code] = *bytes.first_chunk()?;
                Some(Self::Icmp { kind, code })
            }
            IpProto::Ipv6Icmp => {
                let [kind, code] = *bytes.first_chunk()?;
                Some(Self::Icmpv6 { kind, code })
            }
            _ => None,
        }
    }

    fn describe(&self, f: &mut Formatter<'_>, side: &str) -> fmt::Result {
        match self {
            Self::Tcp { from, to, flags } => {
                write_line(f, side, "TCP", &format!("port {from} -> {to}, {flags}"))
            }
            Self::Udp(udp) => udp.describe(f, side),
            Self::Geneve(udp, geneve) => {
                udp.describe(f, side)?;
                let inside = match geneve.protocol {
                    TRANSPARENT_ETHERNET => " (an Ethernet frame inside)",
                    _ => "",
                };
                let text = format!(
                    "VNI {}, protocol {:#06x}{inside}, {} bytes of options",
                    geneve.vni, geneve.protocol, geneve.options
                );
                write_line(f, "tunnel", "Geneve", &text)?;
                match &geneve.inner {
                    Some(inner) => inner.describe(f, "inner"),
                    None => Ok(()),
                }
            }
            Self::Icmp { kind, code } => {
                let name = match kind {
                    0 => "echo reply".to_owned(),
                    8 => "echo request".to_owned(),
                    3 => format!("destination unreachable, code {code}"),
                    11 => "time exceeded".to_owned(),
                    _ => format!("type {kind}, code {code}"),
                };
                write_line(f, side, "ICMP", &name)
            }
            Self::Icmpv6 { kind, code } => {
                let name = match kind {
                    128 => "echo request".to_owned(),
                    129 => "echo reply".to_owned(),
                    2 => "packet too big".to_owned(),
                    _ => format!("type {kind}, code {code}"),
                };
                write_line(f, side, "ICMPv6", &name)
            }
            Self::Other => write_line(f, side, "payload", "not decoded"),
        }
    }
}

// === impl Udp ===

impl Udp {
    fn describe(self, f: &mut Formatter<'_>, side: &str) -> fmt::Result {
        let checksum = match self.checksum {
            0 => "no checksum".to_owned(),
            checksum => format!("checksum {checksum:#06x}"),
        };
        write_line(
            f,
            side,
            "UDP",
            &format!("port {} -> {}, {checksum}", self.from, self.to),
        )
    }
}

// === impl Geneve ===

impl Geneve {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<{ GeneveHdr::LEN }>()?;
        let [ver_opt_len, o_c_rsvd, p0, p1, v0, v1, v2, reserved2] = *header;
        let header = GeneveHdr {
            ver_opt_len,
            o_c_rsvd,
            protocol_type: [p0, p1],
            vni: [v0, v1, v2],
            reserved2,
        };
        let options = usize::from(header.opt_len()) * 4;
        let protocol = u16::from_be_bytes(header.protocol_type);
        let [v0, v1, v2] = header.vni;
        let inner = if header.ver() == 0 && protocol == TRANSPARENT_ETHERNET {
            rest.get(options..).and_then(Frame::decode).map(Box::new)
        } else {
            None
        };
        Some(Self {
            vni: u32::from_be_bytes([0, v0, v1, v2]),
            protocol,
            options,
            inner,
        })
    }
}

/// One line: side, name of the header, fields.
fn write_line(f: &mut Formatter<'_>, side: &str, name: &str, text: &str) -> fmt::Result {
    writeln!(f, "{side:<7}{name:<9} {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An echo request of 192.0.2.1 to 198.51.100.2 in Geneve from 10.0.0.1 to 10.0.0.2.
    fn encapsulated() -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00]);
        bytes.extend([
            0x45, 0, 0, 78, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        bytes.extend([0xc0, 0x01, 0x17, 0xc1, 0, 58, 0, 0]);
        bytes.extend([0, 0, 0x65, 0x58, 0, 0, 77, 0]);
        bytes.extend([0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xf0, 2, 0, 0, 0, 0, 9, 0x08, 0x00]);
        bytes.extend([
            0x45, 0, 0, 28, 0, 0, 0, 0, 63, 1, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2,
        ]);
        bytes.extend([8, 0, 0, 0, 0, 1, 0, 1]);
        bytes
    }

    #[test]
    fn an_encapsulated_frame_is_decoded_to_the_innermost_header() {
        let frame = Frame::decode(&encapsulated()).unwrap();
        let outer = frame.ip.as_ref().unwrap();
        assert_eq!(
            (outer.from, outer.to),
            (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]))
        );
        assert!(outer.dont_fragment);
        let Payload::Geneve(udp, geneve) = &outer.payload else {
            panic!("{outer:?}")
        };
        assert_eq!(
            (udp.from, udp.to, udp.length, udp.checksum),
            (0xc001, GENEVE_PORT, 58, 0)
        );
        assert_eq!((geneve.vni, geneve.options), (77, 0));
        assert_eq!(geneve.inner.as_ref().unwrap().to, MULTI_CLUSTER_MAC);
        let inner = frame.inner().unwrap();
        assert_eq!(
            (inner.from, inner.to),
            (IpAddr::from([192, 0, 2, 1]), IpAddr::from([198, 51, 100, 2]))
        );
        assert_eq!(
            (inner.ttl, &inner.payload),
            (63, &Payload::Icmp { kind: 8, code: 0 })
        );
    }

    #[test]
    fn the_text_has_one_line_per_header() {
        let text = Frame::decode(&encapsulated()).unwrap().to_string();
        let expected = "\
outer  Ethernet  02:00:00:00:00:01 -> 02:00:00:00:00:02
outer  IPv4      10.0.0.1 -> 10.0.0.2, TTL 64, DF, 78 bytes
outer  UDP       port 49153 -> 6081, no checksum
tunnel Geneve    VNI 77, protocol 0x6558 (an Ethernet frame inside), 0 bytes of options
inner  Ethernet  02:00:00:00:00:09 -> aa:bb:cc:dd:ee:f0  (marks multi-cluster traffic)
inner  IPv4      192.0.2.1 -> 198.51.100.2, TTL 63, 28 bytes
inner  ICMP      echo request
";
        assert_eq!(text, expected);
    }

    #[test]
    fn ipv6_is_formatted_like_ipv4() {
        let mut bytes = encapsulated()[..12].to_vec();
        bytes.extend([0x86, 0xdd, 0x6b, 0x80, 0, 0, 0, 8, 58, 61]);
        for last in [1, 2] {
            bytes.extend(std::net::Ipv6Addr::new(0xfd00, 11, 0, 0, 0, 0, 0, last).octets());
        }
        bytes.extend([128, 0, 0, 0, 0, 1, 0, 1]);
        let frame = Frame::decode(&bytes).unwrap();
        assert_eq!(frame.ip.as_ref().map(|ip| ip.tos), Some(0xb8));
        let text = frame.to_string();
        let expected = "       IPv6      fd00:b::1 -> fd00:b::2, hop limit 61, 48 bytes\n       ICMPv6    echo request\n";
        assert!(text.ends_with(expected), "{text}");
        for length in 14..bytes.len() {
            assert!(Frame::decode(&bytes[..length]).is_some());
        }
    }

    #[test]
    fn options_are_skipped() {
        let mut bytes = encapsulated();
        bytes[42] = 1;
        bytes.splice(50..50, [1, 2, 3, 4]);
        let frame = Frame::decode(&bytes).unwrap();
        assert_eq!(frame.geneve().unwrap().options, 4);
        assert!(frame.inner().is_some());
    }

    #[test]
    fn truncated_frames_are_decoded() {
        let bytes = encapsulated();
        for length in 0..bytes.len() {
            if let Some(frame) = Frame::decode(&bytes[..length]) {
                assert!(!frame.to_string().is_empty());
            }
        }
    }

    #[test]
    fn tcp_flags_are_named() {
        let mut bytes = encapsulated()[..34].to_vec();
        bytes[23] = 6;
        bytes.extend([
            0x30, 0x39, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0,
        ]);
        let frame = Frame::decode(&bytes).unwrap();
        let expected = Payload::Tcp {
            from: 12345,
            to: 80,
            flags: "SYN ACK".to_owned(),
        };
        assert_eq!(frame.ip.unwrap().payload, expected);
    }
}
