//! Assembles the desired state from the validated local and remote clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use mc_gateway_common::abi::{
    CLUSTER_LOCAL, GROUP_NEXT_HOPS, PEER_LOCAL_GATEWAY, PEER_LOCAL_NODE, PEER_REMOTE_GATEWAY,
};

use super::forward_table::Forwarded;
use super::local::LocalCluster;
use super::local_gateway::Gateway;
use super::remote::Remote;
use super::{DesiredState, LocalNode, Masquerade, NextHop, NextHopGroup, Peer, PrefixRoute, services};
use crate::ids::stable_id;
use crate::objects::{FieldError, Objects};
use crate::peer_secret::{PeerAuth, SecretPolicy};

/// Name of the group of a regular Node's gateways.
const GATEWAYS: &str = "gateways";

/// Largest weight: the selection multiplies by it.
const MAX_WEIGHT: u32 = 255;

/// Name of the group of a single Node.
fn node_group(node: &str) -> String {
    format!("node/{node}")
}

/// The desired state so far, and the rejected fields.
#[derive(Default)]
pub(super) struct Builder {
    /// Its prefixes and routes are added at the end.
    pub(super) desired: DesiredState,
    /// Prefixes of the local cluster, and single addresses of others.
    pub(super) local_prefixes: BTreeMap<IpNet, PrefixRoute>,
    /// Remote clusters by ID.
    pub(super) forwarded: BTreeMap<u64, Forwarded>,
    pub(super) rejected: Vec<FieldError>,
    /// Use of secrets with the Nodes of this cluster.
    pub(super) node_secrets: SecretPolicy,
}

impl Builder {
    /// Reports a public key of this Node that belongs to another private key: packets of other nodes have the secret of
    /// that one.
    pub(super) fn own_key(&mut self, me: &LocalNode, cluster: &LocalCluster) {
        let (Some(own), Some(published)) = (me.public_key, cluster.key(&me.node_name)) else {
            return;
        };
        if own != published {
            let object = format!("NodeKey {}", me.node_name);
            let reason = format!(
                "is not the public key {own} of this Node: other nodes drop its packets; delete the NodeKey, and the agent \
                 creates it again"
            );
            self.reject(&object, "spec.publicKey", &published.to_string(), reason);
        }
    }

    /// Authentication of the Node that `object` defines; rejected without a public key.
    pub(super) fn node_auth(&mut self, cluster: &LocalCluster, node: &str, object: &str) -> PeerAuth {
        let auth = PeerAuth::new(cluster.key(node), self.node_secrets);
        if auth == PeerAuth::Missing {
            let reason = "is missing: packets of this Node are dropped, and it gets none; upgrade its agent, or set \
                          --node-secrets optional";
            self.reject(object, "NodeKey", node, reason.to_owned());
        }
        auth
    }

    /// State of a regular Node: remote prefixes are forwarded to the local gateways, which are the peers.
    pub(super) fn regular_node(&mut self, cluster: &LocalCluster, remotes: &[Arc<Remote>]) {
        let Some(group) = self.add_group(GATEWAYS, GATEWAYS) else {
            return;
        };
        // By name, drained ones last: every node uses the same gateways if there are too many.
        let mut gateways: Vec<_> = cluster.gateways.iter().collect();
        gateways.sort_by_key(|gateway| gateway.weight == 0);
        for gateway in gateways {
            let auth = self.node_auth(cluster, &gateway.name, &gateway.object);
            let next_hop = NextHop {
                object: gateway.object.clone(),
                addr: gateway.addr,
                source: cluster.source_to_node(gateway.addr),
                weight: gateway.weight,
                auth,
            };
            self.add_next_hop(group, "internalIP", next_hop);
            self.local_gateway(gateway, auth);
        }
        for remote in remotes {
            if !remote.antrea {
                self.forward_remote(remote, group);
            } else if let Some(primary) = self.primary_group(cluster) {
                self.forward_remote(remote, primary);
            }
        }
        self.deliver(&cluster.own_pod_cidrs());
        self.deliver(cluster.pods_on(&cluster.own.name));
        self.deliver(cluster.own.own_addresses());
    }

    /// State of a gateway: remote prefixes are forwarded to the gateways of their cluster, local ones to their Node.
    pub(super) fn gateway_node(&mut self, cluster: &LocalCluster, remotes: &[Arc<Remote>]) {
        self.desired.gateway = true;
        for node in &cluster.other_nodes {
            // The Node sends to this gateway in this family.
            let Some(addr) = node.addr_of_family(cluster.internal_ip()) else {
                continue;
            };
            let Some(group) = self.add_group(&node_group(&node.name), &node.object()) else {
                continue;
            };
            let auth = self.node_auth(cluster, &node.name, &node.object());
            let next_hop = NextHop {
                object: node.object(),
                addr,
                source: cluster.source_to_node(addr),
                weight: 1,
                auth,
            };
            self.add_next_hop(group, "status.addresses", next_hop);
            let pods = node.pod_cidrs.iter().chain(cluster.pods_on(&node.name));
            for prefix in pods.chain(node.own_addresses()) {
                self.local_prefixes.insert(
                    *prefix,
                    PrefixRoute {
                        cluster: CLUSTER_LOCAL,
                        group,
                        deliver: false,
                    },
                );
            }
            for addr in &node.addrs {
                self.add_peer(
                    &node.object(),
                    *addr,
                    Peer {
                        cluster: CLUSTER_LOCAL,
                        flags: PEER_LOCAL_NODE,
                        group,
                        alias: None,
                        auth,
                    },
                );
            }
        }
        for gateway in &cluster.gateways {
            let auth = self.node_auth(cluster, &gateway.name, &gateway.object);
            self.local_gateway(gateway, auth);
        }
        for remote in remotes.iter().filter(|remote| remote.antrea) {
            self.antrea_cluster(remote, cluster);
        }
        for remote in remotes.iter().filter(|remote| !remote.antrea) {
            let Some(group) = self.add_group(&format!("cluster/{}", remote.cluster_id), &remote.object)
            else {
                continue;
            };
            for gateway in &remote.gateways {
                let next_hop = NextHop {
                    object: remote.object.clone(),
                    addr: gateway.addr,
                    source: cluster.source_to_gateway(gateway.addr),
                    weight: gateway.weight,
                    auth: gateway.auth,
                };
                self.add_next_hop(group, "spec.gatewayInfos", next_hop);
                self.add_peer(
                    &remote.object,
                    gateway.addr,
                    Peer {
                        cluster: remote.id,
                        flags: PEER_REMOTE_GATEWAY,
                        group: 0,
                        alias: None,
                        auth: gateway.auth,
                    },
                );
            }
            self.forward_remote(remote, group);
        }
        self.deliver(&cluster.own_pod_cidrs());
        self.deliver(cluster.pods_on(&cluster.own.name));
        self.deliver(cluster.own.own_addresses());
        let services = cluster.service_cidrs();
        self.desired.masquerade = Masquerade {
            service_cidrs: services.into_iter().collect(),
            antrea: std::mem::take(&mut self.desired.masquerade.antrea),
            ..Masquerade::default()
        };
    }

    /// Accepts packets of another local gateway.
    fn local_gateway(&mut self, gateway: &Gateway, auth: PeerAuth) {
        for addr in &gateway.sources {
            self.add_peer(
                &gateway.object,
                *addr,
                Peer {
                    cluster: CLUSTER_LOCAL,
                    flags: PEER_LOCAL_GATEWAY,
                    group: 0,
                    alias: None,
                    auth,
                },
            );
        }
    }

    /// Local Service CIDRs and exported Services.
    pub(super) fn services(&mut self, objects: &Objects, cluster: &LocalCluster) {
        let service_cidrs: Vec<IpNet> = cluster.service_cidrs.iter().copied().collect();
        self.deliver(&service_cidrs);
        self.desired.service_cidrs.extend(service_cidrs);
        let Some(exported) = &objects.services else {
            return;
        };
        let own = services::NodeRef {
            name: &cluster.own.name,
            pod_cidrs: &cluster.own.pod_cidrs,
            group: Some(0),
        };
        let others = cluster.other_nodes.iter().map(|node| {
            let group = stable_id(&node_group(&node.name));
            services::NodeRef {
                name: &node.name,
                pod_cidrs: &node.pod_cidrs,
                // A regular Node has no groups for other Nodes, and needs none.
                group: (!self.desired.gateway || self.desired.groups.contains_key(&group)).then_some(group),
            }
        });
        let nodes = std::iter::once(own).chain(others).collect();
        let (services, rejected) = services::build(exported, &nodes, self.desired.gateway);
        self.desired.services = Some(Arc::new(services));
        self.rejected.extend(rejected);
    }

    /// Forwards the prefixes of a remote cluster to `group`.
    pub(super) fn forward_remote(&mut self, remote: &Arc<Remote>, group: u32) {
        self.desired
            .cluster_names
            .insert(remote.id, remote.cluster_id.clone());
        let forwarded = Forwarded {
            remote: Arc::clone(remote),
            group,
        };
        self.forwarded.insert(remote.id, forwarded);
    }

    /// Delivers `prefixes` on this node.
    fn deliver<'a>(&mut self, prefixes: impl IntoIterator<Item = &'a IpNet>) {
        for prefix in prefixes {
            let route = PrefixRoute {
                cluster: CLUSTER_LOCAL,
                group: 0,
                deliver: true,
            };
            self.local_prefixes.insert(*prefix, route);
        }
    }

    /// The ID of the group `name`, added if missing; rejected if another name has the same ID.
    pub(super) fn add_group(&mut self, name: &str, object: &str) -> Option<u32> {
        let id = stable_id(name);
        let group = self.desired.groups.entry(id).or_insert_with(|| NextHopGroup {
            name: name.to_owned(),
            next_hops: BTreeSet::new(),
        });
        if group.name == name {
            return Some(id);
        }
        let reason = format!("has the same ID as {:?}; rename one of them", group.name);
        self.reject(object, "metadata.name", name, reason);
        None
    }

    /// Adds a next hop to a group, up to the capacity of a group. One without a public key is left out.
    pub(super) fn add_next_hop(&mut self, group: u32, field: &str, mut next_hop: NextHop) {
        if next_hop.auth == PeerAuth::Missing {
            return;
        }
        let addr = next_hop.addr;
        next_hop.weight = next_hop.weight.min(MAX_WEIGHT);
        let id = stable_id(&format!("{group}/{addr}"));
        let Some(entry) = self.desired.groups.get_mut(&group) else {
            return;
        };
        let reason = if entry.next_hops.len() >= GROUP_NEXT_HOPS && !entry.next_hops.contains(&id) {
            format!(
                "exceeds the {GROUP_NEXT_HOPS} next hops of a group; the first {GROUP_NEXT_HOPS} in order are used"
            )
        } else if self
            .desired
            .next_hops
            .get(&id)
            .is_some_and(|other| other.addr != addr)
        {
            "has the same ID as another next hop; use another address".to_owned()
        } else {
            entry.next_hops.insert(id);
            self.desired.next_hops.entry(id).or_insert(next_hop);
            return;
        };
        self.reject(&next_hop.object, field, &addr.to_string(), reason);
    }

    /// Adds a peer, or a role to an existing peer.
    pub(super) fn add_peer(&mut self, object: &str, addr: IpAddr, peer: Peer) {
        self.desired
            .peer_names
            .entry(addr)
            .or_insert_with(|| object.to_owned());
        let known = self.desired.peers.entry(addr).or_insert(peer);
        let same_owner = known.cluster == peer.cluster
            && (known.group == peer.group || known.group == 0 || peer.group == 0);
        if same_owner {
            known.flags |= peer.flags;
            if known.auth == PeerAuth::Missing {
                known.auth = peer.auth;
            }
            known.alias = known.alias.or(peer.alias);
            known.group = known.group.max(peer.group);
        } else {
            let reason = "is already the address of another node or gateway".to_owned();
            self.reject(object, "address", &addr.to_string(), reason);
        }
    }

    pub(super) fn reject(&mut self, object: &str, field: &str, value: &str, reason: String) {
        self.rejected.push(FieldError {
            object: object.to_owned(),
            field: field.to_owned(),
            value: value.to_owned(),
            reason,
        });
    }
}
