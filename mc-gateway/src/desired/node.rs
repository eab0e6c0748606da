//! A Node of the local cluster.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::cidr::same_family;

/// A validated Node.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) name: String,
    /// Addresses of type InternalIP, of both families.
    pub(super) addrs: Vec<IpAddr>,
    pub(super) pod_cidrs: Vec<IpNet>,
    /// Its own addresses in the Pod network outside its Pod CIDRs.
    pub(super) host_addresses: Vec<IpNet>,
    /// Service IPs reserved for it.
    pub(super) reserved: Vec<IpNet>,
}

impl Node {
    pub(super) fn object(&self) -> String {
        format!("Node {}", self.name)
    }

    /// Its own addresses outside its Pod CIDRs.
    pub(super) fn own_addresses(&self) -> impl Iterator<Item = &IpNet> {
        self.host_addresses.iter().chain(&self.reserved)
    }

    pub(super) fn addr(&self) -> Option<IpAddr> {
        self.addrs.first().copied()
    }

    /// The first address of the family of `like`, a local address; else the first.
    pub(super) fn addr_of_family(&self, like: Option<IpAddr>) -> Option<IpAddr> {
        let same = |addr: &IpAddr| like.is_some_and(|like| same_family(*addr, like));
        self.addrs.iter().copied().find(same).or(self.addr())
    }
}
