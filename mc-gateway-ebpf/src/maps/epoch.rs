//! The epoch of the caches, and the time until which link addresses are current.

use aya_ebpf::{btf_maps::Array, helpers::bpf_ktime_get_coarse_ns, macros::btf_map};
use mc_gateway_common::abi::Epoch;

#[btf_map(name = "mc_epoch")]
static EPOCH: Array<Epoch, 1> = Array::new();

/// Number of the current state of prefixes, peers and next hops; 0 disables the caches.
#[inline(always)]
pub(super) fn epoch() -> u32 {
    EPOCH.get(0).map_or(0, |epoch| epoch.number)
}

/// Whether the agent vouches for the link addresses of next hops. The time of the last tick (Linux 5.11) is exact
/// enough.
#[inline(always)]
pub(super) fn links_are_current() -> bool {
    // SAFETY: reads a clock.
    EPOCH
        .get(0)
        .is_some_and(|epoch| unsafe { bpf_ktime_get_coarse_ns() } < epoch.links_until)
}
