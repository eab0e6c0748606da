//! End-to-end tests on three real Kubernetes clusters, with controllers and agents in Pods.
//!
//! `cargo xtask test --suite e2e` boots and joins the clusters, installs `deploy/` and runs these tests one at a time
//! with `MC_KUBECONFIG` and `MC_KUBECTL` set. Each test removes its objects.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod account_binding;
mod address_groups;
mod antrea_leftovers;
mod api;
mod bypassing_cni;
mod cluster_policies;
mod clusters;
mod datapath;
mod dns;
mod dual_role;
mod dual_stack;
mod egress_policies;
mod election;
mod enforcement;
mod failed_imports;
mod faults;
mod gateways;
mod half_open;
mod host_clients;
mod isolation;
mod keys;
mod label_latency;
mod legacy_api;
mod mcs;
mod member_namespace;
mod namespace_policy;
mod node_reports;
mod observability;
mod own_objects;
mod pod_start;
mod policies;
mod policy_actions;
mod reachability;
mod replaced_cluster_set;
mod second_controller;
mod selected_identities;
mod services;
mod specs;
mod traces;
mod trust;
mod withdrawal;
mod workload;
