//! The multi-cluster API (feature `api`) and the leader and member controllers (feature `runtime`).
#![forbid(unsafe_code)]

pub mod api;
