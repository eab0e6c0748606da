//! A model of an API server: what it keeps, what it answers, what watches are told. Pure: no clock, no network.
//!
//! The suite `sim` runs the controllers against it, with faults around it; `tests/e2e/traces` runs the same operations
//! on it and on a real API server and compares.

pub(crate) mod ask;
mod defaults;
pub(crate) mod fields;
pub(crate) mod kinds;
pub(crate) mod refusal;
mod schema;
pub(crate) mod serve;
pub(crate) mod store;
