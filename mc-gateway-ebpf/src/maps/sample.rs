//! The drop samples.

use core::ptr;

use aya_ebpf::{
    bindings::__sk_buff,
    btf_maps::{PerCpuArray, RingBuf},
    helpers::{bpf_ktime_get_coarse_ns, bpf_skb_load_bytes},
    macros::btf_map,
};
use mc_gateway_common::abi::sample::{AUDITED, DropSample, RING_BYTES, SAMPLE_BYTES, SampleLimiter, allow};
use mc_gateway_common::verdict::DropReason;

// Without a value type, which libbpf rejects for a ring buffer.
#[btf_map(name = "mc_drop_samples")]
static DROP_SAMPLES: RingBuf<(), { RING_BYTES as usize }> = RingBuf::new();
#[btf_map(name = "mc_sample_limit")]
static SAMPLE_LIMIT: PerCpuArray<SampleLimiter, 1> = PerCpuArray::new();

/// Writes the first bytes of a packet to the ring, within the rate limit.
#[inline(always)]
pub(crate) fn sample_drop(skb: *mut __sk_buff, reason: u32, program: u32) {
    let Some(limiter) = SAMPLE_LIMIT.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: reads a clock; the coarse one (Linux 5.11) costs a tenth of the other.
    let at = unsafe { bpf_ktime_get_coarse_ns() };
    // SAFETY: this CPU's own value, as the module `maps` describes.
    if !unsafe { allow(&mut *limiter, at) } {
        return;
    }
    let Some(mut entry) = DROP_SAMPLES.reserve_untyped::<DropSample>(0) else {
        // SAFETY: as above.
        unsafe { (*limiter).lost = (*limiter).lost.wrapping_add(1) }
        return;
    };
    let to = entry.as_mut_ptr();
    // SAFETY: the context pointer is valid while the program runs, and the entry is as long as a sample;
    // every field of it is written.
    unsafe {
        let length = (*skb).len;
        let captured = length.min(SAMPLE_BYTES as u32);
        (*to).at = at;
        (*to).reason = reason;
        (*to).program = program;
        (*to).ifindex = (*skb).ifindex;
        (*to).length = length;
        (*to).captured = captured;
        // `Skb::set_rule` precedes these reasons.
        (*to).rule = if reason == DropReason::Policy as u32 || reason == AUDITED {
            (*skb).cb[1]
        } else {
            0
        };
        (*to).bytes = [0; SAMPLE_BYTES];
        // Read back as volatile, so that the compiler keeps the mask: the only bound of 1 to `SAMPLE_BYTES` that the
        // verifier of Linux 6.1 tracks.
        let len = ptr::read_volatile(&raw const (*to).captured);
        let len = (len.wrapping_sub(1) & (SAMPLE_BYTES as u32 - 1)).wrapping_add(1);
        if bpf_skb_load_bytes(skb.cast(), 0, (&raw mut (*to).bytes).cast(), len) != 0 {
            (*to).captured = 0;
        }
    }
    entry.submit(0);
}
