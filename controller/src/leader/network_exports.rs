//! The networks that members export.

use kube::ResourceExt;
use mc_api::{
    cluster_info::ClusterInfo,
    names,
    resource_export::{ResourceExport, kind},
};

use super::resources::is_active;
use crate::snapshot::LeaderSnapshot;

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
    let content = &export.spec.cluster_info.as_ref()?.cluster_id;
    (content != cluster).then(|| {
        format!("ignored: spec.clusterInfo.clusterID {content:?} is not spec.clusterID, {cluster:?}")
    })
}
