//! Clusters with Antrea gateways. Pure.
//!
//! Such a cluster has one active gateway, which uses one gateway per remote cluster, masquerades its clients with its
//! own address, and expects the same of others. So all packets to it leave through the local primary gateway, with
//! that gateway's address; inside the local cluster its clients appear with an alias, the network address of its
//! Service CIDR, which Kubernetes assigns to no Service.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use mc_api::gateway::PrimaryRank;
use mc_gateway_common::abi::{CLUSTER_LOCAL, PEER_ANTREA, PEER_REMOTE_GATEWAY};

use super::local::{LocalCluster, split_list};
use super::remote::Remote;
use super::{Builder, NextHop, Peer, PrefixRoute};
use crate::cidr::parse_prefix;
use crate::objects::{FieldError, GatewayInfo, RemoteCluster, RemoteGateway};

/// Name of the group of the primary gateway, the one Antrea gateways use.
const PRIMARY: &str = "primary-gateway";

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
    usable: &BTreeSet<IpNet>,
    object: &str,
    rejected: &mut Vec<FieldError>,
) -> Option<Ipv4Addr> {
    let found = split_list(&info.service_cidr)
        .filter_map(|text| parse_prefix(text).ok())
        .filter(|net| usable.contains(net))
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

impl Builder {
    /// The group of the primary gateway, if it is another Node.
    pub(super) fn primary_group(&mut self, cluster: &LocalCluster) -> Option<u32> {
        let group = self.add_group(PRIMARY, PRIMARY)?;
        let mut others = cluster.gateways.iter();
        let primary = others.find(|gateway| Some(&gateway.name) == cluster.primary.as_ref());
        // Without a primary gateway the group is empty: packets are dropped instead of leaving unencapsulated.
        let Some(primary) = primary else {
            return Some(group);
        };
        let next_hop = NextHop {
            object: primary.object.clone(),
            addr: primary.addr,
            source: cluster.source_to_node(primary.addr),
            weight: 1,
        };
        self.add_next_hop(group, "internalIP", next_hop);
        Some(group)
    }

    /// Adds a cluster with an Antrea gateway to the state of a gateway.
    pub(super) fn antrea_cluster(&mut self, remote: &Remote, cluster: &LocalCluster) {
        for (addr, _) in &remote.gateways {
            let peer = Peer {
                cluster: remote.id,
                flags: PEER_REMOTE_GATEWAY | PEER_ANTREA,
                group: 0,
                alias: remote.alias,
            };
            self.add_peer(&remote.object, *addr, peer);
        }
        if cluster.primary.as_ref() != Some(&cluster.own.name) {
            if let Some(group) = self.primary_group(cluster) {
                self.forward_remote(remote, group);
            }
            return;
        }
        let Some(group) = self.add_group(&format!("cluster/{}", remote.cluster_id), &remote.object) else {
            return;
        };
        for (addr, _) in &remote.gateways {
            let next_hop = NextHop {
                object: remote.object.clone(),
                addr: *addr,
                source: cluster.source_to_gateway(*addr),
                // The only one.
                weight: 1,
            };
            self.add_next_hop(group, "spec.gatewayInfos", next_hop);
        }
        self.forward_remote(remote, group);
        let source = cluster.own_gateway.as_ref().and_then(|own| own.gateway_ip);
        let Some(IpAddr::V4(source)) = source else {
            self.reject(
                &format!("Gateway {}", cluster.own.name),
                "gatewayIP",
                &source.map(|addr| addr.to_string()).unwrap_or_default(),
                "is no IPv4 address, which clusters with Antrea gateways require".to_owned(),
            );
            return;
        };
        let antrea = &mut self.desired.masquerade.antrea;
        antrea.source = Some(source);
        antrea.aliases.extend(remote.alias);
        let own = cluster.own_pod_cidrs();
        let pods = cluster.pods_on(&cluster.own.name).iter();
        let own = own.iter().chain(pods).chain(cluster.own.own_addresses());
        antrea.local_prefixes = own.filter(|net| net.addr().is_ipv4()).copied().collect();
        let v4 = remote.prefixes.iter().filter(|net| net.addr().is_ipv4());
        antrea.prefixes.extend(v4);
        let (prefixes, one) = (&mut self.desired.prefixes, |addr| IpNet::from(IpAddr::V4(addr)));
        if let Some(alias) = remote.alias {
            let route = PrefixRoute {
                cluster: remote.id,
                group,
                deliver: false,
            };
            prefixes.insert(one(alias), route);
        }
        let route = PrefixRoute {
            cluster: CLUSTER_LOCAL,
            group: 0,
            deliver: true,
        };
        prefixes.insert(one(source), route);
    }
}
