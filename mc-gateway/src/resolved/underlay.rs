//! Routes and addresses of the underlay, and the overhead of encapsulation.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Bytes that encapsulation adds to an inner IP packet besides the outer IP header: UDP, tunnel header (Geneve and
/// VXLAN alike), inner Ethernet.
const OVERHEAD: u32 = 8 + 8 + 14;

/// MTU of `mc0` while no underlay route is known: Ethernet's less the overhead in IPv4.
pub const DEFAULT_MTU: u32 = 1500 - 20 - OVERHEAD;

/// Smallest MTU of a link that carries IPv6 (RFC 8200 section 5); below it the kernel disables IPv6.
pub const MIN_V6_MTU: u32 = 1280;

/// Bytes that encapsulation adds to an inner IP packet sent to `outer`: 50 in IPv4, 70 in IPv6.
#[must_use]
pub fn overhead(outer: IpAddr) -> u32 {
    let header: u32 = if outer.is_ipv4() { 20 } else { 40 };
    header.saturating_add(OVERHEAD)
}

/// A neighbor: index of its device, and its address.
pub type NeighborKey = (u32, IpAddr);

/// Neighbors with their MAC addresses; none of those that the kernel has not resolved.
pub type Neighbors = BTreeMap<NeighborKey, Option<[u8; 6]>>;

/// The host's route to an underlay address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderlayRoute {
    /// Index of the output device.
    pub ifindex: u32,
    /// Its name.
    pub device: String,
    /// Its link address, if that is a MAC address.
    pub link_address: Option<[u8; 6]>,
    /// Source address the host selects.
    pub source: IpAddr,
    /// Path MTU.
    pub mtu: u32,
    /// Neighbour that receives the packets: a router, or the address itself. None for a multipath route, where the
    /// kernel selects.
    pub neighbor: Option<IpAddr>,
}

/// The underlay as observed on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Underlay {
    /// Route to each requested address that has one.
    pub routes: BTreeMap<IpAddr, UnderlayRoute>,
    /// Reason why each other address has none.
    pub unreachable: BTreeMap<IpAddr, String>,
    /// Addresses of this host with index and name of their device, without those of `mc0`.
    pub local_addrs: BTreeMap<IpAddr, (u32, String)>,
    /// Devices whose frames have no Ethernet header, by index, each with its type.
    pub without_ethernet: BTreeMap<u32, String>,
    /// Local addresses under duplicate address detection (RFC 4862 section 5.4): they are not used as source.
    pub tentative: BTreeSet<IpAddr>,
    /// Those of the local addresses that bridges have.
    pub bridge_addrs: BTreeSet<IpAddr>,
    /// Addresses of `mc0`.
    pub mc0_addrs: BTreeSet<IpAddr>,
    /// Neighbors on the routes.
    pub neighbors: Neighbors,
}

impl Underlay {
    /// The neighbors on the routes.
    #[must_use]
    pub fn neighbors_on_routes(&self) -> BTreeSet<NeighborKey> {
        let routes = self.routes.values();
        routes
            .filter_map(|route| Some((route.ifindex, route.neighbor?)))
            .collect()
    }
}
