//! Real agents, real programs and real traffic between the namespaces of two stand-alone clusters.
//!
//! Runs as root with `MC_AGENT` naming the agent and `MC_TRAFFIC` the traffic program, one test after the
//! other: `cargo xtask test --suite netns`.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod antrea;
mod attach;
mod bad_input;
mod bed;
mod bench;
mod families;
mod faults;
mod host_changes;
mod host_clients;
mod mtu;
mod restart;
mod seeing;
mod services;
mod size;
mod traffic;
