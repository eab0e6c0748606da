//! The liveness maps.

use aya_ebpf::{
    btf_maps::Array,
    helpers::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns},
    macros::btf_map,
};
use mc_gateway_common::{
    abi::{
        MAX_NEXT_HOPS,
        liveness::{ProbeReply, ProbeRtt, ProbeSent, rtt_bucket},
    },
    maps::liveness::Liveness,
};

use super::kernel::KernelMaps;

#[btf_map(name = "mc_probe_sent")]
static PROBE_SENT: Array<ProbeSent, { MAX_NEXT_HOPS as usize }> = Array::new();
#[btf_map(name = "mc_probe_reply")]
static PROBE_REPLY: Array<ProbeReply, { MAX_NEXT_HOPS as usize }> = Array::new();
#[btf_map(name = "mc_probe_rtt")]
static PROBE_RTT: Array<ProbeRtt, { MAX_NEXT_HOPS as usize }> = Array::new();

impl Liveness for KernelMaps {
    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: reads a clock.
        unsafe { bpf_ktime_get_ns() }
    }

    #[inline(always)]
    fn recent_time(&self) -> u64 {
        // SAFETY: as above.
        unsafe { bpf_ktime_get_coarse_ns() }
    }

    #[inline(always)]
    fn sent(&self, slot: u32) -> Option<ProbeSent> {
        PROBE_SENT.get(slot).copied()
    }

    #[inline(always)]
    fn seen(&self, slot: u32) -> Option<ProbeReply> {
        PROBE_REPLY.get(slot).copied()
    }

    #[inline(always)]
    fn set_seen(&self, slot: u32, seen: ProbeReply) {
        if let Some(entry) = PROBE_REPLY.get_ptr_mut(slot) {
            // SAFETY: the pointer is into the map. The fields are independent: a concurrent reader of half the
            // change uses a reply that is one probe older.
            unsafe { *entry = seen }
        }
    }

    #[inline(always)]
    fn count_rtt(&self, slot: u32, rtt: u32) {
        if let Some(entry) = PROBE_RTT.get_ptr_mut(slot) {
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
