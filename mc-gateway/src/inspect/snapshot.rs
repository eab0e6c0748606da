//! One reading of everything that the pinned maps of a node hold.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use mc_gateway_common::abi;
use mc_gateway_common::abi::PeerStats;
use mc_gateway_common::abi::policy::RuleCounter;
use mc_gateway_common::maps::MemoryMaps;
use mc_gateway_common::maps::service::ServiceMaps;
use thiserror::Error;

use crate::aggregation::Aggregation;
use crate::clock::monotonic_ns;
use crate::config::Paths;
use crate::datapath::{DatapathError, map_migration, pinned_links, transit_links};
use crate::host::tc_filter::Filter;
use crate::id_names::IdNames;
use crate::maps::{
    CounterMaps, Counters, FlowMaps, FlowState, LivenessMaps, MapContents, MapsError, NextHopHealth,
    PeerCounterMap, PinnedMaps, RuleCounterMap,
};
use crate::plan::Program;
use crate::preflight::bpffs_path;

/// A failed reading of the maps.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The directory has no maps of this version.
    #[error(
        "--bpf-dir {}: {reason}; check that mc-gateway runs on this node with this --bpf-dir",
        .dir.display()
    )]
    NoPins {
        /// The directory.
        dir: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Pins of another program or another version.
    #[error(transparent)]
    Foreign(#[from] DatapathError),
    /// A map cannot be read.
    #[error(transparent)]
    Maps(#[from] MapsError),
}

/// The state of a node's data path.
#[derive(Debug)]
pub struct Snapshot {
    /// The pin directory.
    pub dir: PathBuf,
    /// Names of the IDs; empty without a names file.
    pub names: IdNames,
    /// The entries that the agent writes.
    pub contents: MapContents,
    /// Whether programs use the link addresses of next hops.
    pub links_are_current: bool,
    /// By next-hop slot.
    pub health: BTreeMap<u32, NextHopHealth>,
    /// Counters of the programs.
    pub counters: Counters,
    /// Counters by peer slot.
    pub peer_counters: BTreeMap<u32, PeerStats>,
    /// Counters by rule of a network policy.
    pub rule_counters: BTreeMap<u32, RuleCounter>,
    /// Per-flow entries of Services.
    pub flows: FlowState,
    /// Programs and devices of the pinned links.
    pub links: Vec<(Program, String)>,
    /// Filters of clsact qdiscs, which have no pins; empty unless requested from the kernel.
    pub filters: Vec<Filter>,
    /// Devices with a pinned link of the XDP program.
    pub transit_devices: BTreeSet<String>,
    /// Aggregation of tunnel packets by underlay device; empty unless requested from the kernel.
    pub aggregation: BTreeMap<String, Aggregation>,
}

impl Snapshot {
    /// Reads the maps below the pin directory.
    pub fn read(paths: &Paths) -> Result<Self, SnapshotError> {
        let dir = pin_dir(paths);
        let maps = find_maps(&dir)?;
        let contents = PinnedMaps::read(&maps)?;
        let health = LivenessMaps::open(&maps)?.read(contents.next_hops.keys().copied())?;
        let traffic = PeerCounterMap::open(&maps)?.read(contents.peers.values().map(|peer| peer.stats))?;
        let links = pinned_links(&dir)?
            .into_iter()
            .map(|(program, device, _)| (program, device));
        Ok(Self {
            names: IdNames::load(&paths.state_dir, &paths.bpf_dir).unwrap_or_default(),
            health,
            links_are_current: PinnedMaps::links_until(&maps)? > monotonic_ns(),
            counters: CounterMaps::open(&maps)?.read()?,
            peer_counters: traffic,
            rule_counters: RuleCounterMap::open(&maps)?.read()?,
            flows: FlowMaps::open(&maps)?.read()?,
            links: links.collect(),
            filters: Vec::new(),
            transit_devices: transit_links(&dir)?.into_keys().collect(),
            aggregation: BTreeMap::new(),
            contents,
            dir,
        })
    }

    /// MAC address that programs write into frames to a next hop; none if they leave it to the kernel.
    #[must_use]
    pub fn link_address(&self, next_hop: &abi::NextHop) -> Option<[u8; 6]> {
        (self.links_are_current && next_hop.link.is_known()).then(|| next_hop.link.dst())
    }

    /// The same entries as input of the packet pipeline.
    #[must_use]
    pub fn to_maps(&self) -> MemoryMaps {
        let contents = &self.contents;
        let prefixes = contents.prefixes.iter();
        let mut maps = MemoryMaps {
            config: Some(contents.config),
            prefixes: prefixes
                .map(|(key, value)| ((key.len, key.addr), *value))
                .collect(),
            groups: contents.groups.clone(),
            next_hops: contents.next_hops.clone(),
            links_are_current: self.links_are_current,
            peers: contents.peers.clone(),
            ..MemoryMaps::default()
        };
        maps.services = ServiceMaps {
            services: contents.services.services.clone(),
            maglev: contents
                .services
                .tables
                .iter()
                .map(|(key, table)| (*key, **table))
                .collect(),
            backends: contents.services.backends.clone(),
            flows: RefCell::new(self.flows.flows.clone()),
            replies: RefCell::new(self.flows.replies.clone()),
            fragments: RefCell::new(self.flows.fragments.clone()),
            full: false,
        };
        maps.policies = contents.policies.to_maps();
        *maps.policies.flows.borrow_mut() = self.flows.policies.clone();
        for (slot, health) in &self.health {
            maps.health.sent.insert(*slot, health.sent);
            maps.health.seen.borrow_mut().insert(*slot, health.seen);
        }
        maps
    }

    /// Devices with `from_underlay`.
    #[must_use]
    pub fn underlay_devices(&self) -> BTreeSet<String> {
        let links = self.links.iter().map(|(program, device)| (*program, device));
        let filters = self.filters.iter().map(|filter| (filter.program, &filter.device));
        links
            .chain(filters)
            .filter(|(program, _)| *program == Program::FromUnderlay)
            .map(|(_, device)| device.clone())
            .collect()
    }

    /// The name of the group in `slot`.
    #[must_use]
    pub fn group_name(&self, slot: u32) -> String {
        match self.contents.groups.get(&slot) {
            Some(group) => self.names.group(group.id),
            None => String::new(),
        }
    }
}

/// The pin directory, resolved as the agent resolves the same flag.
#[must_use]
pub fn pin_dir(paths: &Paths) -> PathBuf {
    bpffs_path(&paths.bpf_dir, Path::exists)
}

/// The pin directory's maps of this layout version.
fn find_maps(dir: &Path) -> Result<PathBuf, SnapshotError> {
    let reason = match dir.try_exists() {
        Ok(true) => match map_migration::find(dir)? {
            Ok(maps) => return Ok(maps),
            Err(versions) if versions.is_empty() => "no pinned maps".to_owned(),
            Err(versions) => format!(
                "found maps of layout version {versions:?}, this program reads version {}",
                abi::ABI_VERSION
            ),
        },
        Ok(false) => "no such directory".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            "permission denied: run as root".to_owned()
        }
        Err(error) => error.to_string(),
    };
    Err(SnapshotError::NoPins {
        dir: dir.to_owned(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_reported_with_advice() {
        let paths = Paths {
            bpf_dir: "/sys/fs/bpf/no/such".into(),
            device: "mc0".into(),
            state_dir: "/run/mc-gateway".into(),
        };
        let error = Snapshot::read(&paths).unwrap_err().to_string();
        assert_eq!(
            error,
            "--bpf-dir /sys/fs/bpf/no/such: no such directory; check that mc-gateway runs on this node with this --bpf-dir"
        );
    }
}
