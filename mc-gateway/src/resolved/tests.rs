//! Resolution of next hops, addresses and routes.

use std::sync::LazyLock;

use super::*;
use crate::capacity::Capacity;
use crate::cidr::to_abi_addr;
use crate::config::{Dscp, EncapFormat, Tunnel};
use crate::desired::{self, DesiredState, SourceAddrs};
use crate::objects::FieldError;
use crate::peer_secret::{PeerAuth, PeerSecrets};

const TUNNEL: Tunnel = Tunnel {
    format: EncapFormat::Geneve,
    port: 6081,
    udp_checksum: false,
    dscp: Dscp::Inherit,
    hop_limit: 64,
};

static NO_MTUS: BTreeMap<u32, u32> = BTreeMap::new();
static NO_GROUPS: BTreeMap<u32, abi::NextHopGroup> = BTreeMap::new();
/// A node that shares no secret with others.
static SECRETS: LazyLock<PeerSecrets> = LazyLock::new(|| PeerSecrets::new([1; 32]));

fn settings() -> Settings<'static> {
    Settings {
        tunnel_mac: [2, 0, 0, 0, 0, 7],
        decap_test_ms: 450,
        has_tunnel_devices: false,
        exposure: crate::config::Exposure {
            nodes: false,
            all_services: false,
        },
        node_name: "n1",
        tunnel: TUNNEL,
        attach_mode: AttachMode::Tcx,
        detect: 0,
        hold_down_ms: 0,
        path_mtus: &NO_MTUS,
        capacity: Capacity {
            prefixes: u32::MAX,
            groups: u32::MAX,
            next_hops: u32::MAX,
            peers: u32::MAX,
        },
        observed_groups: &NO_GROUPS,
        secrets: &SECRETS,
        period: 0,
        cluster_id_key: [0; 16],
    }
}

/// The state and the issues on a host with nothing but an underlay.
fn resolve(desired: &DesiredState, underlay: &Underlay, tunnel: Tunnel) -> (ResolvedState, Vec<FieldError>) {
    let inputs = HostInputs {
        underlay: underlay.clone(),
        ..HostInputs::default()
    };
    let settings = Settings { tunnel, ..settings() };
    let resolution = super::resolve(desired, &inputs, &settings, &mut ResolutionCache::default());
    (resolution.state, resolution.issues)
}

fn next_hop(addr: [u8; 4], source: Option<[u8; 4]>) -> desired::NextHop {
    desired::NextHop {
        object: "Gateway gw".into(),
        addr: addr.into(),
        source: source.map(Into::into),
        weight: 1,
        auth: PeerAuth::Missing,
    }
}

fn path(device: &str, ifindex: u32, source: [u8; 4], mtu: u32) -> UnderlayRoute {
    UnderlayRoute {
        ifindex,
        device: device.into(),
        source: source.into(),
        mtu,
        neighbor: Some([192, 0, 2, 254].into()),
        link_address: Some([2, 0, 0, 0, 0, 1]),
    }
}

fn fixture() -> (DesiredState, Underlay) {
    let mut desired = DesiredState {
        local_addrs: vec![[192, 0, 2, 1].into(), [203, 0, 113, 1].into()],
        ..DesiredState::default()
    };
    desired
        .next_hops
        .insert(7, next_hop([192, 0, 2, 2], Some([192, 0, 2, 1])));
    desired
        .next_hops
        .insert(8, next_hop([198, 51, 100, 2], Some([203, 0, 113, 1])));
    desired.groups.insert(
        1,
        desired::NextHopGroup {
            name: "gateways".into(),
            next_hops: [7, 8].into(),
        },
    );
    let mut underlay = Underlay::default();
    underlay
        .local_addrs
        .insert([192, 0, 2, 1].into(), (2, "eth0".into()));
    underlay
        .routes
        .insert([192, 0, 2, 2].into(), path("eth0", 2, [192, 0, 2, 9], 1500));
    underlay
        .routes
        .insert([198, 51, 100, 2].into(), path("eth1", 3, [198, 51, 100, 1], 1400));
    (desired, underlay)
}

#[test]
fn the_source_a_next_hop_expects_is_used_if_the_host_owns_it() {
    let (desired, underlay) = fixture();
    let (state, rejected) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(rejected, []);
    assert_eq!(state.next_hops[&7].local, to_abi_addr([192, 0, 2, 1].into()));
    // 203.0.113.1 is the outside address of a NAT: the host does not own it.
    assert_eq!(state.next_hops[&8].local, to_abi_addr([198, 51, 100, 1].into()));
    assert_eq!(state.local[0], to_abi_addr([192, 0, 2, 1].into()));
    assert_eq!(state.local[1], to_abi_addr([198, 51, 100, 1].into()));
    assert_eq!(state.local[2], Addr::default());
}

#[test]
fn a_next_hop_has_the_link_addresses_of_a_resolved_neighbor_on_its_device() {
    let (desired, mut underlay) = fixture();
    let neighbor = [192, 0, 2, 254].into();
    let (mac, elsewhere) = ([2, 0, 0, 0, 0, 7], [2, 0, 0, 0, 0, 8]);
    underlay.neighbors = [((2, neighbor), Some(mac)), ((9, neighbor), Some(elsewhere))].into();
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(
        state.next_hops[&7].link,
        abi::LinkAddresses::new(mac, [2, 0, 0, 0, 0, 1])
    );
    assert!(!state.next_hops[&8].link.is_known(), "not resolved on eth1");
    for route in underlay.routes.values_mut() {
        route.link_address = None;
    }
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    assert!(
        !state.next_hops[&7].link.is_known(),
        "no MAC address of the device"
    );
}

#[test]
fn tunnel_settings_become_config_fields() {
    let (desired, underlay) = fixture();
    let (plain, _) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(
        (plain.flags, plain.port, plain.tos, plain.hop_limit),
        (0, 6081, 0, 64)
    );
    let tunnel = Tunnel {
        format: EncapFormat::Vxlan,
        port: 4789,
        udp_checksum: true,
        dscp: Dscp::Fixed(46),
        hop_limit: 8,
    };
    let (state, _) = resolve(&desired, &underlay, tunnel);
    assert_eq!(
        state.flags,
        abi::CONFIG_VXLAN | abi::CONFIG_UDP_CHECKSUM | abi::CONFIG_DSCP_FIXED
    );
    assert_eq!((state.port, state.tos, state.hop_limit), (4789, 0xb8, 8));
}

#[test]
fn the_node_uses_a_source_address_in_the_pod_network() {
    let (mut desired, mut underlay) = fixture();
    let nets = ["10.1.1.0/24", "fd00:1:0:1::/64"].map(|net| net.parse::<IpNet>().unwrap());
    desired.masquerade.pod_cidrs = nets.into();
    let remotes = ["10.2.0.0/16", "fd00:2::/48"].map(|net| net.parse::<IpNet>().unwrap());
    desired.routes = remotes.into();
    let resolved = |underlay: &Underlay| {
        let (state, rejected) = resolve(&desired, underlay, TUNNEL);
        assert_eq!(rejected, []);
        (state.masquerade.sources, state.host_routes())
    };
    // The underlay's addresses are in no Pod CIDR.
    let (sources, routes) = resolved(&underlay);
    assert_eq!((sources, routes.len()), (SourceAddrs::default(), 2));
    assert!(
        routes
            .iter()
            .all(|(key, source)| !key.preferred && source.is_none())
    );
    for addr in ["10.1.1.0", "10.1.1.9", "10.1.1.1", "fd00:1:0:1::1", "10.1.2.1"] {
        let device = (5, "cni0".to_owned());
        underlay.local_addrs.insert(addr.parse().unwrap(), device);
    }
    let (sources, routes) = resolved(&underlay);
    let [v4, v6]: [IpAddr; 2] = ["10.1.1.1", "fd00:1:0:1::1"].map(|addr| addr.parse().unwrap());
    assert_eq!(sources.v4.map(IpAddr::V4), Some(v4));
    assert_eq!(sources.v6.map(IpAddr::V6), Some(v6));
    let preferred = true;
    let keys = remotes.map(|net| RouteKey { net, preferred });
    assert_eq!(routes.len(), 4);
    assert_eq!(keys.map(|key| routes[&key]), [Some(v4), Some(v6)]);
    // The kernel rejects a route with a tentative source address.
    underlay.tentative.insert(v6);
    let (sources, routes) = resolved(&underlay);
    assert_eq!((sources.v6, routes.len()), (None, 3));
    // The address of a tunnel device.
    underlay.local_addrs.remove(&v4);
    underlay.local_addrs.remove(&IpAddr::from([10, 1, 1, 9]));
    assert_eq!(resolved(&underlay).0.v4, Some([10, 1, 1, 0].into()));
    // An address outside the Pod CIDRs.
    desired.masquerade.pod_cidrs.clear();
    desired.host_addresses = [IpAddr::from([10, 1, 2, 1]).into()].into();
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(state.masquerade.sources.v4, Some([10, 1, 2, 1].into()));
}

#[test]
fn mc0_gets_the_smallest_mtu_and_all_underlay_devices_a_program() {
    let (desired, underlay) = fixture();
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(state.mtu, Some(1350));
    assert_eq!(state.next_hops[&7].mtu, 1450);
    assert_eq!(
        state.devices,
        [("eth0".to_owned(), 2), ("eth1".to_owned(), 3)].into()
    );
}

/// One next hop is reached over IPv6, and there is an IPv6 prefix.
fn v6_fixture(mtu: u32) -> (DesiredState, Underlay) {
    let (mut desired, mut underlay) = fixture();
    let addr: IpAddr = "2001:db8::2".parse().unwrap();
    desired.next_hops.get_mut(&8).unwrap().addr = addr;
    let v6 = UnderlayRoute {
        source: "2001:db8::1".parse().unwrap(),
        ..path("eth1", 3, [0; 4], mtu)
    };
    underlay.routes.insert(addr, v6);
    let route = desired::PrefixRoute {
        cluster: 1,
        group: 1,
        deliver: false,
    };
    desired.prefixes.insert("fd00:2::/48".parse().unwrap(), route);
    (desired, underlay)
}

#[test]
fn an_outer_ipv6_header_is_20_bytes_longer() {
    let (desired, underlay) = v6_fixture(1500);
    let (state, rejected) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(rejected, []);
    assert_eq!(
        (state.next_hops[&7].mtu, state.next_hops[&8].mtu, state.mtu),
        (1450, 1430, Some(1430))
    );
    assert_eq!(state.next_hops[&8].local[..4], [0x20, 1, 0xd, 0xb8]);
    let key = state.prefixes.keys().next().unwrap();
    assert_eq!((key.len, key.addr[..2].to_vec()), (48, vec![0xfd, 0]));
}

#[test]
fn an_underlay_mtu_too_small_for_ipv6_is_reported_and_mc0_keeps_ipv6() {
    let (mut desired, underlay) = v6_fixture(1340);
    let (state, rejected) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(rejected.len(), 1);
    assert!(
        rejected[0]
            .to_string()
            .contains("\"2001:db8::2\" is reached over an MTU of 1340 (eth1), which leaves 1270 bytes")
            && rejected[0].reason.ends_with("raise it to 1350"),
        "{}",
        rejected[0]
    );
    assert_eq!((state.next_hops[&8].mtu, state.mtu), (1270, Some(1280)));
    // Without inner IPv6 the MTU is sufficient.
    desired.prefixes = [].into();
    let (state, rejected) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!((rejected, state.mtu), (vec![], Some(1270)));
}

#[test]
fn a_next_hop_without_a_route_is_left_out_and_reported() {
    let (desired, mut underlay) = fixture();
    underlay.routes.remove(&IpAddr::from([198, 51, 100, 2]));
    let (state, rejected) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(state.groups[&1], [7].into());
    assert_eq!(rejected.len(), 1);
    assert_eq!(
        rejected[0].to_string(),
        "Gateway gw: address: \"198.51.100.2\" has no route"
    );
}

#[test]
fn devices_without_an_ethernet_header_are_refused() {
    let (mut desired, mut underlay) = fixture();
    // A peer that is no next hop, and a local address on the same device.
    let peer = IpAddr::from([198, 51, 100, 3]);
    desired.peers.insert(peer, desired::Peer::default());
    desired
        .peers
        .insert([198, 51, 100, 2].into(), desired::Peer::default());
    desired
        .peers
        .insert([192, 0, 2, 2].into(), desired::Peer::default());
    desired.peer_names.insert(peer, "Gateway other".into());
    underlay
        .routes
        .insert(peer, path("eth1", 3, [198, 51, 100, 1], 1400));
    underlay
        .local_addrs
        .insert([203, 0, 113, 1].into(), (3, "eth1".into()));
    let (state, rejected) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(rejected, []);
    assert_eq!(
        (state.devices.len(), state.next_hops.len(), state.peers.len()),
        (2, 2, 3)
    );

    underlay.without_ethernet.insert(3, "wireguard".into());
    let (state, rejected) = resolve(&desired, &underlay, TUNNEL);
    let texts: Vec<String> = rejected.iter().map(ToString::to_string).collect();
    let why = "eth1 (wireguard), whose frames have no Ethernet header: the underlay must be Ethernet";
    assert_eq!(
        texts,
        [
            format!("Gateway gw: address: \"198.51.100.2\" is reached over {why}"),
            format!("Gateway other: address: \"198.51.100.3\" is reached over {why}"),
            format!("Node n1: address: \"203.0.113.1\" is an address of {why}"),
        ]
    );
    assert_eq!(state.devices, [("eth0".to_owned(), 2)].into());
    assert_eq!(state.groups[&1], [7].into(), "the other next hop is used");
    let peers: Vec<_> = state.peers.keys().copied().collect();
    assert_eq!(peers, [to_abi_addr([192, 0, 2, 2].into())]);
}

#[test]
fn backends_are_marked_and_no_other_prefix_is_delivered() {
    let (mut desired, underlay) = fixture();
    let route = |deliver| desired::PrefixRoute {
        cluster: 0,
        group: 0,
        deliver,
    };
    desired
        .prefixes
        .insert("10.1.0.0/24".parse().unwrap(), route(true));
    let backend = |pod: [u8; 4], group| abi::service::Backend {
        pod: to_abi_addr(pod.into()),
        group,
        ..Default::default()
    };
    let services = Services {
        // A Pod of this node, one of another, and one in the host network.
        backends: [
            (1, backend([10, 1, 0, 5], 0)),
            (2, backend([10, 1, 1, 5], 77)),
            (3, backend([192, 0, 2, 1], 0)),
        ]
        .into(),
        ..Services::default()
    };
    desired.services = Some(services.into());
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    assert_ne!(state.flags & abi::CONFIG_BACKENDS, 0);
    let of = |addr: [u8; 4]| {
        let key = PrefixKey {
            len: 128,
            addr: to_abi_addr(addr.into()),
        };
        state
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
    desired.services = Some(Services::default().into());
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!((state.flags & abi::CONFIG_BACKENDS, state.prefixes.len()), (0, 1));
}

/// Pods have their identities, and the rest of the Pod and Service ranges is unknown. A host's address is neither.
#[test]
fn every_source_of_this_node_has_an_identity() {
    let (mut desired, mut underlay) = fixture();
    let route = |deliver| desired::PrefixRoute {
        cluster: 0,
        group: 0,
        deliver,
    };
    let [pods, services, others]: [IpNet; 3] =
        ["10.1.0.0/24", "10.96.0.0/16", "10.1.1.0/24"].map(|net| net.parse().unwrap());
    for (net, deliver) in [(pods, true), (services, true), (others, false)] {
        desired.prefixes.insert(net, route(deliver));
    }
    desired.masquerade.pod_cidrs.insert(pods);
    desired.service_cidrs.insert(services);
    // The bridge of the CNI.
    underlay
        .local_addrs
        .insert([10, 1, 0, 1].into(), (5, "cni0".to_owned()));
    let of = |state: &ResolvedState, len: u32, addr: [u8; 4]| {
        let key = PrefixKey {
            len: 96 + len,
            addr: to_abi_addr(addr.into()),
        };
        state
            .prefixes
            .get(&key)
            .map(|prefix| (prefix.action, prefix.identity))
    };
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(of(&state, 24, [10, 1, 0, 0]), Some((abi::ACTION_DELIVER, 0)));
    assert_eq!(of(&state, 32, [10, 1, 0, 1]), None, "no identities, no entry");

    desired.identities = Some([([10, 1, 0, 5].into(), 7), ([172, 16, 0, 5].into(), 8)].into());
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    let unknown = abi::IDENTITY_UNKNOWN;
    assert_eq!(
        of(&state, 24, [10, 1, 0, 0]),
        Some((abi::ACTION_DELIVER, unknown))
    );
    assert_eq!(
        of(&state, 16, [10, 96, 0, 0]),
        Some((abi::ACTION_SERVICE, unknown))
    );
    assert_eq!(of(&state, 24, [10, 1, 1, 0]), Some((abi::ACTION_FORWARD, 0)));
    assert_eq!(of(&state, 32, [10, 1, 0, 5]), Some((abi::ACTION_DELIVER, 7)));
    assert_eq!(of(&state, 32, [10, 1, 0, 1]), Some((abi::ACTION_DELIVER, 0)));
    assert_eq!(of(&state, 32, [172, 16, 0, 5]), Some((0, 8)), "not a way in");
}

/// Only packets to Pods that a policy selects are decided, and to addresses where such a Pod may be.
#[test]
fn destinations_that_policies_concern_are_marked() {
    let (mut desired, mut underlay) = fixture();
    let route = desired::PrefixRoute {
        cluster: 0,
        group: 0,
        deliver: true,
    };
    let [pods, services]: [IpNet; 2] = ["10.1.0.0/24", "10.96.0.0/16"].map(|net| net.parse().unwrap());
    desired.prefixes.insert(pods, route);
    desired.prefixes.insert(services, route);
    desired.masquerade.pod_cidrs.insert(pods);
    desired.service_cidrs.insert(services);
    underlay
        .local_addrs
        .insert([10, 1, 0, 1].into(), (5, "cni0".to_owned()));
    let [selected, other] = [5, 6].map(|last| IpAddr::from([10, 1, 0, last]));
    desired.policies.pods = Arc::new([selected, other].into());
    let marked = |state: &ResolvedState, len: u32, addr: IpAddr| {
        let key = PrefixKey {
            len: 96 + len,
            addr: to_abi_addr(addr),
        };
        let prefix = state.prefixes.get(&key);
        prefix.map(|prefix| prefix.flags & abi::PREFIX_POLICY != 0)
    };
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(marked(&state, 24, pods.addr()), Some(false), "no policy");
    let mut tables = PolicyTables::default();
    let pod = |enforced| abi::policy::PolicyPod {
        instance: 0,
        set: 1,
        enforced,
        flags: 0,
    };
    tables
        .pods
        .insert(to_abi_addr(selected), pod(abi::policy::NO_RULES));
    desired.policies.tables = Arc::new(tables.clone());
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(marked(&state, 24, pods.addr()), Some(false), "only audited");
    assert_eq!(marked(&state, 32, selected), Some(true));
    tables.pods.insert(to_abi_addr(selected), pod(1));
    desired.policies.tables = Arc::new(tables);
    let (state, _) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(state.policies, desired.policies.tables);
    assert_eq!(
        marked(&state, 24, pods.addr()),
        Some(true),
        "a Pod that is not known yet"
    );
    assert_eq!(marked(&state, 16, services.addr()), Some(true));
    assert_eq!(marked(&state, 32, selected), Some(true));
    assert_eq!(marked(&state, 32, other), Some(false));
    assert_eq!(marked(&state, 32, [10, 1, 0, 1].into()), Some(false), "the host");
}

#[test]
fn a_fifth_local_address_is_rejected() {
    let (mut desired, mut underlay) = fixture();
    for n in 10..16_u8 {
        desired.next_hops.insert(n.into(), next_hop([10, 0, n, 2], None));
        underlay
            .routes
            .insert([10, 0, n, 2].into(), path("eth0", 2, [10, 0, n, 1], 1500));
    }
    let (state, rejected) = resolve(&desired, &underlay, TUNNEL);
    assert_eq!(rejected.len(), 4);
    assert!(!state.local.contains(&Addr::default()));
}

#[test]
fn a_node_without_an_address_in_the_pod_network_uses_a_fallback() {
    let (mut desired, mut underlay) = fixture();
    let fallback = [IpAddr::from([10, 1, 1, 0]), "fd00:1:0:1::".parse().unwrap()];
    desired.fallback_addrs = fallback.into_iter().collect();
    let resolved = |desired: &DesiredState, underlay: &Underlay| {
        let (state, rejected) = resolve(desired, underlay, TUNNEL);
        assert_eq!(rejected, []);
        let sources: Vec<IpAddr> = state.masquerade.sources.iter().collect();
        (state.addresses.into_iter().collect::<Vec<_>>(), sources)
    };
    // No routes to other clusters.
    assert_eq!(resolved(&desired, &underlay), (vec![], vec![]));
    desired.routes = [IpNet::new([10, 2, 0, 0].into(), 16).unwrap()].into();
    assert_eq!(
        resolved(&desired, &underlay),
        (vec![fallback[0]], vec![fallback[0]]),
        "in the families with routes"
    );
    desired.routes.insert("fd00:2::/48".parse().unwrap());
    assert_eq!(
        resolved(&desired, &underlay),
        (fallback.to_vec(), fallback.to_vec()),
        "both"
    );
    // The CNI creates its bridge: new connections use its address, existing ones keep theirs.
    let bridge = IpAddr::from([10, 1, 1, 1]);
    desired.masquerade.pod_cidrs = [IpNet::new([10, 1, 1, 0].into(), 24).unwrap()].into();
    underlay.local_addrs.insert(bridge, (5, "cni0".into()));
    assert_eq!(
        resolved(&desired, &underlay),
        (vec![fallback[1]], vec![bridge, fallback[1]])
    );
    underlay.mc0_addrs = fallback.into();
    assert_eq!(
        resolved(&desired, &underlay),
        (fallback.to_vec(), vec![bridge, fallback[1]])
    );
    // It is no longer routed here.
    desired.fallback_addrs = SourceAddrs::default();
    assert_eq!(resolved(&desired, &underlay), (vec![], vec![bridge]));
}

#[test]
fn a_host_without_ipv6_gets_no_ipv6_routes_and_addresses() {
    let (mut desired, underlay) = fixture();
    desired.fallback_addrs.v6 = "fd00:1:0:1::".parse().ok();
    desired.routes = ["10.2.0.0/16", "fd00:2::/48"]
        .map(|net| net.parse().unwrap())
        .into();
    let mut inputs = HostInputs {
        underlay,
        ..HostInputs::default()
    };
    let state = super::resolve(&desired, &inputs, &settings(), &mut ResolutionCache::default()).state;
    assert_eq!((state.addresses.len(), state.host_routes().len()), (1, 3));
    inputs.ipv6_unavailable = Some("is not routed: IPv6 is off".into());
    let Resolution { state, issues, .. } =
        super::resolve(&desired, &inputs, &settings(), &mut ResolutionCache::default());
    assert_eq!((state.addresses.len(), state.host_routes().len()), (0, 1));
    assert_eq!(state.masquerade.sources, SourceAddrs::default());
    let texts: Vec<String> = issues.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        ["Node n1: net.ipv6.conf: \"fd00:2::/48\" is not routed: IPv6 is off"]
    );
}

#[test]
fn a_route_that_collides_with_a_foreign_one_is_left_out() {
    let (mut desired, underlay) = fixture();
    let nets = ["10.2.0.0/16", "10.3.0.0/16"].map(|net| net.parse::<IpNet>().unwrap());
    desired.routes = nets.into();
    let inputs = HostInputs {
        underlay,
        foreign_routes: [(nets[0], "Static, device index 2".to_owned())].into(),
        ..HostInputs::default()
    };
    let Resolution {
        state,
        issues,
        unrepairable,
        ..
    } = super::resolve(&desired, &inputs, &settings(), &mut ResolutionCache::default());
    assert_eq!(state.routes, [nets[1]].into());
    let expected =
        "Node n1: main routing table: \"10.2.0.0/16\" has a foreign route (protocol Static, device index 2)";
    assert_eq!(issues[0].to_string(), expected);
    assert_eq!(unrepairable, [expected]);
}

#[test]
fn adjacent_prefixes_share_a_route_unless_a_foreign_one_is_between() {
    let (mut desired, underlay) = fixture();
    let both: IpNet = "10.2.0.0/15".parse().unwrap();
    let nets: BTreeSet<IpNet> = both.subnets(24).unwrap().collect();
    desired.routes = nets.iter().copied().take(256).collect();
    let state = super::resolve(
        &desired,
        &HostInputs::default(),
        &settings(),
        &mut ResolutionCache::default(),
    )
    .state;
    assert_eq!(state.routes, desired.routes, "few prefixes have a route each");
    desired.routes = nets.into_iter().collect();
    let mut inputs = HostInputs {
        underlay,
        ..HostInputs::default()
    };
    let state = super::resolve(&desired, &inputs, &settings(), &mut ResolutionCache::default()).state;
    assert_eq!(state.routes, [both].into());
    inputs.foreign_destinations = [both].into();
    let state = super::resolve(&desired, &inputs, &settings(), &mut ResolutionCache::default()).state;
    assert_eq!(state.routes, both.subnets(16).unwrap().collect());
}

#[test]
fn too_few_entries_of_the_neighbor_table_are_an_issue() {
    let (desired, underlay) = fixture();
    let inputs = HostInputs {
        underlay,
        neighbor_limits: NeighborLimits {
            v4: Some(1),
            v6: None,
        },
        ..HostInputs::default()
    };
    let issues = super::resolve(&desired, &inputs, &settings(), &mut ResolutionCache::default()).issues;
    assert_eq!(issues.len(), 1);
    assert_eq!(issues[0].field, "net.ipv4.neigh.default.gc_thresh3");
}

#[test]
fn a_measured_path_mtu_lowers_the_mtu_of_its_next_hop_only() {
    let (desired, underlay) = fixture();
    let inputs = HostInputs {
        underlay,
        ..HostInputs::default()
    };
    let plain = super::resolve(&desired, &inputs, &settings(), &mut ResolutionCache::default());
    let path_mtus = [(7, 1_400), (8, 9_000)].into();
    let settings = Settings {
        path_mtus: &path_mtus,
        ..settings()
    };
    let limited = super::resolve(&desired, &inputs, &settings, &mut ResolutionCache::default());
    assert_eq!(limited.link_mtus, plain.link_mtus);
    assert_eq!(limited.state.next_hops[&7].mtu, 1_350);
    assert_eq!(limited.state.next_hops[&8].mtu, plain.state.next_hops[&8].mtu);
    assert_eq!(limited.state.mtu, plain.state.mtu, "of mc0");
}

#[test]
fn a_node_needs_an_address_if_the_service_range_can_provide_one() {
    let (mut desired, underlay) = fixture();
    let needs = |desired: &DesiredState| resolve(desired, &underlay, TUNNEL).0.needs_address;
    desired.routes = [IpNet::new([10, 2, 0, 0].into(), 16).unwrap()].into();
    assert!(!needs(&desired), "no Service range");
    desired.service_cidrs = ["fd00:96::/108".parse().unwrap()].into();
    assert!(!needs(&desired), "no route of that family");
    desired
        .service_cidrs
        .insert(IpNet::new([10, 96, 0, 0].into(), 16).unwrap());
    assert!(needs(&desired));
    desired.fallback_addrs.v4 = Some([10, 96, 0, 7].into());
    assert!(!needs(&desired));
}

#[test]
fn next_hops_and_peers_with_an_ipsec_policy_are_refused() {
    let (mut desired, underlay) = fixture();
    let addresses = [[192, 0, 2, 2], [198, 51, 100, 2], [198, 51, 100, 3]].map(IpAddr::from);
    for addr in addresses {
        desired.peers.insert(addr, desired::Peer::default());
        desired.peer_names.insert(addr, "Node other".into());
    }
    let policy = |direction, src: &str, dst: &str| IpsecPolicy {
        direction,
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        proto: 0,
        src_ports: PortSelector::default(),
        dst_ports: PortSelector::default(),
        ifindex: 0,
        priority: 5,
        sub: false,
        protects: true,
    };
    // To a next hop from the address of the route to it, and from a peer without a route.
    let policies = vec![
        policy(PolicyDirection::Out, "198.51.100.1/32", "198.51.100.2/32"),
        policy(PolicyDirection::In, "198.51.100.3/32", "192.0.2.1/32"),
    ];
    let inputs = HostInputs {
        underlay,
        ipsec: IpsecPolicies::new(policies, BTreeSet::new()),
        ..HostInputs::default()
    };
    let Resolution { state, issues, .. } =
        super::resolve(&desired, &inputs, &settings(), &mut ResolutionCache::default());
    assert_eq!(state.groups[&1], [7].into(), "the other next hop is used");
    let peers: Vec<_> = state.peers.keys().copied().collect();
    assert_eq!(peers, [to_abi_addr(addresses[0])]);
    let texts: Vec<String> = issues.iter().map(ToString::to_string).collect();
    let [next_hop, peer] = texts.as_slice() else {
        panic!("{texts:?}");
    };
    let start = "Gateway gw: address: \"198.51.100.2\" has the IPsec policy \
                 `src 198.51.100.1/32 dst 198.51.100.2/32 dir out priority 5`";
    assert!(next_hop.starts_with(start), "{next_hop}");
    let start = "Node other: address: \"198.51.100.3\" has the IPsec policy \
                 `src 198.51.100.3/32 dst 192.0.2.1/32 dir in priority 5`";
    assert!(peer.starts_with(start), "{peer}");
}

/// The status of a policy was `Realized` beside Cilium, although a packet between Pods of the Node met no program.
#[test]
fn a_cni_that_bypasses_the_devices_of_pods_is_named() {
    let (mut desired, underlay) = fixture();
    let tables = PolicyTables {
        unselected: [to_abi_addr([10, 1, 0, 9].into())].into(),
        ..PolicyTables::default()
    };
    desired.policies.tables = Arc::new(tables);
    let mut inputs = HostInputs {
        underlay,
        ..HostInputs::default()
    };
    inputs.pod_links.bypassed_by = Some("cilium_host".to_owned());
    let unenforced = |desired: &DesiredState, inputs: &HostInputs| {
        super::resolve(desired, inputs, &settings(), &mut ResolutionCache::default()).unenforced
    };
    assert_eq!(
        unenforced(&desired, &inputs),
        None,
        "no packet of the own cluster is policed"
    );
    desired.policies.polices_cluster = true;
    let text = unenforced(&desired, &inputs).unwrap().to_string();
    assert!(
        text.starts_with("this Node: device: \"cilium_host\" is of a CNI"),
        "{text}"
    );
    inputs.pod_links.bypassed_by = None;
    assert_eq!(unenforced(&desired, &inputs), None);
}
