//! Map access behind traits: eBPF maps in the kernel, ordered maps in memory on the host.

mod access;
mod admission;
mod egress;
pub mod kernel_decap;
pub mod liveness;
#[cfg(any(test, feature = "std"))]
mod memory;
pub mod policy;
pub mod prefix_table;
pub mod rate_limit;
pub mod service;

pub use access::{CachedMaps, Maps};
pub use admission::{ALIAS_DESTINATION, ALIAS_MASK, ALIAS_SOURCE, Admission, AdmissionKey, PackedAdmission};
pub use egress::{
    EgressKey, EgressRoute, PackedEgressRoute, SOURCE_BACKEND, SOURCE_MASK, SOURCE_OWN, SOURCE_POLICY,
};
#[cfg(any(test, feature = "std"))]
pub use memory::MemoryMaps;
