//! The used entries of the policy maps that are arrays.

use aya::maps::MapError;
use mc_gateway_common::abi::Addr;
use mc_gateway_common::abi::policy::{LabelIdentity, identity_of_slot};

use super::PinnedPolicyMaps;
use crate::maps::batch;

impl PinnedPolicyMaps {
    /// The used slots of `mc_unselected` without their half, which follows.
    pub(super) fn unselected_slots(&self) -> impl Iterator<Item = Result<((u32, u32), Addr), MapError>> {
        let used =
            |(slot, addr): (u32, Addr)| (addr != Addr::default()).then_some(((slot & !1, slot & 1), addr));
        let slots = batch::slots(&self.unselected, self.unselected.len());
        slots.filter_map(move |entry| entry.map(used).transpose())
    }

    /// The identities in the first `slots`, with their half.
    pub(super) fn known_identities(
        &self,
        slots: u32,
    ) -> impl Iterator<Item = Result<((u32, u32), LabelIdentity), MapError>> {
        let known = |(slot, identity): (u32, LabelIdentity)| {
            (identity != LabelIdentity::default()).then_some((identity_of_slot(slot), identity))
        };
        let slots = batch::slots(&self.identities, slots);
        slots.filter_map(move |entry| entry.map(known).transpose())
    }
}
