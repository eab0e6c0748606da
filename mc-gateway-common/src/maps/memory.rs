//! Maps in memory: [`Maps`] on the host.

use std::{cell::RefCell, collections::BTreeMap};

use super::{access::Maps, liveness::LivenessMaps, policy::PolicyMaps, service::ServiceMaps};
use crate::{
    abi::{
        Addr, CLUSTER_LOCAL, Config, MAX_PEER_STATS, NextHop, NextHopGroup, Peer, PeerStats, Prefix,
        rate_limit::{PeerLimits, TokenBucket},
    },
    packet::Address,
    verdict::Event,
};

/// Maps in memory, for tests and for traces outside the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryMaps {
    /// See [`Maps::config`].
    pub config: Option<Config>,
    /// Prefix length in bits and network address to value.
    pub prefixes: BTreeMap<(u32, Addr), Prefix>,
    /// Slot to group.
    pub groups: BTreeMap<u32, NextHopGroup>,
    /// Slot to next hop.
    pub next_hops: BTreeMap<u32, NextHop>,
    /// See [`Maps::links_are_current`].
    pub links_are_current: bool,
    /// Underlay address to peer.
    pub peers: BTreeMap<Addr, Peer>,
    /// The tables of policies.
    pub policies: PolicyMaps,
    /// Services, their backends and flows.
    pub services: ServiceMaps,
    /// Events counted so far.
    pub events: RefCell<BTreeMap<Event, u64>>,
    /// Packets and bytes counted so far, by slot.
    pub traffic: RefCell<BTreeMap<u32, PeerStats>>,
    /// See [`super::liveness::Liveness`].
    pub health: LivenessMaps,
    /// Key of `mc_decap_tests` to time.
    pub decap_tests: RefCell<BTreeMap<u32, u64>>,
    /// Available ICMP errors to this node.
    pub icmp_limit: RefCell<TokenBucket>,
    /// Slot of `mc_sender_limit` to tokens; without an entry there is no limit.
    pub sender_limits: RefCell<BTreeMap<u32, TokenBucket>>,
    /// Slot of `mc_peer_stats` to tokens; without an entry there is no limit.
    pub peer_limits: RefCell<BTreeMap<u32, PeerLimits>>,
}

impl Maps for MemoryMaps {
    fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    fn prefix(&self, address: Address, _: u64) -> Option<Prefix> {
        let address = u128::from_be_bytes(address.bytes());
        self.prefixes
            .iter()
            .rev()
            .find(|((len, network), _)| {
                let mask = u128::MAX.checked_shl(128_u32.saturating_sub(*len)).unwrap_or(0);
                (address ^ u128::from_be_bytes(*network)) & mask == 0
            })
            .map(|(_, prefix)| *prefix)
    }

    fn cluster_of(&self, address: Address) -> u64 {
        self.prefix(address, CLUSTER_LOCAL)
            .map_or(CLUSTER_LOCAL, |prefix| prefix.cluster)
    }

    fn group(&self, slot: u32) -> Option<&NextHopGroup> {
        self.groups.get(&slot)
    }

    fn next_hop(&self, slot: u32) -> Option<&NextHop> {
        self.next_hops.get(&slot)
    }

    fn links_are_current(&self) -> bool {
        self.links_are_current
    }

    fn peer(&self, address: Address) -> Option<&Peer> {
        self.peers.get(&address.bytes())
    }

    fn count(&self, event: Event) {
        let mut events = self.events.borrow_mut();
        let count = events.entry(event).or_default();
        *count = count.wrapping_add(1);
    }

    fn count_sent(&self, slot: u32, bytes: u32) {
        if slot < MAX_PEER_STATS {
            let mut all = self.traffic.borrow_mut();
            let one = all.entry(slot).or_default();
            one.sent_packets = one.sent_packets.wrapping_add(1);
            one.sent_bytes = one.sent_bytes.wrapping_add(u64::from(bytes));
        }
    }

    fn count_received(&self, slot: u32, bytes: u32) {
        if slot < MAX_PEER_STATS {
            let mut all = self.traffic.borrow_mut();
            let one = all.entry(slot).or_default();
            one.received_packets = one.received_packets.wrapping_add(1);
            one.received_bytes = one.received_bytes.wrapping_add(u64::from(bytes));
        }
    }
}
