//! The used entries of the policy maps that are arrays.

use aya::Pod;
use aya::maps::{Array, MapData, MapError};
use mc_gateway_common::abi::Addr;
use mc_gateway_common::abi::policy::{LabelIdentity, of_half_slot};

use super::PinnedPolicyMaps;
use crate::maps::batch;

/// A value with its number and half.
type Slot<V> = Result<((u32, u32), V), MapError>;

impl PinnedPolicyMaps {
    /// The Pods in `mc_unselected`.
    pub(super) fn unselected_slots(&self) -> impl Iterator<Item = Slot<Addr>> {
        used(&self.unselected, self.unselected.len())
    }

    /// The identities in the first `slots`.
    pub(super) fn known_identities(&self, slots: u32) -> impl Iterator<Item = Slot<LabelIdentity>> {
        used(&self.identities, slots)
    }
}

/// The first `slots` without those that have the default value.
fn used<V: Pod + Default + PartialEq>(map: &Array<MapData, V>, slots: u32) -> impl Iterator<Item = Slot<V>> {
    let used = |(slot, value): (u32, V)| (value != V::default()).then_some((of_half_slot(slot), value));
    batch::slots(map, slots).filter_map(move |entry| entry.map(used).transpose())
}
