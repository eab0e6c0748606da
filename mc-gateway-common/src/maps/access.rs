//! Map access: the trait that the pipelines read and write maps through.

use super::{kernel_decap::KernelDecapTests, liveness::Liveness, rate_limit::RateLimiter, service::Services};
use crate::{
    abi::{Config, NextHop, NextHopGroup, Peer, Prefix},
    packet::Address,
    verdict::Event,
};

/// Lookups and counters of the pipelines.
pub trait Maps: KernelDecapTests + Liveness + RateLimiter + Services {
    /// The node's configuration.
    fn config(&self) -> Option<&Config>;
    /// The longest prefix that contains `address`. [`Prefix::cluster`] is comparable to `cluster` and to
    /// [`crate::abi::CLUSTER_LOCAL`] only: any other cluster may have another number.
    fn prefix(&self, address: Address, cluster: u64) -> Option<Prefix>;
    /// The group in `slot`.
    fn group(&self, slot: u32) -> Option<&NextHopGroup>;
    /// The next hop in `slot`.
    fn next_hop(&self, slot: u32) -> Option<&NextHop>;
    /// The peer with this underlay address.
    fn peer(&self, address: Address) -> Option<&Peer>;
    /// Counts an event.
    fn count(&self, event: Event);
    /// Counts a packet of `bytes` sent to the peers of a slot of `mc_peer_stats`.
    fn count_sent(&self, slot: u32, bytes: u32);
    /// Counts a packet of `bytes` received from the peers of a slot of `mc_peer_stats`.
    fn count_received(&self, slot: u32, bytes: u32);
}
