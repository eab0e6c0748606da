//! `mc-gateway inspect`: what the pinned maps hold, with names.
//!
//! *Guarantees*: nothing is written; the same with and without a running agent. Numbers that change under
//! traffic are read one after the other, not at one moment.

mod render;
mod sections;
mod services;
pub mod snapshot;

use std::io;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use thiserror::Error;

use crate::config::Paths;
use crate::host::{HostError, connect, tc_filter};
use crate::preflight::bpffs_path;
pub use render::{Format, Table};
pub(crate) use sections::{action_name, nexthop_slots, role_names};
pub(crate) use services::{backend_location, format_endpoint};
pub use snapshot::{Snapshot, SnapshotError};

/// Part of the data path's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// Every map with entries and capacity.
    Tables,
    /// Address prefixes and where they lead.
    Prefixes,
    /// Groups of nodes that can take a packet.
    Groups,
    /// Those nodes: path, liveness, round-trip time.
    Members,
    /// Nodes packets are accepted from.
    Peers,
    /// Exported Services with the Pods behind them.
    Services,
    /// Flows to Services, at the gateway that chose and at the Pod's node.
    Flows,
    /// The node's own settings, programs and devices.
    Config,
    /// Packets by path, drops by reason, events.
    Counters,
}

/// What is printed where nothing is chosen: everything that fits a screen on most nodes.
const DEFAULT: [Section; 6] = [
    Section::Config,
    Section::Tables,
    Section::Prefixes,
    Section::Members,
    Section::Peers,
    Section::Counters,
];

/// Why nothing is printed.
#[derive(Debug, Error)]
pub enum InspectError {
    /// The pins.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The filters.
    #[error(transparent)]
    Host(#[from] HostError),
    /// No netlink connection.
    #[error("netlink: {0}")]
    Netlink(#[from] io::Error),
    /// JSON or YAML.
    #[error("print: {0}")]
    Print(String),
}

/// Where the pins are, as the agent makes it of the same flag.
#[must_use]
pub fn pin_dir(place: &Paths) -> PathBuf {
    bpffs_path(&place.bpf_dir, Path::exists)
}

/// The text `inspect` prints.
pub async fn inspect(place: &Paths, sections: &[Section], format: Format) -> Result<String, InspectError> {
    let mut snapshot = Snapshot::read(place)?;
    let sections = if sections.is_empty() {
        &DEFAULT[..]
    } else {
        sections
    };
    if sections.contains(&Section::Config) {
        snapshot.filters = tc_filter::observe(&connect()?).await?;
    }
    let tables: Vec<Table> = sections
        .iter()
        .map(|section| sections::table(*section, &snapshot))
        .collect();
    render::render(&tables, format).map_err(InspectError::Print)
}
