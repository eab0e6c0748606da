//! The data plane's decisions and map layouts.
//!
//! Everything here is a function from data to data: no I/O, clock or randomness. The eBPF programs, the
//! agent and the tests all use the same code, so what the tests prove is what the kernel runs.
//!
//! Arithmetic is `wrapping_*` or `checked_*` throughout and slices are never indexed: a panic path would
//! make the programs unverifiable.
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
pub mod flow;
pub mod liveness;
#[cfg(any(test, feature = "std"))]
pub mod maglev;
pub mod maps;
pub mod nexthop_select;
pub mod packet;
pub mod pipeline;
pub mod rate_limit;
pub mod rendezvous;
pub mod verdict;
