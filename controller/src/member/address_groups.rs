//! `AddressGroupSlice`s: the addresses of Pods, for agents that enforce every rule.
//!
//! The slices are complete once each is in the cache as planned; then the slice `complete` is written. It exists until
//! no agent enforces every rule any more and is deleted before the others, so that agents do not use a part of them.

use std::collections::BTreeMap;

use kube::ResourceExt;
use mc_api::{
    address_group_slice::{AddressGroupSlice, AddressGroupSliceSpec, COMPLETE_NAME},
    node_policy_status::Enforcement,
};

use super::{
    address_slices::{SliceChange, changes},
    policy_reports::is_reported,
    set_managed,
};
use crate::{
    plan::{ApiServer, Plan},
    snapshot::{MemberSnapshot, OptionalKind},
};

/// Whether agents read the addresses of Pods.
#[must_use]
pub fn are_needed(snapshot: &MemberSnapshot) -> bool {
    matches!(snapshot.address_group_slices, OptionalKind::Present(_))
        && is_reported(snapshot, Enforcement::All)
}

/// Writes the addresses of all Pods while agents enforce every rule. A controller that has not listed the Pods yet
/// leaves the slices as they are.
pub fn plan(snapshot: &MemberSnapshot, plan: &mut Plan) {
    let OptionalKind::Present(slices) = &snapshot.address_group_slices else {
        return;
    };
    // Before the first list of the reports, no agent would need the slices.
    if snapshot.node_policy_statuses.is_pending() {
        return;
    }
    let existing: BTreeMap<String, &AddressGroupSlice> = slices
        .values()
        .map(|slice| (slice.name_any(), slice.as_ref()))
        .collect();
    let mark = existing.get(COMPLETE_NAME);
    if !are_needed(snapshot) {
        match mark {
            Some(mark) => plan.delete(ApiServer::Local, *mark),
            None => existing
                .values()
                .for_each(|slice| plan.delete(ApiServer::Local, *slice)),
        }
        return;
    }
    let Some(pods) = &snapshot.pod_addresses else {
        return;
    };
    let specs: BTreeMap<&str, &AddressGroupSliceSpec> = existing
        .iter()
        .filter(|(name, _)| name.as_str() != COMPLETE_NAME)
        .map(|(name, slice)| (name.as_str(), &slice.spec))
        .collect();
    let changes = changes(&specs, pods);
    let is_complete = changes.is_empty();
    for change in changes {
        match change {
            SliceChange::Write(name, spec) => plan.apply(ApiServer::Local, &object(snapshot, &name, spec)),
            SliceChange::Delete(name) => {
                if let Some(slice) = existing.get(&name) {
                    plan.delete(ApiServer::Local, *slice);
                }
            }
        }
    }
    let spec = AddressGroupSliceSpec {
        complete: true,
        ..AddressGroupSliceSpec::default()
    };
    if is_complete && mark.is_none_or(|mark| !mark.spec.complete) {
        plan.apply(ApiServer::Local, &object(snapshot, COMPLETE_NAME, spec));
    }
}

fn object(snapshot: &MemberSnapshot, name: &str, spec: AddressGroupSliceSpec) -> AddressGroupSlice {
    let mut slice = AddressGroupSlice::new(name, spec);
    slice.metadata.namespace = Some(snapshot.namespace.clone());
    set_managed(&mut slice);
    slice
}
