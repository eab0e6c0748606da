//! The leader and member controllers.
#![forbid(unsafe_code)]

pub mod cluster_id;
pub mod endpoint_ranges;
pub mod fence;
pub mod issue_code;
pub mod leader;
pub mod lease;
pub mod member;
pub mod metrics;
pub mod name_conflict;
mod overlap;
pub mod plan;
pub mod raw_json;
pub mod runtime;
pub mod snapshot;
mod unreadable;
