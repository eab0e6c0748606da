//! The leader: merges the members' `ResourceExport`s into `ResourceImport`s.
//!
//! Pure: a [`LeaderSnapshot`] yields a [`Plan`]; a snapshot taken after its application yields an empty one.

pub mod account_bindings;
mod admission;
pub mod cluster_infos;
mod copies;
mod endpoint_budget;
mod eviction;
mod export_status;
mod first_use;
pub mod heartbeat;
pub mod label_id_store;
pub mod label_identities;
pub mod label_imports;
pub mod members;
pub mod merge;
mod misplaced;
mod network_exports;
mod payload;
pub mod policies;
mod prefix_claims;
mod prefix_owners;
mod quotas;
mod resources;
pub mod service_account_bindings;
pub mod services;
pub mod stale;
mod unreadable_exports;

use crate::{cluster_id, plan::Plan, snapshot::LeaderSnapshot};

/// Reconciles the ClusterSet.
pub fn plan(snapshot: &LeaderSnapshot) -> Plan {
    let mut plan = Plan::default();
    if misplaced::is_isolation_lost(snapshot, &mut plan) {
        return plan;
    }
    if let Some(set) = members::current_cluster_set(snapshot) {
        cluster_id::plan(set, &snapshot.cluster_claims, &mut plan);
    }
    let bindings = service_account_bindings::plan(snapshot, &mut plan);
    members::plan(snapshot, &bindings, &mut plan);
    misplaced::plan(snapshot, &mut plan);
    if let Some(set) = members::current_cluster_set(snapshot) {
        eviction::plan(snapshot, set, &mut plan);
    }
    let admitted = admission::admitted(snapshot, &mut plan);
    let admitted = quotas::enforce(admitted, &bindings.ids, &mut plan);
    let prefixes = prefix_owners::plan(&admitted, &bindings.ids, &mut plan);
    services::plan(&admitted, &prefixes, &mut plan);
    cluster_infos::plan(&admitted, &prefixes, &mut plan);
    label_identities::plan(&admitted, &mut plan);
    policies::plan(&admitted, &mut plan);
    for export in snapshot.exports.values().filter(|e| !resources::is_known_kind(e)) {
        resources::remove_finalizer(export, &mut plan);
    }
    unreadable_exports::keep_resource_imports(snapshot, &mut plan);
    copies::plan(snapshot, &mut plan);
    plan
}

#[cfg(test)]
mod tests;
