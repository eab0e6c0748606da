//! This cluster's announce in the leader cluster.

use kube::ResourceExt;
use mc_api::{cluster_set::ClusterSet, member_cluster_announce::MemberClusterAnnounce, names};

use crate::snapshot::RemoteObjects;

/// This cluster's announce in the leader cluster.
#[must_use]
pub fn announce<'a>(leader: &'a RemoteObjects, set: &ClusterSet) -> Option<&'a MemberClusterAnnounce> {
    let name = names::member_announce(&set.spec.cluster_id);
    leader
        .announces
        .values()
        .find(|a| a.name_any() == name)
        .map(AsRef::as_ref)
}

/// The last heartbeat in an announce, as written by its cluster.
#[must_use]
pub fn last_heartbeat(announce: &MemberClusterAnnounce) -> &str {
    let heartbeat = announce.annotations().get(names::ANNOTATION_TOUCH_TS);
    heartbeat.map_or("", String::as_str)
}
