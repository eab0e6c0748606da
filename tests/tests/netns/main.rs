//! Agents, programs and traffic between the namespaces of two stand-alone clusters.
//!
//! Runs as root, one test at a time, with the paths of agent and traffic program in `MC_AGENT` and `MC_TRAFFIC`:
//! `cargo xtask test --suite netns`.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod aggregation;
mod antrea;
mod attach;
mod audit;
mod bad_input;
mod bench;
mod closed;
mod dual_stack_policies;
mod egress_policies;
mod families;
mod faults;
mod hidden_senders;
mod host_changes;
mod host_clients;
mod identities;
mod ipsec;
mod memory;
mod mtu;
mod names;
mod neighbors;
mod nics;
mod observability;
mod path_mtu_hints;
mod pod_guard;
mod pod_policies;
mod policies;
mod policy_churn;
mod policy_upgrade;
mod restart;
mod services;
mod spoofing;
mod traffic;
mod transit_xdp;
mod tunnel_device;
mod underlay;

use mc_tests::fixture;
