//! Fake API server: storage, validation, server-side apply, lists and watches, without clock or network.
//!
//! The suite `sim` runs the controllers against it and injects faults. `tests/tests/e2e/traces` runs the same
//! operations on it and on a real API server and compares the responses.

mod defaults;
pub mod fields;
pub mod handler;
pub mod request;
pub mod resources;
mod schema;
pub mod status_error;
pub mod store;
