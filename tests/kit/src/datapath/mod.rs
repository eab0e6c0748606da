//! Frames and map contents for tests of the programs, shared by the suites `datapath`, `differential` and `fuzz`.
#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::panic,
    reason = "a test fails by panicking, and uses the results"
)]

pub mod fixture;
pub mod packets;
