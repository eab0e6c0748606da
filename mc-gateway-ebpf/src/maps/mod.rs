//! The maps, BTF-defined so that `bpftool map dump` prints names, and the tables made of them.

mod cache;
mod liveness;
mod rate_limit;
mod sample;
mod service;

use aya_ebpf::{
    btf_maps::{Array, HashMap, LpmTrie, PerCpuArray, lpm_trie::Key},
    macros::btf_map,
};
use mc_gateway_common::{
    abi::{
        Addr, Config, Counter, MAX_DROP_REASONS, MAX_EVENTS, MAX_NEXT_HOP_GROUPS, MAX_NEXT_HOPS,
        MAX_OUTCOMES, MAX_PEER_STATS, MAX_PEERS, MAX_PREFIXES, NextHop, NextHopGroup, Peer, PeerStats,
        Prefix,
    },
    maps::{AdmissionKey, Maps},
    packet::{Address, Aligned},
    verdict::{DropReason, Event, Outcome},
};

use crate::subprograms::mc_smallest_mtu;

#[btf_map(name = "mc_prefixes")]
static PREFIXES: LpmTrie<Addr, Prefix, { MAX_PREFIXES as usize }> = LpmTrie::new();
#[btf_map(name = "mc_nh_groups")]
static GROUPS: Array<NextHopGroup, { MAX_NEXT_HOP_GROUPS as usize }> = Array::new();
#[btf_map(name = "mc_nexthops")]
static NEXT_HOPS: Array<NextHop, { MAX_NEXT_HOPS as usize }> = Array::new();
#[btf_map(name = "mc_peers")]
static PEERS: HashMap<Addr, Peer, { MAX_PEERS as usize }> = HashMap::new();
#[btf_map(name = "mc_config")]
static CONFIG: Array<Config, 1> = Array::new();
#[btf_map(name = "mc_drops")]
static DROPS: PerCpuArray<u64, { MAX_DROP_REASONS as usize }> = PerCpuArray::new();
#[btf_map(name = "mc_outcomes")]
static PATHS: PerCpuArray<Counter, { MAX_OUTCOMES as usize }> = PerCpuArray::new();
#[btf_map(name = "mc_peer_stats")]
static TRAFFIC: PerCpuArray<PeerStats, { MAX_PEER_STATS as usize }> = PerCpuArray::new();

#[btf_map(name = "mc_epoch")]
static EPOCH: Array<u32, 1> = Array::new();
#[btf_map(name = "mc_events")]
static EVENTS: PerCpuArray<u64, { MAX_EVENTS as usize }> = PerCpuArray::new();

pub(crate) use sample::sample_drop;

/// The eBPF maps as tables.
pub(crate) struct KernelMaps;

impl Maps for KernelMaps {
    #[inline(always)]
    fn config(&self) -> Option<&Config> {
        CONFIG.get(0)
    }

    #[inline(always)]
    fn prefix(&self, address: Address) -> Option<Prefix> {
        cache::cached_prefix(address, epoch(), || {
            PREFIXES.get(&Aligned(Key::new(128, address.bytes())).0).copied()
        })
    }

    #[inline(always)]
    fn admission(&self, way: &AdmissionKey) -> u64 {
        cache::cached_admission(way, epoch())
    }

    #[inline(always)]
    fn smallest_mtu(&self, group: u32) -> u32 {
        mc_smallest_mtu(group)
    }

    #[inline(always)]
    fn group(&self, slot: u32) -> Option<&NextHopGroup> {
        GROUPS.get(slot)
    }

    #[inline(always)]
    fn nexthop(&self, slot: u32) -> Option<&NextHop> {
        NEXT_HOPS.get(slot)
    }

    #[inline(always)]
    fn peer(&self, address: Address) -> Option<&Peer> {
        // SAFETY: entries are replaced by the agent as whole values; a reader that meets a reused entry
        // sees another peer's fields for one packet, never memory that is not a `Peer`.
        unsafe { PEERS.get(&Aligned(address.bytes()).0) }
    }

    #[inline(always)]
    fn count(&self, event: Event) {
        if let Some(count) = EVENTS.get_ptr_mut(event as u32) {
            // SAFETY: as in `count_drop`.
            unsafe { *count = (*count).wrapping_add(1) }
        }
    }

    #[inline(always)]
    fn count_sent(&self, slot: u32, bytes: u32) {
        if let Some(traffic) = TRAFFIC.get_ptr_mut(slot) {
            // SAFETY: as in `count_drop`.
            unsafe {
                (*traffic).sent_packets = (*traffic).sent_packets.wrapping_add(1);
                (*traffic).sent_bytes = (*traffic).sent_bytes.wrapping_add(bytes as u64);
            }
        }
    }

    #[inline(always)]
    fn count_received(&self, slot: u32, bytes: u32) {
        if let Some(traffic) = TRAFFIC.get_ptr_mut(slot) {
            // SAFETY: as in `count_drop`.
            unsafe {
                (*traffic).received_packets = (*traffic).received_packets.wrapping_add(1);
                (*traffic).received_bytes = (*traffic).received_bytes.wrapping_add(bytes as u64);
            }
        }
    }
}

/// Number of the present state of prefixes and peers; 0 remembers nothing.
#[inline(always)]
fn epoch() -> u32 {
    EPOCH.get(0).copied().unwrap_or(0)
}

/// Counts a dropped packet.
#[inline(always)]
pub(crate) fn count_drop(reason: DropReason) {
    if let Some(count) = DROPS.get_ptr_mut(reason as u32) {
        // SAFETY: the pointer is this CPU's own slot and programs of one CPU do not interrupt each other.
        unsafe { *count = (*count).wrapping_add(1) }
    }
}

/// Counts a packet that took a path.
#[inline(always)]
pub(crate) fn count_outcome(path: Outcome, bytes: u32, gso: bool) {
    if let Some(counter) = PATHS.get_ptr_mut(path as u32) {
        // SAFETY: as in `count_drop`.
        unsafe {
            (*counter).packets = (*counter).packets.wrapping_add(1);
            (*counter).bytes = (*counter).bytes.wrapping_add(bytes as u64);
            (*counter).gso = (*counter).gso.wrapping_add(gso as u64);
        }
    }
}
