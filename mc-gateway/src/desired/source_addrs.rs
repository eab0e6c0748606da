//! Source addresses, at most one per address family.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Addresses of this host that other clusters can reply to, one per family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceAddrs {
    /// The IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

impl SourceAddrs {
    /// The address of the family of `net`.
    #[must_use]
    pub fn for_family(self, net: IpNet) -> Option<IpAddr> {
        match net {
            IpNet::V4(_) => self.v4.map(IpAddr::V4),
            IpNet::V6(_) => self.v6.map(IpAddr::V6),
        }
    }

    /// The addresses present.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.v4.map(IpAddr::V4);
        v4.into_iter().chain(self.v6.map(IpAddr::V6))
    }

    /// The addresses present, and those of `others` for missing families.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            v4: self.v4.or(others.v4),
            v6: self.v6.or(others.v6),
        }
    }

    /// The addresses that satisfy `keep`.
    #[must_use]
    pub fn filter(self, keep: impl Fn(IpAddr) -> bool) -> Self {
        Self {
            v4: self.v4.filter(|addr| keep(IpAddr::V4(*addr))),
            v6: self.v6.filter(|addr| keep(IpAddr::V6(*addr))),
        }
    }
}

/// The first address of each family.
impl FromIterator<IpAddr> for SourceAddrs {
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut first = Self::default();
        for addr in addresses {
            match addr {
                IpAddr::V4(addr) => first.v4 = first.v4.or(Some(addr)),
                IpAddr::V6(addr) => first.v6 = first.v6.or(Some(addr)),
            }
        }
        first
    }
}
