//! Probe targets, derived from the maps. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use mc_gateway_common::abi::{self, CONFIG_GATEWAY, CONFIG_UDP_CHECKSUM, SourceMac};
use mc_gateway_common::packet::tunnel;

use super::encap::ProbeEncap;
use crate::cidr::from_abi_addr;
use crate::maps::MapContents;
use crate::resolved::overhead;

/// A next hop to probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeTarget {
    /// [`abi::NextHop::id`].
    pub(super) id: u32,
    /// Its underlay address.
    pub(super) addr: IpAddr,
    /// Local address of probes to it.
    pub(super) local: IpAddr,
    /// Inner source MAC address of probes to it.
    pub(super) source_mac: SourceMac,
    /// MTU of the link to it.
    pub(super) link_mtu: u32,
    /// Known path MTU, as the length of an outer IP packet in bytes.
    pub(super) known_mtu: u32,
}

/// The targets and the encapsulation of their probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeTargets {
    pub(super) port: u16,
    pub(super) encap: ProbeEncap,
    pub(super) udp_checksum: bool,
    /// By slot in `mc_nexthops`.
    pub(super) by_slot: BTreeMap<u32, ProbeTarget>,
}

/// Length of the largest outer IP packet to a next hop.
pub(super) fn outer_mtu(next_hop: &abi::NextHop) -> u32 {
    next_hop
        .mtu
        .saturating_add(overhead(from_abi_addr(&next_hop.addr)))
}

/// Derives the targets: next hops that share a group, and gateways, remote ones at a gateway and local ones at a
/// regular node. Antrea gateways do not reply and are no targets.
pub(crate) fn probe_targets(contents: &MapContents, links: &BTreeMap<u32, u32>) -> ProbeTargets {
    let config = &contents.config;
    let gateway_flag = if config.flags & CONFIG_GATEWAY != 0 {
        abi::PEER_REMOTE_GATEWAY
    } else {
        abi::PEER_LOCAL_GATEWAY
    };
    let mut next_hops = BTreeMap::new();
    for group in contents.groups.values() {
        let used = usize::try_from(group.len).unwrap_or_default();
        for slot in group.next_hops.iter().take(used) {
            let Some(next_hop) = contents.next_hops.get(slot) else {
                continue;
            };
            let flags = contents.peers.get(&next_hop.addr).map_or(0, |peer| peer.flags);
            // An Antrea gateway does not answer.
            if flags & abi::PEER_ANTREA != 0 {
                continue;
            }
            let is_gateway = flags & gateway_flag != 0;
            if used < 2 && !is_gateway {
                continue;
            }
            let known = outer_mtu(next_hop);
            let target = ProbeTarget {
                id: next_hop.id,
                addr: from_abi_addr(&next_hop.addr),
                local: from_abi_addr(&next_hop.local),
                source_mac: SourceMac::from_bits(next_hop.source_mac),
                link_mtu: links.get(&next_hop.id).copied().unwrap_or(known),
                known_mtu: known,
            };
            next_hops.insert(*slot, target);
        }
    }
    ProbeTargets {
        port: config.port,
        encap: ProbeEncap {
            format: tunnel::Format::from_config(config),
        },
        udp_checksum: config.flags & CONFIG_UDP_CHECKSUM != 0,
        by_slot: next_hops,
    }
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::abi::Addr;

    use super::*;

    fn v4(last: u8) -> Addr {
        std::net::Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped().octets()
    }

    fn contents(flags: u32) -> MapContents {
        let mut contents = MapContents::default();
        contents.config.flags = flags;
        contents.config.port = 6081;
        for slot in 1..=5_u8 {
            let next_hop = abi::NextHop {
                source_mac: SourceMac::UNKEYED.to_bits(),
                addr: v4(slot),
                local: v4(100),
                ifindex: 2,
                id: u32::from(slot) + 10,
                mtu: 1450,
                weight: 1,
                neighbor: abi::Neighbor::default(),
                link: abi::LinkAddresses::default(),
                stats: 0,
            };
            contents.next_hops.insert(slot.into(), next_hop);
        }
        // One remote gateway, one local gateway, two next hops in one group, one regular node.
        for (slot, next_hops) in [(1, vec![1]), (2, vec![2]), (3, vec![3, 4]), (4, vec![5])] {
            let mut group = abi::NextHopGroup {
                id: slot,
                len: u32::try_from(next_hops.len()).unwrap(),
                ..abi::NextHopGroup::default()
            };
            group.next_hops[..next_hops.len()].copy_from_slice(&next_hops);
            contents.groups.insert(slot, group);
        }
        for (last, flags) in [
            (1, abi::PEER_REMOTE_GATEWAY),
            (2, abi::PEER_LOCAL_GATEWAY | abi::PEER_LOCAL_NODE),
            (5, abi::PEER_LOCAL_NODE),
        ] {
            let peer = abi::Peer {
                flags,
                ..abi::Peer::default()
            };
            contents.peers.insert(v4(last), peer);
        }
        contents
    }

    fn slots(contents: &MapContents) -> Vec<u32> {
        probe_targets(contents, &BTreeMap::new())
            .by_slot
            .into_keys()
            .collect()
    }

    #[test]
    fn targets_share_a_group_or_are_gateways() {
        assert_eq!(slots(&contents(CONFIG_GATEWAY)), [1, 3, 4]);
        assert_eq!(slots(&contents(0)), [2, 3, 4]);
    }

    #[test]
    fn target_mtus_are_sizes_of_outer_packets() {
        let mut contents = contents(CONFIG_GATEWAY);
        let slot = contents.next_hops.get_mut(&1).unwrap();
        slot.mtu = 1_350;
        let target = probe_targets(&contents, &[(11, 1_500)].into()).by_slot[&1];
        assert_eq!((target.link_mtu, target.known_mtu), (1_500, 1_400));
        assert_eq!(target.addr, IpAddr::from([192, 0, 2, 1]));
    }
}
