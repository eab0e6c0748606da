//! Clusters whose gateways are Antrea's. Pure.
//!
//! Such a gateway is one, knows one of ours, and hides its clients behind its own address, as it expects of
//! others. So all that leaves for its cluster does so by the gateway of ours that it knows, with that one's
//! address; and what stands for its clients inside our cluster is the address that names its Service CIDR, which
//! Kubernetes gives to nobody.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use mc_gateway_common::abi::{CLUSTER_LOCAL, PEER_ANTREA, PEER_REMOTE_GATEWAY};

use super::local::{LocalCluster, split_list};
use super::remote::Remote;
use super::{Builder, NextHop, Peer, PrefixRoute};
use crate::cidr::parse_prefix;
use crate::objects::{FieldError, GatewayInfo, RemoteCluster, RemoteGateway};

/// Name of the group that is the gateway of ours Antrea gateways know.
const PRIMARY: &str = "primary-gateway";

/// Longest prefix that has an address to spare.
const MAX_LENGTH: u8 = 30;

/// What the gateway that serves clusters with gateways of Antrea does for them; nothing on other Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AntreaInterop {
    /// What goes from our cluster to these prefixes …
    pub prefixes: BTreeSet<IpNet>,
    /// … but not to these, which stand for such gateways …
    pub aliases: BTreeSet<Ipv4Addr>,
    /// … gets this source, our own `gatewayIP`.
    pub source: Option<Ipv4Addr>,
    /// What is delivered on this Node; replies to all else of our cluster go on through the tunnel.
    pub local_prefixes: BTreeSet<IpNet>,
}

/// The Gateway that others are told of first, which is the only one Antrea knows: of those that are not drained the
/// one that is marked, else the oldest. The member controller lists it first by the same rule.
pub(super) fn primary<'a>(gateways: &[&'a GatewayInfo]) -> Option<&'a GatewayInfo> {
    let order = |info: &&&GatewayInfo| {
        (
            info.weight == 0,
            !info.primary,
            info.created.is_none(),
            info.created.clone(),
            info.name.clone(),
        )
    };
    gateways.iter().min_by_key(order).copied()
}

/// Those gateways of the cluster that are one: the others are not told of new connections.
pub(super) fn active_gateways(info: &RemoteCluster) -> &[RemoteGateway] {
    info.gateways.get(..1).unwrap_or_default()
}

/// What stands for the cluster's gateway: the address that names its first IPv4 Service CIDR.
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
            reason: "holds no usable IPv4 range, whose first address stands for the clients of an Antrea gateway: they are refused".to_owned(),
        });
    }
    found
}

impl Builder {
    /// The group of the gateway of ours that Antrea gateways know, where that is another Node.
    pub(super) fn primary_group(&mut self, cluster: &LocalCluster) -> Option<u32> {
        let group = self.add_group(PRIMARY, PRIMARY)?;
        let mut others = cluster.gateways.iter();
        let primary = others.find(|gateway| Some(&gateway.name) == cluster.primary.as_ref());
        // Without it there is nobody to send to, and packets are dropped instead of leaving in clear.
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

    /// A cluster with a gateway of Antrea, at a gateway of ours.
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
                // There is no other.
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
                "is no IPv4 address, which clusters with gateways of Antrea need".to_owned(),
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
