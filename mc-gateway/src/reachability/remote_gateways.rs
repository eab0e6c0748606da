//! The gateways of the remote clusters, and the reachability of each cluster by probes. Pure.

use std::collections::{BTreeMap, BTreeSet};

use mc_gateway_common::abi;
use mc_gateway_common::liveness::State;

use crate::cidr::from_abi_addr;
use crate::desired::DesiredState;
use crate::maps::MapContents;
use crate::probe::ProbeStatus;

/// The IDs of the next hops to the gateways of each remote cluster, by the cluster's name. A cluster with a gateway
/// that receives no probes is absent: nothing is known about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteGateways(BTreeMap<String, BTreeSet<u32>>);

impl RemoteGateways {
    /// Those of a gateway Node; a gateway without a route from here has no next hop. None for a regular Node.
    #[must_use]
    pub fn new(desired: &DesiredState, contents: &MapContents) -> Option<Self> {
        if !desired.gateway {
            return None;
        }
        let next_hops = contents.next_hops.values();
        let by_addr: BTreeMap<_, _> = next_hops
            .map(|next_hop| (from_abi_addr(&next_hop.addr), next_hop.id))
            .collect();
        let mut clusters: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        let mut unprobed = BTreeSet::new();
        for (addr, peer) in &desired.peers {
            let name = desired.cluster_names.get(&peer.cluster);
            let Some(name) = name.filter(|_| peer.flags & abi::PEER_REMOTE_GATEWAY != 0) else {
                continue;
            };
            if peer.flags & abi::PEER_ANTREA != 0 {
                unprobed.insert(name);
            }
            clusters
                .entry(name.clone())
                .or_default()
                .extend(by_addr.get(addr));
        }
        clusters.retain(|name, _| !unprobed.contains(name));
        Some(Self(clusters))
    }

    /// Whether a gateway of each cluster answers probes; none while no status of a next hop decides.
    pub(super) fn reachable(&self, status: &ProbeStatus) -> BTreeMap<String, Option<bool>> {
        let probed = status.next_hops.values();
        let by_id: BTreeMap<u32, State> = probed.map(|next_hop| (next_hop.id, next_hop.state)).collect();
        let is_reachable = |next_hops: &BTreeSet<u32>| {
            let is_alive = next_hops.iter().any(|id| by_id.get(id) == Some(&State::Alive));
            (is_alive || next_hops.iter().all(|id| by_id.contains_key(id))).then_some(is_alive)
        };
        let clusters = self.0.iter();
        clusters
            .map(|(name, next_hops)| (name.clone(), is_reachable(next_hops)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::desired::Peer;
    use crate::probe::NextHopStatus;

    fn addr(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(192, 0, 2, last)
    }

    /// Cluster 1 has gateways 1 and 2, cluster 2 gateway 3, cluster 3 gateway 4 of Antrea, cluster 4 gateway 9 without
    /// a next hop; the Node 5 is of this cluster.
    fn gateways() -> RemoteGateways {
        let mut desired = DesiredState {
            gateway: true,
            ..DesiredState::default()
        };
        for (cluster, last, flags) in [
            (1, 1, abi::PEER_REMOTE_GATEWAY),
            (1, 2, abi::PEER_REMOTE_GATEWAY),
            (2, 3, abi::PEER_REMOTE_GATEWAY),
            (3, 4, abi::PEER_REMOTE_GATEWAY | abi::PEER_ANTREA),
            (4, 9, abi::PEER_REMOTE_GATEWAY),
            (0, 5, abi::PEER_LOCAL_NODE),
        ] {
            let peer = Peer {
                cluster,
                flags,
                ..Peer::default()
            };
            desired.peers.insert(addr(last).into(), peer);
            if cluster != 0 {
                desired.cluster_names.insert(cluster, format!("c{cluster}"));
            }
        }
        let mut contents = MapContents::default();
        for last in 1..=5_u8 {
            let next_hop = abi::NextHop {
                id: u32::from(last) + 10,
                addr: addr(last).to_ipv6_mapped().octets(),
                ..abi::NextHop::default()
            };
            contents.next_hops.insert(last.into(), next_hop);
        }
        RemoteGateways::new(&desired, &contents).unwrap()
    }

    fn status(states: &[(u8, State)]) -> ProbeStatus {
        let next_hops = states.iter().map(|(last, state)| {
            let next_hop = NextHopStatus {
                id: u32::from(*last) + 10,
                addr: IpAddr::from(addr(*last)),
                state: *state,
                rtt: None,
                unanswered: 0,
                path_mtu: 1_500,
            };
            (u32::from(*last), next_hop)
        });
        ProbeStatus {
            next_hops: next_hops.collect(),
        }
    }

    /// The reachability of clusters 1, 2 and 4.
    fn reachable(states: &[(u8, State)]) -> [Option<bool>; 3] {
        let clusters = gateways().reachable(&status(states));
        assert!(!clusters.contains_key("c3"), "no probes");
        ["c1", "c2", "c4"].map(|cluster| clusters[cluster])
    }

    #[test]
    fn a_cluster_is_unreachable_without_a_gateway_that_answers() {
        use State::{Alive, Dead, HeldDown};
        let no_route = Some(false);
        let [yes, no] = [true, false].map(Some);
        for (states, wanted) in [
            ([(1, Dead), (2, Alive), (3, Alive)], [yes, yes]),
            ([(1, Dead), (2, Dead), (3, Alive)], [no, yes]),
            ([(1, Dead), (2, HeldDown), (3, Dead)], [no, no]),
        ] {
            assert_eq!(reachable(&states), [wanted[0], wanted[1], no_route]);
        }
    }

    #[test]
    fn next_hops_without_a_status_decide_nothing() {
        assert_eq!(reachable(&[]), [None, None, Some(false)]);
        assert_eq!(reachable(&[(1, State::Dead)])[0], None);
        assert_eq!(reachable(&[(1, State::Alive)])[0], Some(true));
    }

    #[test]
    fn a_regular_node_has_no_remote_gateways() {
        let desired = DesiredState::default();
        assert_eq!(RemoteGateways::new(&desired, &MapContents::default()), None);
    }
}
