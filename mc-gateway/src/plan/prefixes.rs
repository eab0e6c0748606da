//! Changes of the prefix map.
//!
//! *Guarantees*: the changes do not depend on earlier plans.

use std::collections::{BTreeMap, BTreeSet};

use mc_gateway_common::abi;

use super::slots::Slots;
use super::{Action, ObservedState};
use crate::resolved::{Prefix, PrefixKey, ResolvedState};
use crate::shared_map::SharedMap;

/// The prefixes of an earlier plan without a change: a later plan compares only what differs from them.
#[derive(Clone, Debug, Default)]
pub(super) struct UnchangedPrefixes {
    resolved: SharedMap<PrefixKey, Prefix>,
    observed: SharedMap<PrefixKey, abi::Prefix>,
    /// Slots of the groups by stable ID.
    groups: BTreeMap<u32, u32>,
    keeps_backends: bool,
}

impl UnchangedPrefixes {
    /// The actions that add or change prefixes, and those that remove some.
    pub(super) fn plan(
        &mut self,
        observed: &ObservedState,
        resolved: &ResolvedState,
        groups: &Slots,
    ) -> (Vec<Action>, Vec<Action>) {
        // While Services are unknown, the marks of their backends are kept.
        let keeps_backends = resolved.services.is_none();
        let changes = PrefixChanges {
            observed: &observed.prefixes,
            resolved: &resolved.prefixes,
            groups,
            keeps_backends,
        };
        if self.keeps_backends != keeps_backends {
            *self = Self::default();
        }
        let of_node = self.observed.changes(&observed.prefixes);
        let resolved_anew = self.resolved.changes(&resolved.prefixes);
        let mut keys: Vec<&PrefixKey> = resolved_anew.chain(of_node).collect();
        let moved = moved_groups(&self.groups, groups.by_id());
        if !moved.is_empty() {
            let entries = resolved.prefixes.iter();
            keys.extend(
                entries
                    .filter(|(_, prefix)| moved.contains(&prefix.group))
                    .map(|(key, _)| key),
            );
        }
        keys.sort();
        keys.dedup();
        let (adds, removes) = changes.of(keys);
        if adds.is_empty() && removes.is_empty() {
            *self = Self {
                resolved: resolved.prefixes.clone(),
                observed: observed.prefixes.clone(),
                groups: groups.by_id().clone(),
                keeps_backends,
            };
        }
        (adds, removes)
    }
}

/// The IDs of groups that have other slots.
fn moved_groups(old: &BTreeMap<u32, u32>, new: &BTreeMap<u32, u32>) -> BTreeSet<u32> {
    let ids = old.keys().chain(new.keys()).copied();
    ids.filter(|id| old.get(id) != new.get(id)).collect()
}

/// The observed and the resolved prefixes.
struct PrefixChanges<'p> {
    observed: &'p SharedMap<PrefixKey, abi::Prefix>,
    resolved: &'p SharedMap<PrefixKey, Prefix>,
    groups: &'p Slots,
    keeps_backends: bool,
}

impl PrefixChanges<'_> {
    /// The actions for these keys that add or change prefixes, and those that remove some.
    fn of<'k>(&self, keys: impl IntoIterator<Item = &'k PrefixKey>) -> (Vec<Action>, Vec<Action>) {
        let (mut adds, mut removes) = (Vec::new(), Vec::new());
        for key in keys {
            let from = self.observed.get(key).copied();
            let to = self.wanted(key, from);
            if from != to {
                let actions = if to.is_some() { &mut adds } else { &mut removes };
                actions.push(Action::SetPrefix { key: *key, from, to });
            }
        }
        (adds, removes)
    }

    /// The entry that an observed one becomes.
    fn wanted(&self, key: &PrefixKey, from: Option<abi::Prefix>) -> Option<abi::Prefix> {
        let is_marked =
            |prefix: &abi::Prefix| self.keeps_backends && prefix.flags & abi::PREFIX_BACKENDS != 0;
        let marked = from.filter(is_marked);
        let Some(prefix) = self.resolved.get(key) else {
            return marked;
        };
        Some(abi::Prefix {
            cluster: prefix.cluster,
            group: self.groups.slot(prefix.group),
            action: prefix.action,
            flags: prefix.flags | marked.map_or(0, |prefix| prefix.flags),
            identity: prefix.identity,
        })
    }
}
