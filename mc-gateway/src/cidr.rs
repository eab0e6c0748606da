//! Addresses and prefixes as people write them, checked before anything is built on them.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use mc_gateway_common::abi::{Addr, V4_PREFIX_BITS};
use thiserror::Error;

/// Why a written address or prefix is not usable. The text completes "field X, value Y: …".
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CidrError {
    /// Nothing was written.
    #[error("is missing")]
    Missing,
    /// Not an IP address at all.
    #[error("is not an IP address")]
    NotAnAddress,
    /// Not `address/length`.
    #[error("is not a CIDR, which is written like 10.0.0.0/16")]
    NotACidr,
    /// An IPv4 prefix or address in IPv6 clothes.
    #[error("is an IPv4-mapped IPv6 notation; write it as plain IPv4")]
    Mapped,
    /// IPv6.
    #[error("is IPv6, which is not supported yet")]
    Ipv6,
    /// Bits are set behind the prefix length.
    #[error("has address bits behind its prefix length; the network is {0}")]
    HostBits(Ipv4Net),
    /// `/0`.
    #[error("covers every address; a cluster cannot own the default route")]
    Everything,
    /// Overlaps a range that is never routed to a cluster.
    #[error("overlaps {0}, which is {1}")]
    Martian(Ipv4Net, &'static str),
}

/// Ranges no cluster can own (RFC 6890), and what they are.
const MARTIANS: [(Ipv4Net, &str); 5] = [
    (Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8), "\"this network\""),
    (Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8), "loopback"),
    (
        Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16),
        "link-local",
    ),
    (Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 4), "multicast"),
    (
        Ipv4Net::new_assert(Ipv4Addr::new(240, 0, 0, 0), 4),
        "reserved or broadcast",
    ),
];

/// Parses a prefix a cluster or Node may own.
pub fn parse_prefix(text: &str) -> Result<Ipv4Net, CidrError> {
    if text.is_empty() {
        return Err(CidrError::Missing);
    }
    // The standard library's parser, unlike ipnet's, refuses leading zeros: 010 is 8 to some programs.
    let (addr, len) = text.split_once('/').ok_or(CidrError::NotACidr)?;
    let canonical = !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit());
    let canonical = canonical && (len == "0" || !len.starts_with('0'));
    let len = len
        .parse::<u8>()
        .ok()
        .filter(|_| canonical)
        .ok_or(CidrError::NotACidr)?;
    let net = match addr.parse::<IpAddr>().map_err(|_| CidrError::NotACidr)? {
        IpAddr::V4(addr) => Ipv4Net::new(addr, len).map_err(|_| CidrError::NotACidr)?,
        IpAddr::V6(_) if len > 128 => return Err(CidrError::NotACidr),
        IpAddr::V6(addr) if addr.to_ipv4_mapped().is_some() => return Err(CidrError::Mapped),
        IpAddr::V6(_) => return Err(CidrError::Ipv6),
    };
    if net.prefix_len() == 0 {
        return Err(CidrError::Everything);
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
pub fn parse_address(text: &str) -> Result<Ipv4Addr, CidrError> {
    if text.is_empty() {
        return Err(CidrError::Missing);
    }
    let addr = match text.parse::<IpAddr>().map_err(|_| CidrError::NotAnAddress)? {
        IpAddr::V4(addr) => addr,
        IpAddr::V6(addr) if addr.to_ipv4_mapped().is_some() => return Err(CidrError::Mapped),
        IpAddr::V6(_) => return Err(CidrError::Ipv6),
    };
    // A gateway may well sit on a link-local underlay: only what can never be a peer is refused.
    let refused = |(martian, _): &(Ipv4Net, &str)| martian.contains(&addr) && !addr.is_link_local();
    if let Some((martian, what)) = MARTIANS.into_iter().find(refused) {
        return Err(CidrError::Martian(martian, what));
    }
    Ok(addr)
}

/// Whether two prefixes share an address.
#[must_use]
pub fn overlaps(a: Ipv4Net, b: Ipv4Net) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// The address as the maps hold it.
#[must_use]
pub fn mapped(addr: Ipv4Addr) -> Addr {
    addr.to_ipv6_mapped().octets()
}

/// The prefix length as the maps hold it.
#[must_use]
pub fn mapped_len(net: Ipv4Net) -> u32 {
    V4_PREFIX_BITS + u32::from(net.prefix_len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_prefixes() {
        assert_eq!(parse_prefix("10.0.0.0/16"), Ok("10.0.0.0/16".parse().unwrap()));
        assert_eq!(parse_prefix("10.0.0.7/32"), Ok("10.0.0.7/32".parse().unwrap()));
    }

    #[test]
    fn bad_prefixes_say_why() {
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
            ("::ffff:10.0.0.0/104", CidrError::Mapped),
            ("::ffff:10.0.0.0/8", CidrError::Mapped),
            ("::ffff:a00:0/112", CidrError::Mapped),
            ("fd00::/48", CidrError::Ipv6),
            ("::/0", CidrError::Ipv6),
            ("10.0.0.1/8", CidrError::HostBits("10.0.0.0/8".parse().unwrap())),
            ("0.0.0.0/0", CidrError::Everything),
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
        ] {
            assert!(
                matches!(parse_prefix(text), Err(CidrError::Martian(..))),
                "{text:?}"
            );
        }
        for wide in ["0.0.0.0/1", "128.0.0.0/1"] {
            assert!(
                matches!(parse_prefix(wide), Err(CidrError::Martian(..))),
                "{wide:?}"
            );
        }
    }

    #[test]
    fn bad_addresses_say_why() {
        let bad = [
            ("", CidrError::Missing),
            ("gateway.example", CidrError::NotAnAddress),
            ("172.18.0.1/24", CidrError::NotAnAddress),
            ("::ffff:172.18.0.1", CidrError::Mapped),
            ("fd00::1", CidrError::Ipv6),
        ];
        for (text, error) in bad {
            assert_eq!(parse_address(text), Err(error), "{text:?}");
        }
        for text in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
            assert!(
                matches!(parse_address(text), Err(CidrError::Martian(..))),
                "{text:?}"
            );
        }
        assert_eq!(parse_address("169.254.1.1"), Ok(Ipv4Addr::new(169, 254, 1, 1)));
    }

    #[test]
    fn mapped_form_of_the_maps() {
        let net: Ipv4Net = "10.1.0.0/16".parse().unwrap();
        assert_eq!(mapped_len(net), 112);
        assert_eq!(
            mapped(net.addr()),
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 0, 0]
        );
    }
}
