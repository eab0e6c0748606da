//! The eBPF maps, BTF-defined so that `bpftool map dump` prints names.
//!
//! Values of per-CPU maps are plain memory: a program runs on its CPU to the end, and the agent only reads them. Where
//! programs of a CPU interrupt each other (`PREEMPT_RT`), counters and rate limits lose an update then. Every word is
//! valid in every state, so nothing else depends on them. The caches, whose words belong together, use
//! `mc_gateway_common::cache_entry`.

mod cache;
mod epoch;
mod kernel;
mod kernel_decap;
mod liveness;
mod policy;
mod prefix;
mod rate_limit;
mod sample;
mod service;

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;

pub(crate) use cache::{
    cached_admission, cached_egress_route, cached_hrw_winner, second_admission, second_egress_route,
    second_hrw_winner, store_admission,
};
pub(crate) use kernel::{KernelMaps, count_drop, count_outcome};
pub(crate) use sample::sample_drop;

/// No preallocation of hash maps: most Nodes have few entries.
const AS_NEEDED: usize = BPF_F_NO_PREALLOC as usize;
