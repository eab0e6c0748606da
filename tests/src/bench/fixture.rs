//! Maps of a gateway with one regular node and any number of other clusters, and frames for it.

use std::net::Ipv4Addr;

use mc_gateway_common::{
    abi::{
        ABI_VERSION, ACTION_DELIVER, ACTION_FORWARD, CLUSTER_LOCAL, CONFIG_GATEWAY, Config, GROUP_NEXT_HOPS,
        IDENTITY_HOST, LinkAddresses, Neighbor, NextHop, NextHopGroup, PEER_LOCAL_NODE, PEER_REMOTE_GATEWAY,
        Peer, Prefix, SourceMac, V4_PREFIX_BITS,
    },
    maps::MemoryMaps,
    nexthop_select::mix,
    packet::{
        checksum,
        encap::{Encap, HOP_LIMIT},
        eth,
        ip::{self, mapped},
        tunnel::{Format, GENEVE_PORT},
    },
};

use super::end_to_end::SMALL_PAYLOAD;

/// Group of the regular node.
const GROUP_NODE: u32 = 1;
/// The Pods of the regular node, and one of them.
const NODE_PODS: [u8; 4] = [10, 11, 1, 0];
const POD: [u8; 4] = [10, 11, 1, 2];
/// The Pods of the gateway, and one of them: it may send no packet of another node's Pod.
const OWN_PODS: [u8; 4] = [10, 11, 2, 0];
const OWN_POD: [u8; 4] = [10, 11, 2, 2];
/// First remote prefix, followed by the others with 256 addresses each.
const REMOTE: u32 = 0x1000_0000;

/// Sizes of a gateway's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Prefixes of other clusters.
    pub(super) prefixes: u32,
    /// Other clusters.
    pub(super) clusters: u32,
    /// Gateways per cluster.
    pub(super) next_hops: u32,
    /// Distribution of the prefixes.
    pub(super) layout: Layout,
}

/// Distribution of prefixes in the address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Layout {
    /// Adjacent.
    #[default]
    Dense,
    /// Spread over the address space.
    Scattered,
}

// === impl Sizes ===

impl Sizes {
    /// The network of a prefix with 256 addresses.
    fn network(self, number: u32) -> Ipv4Addr {
        let place = match self.layout {
            Layout::Dense => number,
            // An odd factor is a bijection on numbers below 2^22.
            Layout::Scattered => number.wrapping_mul(0x9e37_79b1) & 0x003f_ffff,
        };
        Ipv4Addr::from(REMOTE + (place << 8))
    }

    /// The destination prefix of each flow, evenly distributed.
    fn spread(self, flows: u32) -> impl Iterator<Item = u32> {
        let prefixes = self.prefixes.max(1);
        (0..flows).map(move |flow| {
            if prefixes >= flows {
                let number = u64::from(flow) * u64::from(prefixes) / u64::from(flows);
                u32::try_from(number).unwrap_or_default()
            } else {
                flow % prefixes
            }
        })
    }
}

/// The secret of every pair of peers.
const SOURCE_MAC: SourceMac = SourceMac::keyed(0, [0xbe, 1, 2, 3, 4]);

/// A leg: the device and the addresses of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leg {
    pub(super) ifindex: u32,
    pub(super) local: Ipv4Addr,
    pub(super) remote: Ipv4Addr,
    pub(super) link: LinkAddresses,
}

/// Maps of a gateway that receives packets on one leg and forwards them to the others.
pub(super) fn gateway(sizes: Sizes, inside: Leg, outside: &[Leg]) -> MemoryMaps {
    let mut tables = MemoryMaps {
        config: Some(config(inside, outside)),
        ..MemoryMaps::default()
    };
    tables
        .groups
        .insert(GROUP_NODE, group(GROUP_NODE, &mut std::iter::once(1)));
    tables.next_hops.insert(1, next_hop(1, inside));
    tables.peers.insert(
        mapped(inside.remote.octets()),
        peer(CLUSTER_LOCAL, PEER_LOCAL_NODE, GROUP_NODE),
    );
    insert(
        &mut tables,
        NODE_PODS,
        24,
        prefix(CLUSTER_LOCAL, GROUP_NODE, ACTION_FORWARD),
    );
    insert(
        &mut tables,
        OWN_PODS,
        24,
        prefix(CLUSTER_LOCAL, 0, ACTION_DELIVER),
    );
    for cluster in 0..sizes.clusters {
        let slots = |number: u32| 2 + cluster * sizes.next_hops + number;
        let id = GROUP_NODE + 1 + cluster;
        tables
            .groups
            .insert(id, group(id, &mut (0..sizes.next_hops).map(slots)));
        for (number, leg) in (0..sizes.next_hops).zip(outside.iter().cycle()) {
            tables
                .next_hops
                .insert(slots(number), next_hop(slots(number), *leg));
        }
        // Peers without traffic, which only fill the map.
        let address = Ipv4Addr::from(0x6440_0000 + cluster);
        tables.peers.insert(
            mapped(address.octets()),
            peer(u64::from(cluster) + 1, PEER_REMOTE_GATEWAY, 0),
        );
    }
    for number in 0..sizes.prefixes {
        let cluster = number % sizes.clusters.max(1);
        let value = prefix(u64::from(cluster) + 1, GROUP_NODE + 1 + cluster, ACTION_FORWARD);
        insert(&mut tables, sizes.network(number).octets(), 24, value);
    }
    tables
}

/// Maps of the gateway at the other end of a leg, which delivers everything.
pub(super) fn destination(leg: Leg) -> MemoryMaps {
    const EAST: u64 = 1;
    let mut tables = MemoryMaps {
        config: Some(config(leg, &[])),
        ..MemoryMaps::default()
    };
    insert(&mut tables, NODE_PODS, 24, prefix(EAST, 0, ACTION_FORWARD));
    let all = Ipv4Addr::from(REMOTE).octets();
    insert(&mut tables, all, 8, prefix(CLUSTER_LOCAL, 0, ACTION_DELIVER));
    tables
        .peers
        .insert(mapped(leg.remote.octets()), peer(EAST, PEER_REMOTE_GATEWAY, 0));
    tables
}

/// Flows of small datagrams from the regular node's Pod, evenly distributed over the remote prefixes. Sets of flows
/// with different `first` are disjoint.
pub(super) fn flows(count: u32, first: u32, sizes: Sizes, inside: Leg, mac: [u8; 6]) -> Vec<Vec<u8>> {
    (first..)
        .zip(sizes.spread(count))
        .map(|(flow, number)| {
            let inner = datagram(POD, sizes.network(number), flow);
            let encap = Encap {
                format: Format::Geneve,
                src: mapped(inside.remote.octets()).into(),
                dst: mapped(inside.local.octets()).into(),
                tos: 0,
                ttl: HOP_LIMIT,
                hash: mix(flow, 1),
                port: GENEVE_PORT,
                inner_sum: None,
                vni: IDENTITY_HOST,
                inner_src: SOURCE_MAC,
                inner_type: eth::IPV4,
                inner_len: u32::try_from(inner.len()).unwrap_or_default(),
            };
            [&ethernet(mac)[..], &encap.over_v4().0, &inner].concat()
        })
        .collect()
}

/// The same flows of a Pod of the gateway, without encapsulation.
pub(super) fn plain_flows(count: u32, sizes: Sizes, mac: [u8; 6]) -> Vec<Vec<u8>> {
    (0..)
        .zip(sizes.spread(count))
        .map(|(flow, number)| {
            [
                &ethernet(mac)[..],
                &datagram(OWN_POD, sizes.network(number), flow),
            ]
            .concat()
        })
        .collect()
}

fn ethernet(to: [u8; 6]) -> Vec<u8> {
    const FROM: [u8; 6] = [2, 0xbe, 0, 0, 0, 0x11];
    [&to[..], &FROM, &eth::IPV4.to_be_bytes()].concat()
}

/// A datagram to an address of a remote prefix.
fn datagram(pod: [u8; 4], network: Ipv4Addr, flow: u32) -> Vec<u8> {
    let udp = 8 + SMALL_PAYLOAD;
    let total = u16::try_from(ip::V4_LEN + udp).unwrap_or_default().to_be_bytes();
    let dst = Ipv4Addr::from(u32::from(network) + 5).octets();
    let mut header = [0; ip::V4_LEN];
    let fields = [0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, ip::UDP, 0, 0];
    for (to, from) in header.iter_mut().zip(fields.into_iter().chain(pod).chain(dst)) {
        *to = from;
    }
    let check = checksum::header_checksum(&header);
    for (to, from) in header.iter_mut().skip(10).zip(check) {
        *to = from;
    }
    let source = 1024 + u16::try_from(flow % 60_000).unwrap_or_default();
    let [s0, s1] = source.to_be_bytes();
    let [l0, l1] = u16::try_from(udp).unwrap_or_default().to_be_bytes();
    // Port 5202 and the next ones; no checksum, which UDP over IPv4 permits.
    let destination = 5202 + u16::try_from(flow / 60_000).unwrap_or_default();
    let [d0, d1] = destination.to_be_bytes();
    let ports = [s0, s1, d0, d1, l0, l1, 0, 0];
    [&header[..], &ports, &[0x6d; SMALL_PAYLOAD]].concat()
}

fn config(inside: Leg, outside: &[Leg]) -> Config {
    let mut config = Config {
        abi: ABI_VERSION,
        flags: CONFIG_GATEWAY,
        mc0_ifindex: 1,
        port: GENEVE_PORT,
        mc0_mac: [2, 0xbe, 0, 0, 0, 0x99],
        detect: 3,
        hold_down_ms: 1000,
        ..Config::default()
    };
    let locals = std::iter::once(&inside).chain(outside);
    for (slot, leg) in config.local.iter_mut().zip(locals) {
        *slot = mapped(leg.local.octets());
    }
    config
}

fn insert(tables: &mut MemoryMaps, network: [u8; 4], bits: u32, value: Prefix) {
    let key = (V4_PREFIX_BITS + bits, mapped(network));
    tables.prefixes.insert(key, value);
}

fn prefix(cluster: u64, group: u32, action: u32) -> Prefix {
    Prefix {
        cluster,
        group,
        action,
        ..Prefix::default()
    }
}

fn peer(cluster: u64, flags: u32, group: u32) -> Peer {
    Peer {
        cluster,
        flags,
        group,
        source_macs: [SOURCE_MAC.to_bits(), 0, 0, 0],
        reply_mac: SOURCE_MAC.to_bits(),
        ..Peer::default()
    }
}

fn group(id: u32, slots: &mut dyn Iterator<Item = u32>) -> NextHopGroup {
    let mut group = NextHopGroup {
        id,
        ..NextHopGroup::default()
    };
    for (place, slot) in group.next_hops.iter_mut().take(GROUP_NEXT_HOPS).zip(slots) {
        *place = slot;
        group.len += 1;
    }
    group
}

fn next_hop(slot: u32, leg: Leg) -> NextHop {
    NextHop {
        source_mac: SOURCE_MAC.to_bits(),
        link: leg.link,
        addr: mapped(leg.remote.octets()),
        local: mapped(leg.local.octets()),
        ifindex: leg.ifindex,
        id: mix(slot, 0x6d63),
        mtu: 1450,
        weight: 1,
        neighbor: Neighbor::default(),
        stats: slot,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mc_gateway_common::{
        packet::SlicePacket,
        pipeline,
        verdict::{Outcome, Verdict},
    };

    use super::*;

    const MAC: [u8; 6] = [2, 0xbe, 0, 0, 0, 0x10];
    const LINK: LinkAddresses = LinkAddresses::new([2, 0xbe, 0, 0, 0, 0x20], MAC);
    const INSIDE: Leg = Leg {
        ifindex: 2,
        local: Ipv4Addr::new(192, 168, 50, 1),
        remote: Ipv4Addr::new(192, 168, 50, 2),
        link: LINK,
    };
    const OUTSIDE: [Leg; 2] = [
        Leg {
            ifindex: 3,
            local: Ipv4Addr::new(192, 168, 51, 1),
            remote: Ipv4Addr::new(192, 168, 51, 2),
            link: LINK,
        },
        Leg {
            ifindex: 4,
            local: Ipv4Addr::new(192, 168, 52, 1),
            remote: Ipv4Addr::new(192, 168, 52, 2),
            link: LINK,
        },
    ];

    fn verdict(tables: &MemoryMaps, frame: &[u8]) -> (Verdict, Vec<u8>) {
        let mut packet = SlicePacket::new(frame.to_vec());
        let verdict = pipeline::from_underlay(&mut packet, tables);
        (verdict, packet.bytes().to_vec())
    }

    fn sizes(prefixes: u32, clusters: u32, next_hops: u32) -> Sizes {
        Sizes {
            prefixes,
            clusters,
            next_hops,
            layout: Layout::Dense,
        }
    }

    #[test]
    fn gateways_of_every_size_forward_every_frame() {
        let scattered = Sizes {
            layout: Layout::Scattered,
            ..sizes(1000, 1, 1)
        };
        for sizes in [
            sizes(10, 1, 1),
            sizes(1000, 1, 1),
            scattered,
            sizes(510, 255, 1),
            sizes(2, 1, 16),
        ] {
            let tables = gateway(sizes, INSIDE, &OUTSIDE[..1]);
            let sent = |outcome| Verdict::Send {
                outcome,
                ifindex: 3,
                addressed: false,
            };
            for frame in flows(64, 0, sizes, INSIDE, MAC) {
                assert_eq!(verdict(&tables, &frame).0, sent(Outcome::Transit), "{sizes:?}");
            }
            for frame in plain_flows(64, sizes, MAC) {
                let mut packet = SlicePacket::new(frame);
                let encapsulated = pipeline::to_remote(&mut packet, &tables);
                assert_eq!(encapsulated, sent(Outcome::Encap), "{sizes:?}");
            }
        }
    }

    #[test]
    fn scattered_prefixes_are_distinct_and_rarely_adjacent() {
        let sizes = Sizes {
            layout: Layout::Scattered,
            ..sizes(100_000, 1, 1)
        };
        let all: BTreeSet<u32> = (0..100_000).map(|number| sizes.network(number).into()).collect();
        assert_eq!(all.len(), 100_000);
        let neighbours = all.iter().filter(|network| all.contains(&(**network + 256)));
        assert!(neighbours.count() < 10_000);
    }

    #[test]
    fn two_gateways_both_receive_flows() {
        let sizes = sizes(1, 1, 2);
        let tables = gateway(sizes, INSIDE, &OUTSIDE);
        let mut taken = BTreeSet::new();
        for frame in flows(64, 0, sizes, INSIDE, MAC) {
            let (Verdict::Send { ifindex, .. }, sent) = verdict(&tables, &frame) else {
                panic!("not sent");
            };
            taken.insert(ifindex);
            let leg = OUTSIDE.into_iter().find(|leg| leg.ifindex == ifindex).unwrap();
            let there = destination(Leg {
                ifindex: 2,
                local: leg.remote,
                remote: leg.local,
                link: LINK,
            });
            let delivered = Verdict::Deliver {
                outcome: Outcome::Deliver,
                ifindex: 1,
            };
            assert_eq!(verdict(&there, &sent).0, delivered);
        }
        assert_eq!(taken.len(), 2);
    }

    #[test]
    fn flows_are_distributed_over_all_prefixes() {
        let numbers = |count, prefixes| -> BTreeSet<Vec<u8>> {
            flows(count, 0, sizes(prefixes, 1, 1), INSIDE, MAC)
                .into_iter()
                .map(|frame| frame[80..84].to_vec())
                .collect()
        };
        assert_eq!(numbers(64, 10).len(), 10);
        assert_eq!(numbers(64, 100_000).len(), 64);
        assert!(numbers(64, 100_000).contains(&vec![0x11, 0x80, 0x85, 5]));
    }

    #[test]
    fn plain_frames_are_long_enough_for_the_source() {
        for frame in plain_flows(4, sizes(4, 1, 1), MAC) {
            assert!(
                frame.len() >= super::super::bpf_objects::HEADER_LEN,
                "{}",
                frame.len()
            );
        }
    }
}
