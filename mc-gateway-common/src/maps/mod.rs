//! The tables a decision reads, behind a trait: eBPF maps in the kernel, ordinary maps on the host.

mod admission;
pub mod liveness;
pub mod rate_limit;
pub mod service;

pub use admission::{ALIAS_DESTINATION, ALIAS_MASK, ALIAS_SOURCE, Admission, AdmissionKey};

use crate::{
    abi::{Config, NextHop, NextHopGroup, Peer, Prefix},
    packet::Address,
    pipeline::{self, mss},
    verdict::Event,
};

/// Lookups a program makes, and the few things it writes down.
pub trait Maps: liveness::Liveness + rate_limit::RateLimiter + service::Services {
    /// The node's configuration.
    fn config(&self) -> Option<&Config>;
    /// The longest prefix that contains `address`.
    fn prefix(&self, address: Address) -> Option<Prefix>;
    /// The group in `slot`.
    fn group(&self, slot: u32) -> Option<&NextHopGroup>;
    /// The next hop in `slot`.
    fn nexthop(&self, slot: u32) -> Option<&NextHop>;
    /// The peer with this underlay address.
    fn peer(&self, address: Address) -> Option<&Peer>;
    /// Counts an event.
    fn count(&self, event: Event);
    /// Counts a packet of `bytes` that goes to the peers of a slot of `mc_peer_stats`.
    fn count_sent(&self, slot: u32, bytes: u32);
    /// Counts a packet of `bytes` that has come from them.
    fn count_received(&self, slot: u32, bytes: u32);
    /// [`path::admission`], or what it has said since the tables last changed.
    #[inline(always)]
    fn admission(&self, way: &AdmissionKey) -> u64
    where
        Self: Sized,
    {
        pipeline::admission(self, way)
    }
    /// [`mss::smallest_mtu`]; here so that programs can have it verified on its own.
    #[inline(always)]
    fn smallest_mtu(&self, group: u32) -> u32
    where
        Self: Sized,
    {
        mss::smallest_mtu(self, group)
    }
}

#[cfg(any(test, feature = "std"))]
pub use host::MemoryMaps;

#[cfg(any(test, feature = "std"))]
mod host {
    use std::{cell::RefCell, collections::BTreeMap};

    use super::{Address, Config, Event, Maps, NextHop, NextHopGroup, Peer, Prefix, service::ServiceMaps};
    use crate::abi::{Addr, MAX_PEER_STATS, PeerStats};

    /// Tables in memory, for tests and for explaining a decision outside the kernel.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct MemoryMaps {
        /// See [`Tables::config`].
        pub config: Option<Config>,
        /// Prefix length in bits and network address to value.
        pub prefixes: BTreeMap<(u32, Addr), Prefix>,
        /// Slot to group.
        pub groups: BTreeMap<u32, NextHopGroup>,
        /// Slot to next hop.
        pub next_hops: BTreeMap<u32, NextHop>,
        /// Underlay address to peer.
        pub peers: BTreeMap<Addr, Peer>,
        /// Services, their backends and flows.
        pub services: ServiceMaps,
        /// Events counted so far.
        pub events: RefCell<BTreeMap<Event, u64>>,
        /// Packets and bytes counted so far, by slot.
        pub traffic: RefCell<BTreeMap<u32, PeerStats>>,
        /// See [`super::health::Health`].
        pub health: super::liveness::LivenessMaps,
        /// ICMP errors that may still be sent.
        pub icmp_limit: RefCell<crate::abi::rate_limit::TokenBucket>,
    }

    impl Maps for MemoryMaps {
        fn config(&self) -> Option<&Config> {
            self.config.as_ref()
        }

        fn prefix(&self, address: Address) -> Option<Prefix> {
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

        fn group(&self, slot: u32) -> Option<&NextHopGroup> {
            self.groups.get(&slot)
        }

        fn nexthop(&self, slot: u32) -> Option<&NextHop> {
            self.next_hops.get(&slot)
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
}
