//! Clusters with Antrea gateways. Pure.
//!
//! Such a cluster has one active gateway, which uses one gateway per remote cluster, masquerades its clients with its
//! own address, and expects the same of others. So all packets to it leave through the local primary gateway, with
//! that gateway's address; inside the local cluster its clients appear with an alias, the network address of its
//! Service CIDR, which Kubernetes assigns to no Service.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::IpNet;
use mc_api::gateway::PrimaryRank;

use crate::cidr::{parse_prefix, split_list};
use crate::objects::{FieldError, GatewayInfo, RemoteCluster, RemoteGateway};

/// Longest prefix whose network address is unused.
const MAX_LENGTH: u8 = 30;

/// Source NAT of the gateway that serves clusters with Antrea gateways; empty on other Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AntreaInterop {
    /// Packets from the local cluster to these prefixes …
    pub prefixes: BTreeSet<IpNet>,
    /// … except to these aliases of Antrea gateways …
    pub aliases: BTreeSet<Ipv4Addr>,
    /// … get this source, the own `gatewayIP`.
    pub source: Option<Ipv4Addr>,
    /// Prefixes delivered on this Node; replies to the rest of the local cluster are sent through the tunnel.
    pub local_prefixes: BTreeSet<IpNet>,
}

/// The primary gateway, by the rule of the member controller ([`PrimaryRank`]).
pub(super) fn primary<'a>(gateways: &[&'a GatewayInfo]) -> Option<&'a GatewayInfo> {
    fn rank(info: &GatewayInfo) -> PrimaryRank<'_, &str> {
        PrimaryRank::new(info.weight, info.primary, info.created.as_deref(), &info.name)
    }
    gateways.iter().copied().min_by_key(|&info| rank(info))
}

/// The active gateway of the cluster: the others do not learn of new connections.
pub(super) fn active_gateways(info: &RemoteCluster) -> &[RemoteGateway] {
    info.gateways.get(..1).unwrap_or_default()
}

/// Alias of the cluster's gateway: the network address of its first IPv4 Service CIDR.
pub(super) fn alias(
    info: &RemoteCluster,
    usable: &[IpNet],
    object: &str,
    rejected: &mut Vec<FieldError>,
) -> Option<Ipv4Addr> {
    let found = split_list(&info.service_cidr)
        .filter_map(|text| parse_prefix(text).ok())
        .filter(|net| usable.binary_search(net).is_ok())
        .find_map(|net| match net {
            IpNet::V4(net) if net.prefix_len() <= MAX_LENGTH => Some(net.network()),
            _ => None,
        });
    if found.is_none() {
        rejected.push(FieldError {
            object: object.to_owned(),
            field: "spec.serviceCIDR".to_owned(),
            value: info.service_cidr.clone(),
            reason:
                "has no usable IPv4 range, whose first address replaces the clients of an Antrea gateway: \
                     they are dropped"
                    .to_owned(),
        });
    }
    found
}
