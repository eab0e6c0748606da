//! Map access: the trait that the pipelines read and write maps through.

use super::{
    admission::{AdmissionKey, PackedAdmission},
    kernel_decap::KernelDecapTests,
    liveness::Liveness,
    policy::Policies,
    rate_limit::RateLimiter,
    service::Services,
};
use crate::{
    abi::{Config, NextHop, NextHopGroup, Peer, Prefix},
    packet::Address,
    verdict::Event,
};

/// Lookups and counters of the pipelines.
pub trait Maps: KernelDecapTests + Liveness + Policies + RateLimiter + Services {
    /// The node's configuration.
    fn config(&self) -> Option<&Config>;
    /// The longest prefix that contains `address`. [`Prefix::cluster`] is comparable to `cluster` and to
    /// [`crate::abi::CLUSTER_LOCAL`] only: any other cluster may have another number.
    fn prefix(&self, address: Address, cluster: u64) -> Option<Prefix>;
    /// [`Prefix::cluster`] of the longest prefix that contains `address`; [`crate::abi::CLUSTER_LOCAL`] without one.
    fn cluster_of(&self, address: Address) -> u64;
    /// The group in `slot`.
    fn group(&self, slot: u32) -> Option<&NextHopGroup>;
    /// The next hop in `slot`.
    fn next_hop(&self, slot: u32) -> Option<&NextHop>;
    /// Whether the link addresses of next hops are current.
    fn links_are_current(&self) -> bool;
    /// The peer with this underlay address.
    fn peer(&self, address: Address) -> Option<&Peer>;
    /// Counts an event.
    fn count(&self, event: Event);
    /// Counts a packet of `bytes` sent to the peers of a slot of `mc_peer_stats`.
    fn count_sent(&self, slot: u32, bytes: u32);
    /// Counts a packet of `bytes` received from the peers of a slot of `mc_peer_stats`.
    fn count_received(&self, slot: u32, bytes: u32);
}

/// Maps with results of earlier look-ups.
pub trait CachedMaps: Maps {
    /// The admission that a look-up has stored.
    fn cached_admission(&self, key: &AdmissionKey) -> Option<PackedAdmission>;
    /// The winner of rendezvous hashing among all next hops of a group that a look-up has stored.
    fn cached_hrw_winner(&self, group: u32, hash: u32) -> Option<u32>;
}
