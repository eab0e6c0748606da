//! Parsing and validation of addresses and prefixes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use mc_gateway_common::abi::{Addr, V4_PREFIX_BITS};
use thiserror::Error;

/// An invalid address or prefix. The text completes "field X, value Y: …".
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CidrError {
    /// Empty.
    #[error("is missing")]
    Missing,
    /// Not an IP address.
    #[error("is not an IP address")]
    NotAnAddress,
    /// Not `address/length`.
    #[error("is not a CIDR, as 10.0.0.0/16 or fd00:10::/48")]
    NotACidr,
    /// An IPv4 address or prefix in IPv4-mapped IPv6 notation.
    #[error("is IPv4-mapped IPv6; use plain IPv4")]
    Ipv4Mapped,
    /// Bits are set after the prefix length.
    #[error("has host bits set; the network is {0}")]
    HostBits(IpNet),
    /// `/0`.
    #[error("is the default route, which no cluster can own")]
    DefaultRoute,
    /// Overlaps a range that no cluster can own.
    #[error("overlaps {0}, which is {1}")]
    Martian(IpNet, &'static str),
}

const fn v4(a: u8, b: u8, len: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, 0, 0), len))
}

const fn v6(first: u16, len: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(
        Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, 0),
        len,
    ))
}

/// Ranges that no cluster can own (RFC 6890, RFC 4291), with their names. IPv4 addresses in the maps are in `::/8`,
/// which no valid IPv6 prefix overlaps.
const MARTIANS: [(IpNet, &str); 8] = [
    (v4(0, 0, 8), "\"this network\""),
    (v4(127, 0, 8), "loopback"),
    (v4(169, 254, 16), "link-local"),
    (v4(224, 0, 4), "multicast"),
    (v4(240, 0, 4), "reserved or broadcast"),
    (v6(0, 8), "reserved (loopback, IPv4 in IPv6)"),
    (v6(0xfe80, 10), "link-local"),
    (v6(0xff00, 8), "multicast"),
];

/// Parses a prefix a cluster or Node may own.
pub fn parse_prefix(text: &str) -> Result<IpNet, CidrError> {
    if text.is_empty() {
        return Err(CidrError::Missing);
    }
    // Unlike ipnet's parser, the standard library's rejects leading zeros, which some programs read as octal.
    let (addr, len) = text.split_once('/').ok_or(CidrError::NotACidr)?;
    let canonical = !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = canonical && (len == "0" || !len.starts_with('0'));
    let len = len
        .parse::<u8>()
        .ok()
        .filter(|_| canonical)
        .ok_or(CidrError::NotACidr)?;
    let addr = addr.parse::<IpAddr>().map_err(|_| CidrError::NotACidr)?;
    let net = IpNet::new(addr, len).map_err(|_| CidrError::NotACidr)?;
    if is_ipv4_mapped(addr) {
        return Err(CidrError::Ipv4Mapped);
    }
    if net.prefix_len() == 0 {
        return Err(CidrError::DefaultRoute);
    }
    if net.addr() != net.network() {
        return Err(CidrError::HostBits(net.trunc()));
    }
    if let Some((martian, what)) = MARTIANS.into_iter().find(|(martian, _)| overlaps(*martian, net)) {
        return Err(CidrError::Martian(martian, what));
    }
    Ok(net)
}

/// Parses the address of a node or gateway.
pub fn parse_address(text: &str) -> Result<IpAddr, CidrError> {
    if text.is_empty() {
        return Err(CidrError::Missing);
    }
    let addr = text.parse::<IpAddr>().map_err(|_| CidrError::NotAnAddress)?;
    if is_ipv4_mapped(addr) {
        return Err(CidrError::Ipv4Mapped);
    }
    // A gateway may have an IPv4 link-local underlay. An IPv6 link-local address is ambiguous without its device.
    let link_local = matches!(addr, IpAddr::V4(v4) if v4.is_link_local());
    let refused = |(martian, _): &(IpNet, &str)| martian.contains(&addr) && !link_local;
    if let Some((martian, what)) = MARTIANS.into_iter().find(refused) {
        return Err(CidrError::Martian(martian, what));
    }
    Ok(addr)
}

fn is_ipv4_mapped(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// The CIDRs of a field with one per family, separated by commas.
pub fn split_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|text| !text.is_empty())
}

/// Whether two prefixes share an address.
#[must_use]
pub fn overlaps(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// Whether two addresses have the same family.
#[must_use]
pub fn same_family(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4()
}

/// Length of a prefix of one address.
#[must_use]
pub const fn max_prefix_len(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}

/// Whether a prefix is IPv6.
#[must_use]
pub fn is_ipv6(net: IpNet) -> bool {
    matches!(net, IpNet::V6(_))
}

/// The address as the maps hold it.
#[must_use]
pub fn to_abi_addr(addr: IpAddr) -> Addr {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    }
}

/// An address of the maps in its usual form.
#[must_use]
pub fn from_abi_addr(addr: &Addr) -> IpAddr {
    Ipv6Addr::from(*addr).to_canonical()
}

/// The prefix length as the maps hold it.
#[must_use]
pub fn abi_prefix_len(net: IpNet) -> u32 {
    let len = u32::from(net.prefix_len());
    match net {
        IpNet::V4(_) => V4_PREFIX_BITS.saturating_add(len),
        IpNet::V6(_) => len,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_prefixes() {
        for text in ["10.0.0.0/16", "10.0.0.7/32", "fd00:10::/48", "2001:db8::7/128"] {
            assert_eq!(parse_prefix(text), Ok(text.parse().unwrap()));
        }
    }

    #[test]
    fn invalid_prefixes_are_rejected_with_a_reason() {
        let bad = [
            ("", CidrError::Missing),
            ("10.0.0.0", CidrError::NotACidr),
            ("10.0.0/16", CidrError::NotACidr),
            ("10.0.0.0/33", CidrError::NotACidr),
            ("10.0.0.256/32", CidrError::NotACidr),
            ("010.0.0.0/8", CidrError::NotACidr),
            (" 10.0.0.0/8", CidrError::NotACidr),
            ("10.0.0.0/-1", CidrError::NotACidr),
            ("10.0.0.0/+8", CidrError::NotACidr),
            ("10.0.0.0/08", CidrError::NotACidr),
            ("10.0.0.0/", CidrError::NotACidr),
            ("10.0.0.0/8/8", CidrError::NotACidr),
            ("fd00::/129", CidrError::NotACidr),
            ("fd00::%eth0/64", CidrError::NotACidr),
            ("[fd00::]/64", CidrError::NotACidr),
            ("::ffff:10.0.0.0/104", CidrError::Ipv4Mapped),
            ("::ffff:10.0.0.0/8", CidrError::Ipv4Mapped),
            ("::ffff:a00:0/112", CidrError::Ipv4Mapped),
            ("::/0", CidrError::DefaultRoute),
            ("10.0.0.1/8", CidrError::HostBits("10.0.0.0/8".parse().unwrap())),
            (
                "fd00:10::1/48",
                CidrError::HostBits("fd00:10::/48".parse().unwrap()),
            ),
            ("0.0.0.0/0", CidrError::DefaultRoute),
        ];
        for (text, error) in bad {
            assert_eq!(parse_prefix(text), Err(error), "{text:?}");
        }
        for text in [
            "127.0.0.0/8",
            "127.1.0.0/16",
            "169.254.7.0/24",
            "224.0.0.0/8",
            "255.255.255.255/32",
            "::1/128",
            "fe80::/64",
            "ff02::/16",
            "64:ff9b::/96",
        ] {
            assert!(
                matches!(parse_prefix(text), Err(CidrError::Martian(..))),
                "{text:?}"
            );
        }
        for wide in ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"] {
            assert!(
                matches!(parse_prefix(wide), Err(CidrError::Martian(..))),
                "{wide:?}"
            );
        }
    }

    #[test]
    fn invalid_addresses_are_rejected_with_a_reason() {
        let bad = [
            ("", CidrError::Missing),
            ("gateway.example", CidrError::NotAnAddress),
            ("172.18.0.1/24", CidrError::NotAnAddress),
            ("fe80::1%eth0", CidrError::NotAnAddress),
            ("::ffff:172.18.0.1", CidrError::Ipv4Mapped),
        ];
        for (text, error) in bad {
            assert_eq!(parse_address(text), Err(error), "{text:?}");
        }
        for text in [
            "0.0.0.0",
            "127.0.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(
                matches!(parse_address(text), Err(CidrError::Martian(..))),
                "{text:?}"
            );
        }
        for good in ["169.254.1.1", "fd00::1"] {
            assert_eq!(parse_address(good), Ok(good.parse().unwrap()));
        }
    }

    #[test]
    fn addresses_in_map_format() {
        let net: IpNet = "10.1.0.0/16".parse().unwrap();
        assert_eq!(abi_prefix_len(net), 112);
        assert_eq!(
            to_abi_addr(net.addr()),
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, 0]
        );
        let net: IpNet = "fd00:10::/48".parse().unwrap();
        assert_eq!(abi_prefix_len(net), 48);
        assert_eq!(to_abi_addr(net.addr())[..4], [0xfd, 0, 0, 0x10]);
    }
}
