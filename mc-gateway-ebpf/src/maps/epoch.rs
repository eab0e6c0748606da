//! The epoch of the caches.

use aya_ebpf::{btf_maps::Array, macros::btf_map};

#[btf_map(name = "mc_epoch")]
static EPOCH: Array<u32, 1> = Array::new();

/// Number of the current state of prefixes, peers and next hops; 0 disables the caches.
#[inline(always)]
pub(super) fn epoch() -> u32 {
    EPOCH.get(0).copied().unwrap_or(0)
}
