//! The desired state with every next hop resolved to a route on the underlay, ready to compare with the observed
//! state. Pure.
//!
//! [`resolve`] takes the desired state, the configuration and the observed host, and returns the complete resolved
//! state with all issues; it is not edited afterwards.

mod cache;
mod ipsec;
mod local_addrs;
pub mod model;
mod neighbors;
mod nft_rules;
mod pod_devices;
mod pod_guard;
mod pod_policies;
mod prefix;
mod refusal;
mod resolver;
mod return_routes;
mod sources;
mod supernets;
#[cfg(test)]
mod tests;
mod underlay;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use mc_gateway_common::abi::{self, Addr, LOCAL_ADDRS};

use crate::attachment::AttachMode;
use crate::desired::Masquerade;
use crate::desired::services::Services;
use crate::policy_tables::PolicyTables;
use crate::shared_map::SharedMap;
use crate::shared_set::SharedSet;
pub use cache::ResolutionCache;
pub use ipsec::{IpsecPolicies, IpsecPolicy, PolicyDirection, PortSelector};
pub use mc_gateway_common::abi::PrefixKey;
pub use neighbors::NeighborLimits;
pub use nft_rules::{HostPort, NftRules, PacketFilter};
pub use pod_devices::{PodLink, PodLinks};
pub use pod_guard::{BridgeGuard, PlainName, PodGuard};
pub use prefix::Prefix;
pub use resolver::{HostInputs, Resolution, Settings, resolve};
pub use return_routes::ReturnRoutes;
pub use underlay::{DEFAULT_MTU, MIN_V6_MTU, NeighborKey, Neighbors, Underlay, UnderlayRoute, overhead};

/// A route into `mc0`. Each supernet has a permanent one and a preferred one.
///
/// The preferred route has a source address. The kernel removes IPv4 routes together with their source address;
/// without the permanent route, packets of Pods would then leave unencapsulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteKey {
    /// The supernet.
    pub net: IpNet,
    /// Whether it is the preferred one.
    pub preferred: bool,
}

impl RouteKey {
    /// Both routes of a supernet, in their order.
    #[must_use]
    pub const fn both(net: IpNet) -> [Self; 2] {
        [
            Self {
                net,
                preferred: false,
            },
            Self { net, preferred: true },
        ]
    }
}

/// Complete desired state of this node, in the types of the maps but with stable IDs instead of slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedState {
    /// `CONFIG_*`.
    pub flags: u32,
    /// UDP port of encapsulated packets.
    pub port: u16,
    /// DSCP of outer packets in the upper six bits, with `CONFIG_DSCP_FIXED`.
    pub tos: u8,
    /// TTL or hop limit of outer packets.
    pub hop_limit: u8,
    /// Outer destination addresses of this node.
    pub local: [Addr; LOCAL_ADDRS],
    /// [`abi::Config::detect`].
    pub detect: u32,
    /// [`abi::Config::hold_down_ms`].
    pub hold_down_ms: u32,
    /// [`abi::Config::cluster_id_key`].
    pub cluster_id_key: [u8; 16],
    /// [`abi::Config::tunnel_mac`] while a tunnel device is up; 0 if the kernel does not decapsulate.
    pub tunnel_mac: [u8; 6],
    /// [`abi::Config::decap_test_ms`].
    pub decap_test_ms: u32,
    /// MTU of `mc0`; none while no next hop is reachable: the MTU then stays unchanged.
    pub mtu: Option<u32>,
    /// Prefix map.
    pub prefixes: SharedMap<PrefixKey, Prefix>,
    /// Next hops of each group, by stable IDs.
    pub groups: BTreeMap<u32, BTreeSet<u32>>,
    /// Next hops by stable ID; counter slots are assigned by the plan.
    pub next_hops: BTreeMap<u32, abi::NextHop>,
    /// Peers with the stable ID of their group; counter slots are assigned by the plan.
    pub peers: BTreeMap<Addr, abi::Peer>,
    /// Exported Services; none if the Service maps stay unchanged.
    pub services: Option<Arc<Services>>,
    /// Tables of policies; empty while no policy is enforced.
    pub policies: Arc<PolicyTables>,
    /// Addresses of `mc0`.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether this node has no address that other clusters can reply to, and one can be reserved.
    pub needs_address: bool,
    /// Supernets of the prefixes routed into `mc0`.
    pub routes: SharedSet<IpNet>,
    /// Source NAT.
    pub masquerade: Masquerade,
    /// Filters of nftables.
    pub filter: PacketFilter,
    /// Underlay devices by name.
    pub devices: BTreeMap<String, u32>,
    /// Devices of Pods by name, if their packets are policed.
    pub pod_devices: BTreeMap<String, u32>,
    /// Pods that may send and receive packets; none while no policy may select a Pod of this Node.
    pub pod_guard: Option<PodGuard>,
    /// How programs are attached.
    pub attach_mode: AttachMode,
}

impl ResolvedState {
    /// Parameters of the nftables table.
    #[must_use]
    pub fn nft_rules(&self) -> NftRules {
        NftRules {
            masquerade: self.masquerade.clone(),
            filter: self.filter.clone(),
        }
    }

    /// Source address of a route into `mc0`; none if there is no such route.
    #[must_use]
    pub fn host_route(&self, key: RouteKey) -> Option<Option<IpAddr>> {
        if !self.routes.contains(&key.net) {
            return None;
        }
        let source = self.masquerade.sources.for_family(key.net);
        if key.preferred {
            source.map(Some)
        } else {
            Some(None)
        }
    }

    /// Routes into `mc0`, each with its source address.
    #[must_use]
    pub fn host_routes(&self) -> SharedMap<RouteKey, Option<IpAddr>> {
        let keys = self.routes.iter().flat_map(|net| RouteKey::both(*net));
        let routes = keys.filter_map(|key| Some((key, self.host_route(key)?)));
        routes.collect()
    }
}
