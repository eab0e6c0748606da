//! Test beds made of network namespaces, traffic and captures, and what is built from them: the suites
//! in `tests/tests`, the demo (`mc-demo`) and the benchmark (`mc-bench`).
//!
//! Everything here drives ordinary programs (`ip`, `nsenter`, `nft`, `bpftool`) and this crate's own
//! `mc-traffic`; whatever it creates carries a name prefix chosen by the caller, so that several beds
//! can stand side by side and leftovers can be found by name.

#![forbid(unsafe_code)]

pub mod bench;
pub mod capture;
pub mod counters;
pub mod decode;
pub mod demo;
pub mod exposition;
pub mod failover;
pub mod interrupt;
pub mod lookup;
pub mod netns;
pub mod process;
pub mod rng;
pub mod sequence;
pub mod topology;
pub mod traffic;
pub mod wait;
