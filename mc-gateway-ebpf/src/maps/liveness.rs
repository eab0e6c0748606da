//! The liveness maps.

use aya_ebpf::{btf_maps::Array, helpers::bpf_ktime_get_ns, macros::btf_map};
use mc_gateway_common::{
    abi::{
        MAX_NEXT_HOPS,
        liveness::{ProbeReply, ProbeRtt, ProbeSent},
    },
    liveness::{self, rtt_bucket},
    maps::liveness::Liveness,
    nexthop_select,
};

use super::{KernelMaps, cache, epoch};

#[btf_map(name = "mc_probe_sent")]
static SENT: Array<ProbeSent, { MAX_NEXT_HOPS as usize }> = Array::new();
#[btf_map(name = "mc_probe_reply")]
static SEEN: Array<ProbeReply, { MAX_NEXT_HOPS as usize }> = Array::new();
#[btf_map(name = "mc_probe_rtt")]
static RTT: Array<ProbeRtt, { MAX_NEXT_HOPS as usize }> = Array::new();

impl Liveness for KernelMaps {
    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: reads a clock.
        unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn sent(&self, slot: u32) -> Option<ProbeSent> {
        SENT.get(slot).copied()
    }

    #[inline(always)]
    fn seen(&self, slot: u32) -> Option<ProbeReply> {
        SEEN.get(slot).copied()
    }

    #[inline(always)]
    fn set_seen(&self, slot: u32, seen: ProbeReply) {
        if let Some(entry) = SEEN.get_ptr_mut(slot) {
            // SAFETY: the pointer is into the map; every field stands for itself, so a reader on another CPU
            // that sees half of the change judges by an answer that is one probe older.
            unsafe { *entry = seen }
        }
    }

    #[inline(always)]
    fn hrw_winner(&self, group: u32, hash: u32, alive: bool) -> u32 {
        if alive {
            return mc_hrw_winner(group, hash, 1);
        }
        cache::cached_hrw_winner(group, hash, epoch(), || mc_hrw_winner(group, hash, 0))
    }

    #[inline(always)]
    fn is_dead(&self, slot: u32, id: u32) -> bool {
        mc_is_dead(slot, id) != 0
    }

    #[inline(always)]
    fn count_rtt(&self, slot: u32, rtt: u32) {
        if let Some(entry) = RTT.get_ptr_mut(slot) {
            // SAFETY: as above; a count that another CPU overwrites is lost.
            unsafe {
                (*entry).sum = (*entry).sum.wrapping_add(rtt as u64);
                if let Some(bucket) = (*entry).buckets.get_mut(rtt_bucket(rtt)) {
                    *bucket = bucket.wrapping_add(1);
                }
            }
        }
    }
}

/// [`select::preferred`] as a global function: the verifier looks at the choice between 16 next hops once,
/// not once for every way that leads to it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_hrw_winner(group: u32, hash: u32, alive: u32) -> u32 {
    nexthop_select::hrw_winner(&KernelMaps, group, hash, alive != 0)
}

/// [`liveness::is_dead`], likewise.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_is_dead(slot: u32, id: u32) -> u32 {
    u32::from(liveness::is_dead(&KernelMaps, slot, id))
}
