//! Everything the pinned maps of a node hold, read once.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use aya::maps::{Array, MapData, PerCpuArray};
use mc_gateway_common::abi::liveness::{RTT, Rtt, SEEN, SENT, Seen, Sent};
use mc_gateway_common::abi::{self, Addr, Counter, Traffic, V4_PREFIX_BITS};
use mc_gateway_common::liveness::{self, State};
use mc_gateway_common::maps::MemoryMaps;
use mc_gateway_common::maps::service::ServiceMaps;
use mc_gateway_common::verdict::{DropReason, Event, Outcome as PacketPath};
use thiserror::Error;

use super::pin_dir;
use crate::config::Paths;
use crate::datapath::{DatapathError, map_migration, pinned_links};
use crate::host::tc_filter::Filter;
use crate::id_names::IdNames;
use crate::maps::{MapContents, MapsError, PinnedMaps, map_error, open};
use crate::plan::Program;
use crate::resolved::PrefixKey;
use crate::service_flows::{FlowMaps, FlowState};

/// Why the maps cannot be read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// No agent has pinned anything there.
    #[error(
        "--bpf-dir {}: {what}; has mc-gateway run on this node, and with this --bpf-dir?",
        .dir.display()
    )]
    NoPins {
        /// The directory.
        dir: PathBuf,
        /// What is there instead.
        reason: String,
    },
    /// Somebody else's pins, or another version's.
    #[error(transparent)]
    Foreign(#[from] DatapathError),
    /// A map.
    #[error(transparent)]
    Tables(#[from] MapsError),
}

/// What is known of a member's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextHopHealth {
    /// Last probe.
    pub sent: Sent,
    /// Last answer.
    pub seen: Seen,
    /// All answers.
    pub rtt: Rtt,
}

impl NextHopHealth {
    /// Whether `member` was ever probed.
    #[must_use]
    pub fn is_probed(&self, member: &abi::Member) -> bool {
        self.sent.id == member.id && member.id != 0
    }

    /// Its state; `None` where nobody asks it.
    #[must_use]
    pub fn state(&self, member: &abi::Member, config: &abi::Config) -> Option<State> {
        (config.detect != 0 && self.is_probed(member))
            .then(|| liveness::state(member.id, self.sent, self.seen, config.detect))
    }
}

/// The word for a state.
#[must_use]
pub const fn state_name(state: Option<State>) -> &'static str {
    match state {
        None => "unprobed",
        Some(State::Alive) => "alive",
        Some(State::HeldDown) => "held-down",
        Some(State::Dead) => "dead",
    }
}

/// The counters, summed over CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// By [`PacketPath::ALL`].
    pub outcomes: Vec<(PacketPath, Counter)>,
    /// By [`DropReason::ALL`].
    pub drops: Vec<(DropReason, u64)>,
    /// By [`Event::ALL`].
    pub events: Vec<(Event, u64)>,
}

/// Everything.
#[derive(Debug)]
pub struct Snapshot {
    /// Where it was read.
    pub dir: PathBuf,
    /// Names for the numbers; empty where none are kept.
    pub names: IdNames,
    /// What the agent wrote.
    pub contents: MapContents,
    /// By member slot.
    pub health: BTreeMap<u32, NextHopHealth>,
    /// What the programs counted.
    pub counters: Counters,
    /// What they counted by peer, by slot.
    pub peer_counters: BTreeMap<u32, Traffic>,
    /// Flows to Services the programs know.
    pub flows: FlowState,
    /// Pinned links.
    pub links: Vec<(Program, String)>,
    /// Filters of clsact qdiscs, where the kernel was asked for them: nothing is pinned of these.
    pub filters: Vec<Filter>,
}

impl Snapshot {
    /// Reads the maps an agent has pinned.
    pub fn read(place: &Paths) -> Result<Self, SnapshotError> {
        let dir = pin_dir(place);
        let maps = find_maps(&dir)?;
        let tables = PinnedMaps::open(&maps)?;
        let contents = tables.contents().clone();
        let health = LivenessMaps::open(&maps)?.read(contents.next_hops.keys().copied())?;
        let traffic = PeerCounterMap::open(&maps)?.read(contents.peers.values().map(|peer| peer.traffic))?;
        let links = pinned_links(&dir)?
            .into_iter()
            .map(|(program, device, _)| (program, device));
        Ok(Self {
            names: IdNames::load(&place.state_dir, &place.bpf_dir).unwrap_or_default(),
            health,
            counters: CounterMaps::open(&maps)?.read()?,
            peer_counters: traffic,
            flows: FlowMaps::open(&maps)?.read()?,
            links: links.collect(),
            filters: Vec::new(),
            contents,
            dir,
        })
    }

    /// The same as the tables a decision reads.
    #[must_use]
    pub fn to_maps(&self) -> MemoryMaps {
        let contents = &self.contents;
        let prefixes = contents.prefixes.iter();
        let mut tables = MemoryMaps {
            config: Some(contents.config),
            prefixes: prefixes
                .map(|(key, value)| ((key.len, key.addr), *value))
                .collect(),
            groups: contents.groups.clone(),
            members: contents.next_hops.clone(),
            peers: contents.peers.clone(),
            ..MemoryMaps::default()
        };
        tables.services = ServiceMaps {
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
        for (slot, health) in &self.health {
            tables.health.sent.insert(*slot, health.sent);
            tables.health.seen.borrow_mut().insert(*slot, health.seen);
        }
        tables
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

/// The directory with maps of this version.
fn find_maps(dir: &Path) -> Result<PathBuf, SnapshotError> {
    let what = match dir.try_exists() {
        Ok(true) => match map_migration::find(dir)? {
            Ok(maps) => return Ok(maps),
            Err(versions) if versions.is_empty() => "there are no pinned maps".to_owned(),
            Err(versions) => format!(
                "the maps there are of layout version {versions:?}, this program knows version {}",
                abi::ABI_VERSION
            ),
        },
        Ok(false) => "there is no such directory".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            "only root may look inside".to_owned()
        }
        Err(error) => error.to_string(),
    };
    Err(SnapshotError::NoPins {
        dir: dir.to_owned(),
        reason: what,
    })
}

/// The liveness maps.
pub struct LivenessMaps {
    sent: Array<MapData, Sent>,
    seen: Array<MapData, Seen>,
    rtt: Array<MapData, Rtt>,
}

impl LivenessMaps {
    /// Opens them in a directory of pinned maps.
    pub fn open(maps: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            sent: open(maps, SENT)?,
            seen: open(maps, SEEN)?,
            rtt: open(maps, RTT)?,
        })
    }

    /// What they say of members in these slots.
    pub fn read(&self, slots: impl Iterator<Item = u32>) -> Result<BTreeMap<u32, NextHopHealth>, MapsError> {
        let failed = |map| {
            move |source| MapsError::Access {
                map,
                operation: "read",
                source,
            }
        };
        slots
            .map(|slot| {
                let health = NextHopHealth {
                    sent: self.sent.get(&slot, 0).map_err(failed(SENT))?,
                    seen: self.seen.get(&slot, 0).map_err(failed(SEEN))?,
                    rtt: self.rtt.get(&slot, 0).map_err(failed(RTT))?,
                };
                Ok((slot, health))
            })
            .collect()
    }
}

/// The maps the programs count in.
pub struct CounterMaps {
    paths: PerCpuArray<MapData, Counter>,
    drops: PerCpuArray<MapData, u64>,
    events: PerCpuArray<MapData, u64>,
}

impl CounterMaps {
    /// Opens them in a directory of pinned maps.
    pub fn open(maps: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            paths: open(maps, abi::PATHS)?,
            drops: open(maps, abi::DROPS)?,
            events: open(maps, abi::EVENTS)?,
        })
    }

    /// All counters.
    pub fn read(&self) -> Result<Counters, MapsError> {
        let failed = |map| {
            move |source| MapsError::Access {
                map,
                operation: "read",
                source,
            }
        };
        let mut counters = Counters::default();
        for path in PacketPath::ALL {
            let mut sum = Counter::default();
            for one in self
                .paths
                .get(&(path as u32), 0)
                .map_err(failed(abi::PATHS))?
                .iter()
            {
                sum.packets = sum.packets.wrapping_add(one.packets);
                sum.bytes = sum.bytes.wrapping_add(one.bytes);
                sum.gso = sum.gso.wrapping_add(one.gso);
            }
            counters.outcomes.push((path, sum));
        }
        for reason in DropReason::ALL {
            let values = self.drops.get(&(reason as u32), 0).map_err(failed(abi::DROPS))?;
            counters.drops.push((reason, sum(&values)));
        }
        for event in Event::ALL {
            let values = self.events.get(&(event as u32), 0).map_err(failed(abi::EVENTS))?;
            counters.events.push((event, sum(&values)));
        }
        Ok(counters)
    }
}

/// The map the programs count in by peer.
pub struct PeerCounterMap(PerCpuArray<MapData, Traffic>);

impl PeerCounterMap {
    /// Opens it in a directory of pinned maps.
    pub fn open(maps: &Path) -> Result<Self, MapsError> {
        Ok(Self(open(maps, abi::TRAFFIC)?))
    }

    /// What was counted in these slots, summed over CPUs.
    pub fn read(&self, slots: impl Iterator<Item = u32>) -> Result<BTreeMap<u32, Traffic>, MapsError> {
        // Peers may share one.
        let slots: BTreeSet<u32> = slots.collect();
        let read = slots.into_iter().map(|slot| {
            let values = self.0.get(&slot, 0).map_err(map_error(abi::TRAFFIC, "read"))?;
            Ok((slot, sum_peer_counters(&values)))
        });
        read.collect()
    }
}

fn sum_peer_counters(values: &[Traffic]) -> Traffic {
    values.iter().fold(Traffic::default(), |sum, one| Traffic {
        sent_packets: sum.sent_packets.wrapping_add(one.sent_packets),
        sent_bytes: sum.sent_bytes.wrapping_add(one.sent_bytes),
        received_packets: sum.received_packets.wrapping_add(one.received_packets),
        received_bytes: sum.received_bytes.wrapping_add(one.received_bytes),
    })
}

fn sum(values: &[u64]) -> u64 {
    values.iter().fold(0, |sum, value| sum.wrapping_add(*value))
}

/// An address as people write it.
#[must_use]
pub fn ip_addr(addr: &Addr) -> IpAddr {
    Ipv6Addr::from(*addr).to_canonical()
}

/// A neighbour as people write it; none where the kernel's routes say who it is.
#[must_use]
pub fn neighbor_addr(via: &abi::Neighbor) -> Option<IpAddr> {
    match via.family {
        abi::Neighbor::V4 => {
            let first: Option<&[u8; 4]> = via.addr.first_chunk();
            first.map(|addr| IpAddr::from(*addr))
        }
        abi::Neighbor::V6 => Some(via.addr.into()),
        _ => None,
    }
}

/// A prefix as people write it.
#[must_use]
pub fn format_prefix(key: &PrefixKey) -> String {
    let addr = ip_addr(&key.addr);
    let len = if addr.is_ipv4() {
        key.len.saturating_sub(V4_PREFIX_BITS)
    } else {
        key.len
    };
    format!("{addr}/{len}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_named_with_what_to_ask() {
        let place = Paths {
            bpf_dir: "/sys/fs/bpf/no/such".into(),
            device: "mc0".into(),
            state_dir: "/run/mc-gateway".into(),
        };
        let error = Snapshot::read(&place).unwrap_err().to_string();
        assert_eq!(
            error,
            "--bpf-dir /sys/fs/bpf/no/such: there is no such directory; has mc-gateway run on this node, and with this --bpf-dir?"
        );
    }

    #[test]
    fn prefixes_of_both_families() {
        let v4 = PrefixKey {
            len: 112,
            addr: "::ffff:10.12.0.0".parse::<Ipv6Addr>().unwrap().octets(),
        };
        assert_eq!(format_prefix(&v4), "10.12.0.0/16");
        let v6 = PrefixKey {
            len: 48,
            addr: "fd00:1::".parse::<Ipv6Addr>().unwrap().octets(),
        };
        assert_eq!(format_prefix(&v6), "fd00:1::/48");
    }

    #[test]
    fn a_member_nobody_asks_is_neither_alive_nor_dead() {
        let member = abi::Member {
            id: 5,
            ..abi::Member::default()
        };
        let config = abi::Config {
            detect: 3,
            ..abi::Config::default()
        };
        let mut health = NextHopHealth::default();
        assert_eq!(state_name(health.state(&member, &config)), "unprobed");
        health.sent = Sent { id: 5, sequence: 9 };
        health.seen.id = 5;
        assert_eq!(state_name(health.state(&member, &config)), "dead");
        health.seen.sequence = 8;
        assert_eq!(state_name(health.state(&member, &config)), "alive");
    }
}
