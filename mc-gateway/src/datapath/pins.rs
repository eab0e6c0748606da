//! Whether pinned maps are ours: taken over when every property matches, refused otherwise, never reinterpreted.

use std::fmt;
use std::path::{Path, PathBuf};

use aya::maps::lpm_trie::Key;
use aya::maps::{Array, Map, MapData, MapError, MapInfo, MapType};
use aya::programs::ProgramInfo;
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
    use MapType::{Array, Hash, LpmTrie, LruHash, PerCpuArray, RingBuf};
    use abi::service;
    [
        shape::<Key<Addr>, abi::Prefix>(abi::PREFIXES, LpmTrie, abi::MAX_PREFIXES),
        shape::<u32, abi::Group>(abi::GROUPS, Array, abi::MAX_GROUPS),
        shape::<u32, abi::Member>(abi::MEMBERS, Array, abi::MAX_MEMBERS),
        shape::<Addr, abi::Peer>(abi::PEERS, Hash, abi::MAX_PEERS),
        shape::<u32, abi::Config>(abi::CONFIG, Array, 1),
        shape::<u32, u64>(abi::DROPS, PerCpuArray, abi::MAX_DROP_REASONS),
        shape::<u32, abi::Counter>(abi::PATHS, PerCpuArray, abi::MAX_PATHS),
        shape::<u32, u64>(abi::EVENTS, PerCpuArray, abi::MAX_EVENTS),
        shape::<u32, abi::Traffic>(abi::TRAFFIC, PerCpuArray, abi::MAX_TRAFFIC),
        shape::<u32, abi::health::Sent>(abi::health::SENT, Array, abi::MAX_MEMBERS),
        shape::<u32, abi::health::Seen>(abi::health::SEEN, Array, abi::MAX_MEMBERS),
        shape::<u32, abi::health::Rtt>(abi::health::RTT, Array, abi::MAX_MEMBERS),
        shape::<u32, u32>(abi::EPOCH, Array, 1),
        shape::<(), ()>(abi::sample::SAMPLES, RingBuf, abi::sample::RING_BYTES),
        shape::<u32, abi::sample::Gate>(abi::sample::SAMPLE_GATE, PerCpuArray, 1),
        shape::<u32, abi::limit::Bucket>(abi::limit::ICMP_LIMIT, PerCpuArray, 1),
        shape::<service::ServiceKey, service::Service>(service::SERVICES, Hash, service::MAX_SERVICES),
        shape::<service::ServiceKey, service::Maglev>(service::MAGLEV, Hash, service::MAX_SERVICES),
        shape::<u64, service::Backend>(service::BACKENDS, Hash, service::MAX_BACKENDS),
        shape::<service::FlowKey, service::Flow>(service::FLOWS, LruHash, service::MAX_FLOWS),
        shape::<service::ReplyKey, service::Reply>(service::REPLIES, LruHash, service::MAX_REPLIES),
        shape::<service::FragmentKey, service::Fragment>(service::FRAGMENTS, LruHash, service::MAX_FRAGMENTS),
    ]
}

/// Start of every map's name.
pub(super) const PREFIX: &str = "mc_";

/// Checks every map of this version that is pinned in `dir`; one that is missing is fine.
pub(super) fn check(dir: &Path) -> Result<(), ForeignPin> {
    for expected in expected() {
        let path = dir.join(&expected.name);
        if path.exists() {
            compare(&path, &read(&path, &expected)?, &expected)?;
        }
    }
    Ok(())
}

/// Checks a map of another version: all that is known of it is its name.
pub(super) fn check_name(path: &Path, name: &str) -> Result<(), ForeignPin> {
    // The kernel keeps 15 bytes of a name.
    let name = name.get(..15).unwrap_or(name);
    let expected = format!("a map named {name}");
    let foreign = |found: String| ForeignPin {
        path: path.to_owned(),
        found,
        expected: expected.clone(),
    };
    let info = MapInfo::from_pin(path)
        .map_err(|error| foreign(format!("something that is not a map ({})", crate::chain(&error))))?;
    match info.name_as_str() {
        Some(found) if found == name && name.starts_with(PREFIX) => Ok(()),
        found => Err(foreign(format!("a map named {}", found.unwrap_or_default()))),
    }
}

/// Checks a pinned program: whatever version, it has the name of its pin.
pub(super) fn check_program(path: &Path, name: &str) -> Result<(), ForeignPin> {
    let found = match ProgramInfo::from_pin(path) {
        Ok(info) if info.name_as_str() == Some(name) => return Ok(()),
        Ok(info) => format!("a program named {}", info.name_as_str().unwrap_or_default()),
        Err(error) => format!("something that is not a program ({})", crate::chain(&error)),
    };
    Err(ForeignPin {
        path: path.to_owned(),
        found,
        expected: format!("a program named {name}"),
    })
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

/// Size of version 1's configuration in bytes; in every version it begins with the version's number.
const CONFIG_V1: usize = 84;

/// Checks that the configuration was written by the version whose directory it is in. One that was never
/// written says 0.
pub(super) fn check_version(path: &Path, version: u32) -> Result<(), ForeignPin> {
    if !path.exists() {
        return Ok(());
    }
    let read = || match version {
        1 => first_word::<[u8; CONFIG_V1]>(path, |config| config.first_chunk().copied()),
        abi::ABI_VERSION => first_word::<abi::Config>(path, |config| Some(config.abi.to_ne_bytes())),
        // A layout we do not know. Its name is right, and its directory says which one it is.
        _ => Ok(None),
    };
    let found = match read() {
        Ok(None | Some(0)) => return Ok(()),
        Ok(Some(found)) if found == version => return Ok(()),
        Ok(Some(found)) => format!("layout version {found}"),
        Err(error) => format!("a map that cannot be read ({})", crate::chain(&error)),
    };
    Err(ForeignPin {
        path: path.to_owned(),
        found,
        expected: format!("layout version {version}"),
    })
}

fn first_word<C: aya::Pod>(path: &Path, word: fn(&C) -> Option<[u8; 4]>) -> Result<Option<u32>, MapError> {
    let map = Map::from_map_data(MapData::from_pin(path)?)?;
    let config = Array::<MapData, C>::try_from(map)?.get(&0, 0)?;
    Ok(word(&config).map(u32::from_ne_bytes))
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
