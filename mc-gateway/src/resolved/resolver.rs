//! Resolves the desired state against the observed host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use mc_gateway_common::abi::{self, LOCAL_ADDRS, SourceMac};

use super::local_addrs::LocalAddrs;
use super::nft_rules::host_backends;
use super::pod_policies::police_pods;
use super::refusal::{self, Refusals};
use super::{
    IpsecPolicies, MIN_V6_MTU, NeighborLimits, PacketFilter, PodLinks, ResolutionCache, ResolvedState,
    Underlay, UnderlayRoute, neighbors, overhead, prefix,
};
use crate::attachment::AttachMode;
use crate::capacity::{Capacity, truncate_to_capacity};
use crate::cidr::{from_abi_addr, is_ipv6, to_abi_addr};
use crate::config::{Dscp, EncapFormat, Exposure, Tunnel};
use crate::desired::{DesiredState, NextHop, NextHopGroup, Peer};
use crate::objects::FieldError;
use crate::peer_secret::{PeerAuth, PeerSecrets};

/// Settings of the agent, and the path MTUs it has measured.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Name of the local Node.
    pub node_name: &'a str,
    /// Encapsulation.
    pub tunnel: Tunnel,
    /// How programs are attached.
    pub attach_mode: AttachMode,
    /// Destinations open to other clusters besides Pods and exported Services.
    pub exposure: Exposure,
    /// [`abi::Config::detect`].
    pub detect: u32,
    /// [`abi::Config::hold_down_ms`].
    pub hold_down_ms: u32,
    /// Measured path MTUs, as lengths of outer IP packets, by next hop ID.
    pub path_mtus: &'a BTreeMap<u32, u32>,
    /// Capacity of the maps.
    pub capacity: Capacity,
    /// Secrets shared with other nodes.
    pub secrets: &'a PeerSecrets,
    /// Period of these secrets.
    pub period: u64,
    /// [`abi::Config::cluster_id_key`].
    pub cluster_id_key: [u8; 16],
    /// [`abi::Config::tunnel_mac`] if Pods are on a bridge; 0 if no tunnel device has to decapsulate.
    pub tunnel_mac: [u8; 6],
    /// [`abi::Config::decap_test_ms`].
    pub decap_test_ms: u32,
    /// Whether this node needs tunnel devices.
    pub has_tunnel_devices: bool,
    /// `mc_nh_groups` as observed: these groups stay before new ones if all exceed the capacity.
    pub observed_groups: &'a BTreeMap<u32, abi::NextHopGroup>,
}

/// Observations of the host that the resolved state depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostInputs {
    /// Underlay routes and addresses.
    pub underlay: Underlay,
    /// Foreign routes that would collide with routes into `mc0`, each with its protocol and device.
    pub foreign_routes: BTreeMap<IpNet, String>,
    /// Destinations of all foreign routes of the main table.
    pub foreign_destinations: BTreeSet<IpNet>,
    /// IPsec policies.
    pub ipsec: IpsecPolicies,
    /// Limits of the neighbor tables.
    pub neighbor_limits: NeighborLimits,
    /// Reason why IPv6 cannot be routed into `mc0`, if so. Completes "prefix …".
    pub ipv6_unavailable: Option<String>,
    /// Devices and routes of Pods; none while their packets are not policed.
    pub pod_links: PodLinks,
    /// Reason why nftables cannot filter the frames of bridges, if so.
    pub bridge_filter_unavailable: Option<String>,
}

/// Result of [`resolve`].
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolution {
    /// The resolved state.
    pub state: ResolvedState,
    /// Parts of the desired state left out of it.
    pub issues: Vec<FieldError>,
    /// The reason why policies may not be enforced on packets of the own cluster, if so; not in [`Self::issues`].
    pub unenforced: Option<FieldError>,
    /// MTU of the link to each next hop, as the length of an outer IP packet, by ID.
    pub link_mtus: BTreeMap<u32, u32>,
    /// The issues that keep packets from `mc0` because of another program on this Node: the agent is not ready.
    pub unrepairable: Vec<String>,
}

/// Resolves the desired state. Next hops without a route are left out, as are refused next hops and peers, routes that
/// collide with foreign ones, IPv6 routes on a host without IPv6, and entries beyond the capacity of the maps; the rest
/// is not affected. Prefixes keep their routes into `mc0`, so that their packets are dropped and counted.
///
/// The resolution does not depend on `cache`, which is kept between resolutions.
pub fn resolve(
    desired: &DesiredState,
    inputs: &HostInputs,
    settings: &Settings<'_>,
    cache: &mut ResolutionCache,
) -> Resolution {
    let tunnel = &settings.tunnel;
    let mut state = ResolvedState {
        attach_mode: settings.attach_mode,
        detect: settings.detect,
        hold_down_ms: settings.hold_down_ms,
        cluster_id_key: settings.cluster_id_key,
        tunnel_mac: if has_bridged_pods(desired, &inputs.underlay) {
            settings.tunnel_mac
        } else {
            [0; 6]
        },
        decap_test_ms: settings.decap_test_ms,
        flags: flags(
            desired.gateway,
            *tunnel,
            settings.exposure,
            desired.policies.protected.any,
        ),
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
    state.assign_addresses(desired, &inputs.underlay);
    let mut local = LocalAddrs::default();
    for addr in &desired.local_addrs {
        if let Some((ifindex, device)) = inputs.underlay.local_addrs.get(addr) {
            // An address on the loopback device is reached through other devices.
            if device != "lo" && !inputs.underlay.without_ethernet.contains_key(ifindex) {
                state.devices.insert(device.clone(), *ifindex);
            }
            local.add(*addr);
        }
    }
    let refusals = Refusals::new(desired, inputs, tunnel.port);
    let underlay = (&inputs.underlay, &refusals);
    let mut issues = resolve_next_hops(&mut state, &mut local, desired, underlay, settings);
    issues.extend(refusals.peer_issues(desired));
    issues.extend(refusal::local_issues(
        desired,
        &inputs.underlay,
        settings.node_name,
    ));
    issues.extend(neighbors::issues(
        &inputs.underlay,
        inputs.neighbor_limits,
        settings.node_name,
    ));
    let accepted = |addr: &IpAddr| refusals.reason(*addr).is_none();
    // Packets of a peer arrive on the device of the route to it, also if the peer is in no group.
    for addr in desired.peers.keys().filter(|addr| accepted(addr)) {
        if let Some(route) = inputs.underlay.routes.get(addr) {
            state.devices.insert(route.device.clone(), route.ifindex);
        }
    }
    state.local = local.0;
    state.groups = groups(desired, &state.next_hops);
    state.peers = desired
        .peers
        .iter()
        .filter(|(addr, _)| accepted(addr))
        .map(|(addr, peer)| (to_abi_addr(*addr), to_peer(*peer, settings)))
        .collect();
    state.prefixes = cache.prefixes.update(desired).clone();
    prefix::mark_addresses(&mut state, desired);
    let link_mtus = state.link_mtus();
    state.limit_mtus(settings.path_mtus);
    let foreign_routes = drop_foreign_routes(&mut state, settings.node_name, &inputs.foreign_routes);
    let unrepairable = foreign_routes.iter().map(ToString::to_string).collect();
    issues.extend(foreign_routes);
    let established = settings.observed_groups.values().map(|group| group.id);
    issues.extend(truncate_to_capacity(
        &mut state,
        settings.capacity,
        &established.collect(),
    ));
    if let Some(reason) = &inputs.ipv6_unavailable {
        issues.extend(drop_ipv6_routes(&mut state, settings.node_name, reason));
    }
    if state.routes.len() > MAX_EXACT_ROUTES {
        let foreign = &inputs.foreign_destinations;
        state.routes = cache.supernets.update(&state.routes, foreign).clone();
    }
    state.filter = packet_filter(&state, desired, inputs, settings);
    let unenforced = police_pods(&mut state, desired, inputs, settings, &mut issues);
    Resolution {
        state,
        issues,
        unenforced,
        link_mtus,
        unrepairable,
    }
}

/// Most prefixes that have a route each. Until the agent has split a supernet, a new foreign route inside it takes the
/// packets of the prefixes that it covers; next to a route for each prefix it takes none.
const MAX_EXACT_ROUTES: usize = 256;

fn packet_filter(
    state: &ResolvedState,
    desired: &DesiredState,
    inputs: &HostInputs,
    settings: &Settings<'_>,
) -> PacketFilter {
    let services = desired.services.as_ref();
    let decapsulates = settings.has_tunnel_devices && state.tunnel_mac != [0; 6];
    let decap_devices = state.devices.keys().filter(|_| decapsulates);
    PacketFilter {
        port: settings.tunnel.port,
        service_cidrs: desired.service_cidrs.clone(),
        addresses: state.addresses.clone(),
        backends: services.map_or_else(BTreeSet::new, |services| {
            host_backends(services, &inputs.underlay)
        }),
        expose_nodes: settings.exposure.nodes,
        decap_devices: decap_devices.cloned().collect(),
    }
}

/// Whether the Pods of this node are on a bridge, which has an address of the Pod CIDRs. A bridge segments a
/// super-packet in software unless the kernel has decapsulated it; devices of routed Pods (veth) pass it on, and
/// decapsulation by the kernel takes longer.
fn has_bridged_pods(desired: &DesiredState, underlay: &Underlay) -> bool {
    let pods = &desired.masquerade.pod_cidrs;
    let mut addresses = underlay.bridge_addrs.iter();
    addresses.any(|address| pods.iter().any(|cidr| cidr.contains(address)))
}

/// Resolves the next hops and the MTU of `mc0`, and adds the devices and source addresses towards them.
fn resolve_next_hops(
    state: &mut ResolvedState,
    local: &mut LocalAddrs,
    desired: &DesiredState,
    (underlay, refusals): (&Underlay, &Refusals),
    settings: &Settings<'_>,
) -> Vec<FieldError> {
    // IPv6 prefixes are behind IPv4 ones.
    let carries_v6 = desired.prefixes.keys().next_back().copied().is_some_and(is_ipv6);
    let mut issues = Vec::new();
    for (id, next_hop) in &desired.next_hops {
        let issue = |reason: String| FieldError {
            object: next_hop.object.clone(),
            field: "address".to_owned(),
            value: next_hop.addr.to_string(),
            reason,
        };
        if let Some(reason) = refusals.reason(next_hop.addr) {
            issues.push(issue(reason.to_owned()));
            continue;
        }
        let Some(route) = underlay.routes.get(&next_hop.addr) else {
            let reason = underlay.unreachable.get(&next_hop.addr);
            issues.push(issue(reason.map_or("has no route", String::as_str).to_owned()));
            continue;
        };
        let source = next_hop
            .source
            .filter(|source| underlay.local_addrs.contains_key(source))
            .unwrap_or(route.source);
        if !local.add(source) {
            issues.push(issue(format!(
                "is reached from {source}, which exceeds the {LOCAL_ADDRS} local addresses of a node"
            )));
            continue;
        }
        state.devices.insert(route.device.clone(), route.ifindex);
        let mtu = route.mtu.saturating_sub(overhead(next_hop.addr));
        if carries_v6 && mtu < MIN_V6_MTU {
            issues.push(path_too_small(next_hop, route, mtu));
        }
        state.mtu = Some(state.mtu.map_or(mtu, |least| least.min(mtu)));
        state.next_hops.insert(
            *id,
            abi::NextHop {
                source_mac: sent_mac(&next_hop.auth, settings),
                link: link_addresses(route, underlay),
                addr: to_abi_addr(next_hop.addr),
                local: to_abi_addr(source),
                ifindex: route.ifindex,
                id: *id,
                mtu,
                weight: next_hop.weight,
                neighbor: route.neighbor.map_or_else(abi::Neighbor::default, neighbor),
                stats: 0,
            },
        );
    }
    // With a smaller MTU the kernel would disable IPv6 on the device, and IPv6 packets would leave unencapsulated.
    // The programs drop packets larger than the path MTU.
    if carries_v6 {
        state.mtu = state.mtu.map(|mtu| mtu.max(MIN_V6_MTU));
    }
    issues
}

impl ResolvedState {
    /// MTU of the link to each next hop, as the length of an outer IP packet.
    fn link_mtus(&self) -> BTreeMap<u32, u32> {
        let outer = |next_hop: &abi::NextHop| {
            let overhead = overhead(from_abi_addr(&next_hop.addr));
            next_hop.mtu.saturating_add(overhead)
        };
        self.next_hops
            .iter()
            .map(|(id, next_hop)| (*id, outer(next_hop)))
            .collect()
    }

    /// Lowers the MTU of next hops whose measured path MTU is smaller than the link's.
    fn limit_mtus(&mut self, path_mtus: &BTreeMap<u32, u32>) {
        for (id, next_hop) in &mut self.next_hops {
            if let Some(path_mtu) = path_mtus.get(id) {
                let inner = path_mtu.saturating_sub(overhead(from_abi_addr(&next_hop.addr)));
                next_hop.mtu = next_hop.mtu.min(inner);
            }
        }
    }
}

/// Removes routes that collide with foreign ones.
fn drop_foreign_routes(
    state: &mut ResolvedState,
    node_name: &str,
    foreign: &BTreeMap<IpNet, String>,
) -> Vec<FieldError> {
    let taken = foreign.iter().filter(|(net, _)| state.routes.remove(net));
    taken
        .map(|(net, owner)| FieldError {
            object: format!("Node {node_name}"),
            field: "main routing table".to_owned(),
            value: net.to_string(),
            reason: format!("has a foreign route (protocol {owner})"),
        })
        .collect()
}

/// Removes IPv6 routes from a host without IPv6; IPv4 is not affected.
fn drop_ipv6_routes(state: &mut ResolvedState, node_name: &str, reason: &str) -> Vec<FieldError> {
    let dropped = state.routes.iter().filter(|net| is_ipv6(**net));
    let issues: Vec<FieldError> = dropped
        .map(|net| FieldError {
            object: format!("Node {node_name}"),
            field: "net.ipv6.conf".to_owned(),
            value: net.to_string(),
            reason: reason.to_owned(),
        })
        .collect();
    if !issues.is_empty() {
        state.without_ipv6();
    }
    issues
}

/// Link addresses of frames on a route; unknown without a resolved neighbor.
fn link_addresses(route: &UnderlayRoute, underlay: &Underlay) -> abi::LinkAddresses {
    let neighbor = route
        .neighbor
        .and_then(|addr| *underlay.neighbors.get(&(route.ifindex, addr))?);
    match (neighbor, route.link_address) {
        (Some(dst), Some(src)) => abi::LinkAddresses::new(dst, src),
        _ => abi::LinkAddresses::UNKNOWN,
    }
}

/// A neighbour as the maps store it.
fn neighbor(addr: IpAddr) -> abi::Neighbor {
    match addr {
        IpAddr::V4(addr) => {
            let [a, b, c, d] = addr.octets();
            abi::Neighbor {
                family: abi::Neighbor::V4,
                addr: [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            }
        }
        IpAddr::V6(addr) => abi::Neighbor {
            family: abi::Neighbor::V6,
            addr: addr.octets(),
        },
    }
}

/// The groups with those of their next hops that have a route.
fn groups(desired: &DesiredState, next_hops: &BTreeMap<u32, abi::NextHop>) -> BTreeMap<u32, BTreeSet<u32>> {
    let known = |group: &NextHopGroup| {
        group
            .next_hops
            .iter()
            .copied()
            .filter(|id| next_hops.contains_key(id))
            .collect()
    };
    desired
        .groups
        .iter()
        .map(|(id, group)| (*id, known(group)))
        .collect()
}

/// `CONFIG_*` of a node.
fn flags(gateway: bool, tunnel: Tunnel, exposure: Exposure, protects_pods: bool) -> u32 {
    [
        (gateway, abi::CONFIG_GATEWAY),
        (tunnel.format == EncapFormat::Vxlan, abi::CONFIG_VXLAN),
        (tunnel.udp_checksum, abi::CONFIG_UDP_CHECKSUM),
        (tunnel.dscp != Dscp::Inherit, abi::CONFIG_DSCP_FIXED),
        (exposure.all_services, abi::CONFIG_ALL_SERVICES),
        (exposure.all_services && protects_pods, abi::CONFIG_IDENTITY_LOST),
    ]
    .into_iter()
    .filter(|(on, _)| *on)
    .fold(0, |flags, (_, flag)| flags | flag)
}

/// The issue of a path too small for IPv6.
fn path_too_small(next_hop: &NextHop, route: &UnderlayRoute, mtu: u32) -> FieldError {
    FieldError {
        object: next_hop.object.clone(),
        field: "address".to_owned(),
        value: next_hop.addr.to_string(),
        reason: format!(
            "is reached over an MTU of {} ({}), which leaves {mtu} bytes: \
             full-sized IPv6 packets need {MIN_V6_MTU} and are dropped; raise it to {}",
            route.mtu,
            route.device,
            MIN_V6_MTU.saturating_add(overhead(next_hop.addr)),
        ),
    }
}

/// Inner source MAC address of packets to a node.
fn sent_mac(auth: &PeerAuth, settings: &Settings<'_>) -> u64 {
    let keyed = auth
        .sent_key()
        .map(|key| settings.secrets.sent_mac(key, settings.period));
    keyed.unwrap_or(SourceMac::UNKEYED).to_bits()
}

/// A peer as the maps store it, with the stable ID of its group.
fn to_peer(peer: Peer, settings: &Settings<'_>) -> abi::Peer {
    let received = peer
        .auth
        .received_key()
        .map(|key| settings.secrets.received_macs(key, settings.period));
    let unkeyed = if peer.auth.accepts_unkeyed() {
        abi::PEER_UNKEYED
    } else {
        0
    };
    abi::Peer {
        source_macs: received.unwrap_or_default(),
        reply_mac: sent_mac(&peer.auth, settings),
        cluster: peer.cluster,
        flags: peer.flags | unkeyed,
        group: peer
            .alias
            .map_or(peer.group, |alias| abi::Peer::group_of_alias(alias.octets())),
        stats: 0,
        pad: 0,
    }
}
