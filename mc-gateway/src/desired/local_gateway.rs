//! Gateways of the local cluster.

use std::net::IpAddr;

use ipnet::IpNet;

/// A Gateway of the local cluster on another Node.
#[derive(Clone, Debug)]
pub(super) struct Gateway {
    pub(super) name: String,
    pub(super) object: String,
    /// Address the Nodes of the cluster send to; it determines the family of the outer packets.
    pub(super) addr: IpAddr,
    /// Share of the flows.
    pub(super) weight: u32,
    /// Addresses it may send from: that address and its Node's.
    pub(super) sources: Vec<IpAddr>,
}

/// The Gateway on this Node.
#[derive(Clone, Debug)]
pub(super) struct OwnGateway {
    pub(super) gateway_ip: Option<IpAddr>,
    pub(super) internal_ip: Option<IpAddr>,
    pub(super) service_cidrs: Vec<IpNet>,
}
