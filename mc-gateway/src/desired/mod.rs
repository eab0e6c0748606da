//! From objects to what this node's data path must hold. Pure.
//!
//! *Guarantees*: the same objects give the same result in whatever order they come; one bad value is
//! refused alone, with its object, field, value and reason, and never takes good ones with it.

pub mod antrea;
mod claims;
mod local;
mod remote;
pub mod services;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use mc_gateway_common::abi::GROUP_MEMBERS;
use thiserror::Error;

use crate::config::PodLookup;
use crate::ids::stable_id;
use crate::objects::{NodeInfo, Objects, Refusal};
pub use antrea::Antrea;

/// Name of the group a regular Node forwards to.
const GATEWAYS: &str = "gateways";

/// Where a prefix belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Cluster, 0 for our own.
    pub cluster: u32,
    /// Group id, 0 for none.
    pub group: u32,
    /// Whether packets are delivered here; else they are forwarded to the group.
    pub deliver: bool,
}

/// Nodes that can take a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// What [`stable_id`] made the group's id from.
    pub name: String,
    /// Ids of the members, at most [`GROUP_MEMBERS`].
    pub members: BTreeSet<u32>,
}

/// A node packets are sent to; how to get there is found out later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Kind and name of the object that names it.
    pub object: String,
    /// Outer destination.
    pub addr: IpAddr,
    /// Outer source to use where it is an address of this host: the one the member knows us by.
    pub source: Option<IpAddr>,
    /// Its share of the flows next to the other members of its group; 0 drains.
    pub weight: u32,
}

/// Largest weight: the choice multiplies by it.
const MAX_WEIGHT: u32 = 255;

/// A node packets are accepted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Cluster, 0 for our own.
    pub cluster: u32,
    /// `PEER_*` of [`mc_gateway_common::abi`].
    pub flags: u32,
    /// Group id of the peer's own Pod CIDRs, 0 for none.
    pub group: u32,
    /// What stands for the clients of a gateway of Antrea.
    pub alias: Option<Ipv4Addr>,
}

/// Addresses of this host that other clusters can answer to, one for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Of IPv4.
    pub v4: Option<Ipv4Addr>,
    /// Of IPv6.
    pub v6: Option<Ipv6Addr>,
}

impl Sources {
    /// The one of the family of `net`.
    #[must_use]
    pub fn like(self, net: IpNet) -> Option<IpAddr> {
        match net {
            IpNet::V4(_) => self.v4.map(IpAddr::V4),
            IpNet::V6(_) => self.v6.map(IpAddr::V6),
        }
    }

    /// Those there are.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.v4.map(IpAddr::V4);
        v4.into_iter().chain(self.v6.map(IpAddr::V6))
    }

    /// Those there are, and for the other families those of `others`.
    #[must_use]
    pub fn or(self, others: Self) -> Self {
        Self {
            v4: self.v4.or(others.v4),
            v6: self.v6.or(others.v6),
        }
    }

    /// Those that `keep` says yes to.
    #[must_use]
    pub fn filter(self, keep: impl Fn(IpAddr) -> bool) -> Self {
        Self {
            v4: self.v4.filter(|addr| keep(IpAddr::V4(*addr))),
            v6: self.v6.filter(|addr| keep(IpAddr::V6(*addr))),
        }
    }
}

/// The first of each family.
impl FromIterator<IpAddr> for Sources {
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

/// What the nftables table must do besides keeping foreign masquerading away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// What this host itself sends to other clusters does not come from these, its Node's Pod CIDRs …
    pub pods: BTreeSet<IpNet>,
    /// … and gets these as sources, where there are any.
    pub sources: Sources,
    /// Own Service CIDRs: packets that were addressed to these …
    pub services: BTreeSet<IpNet>,
    /// … and come from these get this node's address, so that the reply passes through here.
    pub remotes: BTreeSet<IpNet>,
    /// What goes to clusters with gateways of Antrea gets another source.
    pub antrea: Antrea,
}

/// Everything this node must hold, before routes on the underlay are looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Whether this Node is a gateway.
    pub gateway: bool,
    /// All prefixes.
    pub prefixes: BTreeMap<IpNet, Route>,
    /// All groups by id.
    pub groups: BTreeMap<u32, Group>,
    /// All members by id.
    pub members: BTreeMap<u32, Member>,
    /// All peers by outer source.
    pub peers: BTreeMap<IpAddr, Peer>,
    /// Names of the remote clusters by id.
    pub clusters: BTreeMap<u32, String>,
    /// Kind and name of the first object that names a peer.
    pub peer_names: BTreeMap<IpAddr, String>,
    /// Prefixes routed into `mc0`.
    pub routes: BTreeSet<IpNet>,
    /// Prefixes of [`Self::prefixes`] that are our own cluster's Service addresses.
    pub service_cidrs: BTreeSet<IpNet>,
    /// Exported Services; none while they are not known: then everything stays as it is.
    pub services: Option<services::Services>,
    /// What the nftables table does; the sources are found out later.
    pub masquerade: Masquerade,
    /// Own addresses among Pods that are in no Pod CIDR of this Node.
    pub host_addresses: BTreeSet<IpNet>,
    /// Addresses that lead to this Node and nobody else has: it may take them where it has none among Pods'.
    pub spare: Sources,
    /// Addresses that other nodes send to, most important first.
    pub local: Vec<IpAddr>,
}

/// Why no desired state can be made: the data path then stays as it is.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DesiredError {
    /// Silence never deletes anything: without our own Node nothing is known.
    #[error("node-name {name:?}: there is no such Node; known: {known:?}")]
    NoSuchNode {
        /// The configured name.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
}

/// What `desired` needs to know besides objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Name of the Node this agent runs on.
    pub node_name: String,
    /// Id of this cluster, where known.
    pub cluster_id: Option<String>,
    /// How the Node of a Pod is found.
    pub pod_lookup: PodLookup,
    /// Ids of the clusters whose gateways are Antrea's.
    pub antrea: BTreeSet<String>,
}

/// The desired state of this node, and what was refused on the way.
pub fn desired(objects: &Objects, me: &Identity) -> Result<(Desired, Vec<Refusal>), DesiredError> {
    let mut nodes: Vec<&NodeInfo> = objects.nodes.iter().collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    if !nodes.iter().any(|node| node.name == me.node_name) {
        return Err(DesiredError::NoSuchNode {
            name: me.node_name.clone(),
            known: nodes.iter().map(|node| node.name.clone()).collect(),
        });
    }
    let mut builder = Builder::default();
    let mut cluster = local::LocalCluster::read(objects, &nodes, &me.node_name, &mut builder.refusals);
    cluster.read_reservations(objects, &mut builder.refusals);
    cluster.read_pods(objects, me.pod_lookup, &mut builder.refusals);
    let remotes = remote::read(objects, &cluster, me, &mut builder.refusals);
    if cluster.own_gateway.is_some() {
        builder.gateway_node(&cluster, &remotes);
    } else {
        builder.regular_node(&cluster, &remotes);
    }
    builder.services(objects, &cluster);
    let Builder {
        mut desired,
        mut refusals,
    } = builder;
    desired.masquerade.pods = cluster.own_pod_cidrs().into_iter().collect();
    desired.host_addresses = cluster.own.host_addresses.iter().copied().collect();
    desired.spare = cluster.spare(me.pod_lookup);
    desired.local = cluster.local_addresses();
    refusals.sort();
    Ok((desired, refusals))
}

/// Name of the group that is one Node.
fn node_group(node: &str) -> String {
    format!("node/{node}")
}

#[derive(Default)]
struct Builder {
    desired: Desired,
    refusals: Vec<Refusal>,
}

impl Builder {
    /// Remote prefixes go to our gateways; packets come back from them.
    fn regular_node(&mut self, cluster: &local::LocalCluster, remotes: &[remote::Remote]) {
        let Some(group) = self.group(GATEWAYS, GATEWAYS) else {
            return;
        };
        // By name, those that are drained last: every node uses the same ones if there are too many.
        let mut gateways: Vec<_> = cluster.gateways.iter().collect();
        gateways.sort_by_key(|gateway| gateway.weight == 0);
        for gateway in gateways {
            let member = Member {
                object: gateway.object.clone(),
                addr: gateway.addr,
                source: cluster.node_ip(gateway.addr),
                weight: gateway.weight,
            };
            self.member(group, "internalIP", member);
            self.local_gateway(gateway);
        }
        for remote in remotes {
            if !remote.antrea {
                self.forward_remote(remote, group);
            } else if let Some(primary) = self.primary(cluster) {
                self.forward_remote(remote, primary);
            }
        }
        self.deliver(&cluster.own_pod_cidrs());
        self.deliver(cluster.pods_on(&cluster.own.name));
        self.deliver(cluster.own.own_addresses());
    }

    /// Remote prefixes go to the gateways of their cluster, our own to their Node.
    fn gateway_node(&mut self, cluster: &local::LocalCluster, remotes: &[remote::Remote]) {
        use mc_gateway_common::abi::{CLUSTER_LOCAL, PEER_LOCAL_NODE, PEER_REMOTE_GATEWAY};

        self.desired.gateway = true;
        for node in &cluster.other_nodes {
            // The family the Node sends to us in.
            let Some(addr) = node.addr_like(cluster.internal_ip()) else {
                continue;
            };
            let Some(group) = self.group(&node_group(&node.name), &node.object()) else {
                continue;
            };
            let member = Member {
                object: node.object(),
                addr,
                source: cluster.node_ip(addr),
                weight: 1,
            };
            self.member(group, "status.addresses", member);
            let pods = node.pod_cidrs.iter().chain(cluster.pods_on(&node.name));
            for prefix in pods.chain(node.own_addresses()) {
                self.desired.prefixes.insert(
                    *prefix,
                    Route {
                        cluster: CLUSTER_LOCAL,
                        group,
                        deliver: false,
                    },
                );
            }
            for addr in &node.addrs {
                self.peer(
                    &node.object(),
                    *addr,
                    Peer {
                        cluster: CLUSTER_LOCAL,
                        flags: PEER_LOCAL_NODE,
                        group,
                        alias: None,
                    },
                );
            }
        }
        for gateway in &cluster.gateways {
            self.local_gateway(gateway);
        }
        for remote in remotes.iter().filter(|remote| remote.antrea) {
            self.antrea(remote, cluster);
        }
        for remote in remotes.iter().filter(|remote| !remote.antrea) {
            let Some(group) = self.group(&format!("cluster/{}", remote.cluster_id), &remote.object) else {
                continue;
            };
            for (addr, weight) in &remote.gateways {
                let member = Member {
                    object: remote.object.clone(),
                    addr: *addr,
                    source: cluster.gateway_ip(*addr),
                    weight: *weight,
                };
                self.member(group, "spec.gatewayInfos", member);
                self.peer(
                    &remote.object,
                    *addr,
                    Peer {
                        cluster: remote.id,
                        flags: PEER_REMOTE_GATEWAY,
                        group: 0,
                        alias: None,
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
            services: services.into_iter().collect(),
            remotes: self.desired.routes.clone(),
            antrea: std::mem::take(&mut self.desired.masquerade.antrea),
            ..Masquerade::default()
        };
    }

    fn local_gateway(&mut self, gateway: &local::Gateway) {
        use mc_gateway_common::abi::{CLUSTER_LOCAL, PEER_LOCAL_GATEWAY};
        for addr in &gateway.sources {
            self.peer(
                &gateway.object,
                *addr,
                Peer {
                    cluster: CLUSTER_LOCAL,
                    flags: PEER_LOCAL_GATEWAY,
                    group: 0,
                    alias: None,
                },
            );
        }
    }

    /// Services of our own cluster that others may reach.
    fn services(&mut self, objects: &Objects, cluster: &local::LocalCluster) {
        let service_cidrs: Vec<IpNet> = cluster.service_cidrs.iter().copied().collect();
        self.deliver(&service_cidrs);
        self.desired.service_cidrs.extend(service_cidrs);
        let Some(exported) = &objects.services else {
            return;
        };
        let own = services::Home {
            name: &cluster.own.name,
            pod_cidrs: &cluster.own.pod_cidrs,
            group: Some(0),
        };
        let others = cluster.other_nodes.iter().map(|node| {
            let group = stable_id(&node_group(&node.name));
            services::Home {
                name: &node.name,
                pod_cidrs: &node.pod_cidrs,
                // A regular Node does not know how to reach others, and needs not.
                group: (!self.desired.gateway || self.desired.groups.contains_key(&group)).then_some(group),
            }
        });
        let homes: Vec<_> = std::iter::once(own).chain(others).collect();
        let (services, refusals) = services::read(exported, &homes, self.desired.gateway);
        self.desired.services = Some(services);
        self.refusals.extend(refusals);
    }

    fn forward_remote(&mut self, remote: &remote::Remote, group: u32) {
        self.desired.clusters.insert(remote.id, remote.cluster_id.clone());
        for prefix in &remote.prefixes {
            let route = Route {
                cluster: remote.id,
                group,
                deliver: false,
            };
            self.desired.prefixes.insert(*prefix, route);
            self.desired.routes.insert(*prefix);
        }
    }

    fn deliver<'a>(&mut self, prefixes: impl IntoIterator<Item = &'a IpNet>) {
        use mc_gateway_common::abi::CLUSTER_LOCAL;
        for prefix in prefixes {
            let route = Route {
                cluster: CLUSTER_LOCAL,
                group: 0,
                deliver: true,
            };
            self.desired.prefixes.insert(*prefix, route);
        }
    }

    /// The id of the group `name`, made if it does not exist; refused if another name has the same id.
    fn group(&mut self, name: &str, object: &str) -> Option<u32> {
        let id = stable_id(name);
        let group = self.desired.groups.entry(id).or_insert_with(|| Group {
            name: name.to_owned(),
            members: BTreeSet::new(),
        });
        if group.name == name {
            return Some(id);
        }
        let reason = format!("has the same number as {:?}; rename one of them", group.name);
        self.refuse(object, "metadata.name", name, reason);
        None
    }

    fn member(&mut self, group: u32, field: &str, mut member: Member) {
        let addr = member.addr;
        member.weight = member.weight.min(MAX_WEIGHT);
        let id = stable_id(&format!("{group}/{addr}"));
        let Some(entry) = self.desired.groups.get_mut(&group) else {
            return;
        };
        let reason = if entry.members.len() >= GROUP_MEMBERS && !entry.members.contains(&id) {
            format!(
                "is more than the {GROUP_MEMBERS} members a group can have; the first {GROUP_MEMBERS} in order are used"
            )
        } else if self
            .desired
            .members
            .get(&id)
            .is_some_and(|other| other.addr != addr)
        {
            "has the same number as another member; use another address".to_owned()
        } else {
            entry.members.insert(id);
            self.desired.members.entry(id).or_insert(member);
            return;
        };
        self.refuse(&member.object, field, &addr.to_string(), reason);
    }

    /// Adds a peer, or a role to one that is known already.
    fn peer(&mut self, object: &str, addr: IpAddr, peer: Peer) {
        self.desired
            .peer_names
            .entry(addr)
            .or_insert_with(|| object.to_owned());
        let known = self.desired.peers.entry(addr).or_insert(peer);
        let same_owner = known.cluster == peer.cluster
            && (known.group == peer.group || known.group == 0 || peer.group == 0);
        if same_owner {
            known.flags |= peer.flags;
            known.alias = known.alias.or(peer.alias);
            known.group = known.group.max(peer.group);
        } else {
            let reason = "is already the address of another node or gateway".to_owned();
            self.refuse(object, "address", &addr.to_string(), reason);
        }
    }

    fn refuse(&mut self, object: &str, field: &str, value: &str, reason: String) {
        self.refusals.push(Refusal {
            object: object.to_owned(),
            field: field.to_owned(),
            value: value.to_owned(),
            reason,
        });
    }
}
