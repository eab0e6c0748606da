//! The eBPF maps, BTF-defined so that `bpftool map dump` prints names.

mod cache;
mod epoch;
mod kernel;
mod liveness;
mod rate_limit;
mod sample;
mod service;

pub(crate) use cache::{cached_admission, cached_egress_route, cached_hrw_winner};
pub(crate) use kernel::{KernelMaps, count_drop, count_outcome};
pub(crate) use sample::sample_drop;
