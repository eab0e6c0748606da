//! The data plane's decisions and map layouts.
//!
//! Everything here is a function from data to data: no I/O, clock or randomness. The eBPF programs, the
//! agent and the tests all use the same code, so what the tests prove is what the kernel runs.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![deny(clippy::arithmetic_side_effects, clippy::cast_possible_truncation)]

pub mod abi;
pub mod verdict;
