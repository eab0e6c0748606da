//! The distribution of the Pods' addresses over slices: few writes for a change, and an address that moves is in one of
//! them at any time.
//!
//! An address stays in its slice while its Pod runs, also when the Pod's labels change: the change is one write. Where
//! it has to move, the old slice keeps it until the new one is in the cache, and the new one has a higher revision.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use mc_api::address_group_slice::{AddressGroup, AddressGroupSliceSpec, MAX_ADDRESSES};

use crate::snapshot::{PodAddresses, PodAttributes};

/// Size of a slice, as JSON in bytes, from which on it gets no further address.
const FULL_SIZE: usize = 8 * 1024;
/// Size from which on an address with other labels than before moves to another slice.
const EXCESS_SIZE: usize = 4 * FULL_SIZE;

/// A change of the slices.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SliceChange {
    /// The slice is created or replaced.
    Write(String, AddressGroupSliceSpec),
    /// The slice has no address left.
    Delete(String),
}

/// The addresses of a slice and their attributes.
#[derive(Debug, Default)]
struct Content {
    addresses: BTreeMap<IpAddr, Arc<PodAttributes>>,
    /// The attributes of all addresses.
    attributes: BTreeSet<Arc<PodAttributes>>,
    /// As JSON, about, in bytes.
    size: usize,
}

/// The changes after which the slices have exactly the addresses of `pods`. Slices are keyed by name. Without changes
/// the slices are complete.
pub(super) fn changes(
    slices: &BTreeMap<&str, &AddressGroupSliceSpec>,
    pods: &PodAddresses,
) -> Vec<SliceChange> {
    let mut new: BTreeMap<String, Content> = BTreeMap::new();
    // Of several slices the one with the highest revision counts, as for the agents.
    let mut by_revision: Vec<_> = slices.iter().collect();
    by_revision.sort_by_key(|(name, spec)| (Reverse(spec.revision), *name));
    let mut placed: BTreeSet<IpAddr> = BTreeSet::new();
    let mut moving: Vec<(&str, IpAddr, Arc<PodAttributes>)> = Vec::new();
    for (name, spec) in by_revision {
        let old = Content::parse(spec);
        let content = new.entry((*name).to_owned()).or_default();
        let wanted = |addr: &IpAddr| Some((*addr, pods.get(addr)?));
        let held: Vec<_> = old.addresses.keys().filter_map(wanted).collect();
        let (same, changed): (Vec<_>, Vec<_>) = held
            .into_iter()
            .partition(|(addr, attributes)| old.addresses.get(addr) == Some(*attributes));
        for (addr, attributes) in same {
            if placed.insert(addr) {
                content.insert(addr, attributes);
            }
        }
        for (addr, attributes) in changed {
            if placed.contains(&addr) {
                continue;
            }
            if content.size_with(attributes) <= EXCESS_SIZE || content.addresses.is_empty() {
                placed.insert(addr);
                content.insert(addr, attributes);
            } else if let Some(attributes) = old.addresses.get(&addr) {
                moving.push((name, addr, attributes.clone()));
            }
        }
    }
    place(pods, &placed, &mut new);
    let losing: BTreeSet<&str> = moving.iter().map(|(name, ..)| *name).collect();
    for (name, addr, attributes) in moving {
        if let Some(content) = new.get_mut(name) {
            content.insert(addr, &attributes);
        }
    }
    let revision = slices
        .values()
        .map(|spec| spec.revision)
        .max()
        .unwrap_or_default();
    let revision = revision.saturating_add(1);
    let changed = new.iter().filter_map(|(name, content)| {
        let groups = content.groups();
        let old = slices.get(name.as_str());
        if groups.is_empty() {
            return old.map(|_| SliceChange::Delete(name.clone()));
        }
        let is_current = old.is_some_and(|old| old.groups == groups && !old.complete);
        // The slice that gets an address needs a higher revision than the one that still has it.
        let old_revision = old
            .filter(|_| losing.contains(name.as_str()))
            .map(|old| old.revision);
        let spec = AddressGroupSliceSpec {
            revision: old_revision.unwrap_or(revision),
            complete: false,
            groups,
        };
        (!is_current).then(|| SliceChange::Write(name.clone(), spec))
    });
    changed.collect()
}

/// Places the addresses that no slice has: in a slice with equal attributes, else in the fullest slice with room, else
/// in a new one.
fn place(pods: &PodAddresses, placed: &BTreeSet<IpAddr>, slices: &mut BTreeMap<String, Content>) {
    let mut waiting: BTreeMap<&Arc<PodAttributes>, Vec<IpAddr>> = BTreeMap::new();
    for (addr, attributes) in pods.iter().filter(|(addr, _)| !placed.contains(addr)) {
        waiting.entry(attributes).or_default().push(*addr);
    }
    let mut number = 0;
    for (attributes, addresses) in waiting {
        let mut addresses = addresses.into_iter().peekable();
        while addresses.peek().is_some() {
            let best = slices
                .iter()
                .filter(|(_, content)| content.has_room(attributes))
                .max_by_key(|(_, content)| {
                    (content.attributes.contains(attributes), content.addresses.len())
                });
            let name = best.map_or_else(|| free_name(slices, &mut number), |(name, _)| name.clone());
            let content = slices.entry(name).or_default();
            for addr in addresses.by_ref() {
                content.insert(addr, attributes);
                if !content.has_room(attributes) {
                    break;
                }
            }
        }
    }
}

/// The first name from `number` on that no slice has.
fn free_name(slices: &BTreeMap<String, Content>, number: &mut u32) -> String {
    loop {
        let name = format!("pods-{number}");
        if !slices.contains_key(&name) {
            return name;
        }
        *number = number.saturating_add(1);
    }
}

// === impl Content ===

impl Content {
    /// The valid addresses of a slice.
    fn parse(spec: &AddressGroupSliceSpec) -> Self {
        let mut content = Self::default();
        for group in &spec.groups {
            let attributes = Arc::new(PodAttributes {
                namespace: group.namespace.clone(),
                labels: group.labels.clone(),
                service_account: group.service_account.clone(),
                ports: group.ports.clone(),
            });
            for addr in group.addresses.iter().filter_map(|text| text.parse().ok()) {
                content.insert(addr, &attributes);
            }
        }
        content
    }

    fn insert(&mut self, addr: IpAddr, attributes: &Arc<PodAttributes>) {
        self.size = self.size_with(attributes);
        self.attributes.insert(attributes.clone());
        self.addresses.insert(addr, attributes.clone());
    }

    /// The size with one more address.
    fn size_with(&self, attributes: &Arc<PodAttributes>) -> usize {
        let group = if self.attributes.contains(attributes) {
            0
        } else {
            attributes.size()
        };
        // An IPv6 address with quotes and a comma.
        self.size.saturating_add(group).saturating_add(42)
    }

    fn has_room(&self, attributes: &Arc<PodAttributes>) -> bool {
        if self.addresses.is_empty() {
            return true;
        }
        // The look-up of the attributes takes longest.
        self.addresses.len() < MAX_ADDRESSES
            && self.size < FULL_SIZE
            && self.size_with(attributes) <= FULL_SIZE
    }

    /// The groups, sorted, with sorted addresses.
    fn groups(&self) -> Vec<AddressGroup> {
        let mut groups: BTreeMap<&Arc<PodAttributes>, Vec<String>> = BTreeMap::new();
        for (addr, attributes) in &self.addresses {
            groups.entry(attributes).or_default().push(addr.to_string());
        }
        let group = |(attributes, addresses): (&Arc<PodAttributes>, Vec<String>)| AddressGroup {
            namespace: attributes.namespace.clone(),
            labels: attributes.labels.clone(),
            service_account: attributes.service_account.clone(),
            ports: attributes.ports.clone(),
            addresses,
        };
        groups.into_iter().map(group).collect()
    }
}

#[cfg(test)]
mod tests;
