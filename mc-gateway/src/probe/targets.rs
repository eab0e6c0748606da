//! Who is asked, and how: read off what the maps hold. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use mc_gateway_common::abi::{self, Addr, CONFIG_GATEWAY, CONFIG_UDP_CHECKSUM};
use mc_gateway_common::packet::tunnel;

use super::encap::ProbeEncap;
use crate::maps::MapContents;
use crate::resolved::{ResolvedState, overhead};

/// A member that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeTarget {
    /// [`abi::Member::id`].
    pub(super) id: u32,
    /// Its underlay address.
    pub(super) addr: IpAddr,
    /// The address of ours it knows us by.
    pub(super) local: IpAddr,
    /// MTU of the link that leads to it.
    pub(super) link_mtu: u32,
    /// What the path is known to carry, as an outer IP packet in bytes.
    pub(super) known_mtu: u32,
}

/// Everything the prober needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProbeTargets {
    pub(super) port: u16,
    pub(super) encap: ProbeEncap,
    pub(super) udp_checksum: bool,
    /// By slot in `mc_members`.
    pub(super) by_slot: BTreeMap<u32, ProbeTarget>,
}

/// An address as the host uses it.
pub(super) fn address(addr: Addr) -> IpAddr {
    let v6 = Ipv6Addr::from(addr);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// Length of the largest outer IP packet to a member.
pub(super) fn outer_mtu(member: &abi::Member) -> u32 {
    member.mtu.saturating_add(overhead(address(member.addr)))
}

/// MTU of the link to each member, by id. To be taken before [`limit`].
pub(crate) fn link_mtus(target: &ResolvedState) -> BTreeMap<u32, u32> {
    target
        .next_hops
        .iter()
        .map(|(id, member)| (*id, outer_mtu(member)))
        .collect()
}

/// Lowers the MTU of members whose path carries less than their link; `sizes` are lengths of outer IP
/// packets by member id.
pub(crate) fn limit_mtus(target: &mut ResolvedState, sizes: &BTreeMap<u32, u32>) {
    for (id, member) in &mut target.next_hops {
        if let Some(size) = sizes.get(id) {
            let inner = size.saturating_sub(overhead(address(member.addr)));
            member.mtu = member.mtu.min(inner);
        }
    }
}

/// The members to ask: those that share a group, and gateways: those of other clusters at a gateway, our
/// own at a regular node; none of Antrea's.
pub(crate) fn probe_targets(contents: &MapContents, links: &BTreeMap<u32, u32>) -> ProbeTargets {
    let config = &contents.config;
    let gateway_flag = if config.flags & CONFIG_GATEWAY != 0 {
        abi::PEER_REMOTE_GATEWAY
    } else {
        abi::PEER_LOCAL_GATEWAY
    };
    let mut members = BTreeMap::new();
    for group in contents.groups.values() {
        let used = usize::try_from(group.n).unwrap_or_default();
        for slot in group.members.iter().take(used) {
            let Some(member) = contents.next_hops.get(slot) else {
                continue;
            };
            let flags = contents.peers.get(&member.addr).map_or(0, |peer| peer.flags);
            // An Antrea gateway does not answer.
            if flags & abi::PEER_ANTREA != 0 {
                continue;
            }
            let is_gateway = flags & gateway_flag != 0;
            if used < 2 && !is_gateway {
                continue;
            }
            let known = outer_mtu(member);
            let asked = ProbeTarget {
                id: member.id,
                addr: address(member.addr),
                local: address(member.local),
                link_mtu: links.get(&member.id).copied().unwrap_or(known),
                known_mtu: known,
            };
            members.insert(*slot, asked);
        }
    }
    ProbeTargets {
        port: config.port,
        encap: ProbeEncap {
            format: tunnel::Format::of(config),
            mac: config.mc0_mac,
        },
        udp_checksum: config.flags & CONFIG_UDP_CHECKSUM != 0,
        by_slot: members,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(last: u8) -> Addr {
        std::net::Ipv4Addr::new(192, 0, 2, last).to_ipv6_mapped().octets()
    }

    fn contents(flags: u32) -> MapContents {
        let mut contents = MapContents::default();
        contents.config.flags = flags;
        contents.config.port = 6081;
        for slot in 1..=5_u8 {
            let member = abi::Member {
                addr: v4(slot),
                local: v4(100),
                ifindex: 2,
                id: u32::from(slot) + 10,
                mtu: 1450,
                weight: 1,
                via: abi::Neighbor::default(),
                traffic: 0,
            };
            contents.next_hops.insert(slot.into(), member);
        }
        // One remote gateway, one own gateway, two that share a group, one that is just a node.
        for (slot, members) in [(1, vec![1]), (2, vec![2]), (3, vec![3, 4]), (4, vec![5])] {
            let mut group = abi::Group {
                id: slot,
                n: u32::try_from(members.len()).unwrap(),
                ..abi::Group::default()
            };
            group.members[..members.len()].copy_from_slice(&members);
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
    fn who_shares_a_group_and_who_is_a_gateway() {
        assert_eq!(slots(&contents(CONFIG_GATEWAY)), [1, 3, 4]);
        assert_eq!(slots(&contents(0)), [2, 3, 4]);
    }

    #[test]
    fn limits_and_links_are_sizes_of_outer_packets() {
        let mut target = ResolvedState {
            next_hops: contents(0).next_hops.into_values().map(|m| (m.id, m)).collect(),
            ..ResolvedState::default()
        };
        let links = link_mtus(&target);
        assert_eq!(links[&11], 1_500);
        limit_mtus(&mut target, &[(11, 1_400), (12, 9_000)].into());
        assert_eq!(target.next_hops[&11].mtu, 1_350);
        assert_eq!(target.next_hops[&12].mtu, 1_450);
        let mut contents = contents(CONFIG_GATEWAY);
        contents.next_hops.insert(1, target.next_hops[&11]);
        let asked = probe_targets(&contents, &links).by_slot[&1];
        assert_eq!((asked.link_mtu, asked.known_mtu), (1_500, 1_400));
        assert_eq!(asked.addr, IpAddr::from([192, 0, 2, 1]));
    }
}
