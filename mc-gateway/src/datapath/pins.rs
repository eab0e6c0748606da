//! Verification of pinned maps and programs: adopted if every property matches, rejected otherwise, never
//! reinterpreted.

use std::fmt;
use std::path::{Path, PathBuf};

use aya::maps::{Array, Map, MapData, MapError, MapInfo, MapType};
use aya::programs::ProgramInfo;
use mc_gateway_common::abi::{self, Addr, policy, prefix, service, transit};
use thiserror::Error;

use crate::config::FlowTableSize;

/// Maps whose entries the programs write for flows.
pub(super) const FLOW_TABLES: [&str; 3] = [service::FLOWS, service::REPLIES, service::FRAGMENTS];

/// A pin with other properties than this version gives it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "foreign pin {}: found {found}, expected {expected}; run `mc-gateway cleanup` of the version that made it, or use another --bpf-dir",
    .path.display()
)]
pub struct PinMismatch {
    /// The pin.
    pub path: PathBuf,
    /// Properties found.
    pub found: String,
    /// Properties expected.
    pub expected: String,
}

/// The properties of a map that must match.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MapSpec {
    kind: String,
    name: String,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

impl fmt::Display for MapSpec {
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

fn map_spec<K, V>(name: &str, kind: MapType, max_entries: u32) -> MapSpec {
    let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    MapSpec {
        kind: format!("{kind:?}"),
        name: name.to_owned(),
        key_size: size(size_of::<K>()),
        value_size: size(size_of::<V>()),
        max_entries,
    }
}

/// The maps of this version, the flow tables with their default sizes.
fn expected_specs() -> [MapSpec; abi::ALL_MAPS.len()] {
    use MapType::{Array, DevMapHash, Hash, LpmTrie, LruHash, PerCpuArray, PerCpuHash, RingBuf};
    use abi::service;
    [
        map_spec::<abi::PrefixKey, abi::Prefix>(abi::PREFIXES, Hash, abi::MAX_PREFIXES),
        map_spec::<u32, prefix::PrefixLengths>(prefix::PREFIX_LENS, Array, prefix::PREFIX_LENS_SLOTS),
        map_spec::<u32, u32>(prefix::PREFIX_GENERATION, Array, 1),
        map_spec::<u32, abi::NextHopGroup>(abi::NEXT_HOP_GROUPS, Array, abi::MAX_NEXT_HOP_GROUPS),
        map_spec::<u32, abi::NextHop>(abi::NEXT_HOPS, Array, abi::MAX_NEXT_HOPS),
        map_spec::<Addr, abi::Peer>(abi::PEERS, Hash, abi::MAX_PEERS),
        map_spec::<u32, abi::Config>(abi::CONFIG, Array, 1),
        map_spec::<u32, u64>(abi::DROPS, PerCpuArray, abi::MAX_DROP_REASONS),
        map_spec::<u32, abi::Counter>(abi::OUTCOMES, PerCpuArray, abi::MAX_OUTCOMES),
        map_spec::<u32, u64>(abi::EVENTS, PerCpuArray, abi::MAX_EVENTS),
        map_spec::<u32, abi::PeerStats>(abi::PEER_STATS, PerCpuArray, abi::MAX_PEER_STATS),
        map_spec::<u32, abi::liveness::ProbeSent>(abi::liveness::PROBE_SENT, Array, abi::MAX_NEXT_HOPS),
        map_spec::<u32, abi::liveness::ProbeReply>(abi::liveness::PROBE_REPLY, Array, abi::MAX_NEXT_HOPS),
        map_spec::<u32, abi::liveness::ProbeRtt>(abi::liveness::PROBE_RTT, Array, abi::MAX_NEXT_HOPS),
        map_spec::<u32, u64>(
            abi::kernel_decap::KERNEL_DECAP_TESTS,
            Hash,
            abi::kernel_decap::MAX_KERNEL_DECAP_TESTS,
        ),
        map_spec::<u32, abi::Epoch>(abi::EPOCH, Array, 1),
        map_spec::<(), ()>(abi::sample::DROP_SAMPLES, RingBuf, abi::sample::RING_BYTES),
        map_spec::<u32, abi::sample::SampleLimiter>(abi::sample::SAMPLE_LIMIT, PerCpuArray, 1),
        map_spec::<u32, abi::rate_limit::TokenBucket>(abi::rate_limit::ICMP_LIMIT, PerCpuArray, 1),
        map_spec::<service::ServiceKey, service::Service>(service::SERVICES, Hash, service::MAX_SERVICES),
        map_spec::<service::ServiceKey, service::Maglev>(service::MAGLEV, Hash, service::MAX_TABLES),
        map_spec::<u64, service::Backend>(service::BACKENDS, Hash, service::MAX_BACKENDS),
        map_spec::<service::FlowKey, service::Flow>(service::FLOWS, LruHash, service::MAX_FLOWS),
        map_spec::<service::ReplyKey, service::Reply>(service::REPLIES, LruHash, service::MAX_REPLIES),
        map_spec::<service::FragmentKey, service::Fragment>(
            service::FRAGMENTS,
            LruHash,
            service::MAX_FRAGMENTS,
        ),
        map_spec::<u32, transit::TransitDevice>(
            transit::TRANSIT_DEVICES,
            DevMapHash,
            transit::MAX_TRANSIT_DEVICES,
        ),
        map_spec::<u32, policy::PolicyState>(policy::POLICY_STATE, Array, 1),
        map_spec::<policy::PolicyPodKey, policy::PolicyPod>(
            policy::POLICY_PODS,
            Hash,
            policy::MAX_POLICY_PODS,
        ),
        map_spec::<u32, Addr>(policy::UNSELECTED_PODS, Array, policy::UNSELECTED_SLOTS),
        map_spec::<u32, policy::LabelIdentity>(policy::IDENTITIES, Array, policy::IDENTITY_SLOTS),
        map_spec::<policy::ExporterKey, u32>(policy::EXPORTERS, Hash, policy::MAX_EXPORTERS),
        map_spec::<[u8; 24], u32>(policy::ADDRESS_CLASSES, LpmTrie, policy::MAX_ADDRESS_CLASSES),
        map_spec::<policy::PeerRulesKey, policy::PeerRules>(policy::PEER_RULES, Hash, policy::MAX_PEER_RULES),
        map_spec::<[u8; 20], policy::Rule>(policy::POLICY_RULES, LpmTrie, policy::MAX_POLICY_RULES),
        map_spec::<service::ReplyKey, u64>(policy::POLICY_FLOWS, LruHash, policy::MAX_POLICY_FLOWS),
        map_spec::<u32, policy::RuleCounter>(policy::RULE_COUNTERS, PerCpuHash, policy::MAX_RULE_COUNTERS),
    ]
}

/// Start of every map's name.
pub(super) const PREFIX: &str = "mc_";

/// Checks every map of this version that is pinned in `dir`; one that is missing is fine. Flow tables have the given
/// size, or any.
pub(super) fn check_maps(dir: &Path, size: Option<FlowTableSize>) -> Result<(), PinMismatch> {
    for mut expected in expected_specs() {
        let path = dir.join(&expected.name);
        if !path.exists() {
            continue;
        }
        let found = read_spec(&path, &expected)?;
        if FLOW_TABLES.contains(&&*expected.name) {
            expected.max_entries = size.map_or(found.max_entries, |size| size.capacity(&expected.name));
        }
        compare(&path, &found, &expected)?;
    }
    Ok(())
}

/// Capacity of the pinned flow table `name` if it exists and has, apart from that, the properties of this version's.
pub(super) fn flow_table_capacity(path: &Path, name: &str) -> Result<Option<u32>, PinMismatch> {
    let specs = expected_specs();
    let Some(expected) = specs.iter().find(|spec| spec.name == name) else {
        return Ok(None);
    };
    if !path.exists() {
        return Ok(None);
    }
    let found = read_spec(path, expected)?;
    let same = MapSpec {
        max_entries: found.max_entries,
        ..expected.clone()
    };
    Ok((found == same).then_some(found.max_entries))
}

/// Checks a map of another version, of which only the name is known.
pub(super) fn check_name(path: &Path, name: &str) -> Result<(), PinMismatch> {
    // The kernel keeps 15 bytes of a name.
    let name = name.get(..15).unwrap_or(name);
    let expected = format!("a map named {name}");
    let foreign = |found: String| PinMismatch {
        path: path.to_owned(),
        found,
        expected: expected.clone(),
    };
    let info = MapInfo::from_pin(path).map_err(|error| {
        foreign(format!(
            "something that is not a map ({})",
            crate::error_chain(&error)
        ))
    })?;
    match info.name_as_str() {
        Some(found) if found == name && name.starts_with(PREFIX) => Ok(()),
        found => Err(foreign(format!("a map named {}", found.unwrap_or_default()))),
    }
}

/// Checks a pinned program of any version: its name equals the name of its pin.
pub(super) fn check_program(path: &Path, name: &str) -> Result<(), PinMismatch> {
    let found = match ProgramInfo::from_pin(path) {
        Ok(info) if info.name_as_str() == Some(name) => return Ok(()),
        Ok(info) => format!("a program named {}", info.name_as_str().unwrap_or_default()),
        Err(error) => format!("something that is not a program ({})", crate::error_chain(&error)),
    };
    Err(PinMismatch {
        path: path.to_owned(),
        found,
        expected: format!("a program named {name}"),
    })
}

fn read_spec(path: &Path, expected: &MapSpec) -> Result<MapSpec, PinMismatch> {
    let info = MapInfo::from_pin(path).map_err(|error| PinMismatch {
        path: path.to_owned(),
        found: format!("something that is not a map ({})", crate::error_chain(&error)),
        expected: expected.to_string(),
    })?;
    Ok(MapSpec {
        kind: info
            .map_type()
            .map_or_else(|_| "unknown".to_owned(), |kind| format!("{kind:?}")),
        name: info.name_as_str().unwrap_or_default().to_owned(),
        key_size: info.key_size(),
        value_size: info.value_size(),
        max_entries: info.max_entries(),
    })
}

fn compare(path: &Path, found: &MapSpec, expected: &MapSpec) -> Result<(), PinMismatch> {
    if found == expected {
        return Ok(());
    }
    Err(PinMismatch {
        path: path.to_owned(),
        found: found.to_string(),
        expected: expected.to_string(),
    })
}

/// Size of version 1's configuration in bytes; in every version it begins with the version's number.
const CONFIG_V1_LEN: usize = 84;

/// Checks the version in the configuration against the version of its directory. Before the first write it is 0.
pub(super) fn check_version(path: &Path, version: u32) -> Result<(), PinMismatch> {
    if !path.exists() {
        return Ok(());
    }
    let read = || match version {
        1 => first_word::<[u8; CONFIG_V1_LEN]>(path, |config| config.first_chunk().copied()),
        abi::ABI_VERSION => first_word::<abi::Config>(path, |config| Some(config.abi.to_ne_bytes())),
        // An unknown layout; its name is right and its directory states the version.
        _ => Ok(None),
    };
    let found = match read() {
        Ok(None | Some(0)) => return Ok(()),
        Ok(Some(found)) if found == version => return Ok(()),
        Ok(Some(found)) => format!("layout version {found}"),
        Err(error) => format!("a map that cannot be read ({})", crate::error_chain(&error)),
    };
    Err(PinMismatch {
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
        let names: Vec<String> = expected_specs().into_iter().map(|shape| shape.name).collect();
        assert_eq!(names, abi::ALL_MAPS);
    }

    #[test]
    fn each_property_that_differs_is_rejected_with_path_found_and_expected() {
        let path = Path::new("/sys/fs/bpf/x/maps/mc_peers");
        let good = map_spec::<Addr, abi::Peer>(abi::PEERS, MapType::Hash, abi::MAX_PEERS);
        assert_eq!(compare(path, &good, &good), Ok(()));
        let bad = [
            MapSpec {
                kind: "Array".into(),
                ..good.clone()
            },
            MapSpec {
                name: "other".into(),
                ..good.clone()
            },
            MapSpec {
                key_size: 4,
                ..good.clone()
            },
            MapSpec {
                value_size: 12,
                ..good.clone()
            },
            MapSpec {
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
