//! Configuration, prefixes, next hops, peers and counters.

use aya_ebpf::{
    btf_maps::{Array, HashMap, PerCpuArray},
    macros::btf_map,
};
use mc_gateway_common::{
    abi::{
        Addr, Config, Counter, MAX_DROP_REASONS, MAX_EVENTS, MAX_NEXT_HOP_GROUPS, MAX_NEXT_HOPS,
        MAX_OUTCOMES, MAX_PEER_STATS, MAX_PEERS, NextHop, NextHopGroup, Peer, PeerStats, Prefix,
    },
    maps::{
        AdmissionKey, CachedMaps, Maps, PackedAdmission,
        prefix_table::{self, PrefixLookup},
    },
    packet::{Address, Aligned},
    verdict::{DropReason, Event, Outcome},
};

use super::{
    cache::{known_admission, known_hrw_winner},
    epoch,
    prefix::{mc_find_cluster, mc_find_prefix},
};

#[btf_map(name = "mc_nh_groups")]
static NEXT_HOP_GROUPS: Array<NextHopGroup, { MAX_NEXT_HOP_GROUPS as usize }> = Array::new();
#[btf_map(name = "mc_nexthops")]
static NEXT_HOPS: Array<NextHop, { MAX_NEXT_HOPS as usize }> = Array::new();
#[btf_map(name = "mc_peers")]
static PEERS: HashMap<Addr, Peer, { MAX_PEERS as usize }> = HashMap::new();
#[btf_map(name = "mc_config")]
static CONFIG: Array<Config, 1> = Array::new();
#[btf_map(name = "mc_drops")]
static DROPS: PerCpuArray<u64, { MAX_DROP_REASONS as usize }> = PerCpuArray::new();
#[btf_map(name = "mc_outcomes")]
static OUTCOMES: PerCpuArray<Counter, { MAX_OUTCOMES as usize }> = PerCpuArray::new();
#[btf_map(name = "mc_peer_stats")]
static PEER_STATS: PerCpuArray<PeerStats, { MAX_PEER_STATS as usize }> = PerCpuArray::new();

#[btf_map(name = "mc_events")]
static EVENTS: PerCpuArray<u64, { MAX_EVENTS as usize }> = PerCpuArray::new();

/// The eBPF maps.
pub(crate) struct KernelMaps;

impl Maps for KernelMaps {
    #[inline(always)]
    fn config(&self) -> Option<&Config> {
        CONFIG.get(0)
    }

    #[inline(always)]
    fn prefix(&self, address: Address, cluster: u64) -> Option<Prefix> {
        let [high, low] = address.words();
        let step = |state: PrefixLookup| {
            PrefixLookup::from_bits(mc_find_prefix(high, low, cluster, state.to_bits()))
        };
        prefix_table::look_up(step).prefix(cluster)
    }

    #[inline(always)]
    fn cluster_of(&self, address: Address) -> u64 {
        let [high, low] = address.words();
        mc_find_cluster(high, low)
    }

    #[inline(always)]
    fn group(&self, slot: u32) -> Option<&NextHopGroup> {
        NEXT_HOP_GROUPS.get(slot)
    }

    #[inline(always)]
    fn next_hop(&self, slot: u32) -> Option<&NextHop> {
        NEXT_HOPS.get(slot)
    }

    #[inline(always)]
    fn links_are_current(&self) -> bool {
        epoch::links_are_current()
    }

    #[inline(always)]
    fn peer(&self, address: Address) -> Option<&Peer> {
        // SAFETY: the agent replaces entries as whole values. A reader of a reused entry reads the fields of another
        // peer for one packet, never memory of another type.
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
        if let Some(stats) = PEER_STATS.get_ptr_mut(slot) {
            // SAFETY: as in `count_drop`.
            unsafe {
                (*stats).sent_packets = (*stats).sent_packets.wrapping_add(1);
                (*stats).sent_bytes = (*stats).sent_bytes.wrapping_add(bytes as u64);
            }
        }
    }

    #[inline(always)]
    fn count_received(&self, slot: u32, bytes: u32) {
        if let Some(stats) = PEER_STATS.get_ptr_mut(slot) {
            // SAFETY: as in `count_drop`.
            unsafe {
                (*stats).received_packets = (*stats).received_packets.wrapping_add(1);
                (*stats).received_bytes = (*stats).received_bytes.wrapping_add(bytes as u64);
            }
        }
    }
}

impl CachedMaps for KernelMaps {
    #[inline(always)]
    fn cached_admission(&self, key: &AdmissionKey) -> Option<PackedAdmission> {
        known_admission(key)
    }

    #[inline(always)]
    fn cached_hrw_winner(&self, group: u32, hash: u32) -> Option<u32> {
        known_hrw_winner(group, hash)
    }
}

/// Counts a dropped packet.
#[inline(always)]
pub(crate) fn count_drop(reason: DropReason) {
    if let Some(count) = DROPS.get_ptr_mut(reason as u32) {
        // SAFETY: this CPU's own value, as the module `maps` describes.
        unsafe { *count = (*count).wrapping_add(1) }
    }
}

/// Counts a packet with this outcome.
#[inline(always)]
pub(crate) fn count_outcome(outcome: Outcome, bytes: u32, gso: bool) {
    if let Some(counter) = OUTCOMES.get_ptr_mut(outcome as u32) {
        // SAFETY: as in `count_drop`.
        unsafe {
            (*counter).packets = (*counter).packets.wrapping_add(1);
            (*counter).bytes = (*counter).bytes.wrapping_add(bytes as u64);
            (*counter).gso = (*counter).gso.wrapping_add(gso as u64);
        }
    }
}
