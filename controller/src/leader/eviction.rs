//! Evicted clusters: an administrator's record, which outlasts announces and rejects new ones.

use std::collections::BTreeSet;

use kube::ResourceExt;
use mc_api::{cluster_set::ClusterSet, names, validation};

use super::resources::is_active;
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::LeaderSnapshot,
};

/// The clusters that the annotation of the leader's `ClusterSet` names, separated by commas.
pub(super) fn evicted(set: &ClusterSet) -> BTreeSet<&str> {
    let list = set.annotations().get(names::ANNOTATION_EVICTED_CLUSTERS);
    let ids = list.into_iter().flat_map(|list| list.split(','));
    ids.map(str::trim).filter(|id| !id.is_empty()).collect()
}

/// Deletes all exports of evicted clusters; reports invalid IDs.
pub(super) fn plan(snapshot: &LeaderSnapshot, set: &ClusterSet, plan: &mut Plan) {
    let evicted = evicted(set);
    for id in &evicted {
        if let Err(cause) = validation::dns_subdomain(id, 253) {
            let annotation = names::ANNOTATION_EVICTED_CLUSTERS;
            plan.issue(
                IssueCode::InvalidAnnotation,
                format!("ClusterSet {}", set.name_any()),
                format!("annotation {annotation}: {cause}: no cluster has this ID"),
            );
        }
    }
    let exports = snapshot.exports.values();
    for export in exports.filter(|e| is_active(e) && evicted.contains(e.spec.cluster_id.as_str())) {
        plan.delete(ApiServer::Local, export.as_ref());
    }
}
