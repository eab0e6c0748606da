//! The gateway agent: loads the eBPF programs and keeps their maps equal to the cluster's objects.
//!
//! Objects ([`source`]) become a desired state ([`desired`]), paths on the underlay complete it
//! ([`target`]), the difference to what is there becomes a plan ([`plan`]), and one interpreter
//! ([`apply`]) carries it out. Everything up to the plan is pure.

pub mod agent;
pub mod apply;
pub mod capacity;
pub mod cidr;
pub mod cleanup;
pub mod config;
pub mod datapath;
pub mod desired;
pub mod drop_samples;
pub mod host;
pub mod id_names;
pub mod ids;
pub mod inspect;
pub mod maps;
pub mod metrics;
pub mod objects;
pub mod plan;
pub mod preflight;
pub mod probe;
pub mod resolved;
pub mod service_flows;
pub mod service_ip_reservation;
pub mod service_objects;
mod service_tables;
pub mod source;
pub mod trace;

/// The eBPF programs, as `cargo xtask build-ebpf` built them.
pub static EBPF_OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/mc-gateway-ebpf.o"));

/// An error with everything that caused it, on one line.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // A transparent error repeats its cause.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
