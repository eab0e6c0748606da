//! Migration between map layouts.
//!
//! The maps of layout version *n* are pinned in a directory of their own. An agent without a complete directory of
//! its version, or with another version's directory beside it, creates new maps under a provisional name and leaves
//! the others alone: the ordinary plan fills them and replaces the programs, one attachment at a time, and each
//! program has the whole desired state before and after. Then the new maps get their final name and the others are
//! removed. Flow tables of the same shape are shared by both layouts, so that no flow is lost, also none of those that
//! begin meanwhile; those of another size are copied. An incomplete directory of this version, or a complete one beside
//! another version's, leaves its flow tables to the new maps.
//!
//! *Guarantees*: at every moment, also when the agent is killed, attached programs use complete maps; maps under a
//! version's final name were complete once; foreign pins are never removed. The order of versions is irrelevant: a
//! roll-back is an upgrade.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::MapData;
use mc_gateway_common::abi;
use tracing::info;

use super::error::{DatapathError, remove_pin};
use super::flow_tables::OldTables;
use super::pins::{self, FLOW_TABLES};
use crate::config::FlowTableSize;

/// Suffix of the directory of maps that no program uses yet.
const PROVISIONAL: &str = "-new";

/// The maps of this agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MapDir {
    /// The pin directory.
    root: PathBuf,
    /// Whether the directory has its final name.
    complete: bool,
}

impl MapDir {
    /// Selects the maps below `root` to adopt, or prepares a directory for new ones. Foreign pins are rejected and
    /// left alone.
    pub(super) fn select(root: &Path) -> Result<Self, DatapathError> {
        let found = version_dirs(root)?;
        for directory in &found {
            directory.check(root)?;
        }
        let own = |directory: &VersionDir| directory.version == abi::ABI_VERSION && !directory.provisional;
        let others = found
            .iter()
            .any(|directory| !own(directory) && !directory.provisional);
        let complete = !others
            && found
                .iter()
                .any(|directory| own(directory) && directory.pins.len() == abi::ALL_MAPS.len());
        if complete {
            // An earlier agent was killed before its new flow tables were complete.
            for directory in found.iter().filter(|directory| directory.provisional) {
                directory.remove(root)?;
            }
        } else {
            for directory in &found {
                if directory.version == abi::ABI_VERSION {
                    info!(pins = %directory.path(root).display(), "incomplete maps removed");
                    directory.keep_flow_tables(root)?;
                } else if !directory.provisional {
                    info!(
                        from = directory.version,
                        to = abi::ABI_VERSION,
                        "migrating maps to another layout"
                    );
                }
            }
        }
        Ok(Self {
            root: root.to_owned(),
            complete,
        })
    }

    /// Directory of the pinned maps.
    pub(super) fn path(&self) -> PathBuf {
        self.root.join(dir_name(abi::ABI_VERSION, !self.complete))
    }

    /// Before a migration: pins the flow tables of other layouts in the new directory, if they have the shape of this
    /// layout. Attached programs keep using them, and the new ones will. Returns the tables of another size.
    pub(super) fn share_flow_tables(&self, size: FlowTableSize) -> Result<OldTables, DatapathError> {
        let mut others = OldTables::default();
        if self.complete {
            self.replace_flow_tables(size, &mut others)?;
            return Ok(others);
        }
        let found = version_dirs(&self.root)?;
        for name in FLOW_TABLES {
            let to = self.path().join(name);
            // The latest version first, then the tables of a killed agent.
            let complete = found.iter().rev().filter(|directory| !directory.provisional);
            let complete = complete.map(|directory| directory.path(&self.root).join(name));
            for from in complete.chain([to.clone()]) {
                let Some(capacity) = pins::flow_table_capacity(&from, name)? else {
                    continue;
                };
                let same = capacity == size.capacity(name);
                if same && from == to {
                    break;
                }
                let map = MapData::from_pin(&from).map_err(|source| DatapathError::Load(source.into()))?;
                if to.exists() {
                    remove_pin(&to)?;
                }
                if same {
                    map.pin(&to).map_err(|source| DatapathError::Pin {
                        path: to.clone(),
                        source,
                    })?;
                } else {
                    others.add_map(name, map);
                }
                break;
            }
        }
        Ok(others)
    }

    /// Without a migration: prepares new flow tables in place of those of another size.
    fn replace_flow_tables(&self, size: FlowTableSize, others: &mut OldTables) -> Result<(), DatapathError> {
        let provisional = self.root.join(dir_name(abi::ABI_VERSION, true));
        for name in FLOW_TABLES {
            let pin = self.path().join(name);
            if pins::flow_table_capacity(&pin, name)?.is_some_and(|capacity| capacity != size.capacity(name))
            {
                fs::create_dir_all(&provisional).map_err(|source| DatapathError::Io {
                    path: provisional.clone(),
                    source,
                })?;
                others.add(name, &pin)?;
                others.rename_later(provisional.join(name), pin);
            }
        }
        Ok(())
    }

    /// Completes a migration: gives the new maps their final name and removes those of other versions.
    pub(super) fn commit(&mut self) -> Result<(), DatapathError> {
        if self.complete {
            return Ok(());
        }
        let from = self.path();
        let to = self.root.join(dir_name(abi::ABI_VERSION, false));
        fs::rename(&from, &to).map_err(|source| DatapathError::Io { path: from, source })?;
        self.complete = true;
        for directory in version_dirs(&self.root)? {
            if directory.version != abi::ABI_VERSION || directory.provisional {
                directory.remove(&self.root)?;
                info!(version = directory.version, "maps of another layout removed");
            }
        }
        Ok(())
    }
}

/// The verified maps of this version below `root` for a reader, else the versions found.
pub(crate) fn find(root: &Path) -> Result<Result<PathBuf, Vec<u32>>, DatapathError> {
    let found = version_dirs(root)?;
    // The complete ones come first.
    for directory in &found {
        if directory.version == abi::ABI_VERSION && directory.pins.len() == abi::ALL_MAPS.len() {
            directory.check(root)?;
            return Ok(Ok(directory.path(root)));
        }
    }
    Ok(Err(found.iter().map(|directory| directory.version).collect()))
}

/// Name of the directory with the maps of a version; version 1 has none in it.
fn dir_name(version: u32, provisional: bool) -> String {
    let name = match version {
        1 => "maps".to_owned(),
        version => format!("maps-v{version}"),
    };
    if provisional { name + PROVISIONAL } else { name }
}

/// Version and provisional state from a directory's name.
fn parse_dir_name(text: &str) -> Option<(u32, bool)> {
    let (complete, provisional) = match text.strip_suffix(PROVISIONAL) {
        Some(complete) => (complete, true),
        None => (text, false),
    };
    let version = match complete.strip_prefix("maps")? {
        "" => 1,
        version => version.strip_prefix("-v")?.parse().ok()?,
    };
    (dir_name(version, provisional) == text).then_some((version, provisional))
}

/// A non-empty directory of maps.
#[derive(Clone, Debug, PartialEq, Eq)]
struct VersionDir {
    version: u32,
    provisional: bool,
    /// Names of the pins.
    pins: Vec<String>,
}

impl VersionDir {
    fn path(&self, root: &Path) -> PathBuf {
        root.join(dir_name(self.version, self.provisional))
    }

    fn check(&self, root: &Path) -> Result<(), DatapathError> {
        let path = self.path(root);
        if self.version == abi::ABI_VERSION {
            pins::check_maps(&path, None)?;
        } else {
            for pin in &self.pins {
                pins::check_name(&path.join(pin), pin)?;
            }
        }
        pins::check_version(&path.join(abi::CONFIG), self.version)?;
        Ok(())
    }

    /// Removes the pins of a directory of this version and moves its flow tables to the provisional directory. At every
    /// moment a pin holds them: the agent may be killed.
    fn keep_flow_tables(&self, root: &Path) -> Result<(), DatapathError> {
        let to = root.join(dir_name(self.version, true));
        let io_error = |path: &Path| {
            let path = path.to_owned();
            move |source| DatapathError::Io { path, source }
        };
        let (kept, others): (Vec<_>, Vec<_>) = self
            .pins
            .iter()
            .cloned()
            .partition(|pin| FLOW_TABLES.contains(&pin.as_str()));
        if !self.provisional && !kept.is_empty() {
            fs::create_dir_all(&to).map_err(io_error(&to))?;
            for pin in &kept {
                let from = self.path(root).join(pin);
                fs::rename(&from, to.join(pin)).map_err(io_error(&from))?;
            }
        }
        let rest = Self {
            pins: others,
            ..self.clone()
        };
        rest.remove(root)?;
        Ok(())
    }

    /// Removes the agent's pins, and the directory if it is empty then.
    fn remove(&self, root: &Path) -> Result<usize, DatapathError> {
        let path = self.path(root);
        let mut removed: usize = 0;
        for pin in self.pins.iter().filter(|pin| pin.starts_with(pins::PREFIX)) {
            remove_pin(&path.join(pin))?;
            removed = removed.saturating_add(1);
        }
        match fs::remove_dir(&path) {
            Err(source)
                if !matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
                ) =>
            {
                Err(DatapathError::Io { path, source })
            }
            _ => Ok(removed),
        }
    }
}

/// The non-empty directories of maps below the pin directory.
fn version_dirs(root: &Path) -> Result<Vec<VersionDir>, DatapathError> {
    let mut found = Vec::new();
    for text in entries(root)? {
        let Some((version, provisional)) = parse_dir_name(&text) else {
            continue;
        };
        let pins = entries(&root.join(&text))?;
        if !pins.is_empty() {
            found.push(VersionDir {
                version,
                provisional,
                pins,
            });
        }
    }
    found.sort_by_key(|directory| (directory.version, directory.provisional));
    Ok(found)
}

fn entries(path: &Path) -> Result<Vec<String>, DatapathError> {
    let failed = |source| DatapathError::Io {
        path: path.to_owned(),
        source,
    };
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        result => result.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Removes the maps of every version; for `cleanup`.
pub(crate) fn remove_all(root: &Path) -> Result<usize, DatapathError> {
    let mut removed: usize = 0;
    for directory in version_dirs(root)? {
        removed = removed.saturating_add(directory.remove(root)?);
    }
    for text in entries(root)?
        .iter()
        .filter(|text| parse_dir_name(text).is_some())
    {
        // Only empty ones go.
        drop(fs::remove_dir(root.join(text)));
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mc_gateway_common::abi::service;

    use super::*;

    #[test]
    fn the_agreed_name_is_this_versions() {
        assert_eq!(dir_name(abi::ABI_VERSION, false), abi::MAPS_DIR);
    }

    #[test]
    fn names_contain_version_and_state() {
        for (text, want) in [
            ("maps", Some((1, false))),
            ("maps-v2", Some((2, false))),
            ("maps-v2-new", Some((2, true))),
            ("maps-v03", None),
            ("maps-v1", None),
            ("maps-old", None),
            ("links", None),
        ] {
            assert_eq!(parse_dir_name(text), want, "{text}");
        }
    }

    /// Open connections to Services ended with the tables, which only attached programs held.
    #[test]
    fn removed_maps_of_this_version_leave_their_flow_tables() {
        let root = tempfile::tempdir().unwrap();
        let names =
            |provisional| entries(&root.path().join(dir_name(abi::ABI_VERSION, provisional))).unwrap();
        for (provisional, content) in [(true, "older"), (false, "newer")] {
            let dir = root.path().join(dir_name(abi::ABI_VERSION, provisional));
            fs::create_dir_all(&dir).unwrap();
            for name in [abi::CONFIG, service::FLOWS, abi::PEERS] {
                fs::write(dir.join(name), content).unwrap();
            }
        }
        let found = version_dirs(root.path()).unwrap();
        assert_eq!(found.len(), 2);
        for directory in found {
            directory.keep_flow_tables(root.path()).unwrap();
        }
        assert_eq!(
            (names(true), names(false)),
            (vec![service::FLOWS.to_owned()], vec![])
        );
        let kept = root
            .path()
            .join(dir_name(abi::ABI_VERSION, true))
            .join(service::FLOWS);
        assert_eq!(
            fs::read_to_string(kept).unwrap(),
            "newer",
            "programs use the complete maps"
        );
    }

    /// The README named the directory of an older layout, and its commands failed.
    #[test]
    fn the_readme_names_the_directory_of_this_layout() {
        let readme = include_str!("../../../README.md");
        let is_separator = |c: char| !c.is_ascii_alphanumeric() && c != '-';
        let named: BTreeSet<&str> = readme
            .split(is_separator)
            .filter(|word| word.starts_with("maps-v"))
            .collect();
        assert_eq!(named, [abi::MAPS_DIR].into());
    }

    #[test]
    fn maps_get_their_name_once_and_others_go_then() {
        let root = tempfile::tempdir().unwrap();
        let pin = |dir: &str, pin: &str| {
            fs::create_dir_all(root.path().join(dir)).unwrap();
            fs::write(root.path().join(dir).join(pin), "").unwrap();
        };
        pin("maps", "mc_config");
        pin("maps-v8-new", "mc_config");
        pin(&dir_name(abi::ABI_VERSION, true), "mc_config");
        let mut generation = MapDir {
            root: root.path().to_owned(),
            complete: false,
        };
        assert!(generation.path().ends_with(dir_name(abi::ABI_VERSION, true)));
        generation.commit().unwrap();
        assert_eq!(entries(root.path()).unwrap(), [abi::MAPS_DIR]);
        assert!(generation.path().join("mc_config").exists());
        // A later commit removes no directory.
        pin("maps", "mc_config");
        generation.commit().unwrap();
        assert!(root.path().join("maps").exists());
        pin("maps-v9", "foreign");
        assert_eq!(remove_all(root.path()).unwrap(), 2);
        assert_eq!(entries(root.path()).unwrap(), ["maps-v9"]);
    }
}
