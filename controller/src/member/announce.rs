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
