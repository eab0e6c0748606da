//! Flow tables of another size, kept across a change of `--flow-table-size` and of the map layout.
//!
//! *Guarantees*: an entry of the table in use when the programs are loaded, or added until they are attached, is in the
//! new table, as far as it has room. A pin below its final name is a table of the requested size.

use std::path::{Path, PathBuf};
use std::{fmt, fs};

use aya::Pod;
use aya::maps::{HashMap, Map, MapData, MapError};
use mc_gateway_common::abi::service::{
    FLOWS, Flow, FlowKey, Fragment, FragmentKey, REPLIES, Reply, ReplyKey,
};
use tracing::info;

use super::error::DatapathError;

/// Flag of an insertion: the entry of a flow is not replaced (`BPF_NOEXIST`).
const NO_EXIST: u64 = 1;

/// Copies the entries that a new table lacks and returns their number.
type Copier = Box<dyn FnMut() -> Result<u32, MapError> + Send>;

/// The tables that this agent replaces, by name.
#[derive(Default)]
pub(super) struct OldTables {
    tables: Vec<(&'static str, MapData)>,
    /// Pins of new tables until they are filled, and their final names.
    renames: Vec<(PathBuf, PathBuf)>,
    copiers: Vec<(&'static str, Copier)>,
}

impl fmt::Debug for OldTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.copiers.iter().map(|(name, _)| name))
            .finish()
    }
}

impl OldTables {
    /// Adds the table pinned at `path`.
    pub(super) fn add(&mut self, name: &'static str, path: &Path) -> Result<(), DatapathError> {
        self.add_map(name, MapData::from_pin(path).map_err(failed(name))?);
        Ok(())
    }

    /// Adds an open table.
    pub(super) fn add_map(&mut self, name: &'static str, map: MapData) {
        self.tables.push((name, map));
    }

    /// The new table is pinned at `from` until it is filled, and replaces the pin `to` then.
    pub(super) fn rename_later(&mut self, from: PathBuf, to: PathBuf) {
        self.renames.push((from, to));
    }

    /// Pin of the table with the final name `to` until it is filled.
    pub(super) fn provisional<'p>(&'p self, to: &'p Path) -> &'p Path {
        let mut renames = self.renames.iter();
        renames
            .find(|(_, name)| name == to)
            .map_or(to, |(from, _)| from.as_path())
    }

    /// Fills the new tables in `dir` and gives their pins the final names.
    pub(super) fn fill(&mut self, dir: &Path) -> Result<(), DatapathError> {
        for (name, old) in std::mem::take(&mut self.tables) {
            let pin = dir.join(name);
            let new = MapData::from_pin(self.provisional(&pin)).map_err(failed(name))?;
            let copier = match name {
                FLOWS => copier::<FlowKey, Flow>(old, new),
                REPLIES => copier::<ReplyKey, Reply>(old, new),
                _ => copier::<FragmentKey, Fragment>(old, new),
            };
            self.copiers.push((name, copier.map_err(failed(name))?));
        }
        self.copy()?;
        for (from, to) in self.renames.drain(..) {
            fs::rename(&from, &to).map_err(|source| DatapathError::Io {
                path: from.clone(),
                source,
            })?;
            if let Some(dir) = from.parent() {
                // Removed with its last pin.
                drop(fs::remove_dir(dir));
            }
        }
        Ok(())
    }

    /// Copies the entries that the old programs have added since [`Self::fill`], once the new ones are attached.
    pub(super) fn finish(&mut self) -> Result<(), DatapathError> {
        self.copy()?;
        self.copiers.clear();
        Ok(())
    }

    fn copy(&mut self) -> Result<(), DatapathError> {
        for (name, copier) in &mut self.copiers {
            let entries = copier().map_err(failed(name))?;
            info!(map = name, entries, "flow table copied");
        }
        Ok(())
    }
}

fn failed(name: &'static str) -> impl Fn(MapError) -> DatapathError {
    move |source| DatapathError::FlowTable { name, source }
}

fn copier<K: Pod + Send, V: Pod + Send>(old: MapData, new: MapData) -> Result<Copier, MapError> {
    let capacity = usize::try_from(old.info()?.max_entries()).unwrap_or(usize::MAX);
    let old: HashMap<MapData, K, V> = Map::from_map_data(old)?.try_into()?;
    let mut new: HashMap<MapData, K, V> = Map::from_map_data(new)?.try_into()?;
    Ok(Box::new(move || {
        let mut copied: u32 = 0;
        // The eviction of the current key restarts an iteration.
        for entry in old.iter().take(capacity) {
            let (key, value) = entry?;
            // A failure is an entry that the new programs have made, or a flow that starts again.
            copied = copied.saturating_add(u32::from(new.insert(key, value, NO_EXIST).is_ok()));
        }
        Ok(copied)
    }))
}
