//! The maps that the agent writes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, PerCpuValues};
use mc_gateway_common::abi::{self, Addr};

use super::batch;
use super::contents::MapContents;
use super::error::{MapsError, ignore_missing, map_error, open};
use super::policy::PinnedPolicyMaps;
use super::prefixes::PinnedPrefixes;
use super::service::PinnedServiceMaps;
use crate::plan::ServiceAction;
use crate::policy_tables::PolicyTables;
use crate::resolved::PrefixKey;

/// The maps that the agent writes.
///
/// *Assumption*: the lock on the pin directory excludes other agents, so the cached contents equal the maps until
/// another program changes them, which [`Self::is_unchanged`] notices.
pub struct PinnedMaps {
    pub(super) config: Array<MapData, abi::Config>,
    pub(super) prefixes: PinnedPrefixes,
    pub(super) groups: Array<MapData, abi::NextHopGroup>,
    pub(super) next_hops: Array<MapData, abi::NextHop>,
    pub(super) peers: HashMap<MapData, Addr, abi::Peer>,
    peer_counters: PerCpuArray<MapData, abi::PeerStats>,
    epoch: Array<MapData, abi::Epoch>,
    /// The newest epoch that this agent has read or written.
    newest_epoch: u32,
    /// A cached decision of the programs may be outdated: the epoch must be raised.
    epoch_stale: bool,
    /// [`abi::Epoch::links_until`]. An earlier agent's value is not kept.
    links_until: u64,
    pub(super) services: PinnedServiceMaps,
    pub(super) policies: PinnedPolicyMaps,
    pub(super) contents: MapContents,
}

impl PinnedMaps {
    /// Opens the maps pinned in `dir`, reads them and invalidates the programs' caches.
    pub fn open(dir: &Path) -> Result<Self, MapsError> {
        let mut tables = Self::open_unread(dir)?;
        tables.newest_epoch = tables.read_epoch()?;
        tables.reload()?;
        tables.bump_epoch()?;
        Ok(tables)
    }

    /// Reads the maps pinned in `dir`, next to the agent that writes them.
    pub fn read(dir: &Path) -> Result<MapContents, MapsError> {
        Self::open_unread(dir)?.read_contents()
    }

    fn open_unread(dir: &Path) -> Result<Self, MapsError> {
        Ok(Self {
            config: open(dir, abi::CONFIG)?,
            prefixes: PinnedPrefixes::open(dir)?,
            groups: open(dir, abi::NEXT_HOP_GROUPS)?,
            next_hops: open(dir, abi::NEXT_HOPS)?,
            peers: open(dir, abi::PEERS)?,
            peer_counters: open(dir, abi::PEER_STATS)?,
            epoch: open(dir, abi::EPOCH)?,
            newest_epoch: 0,
            // An earlier agent may have been killed between a change and its epoch.
            epoch_stale: true,
            links_until: 0,
            services: PinnedServiceMaps::open(dir)?,
            policies: PinnedPolicyMaps::open(dir)?,
            contents: MapContents::default(),
        })
    }

    /// The content of the maps.
    #[must_use]
    pub fn contents(&self) -> &MapContents {
        &self.contents
    }

    /// Reads all maps again.
    pub fn reload(&mut self) -> Result<(), MapsError> {
        let contents = self.read_contents()?;
        self.prefixes.restore(contents.prefixes.keys())?;
        self.contents = contents;
        if self.is_epoch_changed()? {
            self.epoch_stale = true;
            self.bump_epoch()?;
        }
        Ok(())
    }

    fn read_contents(&self) -> Result<MapContents, MapsError> {
        let mut contents = MapContents {
            config: self.config.get(&0, 0).map_err(map_error(abi::CONFIG, "read"))?,
            groups: used_slots(&self.groups, abi::NEXT_HOP_GROUPS)?,
            next_hops: used_slots(&self.next_hops, abi::NEXT_HOPS)?,
            services: self.services.read()?,
            policies: self.policies.read_again(&self.contents.policies)?,
            prefixes: self.prefixes.read()?,
            ..MapContents::default()
        };
        for entry in batch::entries(&self.peers) {
            let (addr, value) = entry.map_err(map_error(abi::PEERS, "read"))?;
            contents.peers.insert(addr, value);
        }
        Ok(contents)
    }

    /// Invalidates the programs' caches of prefixes, peers, groups and next hops changed since the last call.
    ///
    /// Called before a slot that is no longer referenced is reused, and after the last change of a series.
    pub fn bump_epoch(&mut self) -> Result<(), MapsError> {
        if self.epoch_stale {
            let old = self.read_epoch()?;
            let old = if is_older(old, self.newest_epoch) {
                self.newest_epoch
            } else {
                old
            };
            // 0 disables the caches.
            let new = old.wrapping_add(1).max(1);
            self.write_epoch(new)?;
            self.newest_epoch = new;
            self.epoch_stale = false;
        }
        Ok(())
    }

    /// Lets programs use the link addresses of next hops until then, in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn set_links_until(&mut self, until: u64) -> Result<(), MapsError> {
        self.links_until = until;
        self.write_epoch(self.read_epoch()?)
    }

    /// The time until which programs use the link addresses of next hops, from the maps pinned in `dir`.
    pub fn links_until(dir: &Path) -> Result<u64, MapsError> {
        let map: Array<MapData, abi::Epoch> = open(dir, abi::EPOCH)?;
        let epoch = map.get(&0, 0).map_err(map_error(abi::EPOCH, "read"))?;
        Ok(epoch.links_until)
    }

    fn read_epoch(&self) -> Result<u32, MapsError> {
        let epoch = self.epoch.get(&0, 0).map_err(map_error(abi::EPOCH, "read"))?;
        Ok(epoch.number)
    }

    fn write_epoch(&mut self, number: u32) -> Result<(), MapsError> {
        let epoch = abi::Epoch {
            number,
            pad: 0,
            links_until: self.links_until,
        };
        self.epoch
            .set(0, epoch, 0)
            .map_err(map_error(abi::EPOCH, "write"))
    }

    /// Whether another program has disabled the caches, or has set an earlier epoch, in which outdated decisions are
    /// valid again.
    pub(super) fn is_epoch_changed(&self) -> Result<bool, MapsError> {
        let epoch = self.read_epoch()?;
        Ok(epoch == 0 || is_older(epoch, self.newest_epoch))
    }

    /// Writes the configuration.
    pub fn set_config(&mut self, config: abi::Config) -> Result<(), MapsError> {
        self.config
            .set(0, config, 0)
            .map_err(map_error(abi::CONFIG, "write"))?;
        self.contents.config = config;
        Ok(())
    }

    /// Writes a slot of the next hop map.
    pub fn set_next_hop(&mut self, slot: u32, next_hop: abi::NextHop) -> Result<(), MapsError> {
        // No cache has link addresses.
        let old = self.contents.next_hops.get(&slot).copied().unwrap_or_default();
        self.epoch_stale |= old.without_link() != next_hop.without_link();
        self.next_hops
            .set(slot, next_hop, 0)
            .map_err(map_error(abi::NEXT_HOPS, "write"))?;
        store_slot(&mut self.contents.next_hops, slot, next_hop);
        Ok(())
    }

    /// Writes a group so that a reader never counts a next hop that is not written yet.
    pub fn set_group(&mut self, slot: u32, group: abi::NextHopGroup) -> Result<(), MapsError> {
        self.epoch_stale = true;
        let old = self.contents.groups.get(&slot).copied().unwrap_or_default();
        for step in group_steps(old, group) {
            self.groups
                .set(slot, step, 0)
                .map_err(map_error(abi::NEXT_HOP_GROUPS, "write"))?;
        }
        store_slot(&mut self.contents.groups, slot, group);
        Ok(())
    }

    /// Adds, changes or removes a peer. Counters in a slot new to the peer start at 0.
    pub fn set_peer(&mut self, addr: Addr, peer: Option<abi::Peer>) -> Result<(), MapsError> {
        self.epoch_stale = true;
        if let Some(peer) = peer {
            let before = self.contents.peers.get(&addr);
            if peer.stats != 0 && before.is_none_or(|before| before.stats != peer.stats) {
                self.reset_peer_counters(peer.stats)?;
            }
            self.peers
                .insert(addr, peer, 0)
                .map_err(map_error(abi::PEERS, "write"))?;
            self.contents.peers.insert(addr, peer);
        } else {
            let removed = self.peers.remove(&addr);
            ignore_missing(removed).map_err(map_error(abi::PEERS, "remove"))?;
            self.contents.peers.remove(&addr);
        }
        Ok(())
    }

    fn reset_peer_counters(&mut self, slot: u32) -> Result<(), MapsError> {
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error);
        cpus.and_then(|cpus| PerCpuValues::try_from(vec![abi::PeerStats::default(); cpus]))
            .map_err(MapError::from)
            .and_then(|zeros| self.peer_counters.set(slot, zeros, 0))
            .map_err(map_error(abi::PEER_STATS, "write"))
    }

    /// Replaces the tables of policies.
    pub fn set_policies(&mut self, tables: &Arc<PolicyTables>) -> Result<(), MapsError> {
        self.policies.set(&mut self.contents.policies, tables)
    }

    /// Changes a Service map.
    pub fn set_service(&mut self, action: &ServiceAction) -> Result<(), MapsError> {
        self.services.apply(action)?;
        action.apply_to(&mut self.contents.services);
        Ok(())
    }

    /// Adds, changes or removes a prefix. Cached addresses use it after [`Self::bump_epoch`].
    pub fn set_prefix(&mut self, key: PrefixKey, prefix: Option<abi::Prefix>) -> Result<(), MapsError> {
        self.epoch_stale = true;
        let is_present = self.contents.prefixes.contains_key(&key);
        self.prefixes.set(key, is_present, prefix)?;
        self.contents.prefixes.set(key, prefix);
        Ok(())
    }
}

/// Whether an epoch precedes another one; epochs wrap around.
fn is_older(epoch: u32, other: u32) -> bool {
    epoch.wrapping_sub(other).cast_signed() < 0
}

fn used_slots<V: aya::Pod + Default + PartialEq>(
    map: &Array<MapData, V>,
    name: &'static str,
) -> Result<BTreeMap<u32, V>, MapsError> {
    let mut used = BTreeMap::new();
    for entry in batch::slots(map, map.len()) {
        let (slot, value) = entry.map_err(map_error(name, "read"))?;
        if value != V::default() {
            used.insert(slot, value);
        }
    }
    Ok(used)
}

fn store_slot<V: Default + PartialEq>(slots: &mut BTreeMap<u32, V>, slot: u32, value: V) {
    if value == V::default() {
        slots.remove(&slot);
    } else {
        slots.insert(slot, value);
    }
}

/// The writes that lead from `old` to `new`. A map value is copied without a lock, so a reader may see its first
/// words new and its last words old: next hops are written before they are counted, and uncounted before they are
/// removed.
fn group_steps(old: abi::NextHopGroup, new: abi::NextHopGroup) -> Vec<abi::NextHopGroup> {
    let between = abi::NextHopGroup {
        id: new.id,
        len: old.len.min(new.len),
        next_hops: if new.len >= old.len {
            new.next_hops
        } else {
            old.next_hops
        },
    };
    if between == old || between == new {
        vec![new]
    } else {
        vec![between, new]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(next_hops: &[u32]) -> abi::NextHopGroup {
        let mut group = abi::NextHopGroup {
            id: 1,
            len: u32::try_from(next_hops.len()).unwrap(),
            ..abi::NextHopGroup::default()
        };
        group.next_hops[..next_hops.len()].copy_from_slice(next_hops);
        group
    }

    #[test]
    fn a_next_hop_is_written_before_it_is_counted() {
        let steps = group_steps(group(&[5]), group(&[5, 6]));
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[0].len, 1);
        assert_eq!(steps[0].next_hops[..2], [5, 6]);
        assert_eq!(steps[1], group(&[5, 6]));
    }

    #[test]
    fn a_next_hop_is_not_counted_before_it_goes() {
        let steps = group_steps(group(&[5, 6]), group(&[6]));
        assert_eq!(steps[0].len, 1);
        assert_eq!(steps[0].next_hops[..2], [5, 6]);
        assert_eq!(steps[1], group(&[6]));
    }

    #[test]
    fn epochs_wrap_around() {
        assert!(is_older(7, 8) && !is_older(8, 8) && !is_older(9, 8));
        assert!(is_older(u32::MAX, 1) && !is_older(1, u32::MAX));
    }

    #[test]
    fn same_size_is_one_write() {
        assert_eq!(group_steps(group(&[5]), group(&[7])), [group(&[7])]);
    }
}
