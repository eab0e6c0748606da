//! The leader: what members export becomes what members import.
//!
//! Pure: a [`LeaderWorld`] gives a [`Plan`]; applying it and looking again gives an empty one.

pub mod cluster_infos;
pub mod identities;
pub mod label_record;
pub mod labels;
pub mod members;
pub mod merge;
mod payload;
pub mod policies;
pub mod services;
pub mod stale;

use kube::ResourceExt;
use serde_json::json;

use crate::{
    api::{
        names,
        resource_export::{ResourceExport, kind},
    },
    identity,
    plan::{Plan, Side},
    world::LeaderWorld,
};

/// Everything that is to be done now.
pub fn plan(world: &LeaderWorld) -> Plan {
    let mut plan = Plan::default();
    if let Some(set) = members::current(world) {
        identity::plan(set, &world.claims, &mut plan);
    }
    identities::plan(world, &mut plan);
    members::plan(world, &mut plan);
    services::plan(world, &mut plan);
    cluster_infos::plan(world, &mut plan);
    labels::plan(world, &mut plan);
    policies::plan(world, &mut plan);
    for export in world.exports.values() {
        let known = [
            kind::SERVICE,
            kind::ENDPOINTS,
            kind::CLUSTER_INFO,
            kind::LABEL_IDENTITY,
            kind::CLUSTER_NETWORK_POLICY,
        ]
        .contains(&export.spec.kind.as_str());
        if !known {
            release(export, &mut plan);
        }
    }
    plan
}

/// Whether the export still counts.
fn live(export: &ResourceExport) -> bool {
    export.metadata.deletion_timestamp.is_none()
}

/// Lets a deleted export go. To be called only when no import speaks of it any more.
fn release(export: &ResourceExport, plan: &mut Plan) {
    if live(export) {
        return;
    }
    let ours = [
        names::FINALIZER_RESOURCE_EXPORT,
        names::FINALIZER_RESOURCE_EXPORT_LEGACY,
    ];
    let (strip, keep): (Vec<_>, Vec<_>) = export
        .finalizers()
        .iter()
        .partition(|f| ours.contains(&f.as_str()));
    if !strip.is_empty() {
        plan.patch(Side::Local, export, json!({ "metadata": { "finalizers": keep } }));
    }
}

#[cfg(test)]
mod tests;
