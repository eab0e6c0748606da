//! Parameters of the agent's nftables table.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Underlay;
use crate::desired::Masquerade;
use crate::desired::services::Services;

/// Parameters of the rules of the agent's nftables table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NftRules {
    /// Source NAT.
    pub masquerade: Masquerade,
    /// Filters.
    pub filter: PacketFilter,
}

/// Packets that are dropped by nftables: forged multi-cluster packets from this node, and connections of other clusters
/// to the node itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// UDP destination port of encapsulated packets.
    pub port: u16,
    /// Service CIDRs of this cluster: a connection to a Service is not one to the node.
    pub service_cidrs: BTreeSet<IpNet>,
    /// Addresses of `mc0`: connections to them are for the node, also if they are Service addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Backends of exported Services on this node's own addresses (host-network Pods).
    pub backends: BTreeSet<HostPort>,
    /// Whether other clusters may open connections to this node's addresses and its `NodePort`s.
    pub expose_nodes: bool,
    /// Underlay devices whose packets `from_underlay` leaves to a tunnel device; empty without tunnel devices.
    pub decap_devices: BTreeSet<String>,
}

/// A port of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// Address of the node.
    pub addr: IpAddr,
    /// Protocol number.
    pub proto: u8,
    /// Port.
    pub port: u16,
}

/// The backends on this node's own addresses.
pub(super) fn host_backends(services: &Services, underlay: &Underlay) -> BTreeSet<HostPort> {
    let local = services.backends.values().filter(|backend| backend.group == 0);
    let ports = local.map(|backend| HostPort {
        addr: IpAddr::from(backend.pod).to_canonical(),
        proto: backend.proto,
        port: backend.pod_port,
    });
    ports
        .filter(|port| underlay.local_addrs.contains_key(&port.addr))
        .collect()
}
