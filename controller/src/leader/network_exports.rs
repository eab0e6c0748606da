//! The networks that members export.

use kube::ResourceExt;
use mc_api::{
    cluster_info::ClusterInfo,
    names,
    resource_export::{ResourceExport, kind},
};

use super::resources::is_active;
use crate::snapshot::LeaderSnapshot;

/// The most prefixes of a network: a plan compares each with those of all clusters.
pub(super) const MAX_PREFIXES: usize = 1024;

/// The networks to distribute, with their exports.
pub(super) fn valid_networks(
    snapshot: &LeaderSnapshot,
) -> impl Iterator<Item = (&ResourceExport, &ClusterInfo)> {
    let exports = snapshot.exports.values().map(AsRef::as_ref);
    let exports = exports.filter(|export: &&ResourceExport| {
        export.spec.kind == kind::CLUSTER_INFO && is_active(export) && rejection(export).is_none()
    });
    exports.filter_map(|export| Some((export, export.spec.cluster_info.as_deref()?)))
}

/// The reason to ignore an export. It could replace the network of another member, because imports have the names of
/// exports and the cluster ID of their content.
pub(super) fn rejection(export: &ResourceExport) -> Option<String> {
    let cluster = &export.spec.cluster_id;
    if export.name_any() != names::cluster_info(cluster) {
        return Some(format!(
            "ignored: spec.clusterID {cluster:?} does not match the name"
        ));
    }
    let info = export.spec.cluster_info.as_ref()?;
    let content = &info.cluster_id;
    if content != cluster {
        return Some(format!(
            "ignored: spec.clusterInfo.clusterID {content:?} is not spec.clusterID, {cluster:?}"
        ));
    }
    let count = info.service_cidrs.len().saturating_add(info.pod_cidrs.len());
    (count > MAX_PREFIXES)
        .then(|| format!("ignored: spec.clusterInfo has {count} prefixes, more than {MAX_PREFIXES}"))
}
