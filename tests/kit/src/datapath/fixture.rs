//! Tables for the cases: a gateway and a regular node of cluster `east`.

use std::{net::IpAddr, sync::OnceLock};

use mc_gateway_common::{
    abi::{
        ABI_VERSION, ACTION_DELIVER, ACTION_FORWARD, ACTION_REPLY, Addr, CLUSTER_LOCAL, CONFIG_GATEWAY,
        CONFIG_VXLAN, Config, LinkAddresses, Neighbor, NextHop, NextHopGroup, PEER_ANTREA,
        PEER_LOCAL_GATEWAY, PEER_LOCAL_NODE, PEER_REMOTE_GATEWAY, PEER_UNKEYED, PREFIX_ALIAS,
        PREFIX_HOST_SNAT, PREFIX_RETURN_ROUTE, Peer, Prefix, SECRET_SLOTS, SourceMac, V4_PREFIX_BITS,
        rate_limit::TokenBucket,
    },
    maps::MemoryMaps,
    packet::ip::{mapped, unmapped},
};

/// Stable ID of cluster west.
pub const WEST: u64 = 0x77;
/// Stable ID of cluster north.
pub const NORTH: u64 = 0x88;
/// A cluster with an Antrea gateway.
pub const SOUTH: u64 = 0x99;

/// A Pod on east's gateway.
pub const POD_HERE: [u8; 4] = [10, 1, 1, 5];
/// A Pod on east's regular node.
pub const POD_NODE: [u8; 4] = [10, 1, 0, 5];
/// A Pod in west.
pub const POD_WEST: [u8; 4] = [10, 2, 0, 5];
/// A Pod in north.
pub const POD_NORTH: [u8; 4] = [10, 3, 0, 5];
/// A Service address of east.
pub const SERVICE_HERE: [u8; 4] = [10, 101, 0, 10];
/// A Service address of west.
pub const SERVICE_WEST: [u8; 4] = [10, 102, 0, 10];
/// A Pod of south.
pub const POD_SOUTH: [u8; 4] = [10, 7, 0, 5];
/// A Service address of south.
pub const SERVICE_SOUTH: [u8; 4] = [10, 110, 0, 10];
/// The alias of the clients of south's gateway.
pub const ALIAS_SOUTH: [u8; 4] = [10, 110, 0, 0];

/// Underlay address of east's gateway towards its nodes.
pub const GATEWAY_INSIDE: [u8; 4] = [192, 168, 1, 1];
/// Underlay address of east's gateway towards other clusters.
pub const GATEWAY_OUTSIDE: [u8; 4] = [192, 168, 9, 1];
/// Underlay address of east's regular node.
pub const NODE: [u8; 4] = [192, 168, 1, 2];
/// Underlay address of another gateway of east.
pub const OTHER_GATEWAY: [u8; 4] = [192, 168, 1, 3];
/// Underlay address of the gateway of west.
pub const WEST_GATEWAY: [u8; 4] = [192, 168, 9, 2];
/// Underlay address of the second gateway of west, which is no peer.
pub const WEST_GATEWAY_2: [u8; 4] = [192, 168, 9, 3];
/// Underlay address of the gateway of north.
pub const NORTH_GATEWAY: [u8; 4] = [192, 168, 9, 4];
/// Underlay address of the Antrea gateway of south.
pub const SOUTH_GATEWAY: [u8; 4] = [192, 168, 9, 5];
/// Underlay address of a host that is no peer.
pub const STRANGER: [u8; 4] = [192, 168, 9, 99];

/// MAC address of `mc0`.
pub const MC0_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
const LOOPBACK: u32 = 1;

const GROUP_WEST: u32 = 1;
const GROUP_NODE: u32 = 2;
const GROUP_EMPTY: u32 = 3;
const GROUP_TWO: u32 = 4;
/// Next-hop group of south.
pub const GROUP_SOUTH: u32 = 5;
const GROUP_GATEWAYS: u32 = 1;

/// Enough tokens for any test; the time stamp prevents a refill.
pub const UNLIMITED: TokenBucket = TokenBucket {
    tokens: 1 << 40,
    at: u64::MAX,
};

/// The `mc_peer_stats` slot of an underlay address.
pub fn traffic([_, _, net, host]: [u8; 4]) -> u32 {
    u32::from(net) * 100 + u32::from(host)
}

/// Period of the secrets of packets to peers.
pub const PERIOD: u64 = 494_326;

/// The inner source MAC address of packets to an underlay address. Packets to a [`PEER_ANTREA`] have no secret.
pub fn sent_mac([_, b, net, host]: [u8; 4]) -> SourceMac {
    if [b, net, host] == SOUTH_GATEWAY[1..] {
        return SourceMac::UNKEYED;
    }
    SourceMac::keyed(PERIOD, [0x5e, b, net, host, 0x01])
}

/// [`sent_mac`] of an underlay address in any [`Shape`].
pub fn sent_mac_to(address: IpAddr) -> SourceMac {
    match address {
        IpAddr::V4(v4) => sent_mac(v4.octets()),
        IpAddr::V6(v6) => sent_mac(unmapped(&v6.octets())),
    }
}

/// The inner source MAC address of packets from an underlay address in a period.
pub fn received_mac([_, b, net, host]: [u8; 4], period: u64) -> SourceMac {
    let [.., e1, e0] = period.to_be_bytes();
    SourceMac::keyed(period, [0x4e, b ^ e1, net, host, e0])
}

/// The tables with a secret for each peer but Antrea gateways: packets without it are dropped. The secrets of
/// [`PERIOD`] and its neighbours are accepted.
pub fn keyed(mut tables: MemoryMaps) -> MemoryMaps {
    for (address, peer) in &mut tables.peers {
        if peer.flags & PEER_ANTREA != 0 {
            continue;
        }
        peer.flags &= !PEER_UNKEYED;
        peer.source_macs = [0; SECRET_SLOTS];
        for period in PERIOD - 1..=PERIOD + 1 {
            let mac = received_mac(unmapped(address), period);
            peer.source_macs[mac.slot()] = mac.to_bits();
        }
    }
    tables
}

fn config(flags: u32, local: &[[u8; 4]]) -> Config {
    let mut config = Config {
        abi: ABI_VERSION,
        flags,
        mc0_ifindex: LOOPBACK,
        port: 6081,
        mc0_mac: MC0_MAC,
        ..Config::default()
    };
    for (slot, address) in config.local.iter_mut().zip(local) {
        *slot = mapped(*address);
    }
    config
}

fn prefix(tables: &mut MemoryMaps, network: [u8; 4], bits: u32, cluster: u64, group: u32, action: u32) {
    let value = Prefix {
        cluster,
        group,
        action,
        ..Prefix::default()
    };
    tables
        .prefixes
        .insert((V4_PREFIX_BITS + bits, mapped(network)), value);
}

fn next_hop(tables: &mut MemoryMaps, slot: u32, local: [u8; 4], addr: [u8; 4]) {
    let value = NextHop {
        link: LinkAddresses::default(),
        source_mac: sent_mac(addr).to_bits(),
        addr: mapped(addr),
        local: mapped(local),
        ifindex: LOOPBACK,
        id: slot * 1_000 + 7,
        mtu: 1450,
        weight: 1,
        neighbor: Neighbor::default(),
        // Second gateways of other clusters are not peers here.
        stats: if addr == WEST_GATEWAY_2 { 0 } else { traffic(addr) },
    };
    tables.next_hops.insert(slot, value);
}

fn group(tables: &mut MemoryMaps, slot: u32, next_hops: &[u32]) {
    let mut value = NextHopGroup {
        id: slot + 500,
        len: u32::try_from(next_hops.len()).expect("few"),
        ..NextHopGroup::default()
    };
    value.next_hops[..next_hops.len()].copy_from_slice(next_hops);
    tables.groups.insert(slot, value);
}

fn peer(tables: &mut MemoryMaps, address: [u8; 4], cluster: u64, flags: u32, group: u32) {
    tables.peers.insert(
        mapped(address),
        Peer {
            cluster,
            flags: flags | PEER_UNKEYED,
            group,
            stats: traffic(address),
            reply_mac: sent_mac(address).to_bits(),
            ..Peer::default()
        },
    );
}

/// East's gateway with both legs, a local Pod CIDR, a regular node, west with one gateway and north with two.
pub fn gateway() -> MemoryMaps {
    let mut t = MemoryMaps {
        config: Some(config(CONFIG_GATEWAY, &[GATEWAY_INSIDE, GATEWAY_OUTSIDE])),
        icmp_limit: UNLIMITED.into(),
        ..MemoryMaps::default()
    };
    prefix(&mut t, [10, 1, 1, 0], 24, CLUSTER_LOCAL, 0, ACTION_DELIVER);
    prefix(
        &mut t,
        [10, 1, 0, 0],
        24,
        CLUSTER_LOCAL,
        GROUP_NODE,
        ACTION_FORWARD,
    );
    prefix(&mut t, [10, 101, 0, 0], 16, CLUSTER_LOCAL, 0, ACTION_DELIVER);
    prefix(&mut t, [10, 2, 0, 0], 16, WEST, GROUP_WEST, ACTION_FORWARD);
    prefix(&mut t, [10, 102, 0, 0], 16, WEST, GROUP_WEST, ACTION_FORWARD);
    prefix(&mut t, [10, 3, 0, 0], 16, NORTH, GROUP_TWO, ACTION_FORWARD);
    prefix(&mut t, [10, 4, 0, 0], 16, NORTH, GROUP_EMPTY, ACTION_FORWARD);
    prefix(&mut t, [10, 5, 0, 0], 16, NORTH, 8_000_000, ACTION_FORWARD);
    prefix(&mut t, [10, 6, 0, 0], 16, NORTH, GROUP_WEST, 0);
    next_hop(&mut t, 1, GATEWAY_OUTSIDE, WEST_GATEWAY);
    next_hop(&mut t, 2, GATEWAY_INSIDE, NODE);
    next_hop(&mut t, 3, GATEWAY_OUTSIDE, NORTH_GATEWAY);
    next_hop(&mut t, 4, GATEWAY_OUTSIDE, WEST_GATEWAY_2);
    group(&mut t, GROUP_WEST, &[1]);
    group(&mut t, GROUP_NODE, &[2]);
    group(&mut t, GROUP_EMPTY, &[]);
    group(&mut t, GROUP_TWO, &[3, 4]);
    peer(&mut t, WEST_GATEWAY, WEST, PEER_REMOTE_GATEWAY, 0);
    peer(&mut t, NORTH_GATEWAY, NORTH, PEER_REMOTE_GATEWAY, 0);
    peer(&mut t, NODE, CLUSTER_LOCAL, PEER_LOCAL_NODE, GROUP_NODE);
    peer(&mut t, OTHER_GATEWAY, CLUSTER_LOCAL, PEER_LOCAL_GATEWAY, 0);
    t
}

/// East's gateway with the additional cluster south, which has an Antrea gateway.
pub fn antrea() -> MemoryMaps {
    let mut t = gateway();
    let (south, forward) = ((SOUTH, GROUP_SOUTH), ACTION_FORWARD);
    for (network, bits, (cluster, group), action, flags) in [
        ([10, 7, 0, 0], 16, south, forward, PREFIX_HOST_SNAT),
        ([10, 110, 0, 0], 16, south, forward, PREFIX_HOST_SNAT),
        (ALIAS_SOUTH, 32, south, forward, PREFIX_ALIAS),
        (GATEWAY_OUTSIDE, 32, (CLUSTER_LOCAL, 0), ACTION_REPLY, 0),
        (
            [10, 1, 0, 0],
            24,
            (CLUSTER_LOCAL, GROUP_NODE),
            forward,
            PREFIX_RETURN_ROUTE,
        ),
    ] {
        let value = Prefix {
            cluster,
            group,
            action,
            flags,
            ..Prefix::default()
        };
        t.prefixes.insert((V4_PREFIX_BITS + bits, mapped(network)), value);
    }
    next_hop(&mut t, 5, GATEWAY_OUTSIDE, SOUTH_GATEWAY);
    group(&mut t, GROUP_SOUTH, &[5]);
    let alias = Peer::group_of_alias(ALIAS_SOUTH);
    peer(
        &mut t,
        SOUTH_GATEWAY,
        SOUTH,
        PEER_REMOTE_GATEWAY | PEER_ANTREA,
        alias,
    );
    t
}

/// East's regular node, which forwards everything remote to the gateway.
pub fn node() -> MemoryMaps {
    let mut t = MemoryMaps {
        config: Some(config(0, &[NODE])),
        icmp_limit: UNLIMITED.into(),
        ..MemoryMaps::default()
    };
    prefix(&mut t, [10, 1, 0, 0], 24, CLUSTER_LOCAL, 0, ACTION_DELIVER);
    prefix(&mut t, [10, 2, 0, 0], 16, WEST, GROUP_GATEWAYS, ACTION_FORWARD);
    prefix(&mut t, [10, 102, 0, 0], 16, WEST, GROUP_GATEWAYS, ACTION_FORWARD);
    next_hop(&mut t, 1, NODE, GATEWAY_INSIDE);
    group(&mut t, GROUP_GATEWAYS, &[1]);
    peer(&mut t, GATEWAY_INSIDE, CLUSTER_LOCAL, PEER_LOCAL_GATEWAY, 0);
    t
}

/// Tables of an agent with another ABI version.
pub fn foreign_abi() -> MemoryMaps {
    let mut t = gateway();
    if let Some(config) = &mut t.config {
        config.abi = ABI_VERSION + 1;
    }
    t
}

/// Address families and tunnel format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// The inner packet is IPv6.
    pub inner_v6: bool,
    /// The outer packet is IPv6.
    pub outer_v6: bool,
    /// VXLAN instead of Geneve.
    pub vxlan: bool,
}

impl Shape {
    /// Every combination.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..8).map(|bits| Self {
            inner_v6: bits & 1 != 0,
            outer_v6: bits & 2 != 0,
            vxlan: bits & 4 != 0,
        })
    }

    /// Name in test output.
    pub fn name(self) -> String {
        let version = |v6| if v6 { 6 } else { 4 };
        let format = if self.vxlan { "VXLAN" } else { "Geneve" };
        format!(
            "IPv{} in IPv{} {format}",
            version(self.inner_v6),
            version(self.outer_v6)
        )
    }

    /// The Pod or Service address in this shape.
    pub fn inner(self, address: [u8; 4]) -> IpAddr {
        address_in(self.inner_v6, 0x0a, address)
    }

    /// The underlay address in this shape.
    pub fn outer(self, address: [u8; 4]) -> IpAddr {
        address_in(self.outer_v6, 0x0b, address)
    }

    /// UDP port of the format.
    pub fn port(self) -> u16 {
        if self.vxlan { 4789 } else { 6081 }
    }

    /// Converts IPv4 Geneve tables to this shape.
    pub fn tables(self, mut tables: MemoryMaps) -> MemoryMaps {
        let addr = |address: IpAddr| match address {
            IpAddr::V4(v4) => mapped(v4.octets()),
            IpAddr::V6(v6) => v6.octets(),
        };
        let outer = |address: Addr| addr(self.outer(unmapped(&address)));
        if let Some(config) = &mut tables.config {
            config.port = self.port();
            if self.vxlan {
                config.flags |= CONFIG_VXLAN;
            }
            for local in config.local.iter_mut().filter(|local| **local != [0; 16]) {
                *local = outer(*local);
            }
        }
        let prefixes = std::mem::take(&mut tables.prefixes);
        tables.prefixes = prefixes
            .into_iter()
            .map(|((bits, network), value)| ((bits, addr(self.inner(unmapped(&network)))), value))
            .collect();
        for next_hop in tables.next_hops.values_mut() {
            (next_hop.addr, next_hop.local) = (outer(next_hop.addr), outer(next_hop.local));
        }
        let peers = std::mem::take(&mut tables.peers);
        tables.peers = peers
            .into_iter()
            .map(|(address, value)| (outer(address), value))
            .collect();
        tables
    }
}

/// An IPv4 address, or one in `fd00::/8` with the IPv4 address in its last bytes, which keeps the number of host bits
/// of prefixes.
fn address_in(v6: bool, mark: u8, address: [u8; 4]) -> IpAddr {
    if !v6 {
        return address.into();
    }
    let [a, b, c, d] = address;
    IpAddr::from([0xfd, mark, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d])
}

/// The kernel's `CLOCK_MONOTONIC` in nanoseconds at the start of the tests, approximately: it must be neither far in
/// the past nor in the future.
pub fn now() -> u64 {
    static NOW: OnceLock<u64> = OnceLock::new();
    *NOW.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/uptime").expect("/proc/uptime");
        let seconds = text
            .split('.')
            .next()
            .and_then(|seconds| seconds.parse::<u64>().ok());
        seconds.expect("seconds") * 1_000_000_000
    })
}
