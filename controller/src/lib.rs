//! The multi-cluster API (feature `api`) and the leader and member controllers (feature `runtime`).
#![forbid(unsafe_code)]

pub mod api;

#[cfg(feature = "runtime")]
pub mod body;
#[cfg(feature = "runtime")]
pub mod claim;
#[cfg(feature = "runtime")]
pub mod identity;
#[cfg(feature = "runtime")]
pub mod leader;
#[cfg(feature = "runtime")]
pub mod lease;
#[cfg(feature = "runtime")]
pub mod member;
#[cfg(feature = "runtime")]
pub mod metrics;
#[cfg(feature = "runtime")]
pub mod plan;
#[cfg(feature = "runtime")]
pub mod shell;
#[cfg(feature = "runtime")]
pub mod world;
