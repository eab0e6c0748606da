//! Network namespaces, traffic and captures shared by the suites in `tests/tests`, the demo (`mc-demo`) and the
//! benchmark (`mc-bench`).
//!
//! The library drives ordinary programs (`ip`, `nsenter`, `nft`, `bpftool`) and this crate's own `mc-traffic`.
//! The caller chooses a name prefix for everything that is created, so that several topologies can coexist and
//! leftovers can be found by name.

#![forbid(unsafe_code)]

pub mod bench;
pub mod capture;
pub mod counters;
pub mod decode;
pub mod demo;
pub mod failover;
pub mod fixture;
pub mod injection;
pub mod later_layout;
pub mod name_lock;
pub mod netns;
pub mod nslookup;
pub mod output;
pub mod prefix_table;
pub mod process;
pub mod prom_parser;
pub mod rng;
pub mod sequence;
pub mod signals;
pub mod skip;
pub mod topology;
pub mod traffic;
pub mod wait;
