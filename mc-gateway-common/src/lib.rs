//! Packet pipelines and map layouts of the data plane.
//!
//! Pure functions without I/O, clock or randomness. The eBPF programs, the agent and the tests use the same code, so
//! the tests verify the code that runs in the kernel.
//!
//! Arithmetic is `wrapping_*` or `checked_*`, and slices are never indexed: the verifier rejects panic paths.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![cfg_attr(
    not(test),
    deny(clippy::arithmetic_side_effects, clippy::cast_possible_truncation)
)]
#![expect(
    clippy::inline_always,
    reason = "BPF programs are one function: a call into a subprogram costs verifier precision and time"
)]

pub mod abi;
pub mod cache_entry;
pub mod flow;
pub mod liveness;
#[cfg(any(test, feature = "std"))]
pub mod maglev;
pub mod maps;
pub mod nexthop_select;
mod packed;
pub mod packet;
pub mod pipeline;
pub mod rate_limit;
pub mod rendezvous;
pub mod verdict;
