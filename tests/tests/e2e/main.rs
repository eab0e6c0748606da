//! The main job on three real Kubernetes clusters, with controllers and agents running as Pods.
//!
//! `cargo xtask test --suite e2e` boots the clusters, installs `deploy/`, joins them and runs this with
//! `MC_KUBECONFIG` and `MC_KUBECTL` set. Tests run one after the other and clean up behind themselves.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod api;
mod claims;
mod clusters;
mod datapath;
mod dns;
mod dual_role;
mod dual_stack;
mod election;
mod faults;
mod gateways;
mod host_clients;
mod isolation;
mod mcs;
#[path = "../model/mod.rs"]
#[expect(dead_code, reason = "the simulation asks for more")]
mod model;
mod policies;
#[path = "../reach/mod.rs"]
mod reach;
mod seeing;
mod services;
mod specs;
mod traces;
mod workload;
