//! The gateway agent: loads the eBPF programs and keeps their maps equal to the cluster's objects.
//!
//! One pipeline: objects ([`source`]) → desired state ([`desired`]) → resolved state on the observed host
//! ([`resolved`]) → ordered changes ([`plan`]) → execution ([`apply`]). Everything from `desired` to `plan` is pure;
//! [`agent`] is the loop.

pub mod agent;
pub mod aggregation;
pub mod apply;
pub mod attachment;
pub mod capacity;
mod changed_state;
pub mod cidr;
pub mod cleanup;
mod clock;
pub mod cni;
pub mod config;
pub mod datapath;
pub mod desired;
pub mod drop_samples;
pub mod flow_names;
pub mod host;
pub mod id_names;
pub mod identity_objects;
pub mod ids;
pub mod inspect;
pub mod key_publisher;
pub mod maps;
pub mod metrics;
pub mod objects;
pub mod past_tables;
pub mod peer_secret;
pub mod plan;
pub mod policy;
pub mod policy_objects;
pub mod policy_report;
pub mod policy_report_publisher;
pub mod policy_tables;
pub mod preflight;
pub mod probe;
pub mod program_log;
pub mod reachability;
pub mod reservation_service;
pub mod resolved;
pub mod service_history;
pub mod service_ip_reservation;
pub mod service_objects;
pub mod shared_map;
pub mod shared_set;
pub mod source;
#[cfg(test)]
mod tests;
pub mod trace;
pub mod transit;
pub mod tunnel_device;

/// The eBPF programs, as `cargo xtask build-ebpf` built them.
pub static EBPF_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/mc-gateway-ebpf.o"));

pub use mc_kube::error_chain;
