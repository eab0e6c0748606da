//! The desired state with every member resolved to a path on the underlay: ready to compare with what is there. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use mc_gateway_common::abi::{self, Addr, LOCAL_ADDRS};

use crate::cidr::{abi_prefix_len, is_ipv6, same_family, to_abi_addr};
use crate::config::{Dscp, EncapFormat, Tunnel};
use crate::desired::services::Services;
use crate::desired::{self, AntreaInterop, DesiredState, Masquerade, SourceAddrs};
use crate::objects::FieldError;
use crate::plan::AttachMode;

/// What encapsulation adds in front of an inner IP packet besides the outer IP header: UDP, tunnel header
/// (Geneve and VXLAN alike), inner Ethernet.
const OVERHEAD: u32 = 8 + 8 + 14;

/// MTU of `mc0` while no path is known: Ethernet's less the overhead in IPv4.
pub const DEFAULT_MTU: u32 = 1500 - 20 - OVERHEAD;

/// Smallest MTU a link may have to carry IPv6 (RFC 8200 section 5); the kernel turns IPv6 off below it.
pub const MIN_V6_MTU: u32 = 1280;

/// What encapsulation adds in front of an inner IP packet sent to `outer`: 50 bytes in IPv4, 70 in IPv6.
#[must_use]
pub fn overhead(outer: IpAddr) -> u32 {
    let header: u32 = if outer.is_ipv4() { 20 } else { 40 };
    header.saturating_add(OVERHEAD)
}

/// How the host reaches an underlay address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderlayRoute {
    /// Device the packet leaves through.
    pub ifindex: u32,
    /// Its name.
    pub device: String,
    /// Source address the host would use.
    pub source: IpAddr,
    /// Largest packet the path carries.
    pub mtu: u32,
    /// Neighbour that takes the packets: a router, or the address itself. None where there is more than one
    /// to choose from, which is left to the kernel.
    pub neighbor: Option<IpAddr>,
}

/// What the host knows about the underlay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Underlay {
    /// Path to each address that was asked for and has one.
    pub routes: BTreeMap<IpAddr, UnderlayRoute>,
    /// Why the others have none.
    pub unreachable: BTreeMap<IpAddr, String>,
    /// Addresses of this host with the device that owns them, without those of `mc0`.
    pub local_addrs: BTreeMap<IpAddr, (u32, String)>,
    /// Those of them that are not known to be unique yet (RFC 4862 section 5.4): nothing may be sent from them.
    pub tentative: BTreeSet<IpAddr>,
    /// Addresses `mc0` has.
    pub mc0_addrs: BTreeSet<IpAddr>,
}

/// A route into `mc0`: for each prefix there is one that stays, and one that is preferred.
///
/// The preferred one names a source address. The kernel removes IPv4 routes when their source address goes;
/// without the other one, packets of Pods would then leave in clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteKey {
    /// The prefix.
    pub net: IpNet,
    /// Whether it is the preferred one.
    pub preferred: bool,
}

/// A key of the prefix map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrefixKey {
    /// Length in bits, 96 and more for IPv4.
    pub len: u32,
    /// Network address.
    pub addr: Addr,
}

/// An entry of the prefix map with the group's stable id instead of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Cluster, 0 for our own.
    pub cluster: u32,
    /// Group id, 0 for none.
    pub group: u32,
    /// `ACTION_*`.
    pub action: u32,
    /// `PREFIX_*`.
    pub flags: u32,
}

/// What this node must hold, in the words of the maps but without slots.
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
    /// Outer destinations that are ours.
    pub local: [Addr; LOCAL_ADDRS],
    /// [`abi::Config::detect`].
    pub detect: u32,
    /// [`abi::Config::hold_down_ms`].
    pub hold_down_ms: u32,
    /// MTU of `mc0`; none while no member is reachable: then it stays as it is.
    pub mtu: Option<u32>,
    /// Prefix map.
    pub prefixes: BTreeMap<PrefixKey, Prefix>,
    /// Members of each group, by stable ids.
    pub groups: BTreeMap<u32, BTreeSet<u32>>,
    /// Members by stable id; [`abi::Member::id`] is the key. Slots of `mc_traffic` are not known yet.
    pub next_hops: BTreeMap<u32, abi::Member>,
    /// Peers with the group's stable id, likewise.
    pub peers: BTreeMap<Addr, abi::Peer>,
    /// Exported Services; none where the maps stay as they are.
    pub services: Option<Services>,
    /// Addresses of `mc0`.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether this node has no address that other clusters can answer to, and one can be reserved.
    pub needs_address: bool,
    /// Prefixes routed into `mc0`.
    pub routes: BTreeSet<IpNet>,
    /// What nftables masquerades.
    pub masquerade: Masquerade,
    /// Underlay devices by name.
    pub devices: BTreeMap<String, u32>,
    /// How programs are attached.
    pub attach_mode: AttachMode,
}

impl ResolvedState {
    /// Routes into `mc0` with the source address each names.
    #[must_use]
    pub fn host_routes(&self) -> BTreeMap<RouteKey, Option<IpAddr>> {
        let sources = self.masquerade.sources;
        let key = |net: &IpNet, preferred| RouteKey { net: *net, preferred };
        let plain = self.routes.iter().map(|net| (key(net, false), None));
        let preferred = self.routes.iter().filter_map(|net| {
            let source = sources.for_family(*net)?;
            Some((key(net, true), Some(source)))
        });
        plain.chain(preferred).collect()
    }

    /// Leaves out routes of IPv6 and addresses that only they need.
    pub fn without_ipv6(&mut self) {
        self.routes.retain(|net| !is_ipv6(*net));
        let none = self.addresses.iter().any(IpAddr::is_ipv6);
        self.addresses.retain(|addr| !addr.is_ipv6());
        if none {
            self.masquerade.sources.v6 = None;
        }
    }

    /// Chooses what this node sends from, and gives `mc0` what it needs for that.
    fn assign_addresses(&mut self, desired: &DesiredState, underlay: &Underlay) {
        let routed = |addr: IpAddr| desired.routes.iter().any(|net| same_family(net.addr(), addr));
        let sources = pod_network_sources(desired, underlay);
        let missing = |addr| !sources.iter().any(|own| same_family(own, addr));
        let taken = desired
            .fallback_addrs
            .filter(|addr| routed(addr) && missing(addr));
        self.masquerade.sources = sources.or(taken);
        // One that was taken stays while it is ours: connections may use it.
        let kept = desired
            .fallback_addrs
            .filter(|addr| underlay.mc0_addrs.contains(&addr));
        self.addresses = taken.iter().chain(kept.iter()).collect();
        // Only what is in the Service range of our cluster leads here from others.
        self.needs_address = desired.service_cidrs.iter().any(|net| {
            let without = self.masquerade.sources.for_family(*net).is_none();
            without && routed(net.addr())
        });
    }
}

/// Joins the desired state with the underlay. Members without a path are left out until they have one.
#[must_use]
pub fn resolve(
    desired: &DesiredState,
    underlay: &Underlay,
    tunnel: &Tunnel,
) -> (ResolvedState, Vec<FieldError>) {
    let mut rejected = Vec::new();
    let mut target = ResolvedState {
        flags: flags(desired.gateway, *tunnel),
        port: tunnel.port,
        tos: match tunnel.dscp {
            Dscp::Inherit => 0,
            Dscp::Fixed(dscp) => dscp << 2,
        },
        hop_limit: tunnel.hop_limit,
        services: desired.services.clone(),
        routes: desired.routes.clone(),
        masquerade: desired.masquerade.clone(),
        ..ResolvedState::default()
    };
    target.assign_addresses(desired, underlay);
    let carries_v6 = desired.prefixes.keys().copied().any(is_ipv6);
    let mut local = LocalAddresses::default();
    for addr in &desired.local_addrs {
        if let Some((ifindex, device)) = underlay.local_addrs.get(addr) {
            // An address on the loopback device is reached through whatever leads to the host.
            if device != "lo" {
                target.devices.insert(device.clone(), *ifindex);
            }
            local.add(*addr);
        }
    }
    for (id, member) in &desired.next_hops {
        let Some(path) = underlay.routes.get(&member.addr) else {
            let why = underlay.unreachable.get(&member.addr);
            rejected.push(FieldError {
                object: member.object.clone(),
                field: "address".to_owned(),
                value: member.addr.to_string(),
                reason: why.map_or("has no route", String::as_str).to_owned(),
            });
            continue;
        };
        let source = member
            .source
            .filter(|source| underlay.local_addrs.contains_key(source))
            .unwrap_or(path.source);
        if !local.add(source) {
            rejected.push(FieldError {
                object: member.object.clone(),
                field: "address".to_owned(),
                value: member.addr.to_string(),
                reason: format!(
                    "is reached from {source}, which is more than the {LOCAL_ADDRS} own addresses a node can have"
                ),
            });
            continue;
        }
        target.devices.insert(path.device.clone(), path.ifindex);
        let mtu = path.mtu.saturating_sub(overhead(member.addr));
        if carries_v6 && mtu < MIN_V6_MTU {
            rejected.push(too_small(member, path, mtu));
        }
        target.mtu = Some(target.mtu.map_or(mtu, |least| least.min(mtu)));
        target.next_hops.insert(
            *id,
            abi::Member {
                addr: to_abi_addr(member.addr),
                local: to_abi_addr(source),
                ifindex: path.ifindex,
                id: *id,
                mtu,
                weight: member.weight,
                via: path.neighbor.map_or_else(abi::Neighbor::default, neighbor),
                traffic: 0,
            },
        );
    }
    // Below that the kernel would take IPv6 away from the device, and IPv6 packets would go elsewhere in
    // clear. What does not fit the path is refused there.
    if carries_v6 {
        target.mtu = target.mtu.map(|mtu| mtu.max(MIN_V6_MTU));
    }
    // Packets of a peer arrive where our packets to it leave, also where no group sends to it.
    for addr in desired.peers.keys() {
        if let Some(path) = underlay.routes.get(addr) {
            target.devices.insert(path.device.clone(), path.ifindex);
        }
    }
    target.local = local.0;
    target.groups = groups(desired, &target.next_hops);
    target.peers = desired
        .peers
        .iter()
        .map(|(addr, peer)| (to_abi_addr(*addr), to_peer(*peer)))
        .collect();
    target.prefixes = prefixes(desired);
    if let Some(services) = &desired.services {
        mark_backends(&mut target, services, &desired.prefixes);
    }
    (target, rejected)
}

/// A neighbour in the words of the maps.
fn neighbor(via: IpAddr) -> abi::Neighbor {
    match via {
        IpAddr::V4(via) => {
            let [a, b, c, d] = via.octets();
            abi::Neighbor {
                family: abi::Neighbor::V4,
                addr: [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            }
        }
        IpAddr::V6(via) => abi::Neighbor {
            family: abi::Neighbor::V6,
            addr: via.octets(),
        },
    }
}

/// The groups with those of their members that have a path.
fn groups(desired: &DesiredState, members: &BTreeMap<u32, abi::Member>) -> BTreeMap<u32, BTreeSet<u32>> {
    let known = |group: &desired::NextHopGroup| {
        group
            .next_hops
            .iter()
            .copied()
            .filter(|id| members.contains_key(id))
            .collect()
    };
    desired
        .groups
        .iter()
        .map(|(id, group)| (*id, known(group)))
        .collect()
}

/// Addresses of this host that other clusters can answer to. The first address of a CIDR names the network,
/// and some CNIs give it to a tunnel device: it does where there is no other.
fn pod_network_sources(desired: &DesiredState, underlay: &Underlay) -> SourceAddrs {
    let pods = || desired.masquerade.pod_cidrs.iter();
    let known = underlay
        .local_addrs
        .keys()
        .filter(|addr| !underlay.tentative.contains(*addr));
    let mut inside: Vec<(bool, IpAddr)> = known
        .filter_map(|addr| {
            let names_network = pods().any(|net| net.network() == *addr);
            let ours = pods()
                .chain(&desired.host_addresses)
                .any(|net| net.contains(addr));
            ours.then_some((names_network, *addr))
        })
        .collect();
    inside.sort();
    inside.into_iter().map(|(_, addr)| addr).collect()
}

fn flags(gateway: bool, tunnel: Tunnel) -> u32 {
    [
        (gateway, abi::CONFIG_GATEWAY),
        (tunnel.format == EncapFormat::Vxlan, abi::CONFIG_VXLAN),
        (tunnel.udp_checksum, abi::CONFIG_UDP_CHECKSUM),
        (tunnel.dscp != Dscp::Inherit, abi::CONFIG_DSCP_FIXED),
    ]
    .into_iter()
    .filter(|(on, _)| *on)
    .fold(0, |flags, (_, flag)| flags | flag)
}

fn too_small(member: &desired::NextHop, path: &UnderlayRoute, mtu: u32) -> FieldError {
    FieldError {
        object: member.object.clone(),
        field: "address".to_owned(),
        value: member.addr.to_string(),
        reason: format!(
            "is reached over an MTU of {} ({}), which leaves {mtu} bytes: full-sized IPv6 packets need {MIN_V6_MTU} and are dropped; raise it to {}",
            path.mtu,
            path.device,
            MIN_V6_MTU.saturating_add(overhead(member.addr)),
        ),
    }
}

fn to_peer(peer: desired::Peer) -> abi::Peer {
    abi::Peer {
        cluster: peer.cluster,
        flags: peer.flags,
        group: peer
            .alias
            .map_or(peer.group, |alias| abi::Peer::group_of_alias(alias.octets())),
        traffic: 0,
    }
}

fn prefixes(desired: &DesiredState) -> BTreeMap<PrefixKey, Prefix> {
    let prefixes = desired.prefixes.iter().map(|(net, route)| {
        let (key, mut prefix) = to_prefix(*net, *route);
        if desired.service_cidrs.contains(net) {
            prefix.action = abi::ACTION_SERVICE;
        }
        mark_antrea(&mut prefix, *net, &desired.masquerade.antrea);
        (key, prefix)
    });
    prefixes.collect()
}

/// Says what is special about prefixes of clusters with gateways of Antrea.
fn mark_antrea(prefix: &mut Prefix, net: IpNet, antrea: &AntreaInterop) {
    let IpNet::V4(net) = net else { return };
    if antrea.prefixes.contains(&net.into()) {
        prefix.flags |= abi::PREFIX_THROUGH_STACK;
    }
    let elsewhere = prefix.cluster == abi::CLUSTER_LOCAL && prefix.action == abi::ACTION_FORWARD;
    if elsewhere && antrea.source.is_some() {
        prefix.flags |= abi::PREFIX_WAY_BACK;
    }
    if net.prefix_len() < net.max_prefix_len() {
        return;
    }
    if antrea.aliases.contains(&net.addr()) {
        prefix.flags |= abi::PREFIX_ALIAS;
    }
    if antrea.source == Some(net.addr()) {
        prefix.action = abi::ACTION_REPLY;
    }
}

fn to_prefix(net: IpNet, route: desired::PrefixRoute) -> (PrefixKey, Prefix) {
    let key = PrefixKey {
        len: abi_prefix_len(net),
        addr: to_abi_addr(net.network()),
    };
    let value = Prefix {
        cluster: route.cluster,
        group: route.group,
        action: if route.deliver {
            abi::ACTION_DELIVER
        } else {
            abi::ACTION_FORWARD
        },
        flags: 0,
    };
    (key, value)
}

/// Marks this node's Pods that are behind Services, each under its own address. What is not delivered here
/// anyway is not for that reason: its packets are looked at on their way out only.
fn mark_backends(
    target: &mut ResolvedState,
    services: &Services,
    prefixes: &BTreeMap<IpNet, desired::PrefixRoute>,
) {
    let delivered: Vec<IpNet> = prefixes
        .iter()
        .filter(|(_, route)| route.deliver)
        .map(|(net, _)| *net)
        .collect();
    for backend in services.backends.values().filter(|backend| backend.group == 0) {
        let pod = IpAddr::from(backend.pod).to_canonical();
        let action = if delivered.iter().any(|net| net.contains(&pod)) {
            abi::ACTION_DELIVER
        } else {
            0
        };
        let key = PrefixKey {
            len: 128,
            addr: backend.pod,
        };
        let prefix = target.prefixes.entry(key).or_insert(Prefix {
            cluster: abi::CLUSTER_LOCAL,
            group: 0,
            action,
            flags: 0,
        });
        prefix.flags |= abi::PREFIX_BACKENDS;
        target.flags |= abi::CONFIG_BACKENDS;
    }
}

/// The fixed array of own addresses, filled from the front.
#[derive(Default)]
struct LocalAddresses([Addr; LOCAL_ADDRS]);

impl LocalAddresses {
    /// Whether `addr` is in, now or before.
    fn add(&mut self, addr: IpAddr) -> bool {
        let addr = to_abi_addr(addr);
        if self.0.contains(&addr) {
            return true;
        }
        match self.0.iter_mut().find(|slot| **slot == Addr::default()) {
            Some(slot) => {
                *slot = addr;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
