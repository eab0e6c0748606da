//! The desired state of a node, before routes on the underlay are resolved.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;

use super::node_policies::NodePolicies;
use super::services::Services;
use super::{AntreaInterop, SourceAddrs};
use crate::peer_secret::{PeerAuth, PublicKey};
use crate::shared_map::SharedMap;
use crate::shared_set::SharedSet;

/// The destination of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixRoute {
    /// Cluster, 0 for the local one.
    pub cluster: u64,
    /// Group ID, 0 for none.
    pub group: u32,
    /// Whether packets are delivered on this node instead of forwarded to the group.
    pub deliver: bool,
}

/// Nodes that share the flows of a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextHopGroup {
    /// Name that [`stable_id`](crate::ids::stable_id) hashes to the group ID.
    pub name: String,
    /// IDs of the next hops, at most [`GROUP_NEXT_HOPS`](mc_gateway_common::abi::GROUP_NEXT_HOPS).
    pub next_hops: BTreeSet<u32>,
}

/// A node that packets are sent to; its route is resolved later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Kind and name of the object that defines it.
    pub object: String,
    /// Outer destination.
    pub addr: IpAddr,
    /// Address of this node in the configuration of the next hop: the outer source if the host has it.
    pub source: Option<IpAddr>,
    /// Share of the group's flows; 0 drains.
    pub weight: u32,
    /// Authentication of packets to it.
    pub auth: PeerAuth,
}

/// A node that packets are accepted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Cluster, 0 for the local one.
    pub cluster: u64,
    /// `PEER_*` of [`mc_gateway_common::abi`].
    pub flags: u32,
    /// Group ID of the peer's own Pod CIDRs, 0 for none.
    pub group: u32,
    /// Address that replaces the clients of an Antrea gateway.
    pub alias: Option<Ipv4Addr>,
    /// Authentication of its packets.
    pub auth: PeerAuth,
}

/// Source NAT of the nftables table, besides the exemption from foreign masquerading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// Pod CIDRs of this Node: packets of the host to other clusters that are not from these …
    pub pod_cidrs: BTreeSet<IpNet>,
    /// … get these sources, if any.
    pub sources: SourceAddrs,
    /// Local Service CIDRs: packets originally addressed to these …
    pub service_cidrs: BTreeSet<IpNet>,
    /// … from these prefixes get this node's address, so that replies return through it.
    pub remote_prefixes: SharedSet<IpNet>,
    /// Source NAT towards clusters with Antrea gateways.
    pub antrea: AntreaInterop,
}

/// Desired state of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// Whether this Node is a gateway.
    pub gateway: bool,
    /// All prefixes.
    pub prefixes: SharedMap<IpNet, PrefixRoute>,
    /// All groups by ID.
    pub groups: BTreeMap<u32, NextHopGroup>,
    /// All next hops by ID.
    pub next_hops: BTreeMap<u32, NextHop>,
    /// All peers by outer source.
    pub peers: BTreeMap<IpAddr, Peer>,
    /// Names of the remote clusters by ID.
    pub cluster_names: BTreeMap<u64, String>,
    /// Kind and name of the first object that defines a peer.
    pub peer_names: BTreeMap<IpAddr, String>,
    /// Prefixes routed into `mc0`.
    pub routes: SharedSet<IpNet>,
    /// Prefixes of [`Self::prefixes`] that are local Service CIDRs.
    pub service_cidrs: BTreeSet<IpNet>,
    /// Exported Services; none while they are unknown: the Service maps then stay unchanged.
    pub services: Option<Arc<Services>>,
    /// Source NAT; [`Masquerade::sources`] are resolved later.
    pub masquerade: Masquerade,
    /// Own addresses in the Pod network outside this Node's Pod CIDRs.
    pub host_addresses: BTreeSet<IpNet>,
    /// Unused addresses that are routed to this Node: source addresses if it has none in the Pod network.
    pub fallback_addrs: SourceAddrs,
    /// Label identities of this Node's Pods by address; none in a cluster without label identities.
    pub identities: Option<BTreeMap<IpAddr, u32>>,
    /// Network policies on packets to this Node's Pods.
    pub policies: NodePolicies,
    /// Public key of this Node that other nodes know.
    pub published_key: Option<PublicKey>,
    /// Addresses that other nodes send to, most important first.
    pub local_addrs: Vec<IpAddr>,
}

impl DesiredState {
    /// The public keys of all next hops and peers.
    #[must_use]
    pub fn public_keys(&self) -> BTreeSet<PublicKey> {
        let next_hops = self.next_hops.values().map(|next_hop| &next_hop.auth);
        let peers = self.peers.values().map(|peer| &peer.auth);
        next_hops
            .chain(peers)
            .filter_map(PeerAuth::received_key)
            .copied()
            .collect()
    }
}
