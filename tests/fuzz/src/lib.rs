//! Fuzz targets: functions of bytes that panic if a property is violated.
//!
//! `cargo xtask test --suite fuzz` runs them under libFuzzer; `tests/corpus.rs` replays `corpus/` without it.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a target reports by panicking, and reads frames of checked length"
)]

mod agent;
mod arbitrary_packet;
mod datapath;
mod decode_input;
mod headers;
mod liveness;
mod services;

use mc_test_kit::datapath::{fixture, packets};

pub use agent::{cidr, cluster_info, manifests, sample};
pub use datapath::{from_underlay, to_remote, too_big};
pub use liveness::liveness;
pub use services::services;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets by name, which is also the name of corpus and program.
pub const TARGETS: [(&str, Target); 9] = [
    ("to_remote", to_remote),
    ("from_underlay", from_underlay),
    ("too_big", too_big),
    ("services", services),
    ("liveness", liveness),
    ("manifests", manifests),
    ("cluster_info", cluster_info),
    ("cidr", cidr),
    ("sample", sample),
];
