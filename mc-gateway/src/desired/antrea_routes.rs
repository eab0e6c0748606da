//! Routes between the local cluster and clusters with Antrea gateways. Pure.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use mc_gateway_common::abi::{CLUSTER_LOCAL, PEER_ANTREA, PEER_REMOTE_GATEWAY};

use super::local::LocalCluster;
use super::remote::Remote;
use super::{Builder, NextHop, Peer, PrefixRoute};

/// Name of the group of the primary gateway, the one Antrea gateways use.
const PRIMARY: &str = "primary-gateway";

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
        let auth = self.node_auth(cluster, &primary.name, &primary.object);
        let next_hop = NextHop {
            object: primary.object.clone(),
            addr: primary.addr,
            source: cluster.source_to_node(primary.addr),
            weight: 1,
            auth,
        };
        self.add_next_hop(group, "internalIP", next_hop);
        Some(group)
    }

    /// Adds a cluster with an Antrea gateway to the state of a gateway.
    pub(super) fn antrea_cluster(&mut self, remote: &Arc<Remote>, cluster: &LocalCluster) {
        for gateway in &remote.gateways {
            let peer = Peer {
                cluster: remote.id,
                flags: PEER_REMOTE_GATEWAY | PEER_ANTREA,
                group: 0,
                alias: remote.alias,
                auth: gateway.auth,
            };
            self.add_peer(&remote.object, gateway.addr, peer);
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
        for gateway in &remote.gateways {
            let next_hop = NextHop {
                object: remote.object.clone(),
                addr: gateway.addr,
                source: cluster.source_to_gateway(gateway.addr),
                // The only one.
                weight: 1,
                auth: gateway.auth,
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
        let (prefixes, one) = (&mut self.local_prefixes, |addr| IpNet::from(IpAddr::V4(addr)));
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
