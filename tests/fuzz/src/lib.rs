//! Fuzz targets: bytes in, a panic where a property does not hold.
//!
//! `cargo xtask test --suite fuzz` runs them under libFuzzer; `tests/corpus.rs` replays what is kept in
//! `corpus/`, without libFuzzer.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::missing_panics_doc,
    reason = "a target finds by panicking, and reads frames it has checked the length of"
)]

mod agent;
mod datapath;
mod draft;
mod frame;
mod input;
mod liveness;
#[path = "../../tests/datapath/packets.rs"]
mod packets;
mod services;
#[expect(dead_code, reason = "the suites `datapath` and `differential` use the rest")]
#[path = "../../tests/datapath/world.rs"]
mod world;

pub use agent::{cidr, cluster_info, manifests, sample};
pub use datapath::{from_underlay, to_remote, too_big};
pub use liveness::liveness;
pub use services::services;

/// A target.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also the name of its corpus and of its program.
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
