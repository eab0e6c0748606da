//! Pins of a later map layout, from which an agent migrates.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use mc_gateway_common::abi::{self, service};

use crate::fixture;

/// Flow tables, which a migration keeps.
const FLOW_TABLES: [&str; 3] = [service::FLOWS, service::REPLIES, service::FRAGMENTS];

/// The map directory of a later layout below the pins of an agent.
#[must_use]
pub fn later_dir(root: &Path) -> PathBuf {
    root.join(format!("maps-v{}", abi::ABI_VERSION + 1))
}

/// Renames the map directory of a stopped agent to that of a later layout, which keeps its flow tables: the next agent
/// migrates. The attached programs keep their maps.
pub fn make_later_layout(root: &Path) -> Result<()> {
    let (own, later) = (root.join(abi::MAPS_DIR), later_dir(root));
    fs::rename(&own, &later).context("rename")?;
    for entry in fs::read_dir(&later)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !FLOW_TABLES.contains(&&*name) {
            fs::remove_file(&path).context("unpin")?;
        }
    }
    pin_version(&later)
}

/// Pins a configuration of a later layout. The first field of the configuration is the version in every layout.
pub fn pin_version(later: &Path) -> Result<()> {
    fs::create_dir_all(later).context("a directory")?;
    let pin = later.join(abi::CONFIG);
    let pin = pin.to_string_lossy();
    fixture::bpftool(&[
        "map",
        "create",
        &pin,
        "type",
        "array",
        "key",
        "4",
        "value",
        "8",
        "entries",
        "1",
        "name",
        abi::CONFIG,
    ]);
    let version = (abi::ABI_VERSION + 1).to_string();
    let zeros = ["0"; 7];
    let mut args = vec![
        "map", "update", "pinned", &pin, "key", "0", "0", "0", "0", "value", &version,
    ];
    args.extend(zeros);
    fixture::bpftool(&args);
    Ok(())
}
