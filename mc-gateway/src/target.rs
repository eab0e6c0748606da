//! The desired state with every member resolved to a path on the underlay: ready to compare with what is there. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use mc_gateway_common::abi::{self, Addr, LOCAL_ADDRS};

use crate::cidr::{is_ipv6, mapped, mapped_len};
use crate::config::{Dscp, Format, Tunnel};
use crate::desired::services::Services;
use crate::desired::{self, Desired, Masquerade, Sources};
use crate::objects::Refusal;
use crate::plan::Mode;

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
pub struct Path {
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
    pub via: Option<IpAddr>,
}

/// What the host knows about the underlay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Underlay {
    /// Path to each address that was asked for and has one.
    pub paths: BTreeMap<IpAddr, Path>,
    /// Why the others have none.
    pub unreachable: BTreeMap<IpAddr, String>,
    /// Addresses of this host with the device that owns them.
    pub own: BTreeMap<IpAddr, (u32, String)>,
    /// Those of them that are not known to be unique yet (RFC 4862 section 5.4): nothing may be sent from them.
    pub tentative: BTreeSet<IpAddr>,
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
pub struct Target {
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
    /// Members by stable id; [`abi::Member::id`] is the key.
    pub members: BTreeMap<u32, abi::Member>,
    /// Peers with the group's stable id.
    pub peers: BTreeMap<Addr, abi::Peer>,
    /// Exported Services; none where the maps stay as they are.
    pub services: Option<Services>,
    /// Prefixes routed into `mc0`.
    pub routes: BTreeSet<IpNet>,
    /// What nftables masquerades.
    pub masquerade: Masquerade,
    /// Underlay devices by name.
    pub devices: BTreeMap<String, u32>,
    /// How programs are attached.
    pub mode: Mode,
}

impl Target {
    /// Routes into `mc0` with the source address each names.
    #[must_use]
    pub fn host_routes(&self) -> BTreeMap<RouteKey, Option<IpAddr>> {
        let sources = self.masquerade.sources;
        let key = |net: &IpNet, preferred| RouteKey { net: *net, preferred };
        let plain = self.routes.iter().map(|net| (key(net, false), None));
        let preferred = self.routes.iter().filter_map(|net| {
            let source = sources.like(*net)?;
            Some((key(net, true), Some(source)))
        });
        plain.chain(preferred).collect()
    }
}

/// Joins the desired state with the underlay. Members without a path are left out until they have one.
#[must_use]
pub fn resolve(desired: &Desired, underlay: &Underlay, tunnel: &Tunnel) -> (Target, Vec<Refusal>) {
    let mut refusals = Vec::new();
    let mut target = Target {
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
        ..Target::default()
    };
    target.masquerade.sources = sources(desired, underlay);
    let carries_v6 = desired.prefixes.keys().copied().any(is_ipv6);
    let mut local = LocalAddresses::default();
    for addr in &desired.local {
        if let Some((ifindex, device)) = underlay.own.get(addr) {
            // An address on the loopback device is reached through whatever leads to the host.
            if device != "lo" {
                target.devices.insert(device.clone(), *ifindex);
            }
            local.add(*addr);
        }
    }
    for (id, member) in &desired.members {
        let Some(path) = underlay.paths.get(&member.addr) else {
            let why = underlay.unreachable.get(&member.addr);
            refusals.push(Refusal {
                object: member.object.clone(),
                field: "address".to_owned(),
                value: member.addr.to_string(),
                reason: why.map_or("has no route", String::as_str).to_owned(),
            });
            continue;
        };
        let source = member
            .source
            .filter(|source| underlay.own.contains_key(source))
            .unwrap_or(path.source);
        if !local.add(source) {
            refusals.push(Refusal {
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
            refusals.push(too_small(member, path, mtu));
        }
        target.mtu = Some(target.mtu.map_or(mtu, |least| least.min(mtu)));
        target.members.insert(
            *id,
            abi::Member {
                addr: mapped(member.addr),
                local: mapped(source),
                ifindex: path.ifindex,
                id: *id,
                mtu,
                weight: member.weight,
                via: path.via.map_or_else(abi::NextHop::default, next_hop),
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
        if let Some(path) = underlay.paths.get(addr) {
            target.devices.insert(path.device.clone(), path.ifindex);
        }
    }
    target.local = local.0;
    target.groups = groups(desired, &target.members);
    target.peers = desired
        .peers
        .iter()
        .map(|(addr, peer)| (mapped(*addr), to_peer(*peer)))
        .collect();
    target.prefixes = prefixes(desired);
    if let Some(services) = &desired.services {
        mark_backends(&mut target, services, &desired.prefixes);
    }
    (target, refusals)
}

/// A neighbour in the words of the maps.
fn next_hop(via: IpAddr) -> abi::NextHop {
    match via {
        IpAddr::V4(via) => {
            let [a, b, c, d] = via.octets();
            abi::NextHop {
                family: abi::NextHop::V4,
                addr: [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            }
        }
        IpAddr::V6(via) => abi::NextHop {
            family: abi::NextHop::V6,
            addr: via.octets(),
        },
    }
}

/// The groups with those of their members that have a path.
fn groups(desired: &Desired, members: &BTreeMap<u32, abi::Member>) -> BTreeMap<u32, BTreeSet<u32>> {
    let known = |group: &desired::Group| {
        group
            .members
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
fn sources(desired: &Desired, underlay: &Underlay) -> Sources {
    let pods = || desired.masquerade.pods.iter();
    let known = underlay
        .own
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
    let mut addresses = inside.into_iter().map(|(_, addr)| addr);
    Sources {
        v4: addresses.clone().find_map(|addr| match addr {
            IpAddr::V4(addr) => Some(addr),
            IpAddr::V6(_) => None,
        }),
        v6: addresses.find_map(|addr| match addr {
            IpAddr::V4(_) => None,
            IpAddr::V6(addr) => Some(addr),
        }),
    }
}

fn flags(gateway: bool, tunnel: Tunnel) -> u32 {
    [
        (gateway, abi::CONFIG_GATEWAY),
        (tunnel.format == Format::Vxlan, abi::CONFIG_VXLAN),
        (tunnel.udp_checksum, abi::CONFIG_UDP_CHECKSUM),
        (tunnel.dscp != Dscp::Inherit, abi::CONFIG_DSCP_FIXED),
    ]
    .into_iter()
    .filter(|(on, _)| *on)
    .fold(0, |flags, (_, flag)| flags | flag)
}

fn too_small(member: &desired::Member, path: &Path, mtu: u32) -> Refusal {
    Refusal {
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
        group: peer.group,
        pad: 0,
    }
}

fn prefixes(desired: &Desired) -> BTreeMap<PrefixKey, Prefix> {
    let prefixes = desired.prefixes.iter().map(|(net, route)| {
        let (key, mut prefix) = to_prefix(*net, *route);
        if desired.service_cidrs.contains(net) {
            prefix.action = abi::ACTION_SERVICE;
        }
        (key, prefix)
    });
    prefixes.collect()
}

fn to_prefix(net: IpNet, route: desired::Route) -> (PrefixKey, Prefix) {
    let key = PrefixKey {
        len: mapped_len(net),
        addr: mapped(net.network()),
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
fn mark_backends(target: &mut Target, services: &Services, prefixes: &BTreeMap<IpNet, desired::Route>) {
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
        let addr = mapped(addr);
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
mod tests {
    use super::*;

    const TUNNEL: Tunnel = Tunnel {
        format: Format::Geneve,
        port: 6081,
        udp_checksum: false,
        dscp: Dscp::Inherit,
        hop_limit: 64,
    };

    fn member(addr: [u8; 4], source: Option<[u8; 4]>) -> desired::Member {
        desired::Member {
            object: "Gateway gw".into(),
            addr: addr.into(),
            source: source.map(Into::into),
            weight: 1,
        }
    }

    fn path(device: &str, ifindex: u32, source: [u8; 4], mtu: u32) -> Path {
        Path {
            ifindex,
            device: device.into(),
            source: source.into(),
            mtu,
            via: Some([192, 0, 2, 254].into()),
        }
    }

    fn world() -> (Desired, Underlay) {
        let mut desired = Desired {
            local: vec![[192, 0, 2, 1].into(), [203, 0, 113, 1].into()],
            ..Desired::default()
        };
        desired
            .members
            .insert(7, member([192, 0, 2, 2], Some([192, 0, 2, 1])));
        desired
            .members
            .insert(8, member([198, 51, 100, 2], Some([203, 0, 113, 1])));
        desired.groups.insert(
            1,
            desired::Group {
                name: "gateways".into(),
                members: [7, 8].into(),
            },
        );
        let mut underlay = Underlay::default();
        underlay.own.insert([192, 0, 2, 1].into(), (2, "eth0".into()));
        underlay
            .paths
            .insert([192, 0, 2, 2].into(), path("eth0", 2, [192, 0, 2, 9], 1500));
        underlay
            .paths
            .insert([198, 51, 100, 2].into(), path("eth1", 3, [198, 51, 100, 1], 1400));
        (desired, underlay)
    }

    #[test]
    fn the_source_a_member_knows_us_by_if_it_is_ours() {
        let (desired, underlay) = world();
        let (target, refusals) = resolve(&desired, &underlay, &TUNNEL);
        assert_eq!(refusals, []);
        assert_eq!(target.members[&7].local, mapped([192, 0, 2, 1].into()));
        // 203.0.113.1 is an address in front of a NAT: the host does not own it.
        assert_eq!(target.members[&8].local, mapped([198, 51, 100, 1].into()));
        assert_eq!(target.local[0], mapped([192, 0, 2, 1].into()));
        assert_eq!(target.local[1], mapped([198, 51, 100, 1].into()));
        assert_eq!(target.local[2], Addr::default());
    }

    #[test]
    fn the_tunnel_in_the_words_of_the_maps() {
        let (desired, underlay) = world();
        let (plain, _) = resolve(&desired, &underlay, &TUNNEL);
        assert_eq!(
            (plain.flags, plain.port, plain.tos, plain.hop_limit),
            (0, 6081, 0, 64)
        );
        let tunnel = Tunnel {
            format: Format::Vxlan,
            port: 4789,
            udp_checksum: true,
            dscp: Dscp::Fixed(46),
            hop_limit: 8,
        };
        let (target, _) = resolve(&desired, &underlay, &tunnel);
        assert_eq!(
            target.flags,
            abi::CONFIG_VXLAN | abi::CONFIG_UDP_CHECKSUM | abi::CONFIG_DSCP_FIXED
        );
        assert_eq!((target.port, target.tos, target.hop_limit), (4789, 0xb8, 8));
    }

    #[test]
    fn the_node_sends_from_an_address_of_its_own_among_its_pods() {
        let (mut desired, mut underlay) = world();
        let nets = ["10.1.1.0/24", "fd00:1:0:1::/64"].map(|net| net.parse::<IpNet>().unwrap());
        desired.masquerade.pods = nets.into();
        let remotes = ["10.2.0.0/16", "fd00:2::/48"].map(|net| net.parse::<IpNet>().unwrap());
        desired.routes = remotes.into();
        let resolved = |underlay: &Underlay| {
            let (target, refusals) = resolve(&desired, underlay, &TUNNEL);
            assert_eq!(refusals, []);
            (target.masquerade.sources, target.host_routes())
        };
        // The underlay's addresses are in no Pod CIDR.
        let (sources, routes) = resolved(&underlay);
        assert_eq!((sources, routes.len()), (Sources::default(), 2));
        assert!(
            routes
                .iter()
                .all(|(key, source)| !key.preferred && source.is_none())
        );
        for addr in ["10.1.1.0", "10.1.1.9", "10.1.1.1", "fd00:1:0:1::1", "10.1.2.1"] {
            let device = (5, "cni0".to_owned());
            underlay.own.insert(addr.parse().unwrap(), device);
        }
        let (sources, routes) = resolved(&underlay);
        let [v4, v6]: [IpAddr; 2] = ["10.1.1.1", "fd00:1:0:1::1"].map(|addr| addr.parse().unwrap());
        assert_eq!(sources.v4.map(IpAddr::V4), Some(v4));
        assert_eq!(sources.v6.map(IpAddr::V6), Some(v6));
        let preferred = true;
        let keys = remotes.map(|net| RouteKey { net, preferred });
        assert_eq!(routes.len(), 4);
        assert_eq!(keys.map(|key| routes[&key]), [Some(v4), Some(v6)]);
        // The kernel refuses a route from an address that is still being checked for a duplicate.
        underlay.tentative.insert(v6);
        let (sources, routes) = resolved(&underlay);
        assert_eq!((sources.v6, routes.len()), (None, 3));
        // A tunnel device's.
        underlay.own.remove(&v4);
        underlay.own.remove(&IpAddr::from([10, 1, 1, 9]));
        assert_eq!(resolved(&underlay).0.v4, Some([10, 1, 1, 0].into()));
        // One that follows no Node.
        desired.masquerade.pods.clear();
        desired.host_addresses = [IpAddr::from([10, 1, 2, 1]).into()].into();
        let (target, _) = resolve(&desired, &underlay, &TUNNEL);
        assert_eq!(target.masquerade.sources.v4, Some([10, 1, 2, 1].into()));
    }

    #[test]
    fn smallest_mtu_and_all_devices() {
        let (desired, underlay) = world();
        let (target, _) = resolve(&desired, &underlay, &TUNNEL);
        assert_eq!(target.mtu, Some(1350));
        assert_eq!(target.members[&7].mtu, 1450);
        assert_eq!(
            target.devices,
            [("eth0".to_owned(), 2), ("eth1".to_owned(), 3)].into()
        );
    }

    /// The other member is reached over IPv6, and there is an IPv6 prefix.
    fn v6_world(mtu: u32) -> (Desired, Underlay) {
        let (mut desired, mut underlay) = world();
        let addr: IpAddr = "2001:db8::2".parse().unwrap();
        desired.members.get_mut(&8).unwrap().addr = addr;
        let v6 = Path {
            source: "2001:db8::1".parse().unwrap(),
            ..path("eth1", 3, [0; 4], mtu)
        };
        underlay.paths.insert(addr, v6);
        let route = desired::Route {
            cluster: 1,
            group: 1,
            deliver: false,
        };
        desired.prefixes.insert("fd00:2::/48".parse().unwrap(), route);
        (desired, underlay)
    }

    #[test]
    fn an_outer_ipv6_header_is_20_bytes_longer() {
        let (desired, underlay) = v6_world(1500);
        let (target, refusals) = resolve(&desired, &underlay, &TUNNEL);
        assert_eq!(refusals, []);
        assert_eq!(
            (target.members[&7].mtu, target.members[&8].mtu, target.mtu),
            (1450, 1430, Some(1430))
        );
        assert_eq!(target.members[&8].local[..4], [0x20, 1, 0xd, 0xb8]);
        let key = target.prefixes.keys().next().unwrap();
        assert_eq!((key.len, key.addr[..2].to_vec()), (48, vec![0xfd, 0]));
    }

    #[test]
    fn an_underlay_too_small_for_ipv6_is_named_and_mc0_keeps_ipv6() {
        let (mut desired, underlay) = v6_world(1340);
        let (target, refusals) = resolve(&desired, &underlay, &TUNNEL);
        assert_eq!(refusals.len(), 1);
        assert!(
            refusals[0]
                .to_string()
                .contains("\"2001:db8::2\" is reached over an MTU of 1340 (eth1), which leaves 1270 bytes")
                && refusals[0].reason.ends_with("raise it to 1350"),
            "{}",
            refusals[0]
        );
        assert_eq!((target.members[&8].mtu, target.mtu), (1270, Some(1280)));
        // Without IPv6 inside there is nothing wrong with it.
        desired.prefixes.clear();
        let (target, refusals) = resolve(&desired, &underlay, &TUNNEL);
        assert_eq!((refusals, target.mtu), (vec![], Some(1270)));
    }

    #[test]
    fn member_without_a_route_is_left_out_and_named() {
        let (desired, mut underlay) = world();
        underlay.paths.remove(&IpAddr::from([198, 51, 100, 2]));
        let (target, refusals) = resolve(&desired, &underlay, &TUNNEL);
        assert_eq!(target.groups[&1], [7].into());
        assert_eq!(refusals.len(), 1);
        assert_eq!(
            refusals[0].to_string(),
            "Gateway gw: address: \"198.51.100.2\" has no route"
        );
    }

    #[test]
    fn pods_behind_services_are_marked_and_nothing_else_is_opened() {
        let (mut desired, underlay) = world();
        let route = |deliver| desired::Route {
            cluster: 0,
            group: 0,
            deliver,
        };
        desired
            .prefixes
            .insert("10.1.0.0/24".parse().unwrap(), route(true));
        let backend = |pod: [u8; 4], group| abi::service::Backend {
            pod: mapped(pod.into()),
            group,
            ..Default::default()
        };
        let services = Services {
            // A Pod of this node, one of another, and one of this node's own network.
            backends: [
                (1, backend([10, 1, 0, 5], 0)),
                (2, backend([10, 1, 1, 5], 77)),
                (3, backend([192, 0, 2, 1], 0)),
            ]
            .into(),
            ..Services::default()
        };
        desired.services = Some(services);
        let (target, _) = resolve(&desired, &underlay, &TUNNEL);
        assert_ne!(target.flags & abi::CONFIG_BACKENDS, 0);
        let of = |addr: [u8; 4]| {
            let key = PrefixKey {
                len: 128,
                addr: mapped(addr.into()),
            };
            target
                .prefixes
                .get(&key)
                .map(|prefix| (prefix.action, prefix.flags))
        };
        assert_eq!(
            of([10, 1, 0, 5]),
            Some((abi::ACTION_DELIVER, abi::PREFIX_BACKENDS))
        );
        assert_eq!(of([10, 1, 1, 5]), None);
        assert_eq!(
            of([192, 0, 2, 1]),
            Some((0, abi::PREFIX_BACKENDS)),
            "not a way in"
        );
        desired.services = Some(Services::default());
        let (target, _) = resolve(&desired, &underlay, &TUNNEL);
        assert_eq!(
            (target.flags & abi::CONFIG_BACKENDS, target.prefixes.len()),
            (0, 1)
        );
    }

    #[test]
    fn fifth_own_address_is_refused() {
        let (mut desired, mut underlay) = world();
        for n in 10..16_u8 {
            desired.members.insert(n.into(), member([10, 0, n, 2], None));
            underlay
                .paths
                .insert([10, 0, n, 2].into(), path("eth0", 2, [10, 0, n, 1], 1500));
        }
        let (target, refusals) = resolve(&desired, &underlay, &TUNNEL);
        assert_eq!(refusals.len(), 4);
        assert!(!target.local.contains(&Addr::default()));
    }
}
