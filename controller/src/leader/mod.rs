//! The leader: merges the members' `ResourceExport`s into `ResourceImport`s.
//!
//! Pure: a [`LeaderSnapshot`] yields a [`Plan`]; a snapshot taken after its application yields an empty one.

pub mod cluster_infos;
mod endpoint_budget;
mod export_status;
pub mod heartbeat;
pub mod label_id_store;
pub mod label_identities;
pub mod label_imports;
pub mod members;
pub mod merge;
mod payload;
pub mod policies;
mod resources;
pub mod service_account_bindings;
pub mod services;
pub mod stale;
mod unreadable_exports;

use crate::{cluster_id, plan::Plan, snapshot::LeaderSnapshot};

/// Reconciles the ClusterSet.
pub fn plan(snapshot: &LeaderSnapshot) -> Plan {
    let mut plan = Plan::default();
    if let Some(set) = members::current_cluster_set(snapshot) {
        cluster_id::plan(set, &snapshot.cluster_claims, &mut plan);
    }
    service_account_bindings::plan(snapshot, &mut plan);
    members::plan(snapshot, &mut plan);
    services::plan(snapshot, &mut plan);
    cluster_infos::plan(snapshot, &mut plan);
    label_identities::plan(snapshot, &mut plan);
    policies::plan(snapshot, &mut plan);
    for export in snapshot.exports.values().filter(|e| !resources::is_known_kind(e)) {
        resources::remove_finalizer(export, &mut plan);
    }
    unreadable_exports::keep_resource_imports(snapshot, &mut plan);
    plan
}

#[cfg(test)]
mod tests;
