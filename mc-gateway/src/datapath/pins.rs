//! Whether pinned maps are ours: taken over when every property matches, refused otherwise, never reinterpreted.

use std::fmt;
use std::path::{Path, PathBuf};

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, Map, MapData, MapInfo, MapType};
use mc_gateway_common::abi::{self, Addr};
use thiserror::Error;

/// A pin that is not what this version would have made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "foreign pin {}: found {found}, expected {expected}; run `mc-gateway cleanup` of the version that made it, or use another --bpf-dir",
    .path.display()
)]
pub struct ForeignPin {
    /// The pin.
    pub path: PathBuf,
    /// What it is.
    pub found: String,
    /// What it should be.
    pub expected: String,
}

/// The properties of a map that must match.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    kind: String,
    name: String,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            name,
            key_size,
            value_size,
            max_entries,
        } = self;
        write!(
            f,
            "map {name} of type {kind}, key {key_size} bytes, value {value_size} bytes, {max_entries} entries"
        )
    }
}

fn shape<K, V>(name: &str, kind: MapType, max_entries: u32) -> Shape {
    let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    Shape {
        kind: format!("{kind:?}"),
        name: name.to_owned(),
        key_size: size(size_of::<K>()),
        value_size: size(size_of::<V>()),
        max_entries,
    }
}

/// What this version makes.
fn expected() -> [Shape; abi::ALL_MAPS.len()] {
    use MapType::{Array, Hash, LpmTrie, PerCpuArray};
    [
        shape::<Key<Addr>, abi::Prefix>(abi::PREFIXES, LpmTrie, abi::MAX_PREFIXES),
        shape::<u32, abi::Group>(abi::GROUPS, Array, abi::MAX_GROUPS),
        shape::<u32, abi::Member>(abi::MEMBERS, Array, abi::MAX_MEMBERS),
        shape::<Addr, abi::Peer>(abi::PEERS, Hash, abi::MAX_PEERS),
        shape::<u32, abi::Config>(abi::CONFIG, Array, 1),
        shape::<u32, u64>(abi::DROPS, PerCpuArray, abi::MAX_DROP_REASONS),
        shape::<u32, abi::Counter>(abi::PATHS, PerCpuArray, abi::MAX_PATHS),
        shape::<u32, u64>(abi::EVENTS, PerCpuArray, abi::MAX_EVENTS),
        shape::<u32, abi::health::Sent>(abi::health::SENT, Array, abi::MAX_MEMBERS),
        shape::<u32, abi::health::Seen>(abi::health::SEEN, Array, abi::MAX_MEMBERS),
        shape::<u32, abi::health::Rtt>(abi::health::RTT, Array, abi::MAX_MEMBERS),
    ]
}

/// Checks every map that is pinned in `dir`; one that is missing is fine.
pub(super) fn check(dir: &Path) -> Result<(), ForeignPin> {
    for expected in expected() {
        let path = dir.join(&expected.name);
        if path.exists() {
            compare(&path, &read(&path, &expected)?, &expected)?;
        }
    }
    let path = dir.join(abi::CONFIG);
    if path.exists() { check_abi(&path) } else { Ok(()) }
}

fn read(path: &Path, expected: &Shape) -> Result<Shape, ForeignPin> {
    let info = MapInfo::from_pin(path).map_err(|error| ForeignPin {
        path: path.to_owned(),
        found: format!("something that is not a map ({})", crate::chain(&error)),
        expected: expected.to_string(),
    })?;
    Ok(Shape {
        kind: info
            .map_type()
            .map_or_else(|_| "unknown".to_owned(), |kind| format!("{kind:?}")),
        name: info.name_as_str().unwrap_or_default().to_owned(),
        key_size: info.key_size(),
        value_size: info.value_size(),
        max_entries: info.max_entries(),
    })
}

fn compare(path: &Path, found: &Shape, expected: &Shape) -> Result<(), ForeignPin> {
    if found == expected {
        return Ok(());
    }
    Err(ForeignPin {
        path: path.to_owned(),
        found: found.to_string(),
        expected: expected.to_string(),
    })
}

/// A configuration that was never written says 0; any other number than ours is another layout.
fn check_abi(path: &Path) -> Result<(), ForeignPin> {
    let read = || {
        let map = Map::from_map_data(MapData::from_pin(path)?)?;
        Array::<MapData, abi::Config>::try_from(map)?.get(&0, 0)
    };
    let found = match read() {
        Ok(config) if config.abi == 0 || config.abi == abi::ABI_VERSION => return Ok(()),
        Ok(config) => format!("layout version {}", config.abi),
        Err(error) => format!("a map that cannot be read ({})", crate::chain(&error)),
    };
    Err(ForeignPin {
        path: path.to_owned(),
        found,
        expected: format!("layout version {}", abi::ABI_VERSION),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_is_checked() {
        let names: Vec<String> = expected().into_iter().map(|shape| shape.name).collect();
        assert_eq!(names, abi::ALL_MAPS);
    }

    #[test]
    fn each_property_that_differs_is_refused_with_path_found_and_expected() {
        let path = Path::new("/sys/fs/bpf/x/maps/mc_peers");
        let good = shape::<Addr, abi::Peer>(abi::PEERS, MapType::Hash, abi::MAX_PEERS);
        assert_eq!(compare(path, &good, &good), Ok(()));
        let bad = [
            Shape {
                kind: "Array".into(),
                ..good.clone()
            },
            Shape {
                name: "other".into(),
                ..good.clone()
            },
            Shape {
                key_size: 4,
                ..good.clone()
            },
            Shape {
                value_size: 12,
                ..good.clone()
            },
            Shape {
                max_entries: 1,
                ..good.clone()
            },
        ];
        for found in bad {
            let error = compare(path, &found, &good).unwrap_err().to_string();
            assert!(
                error.contains("foreign pin /sys/fs/bpf/x/maps/mc_peers"),
                "{error}"
            );
            assert!(
                error.contains(&format!("found {found}, expected {good}")),
                "{error}"
            );
        }
    }
}
