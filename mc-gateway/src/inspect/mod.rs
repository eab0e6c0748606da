//! `mc-gateway inspect`: the contents of the pinned maps, with names.
//!
//! *Guarantees*: writes nothing; works with and without a running agent. Counters are read one after the other, not
//! at one moment.

pub mod notation;
mod policies;
pub mod render;
pub mod section;
mod sections;
mod services;
pub mod snapshot;

use std::io;

use thiserror::Error;

use crate::config::{EncapFormat, Paths};
use crate::host::{HostError, aggregation, connect, features, tc_filter};
pub use render::{Format, Table};
use section::DEFAULT;
pub use section::Section;
pub(crate) use services::backend_location;
pub use snapshot::{Snapshot, SnapshotError};

/// A failed inspection.
#[derive(Debug, Error)]
pub enum InspectError {
    /// The pins cannot be read.
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

/// The text `inspect` prints.
pub async fn inspect(place: &Paths, sections: &[Section], format: Format) -> Result<String, InspectError> {
    let mut snapshot = Snapshot::read(place)?;
    let sections = if sections.is_empty() {
        &DEFAULT[..]
    } else {
        sections
    };
    if sections.contains(&Section::Config) || sections.contains(&Section::Underlay) {
        let handle = connect()?;
        snapshot.filters = tc_filter::observe(&handle).await?;
        let config = &snapshot.contents.config;
        let format = EncapFormat::from_config(config);
        let devices = snapshot.underlay_devices();
        let features = features::observe(&devices).await;
        snapshot.aggregation =
            aggregation::observe(&handle, &devices, &features, format, config.port).await?;
    }
    let tables: Vec<Table> = sections
        .iter()
        .map(|section| sections::table(*section, &snapshot))
        .collect();
    render::render(&tables, format).map_err(InspectError::Print)
}
