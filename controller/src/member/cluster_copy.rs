//! A copy of a member: a cluster that was restored from a backup elsewhere has the ID and the token of the original.
//!
//! Pure. The announce in the leader cluster carries the UID of the Namespace `kube-system` of the cluster that writes
//! it, which a backup of objects does not restore. Guarantee: while the heartbeats there are those of another cluster,
//! this one writes nothing to the leader, deregisters nothing and keeps its imports. A copy of etcd has the same UID
//! and is not recognised.

use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use mc_api::{cluster_set::ClusterSet, member_cluster_announce::MemberClusterAnnounce, names};

use super::announce::announce;
use crate::snapshot::{MemberSnapshot, RemoteObjects, get};

/// The time without a heartbeat of the other cluster after which this one takes its place, by this cluster's monotonic
/// clock: six heartbeat periods. A cluster that is built anew waits as long.
pub const TAKEOVER_DELAY: Duration = Duration::from_mins(1);

/// Another cluster with the ID of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OtherCluster {
    /// The UID of its Namespace `kube-system`.
    pub uid: String,
    /// The time until this cluster takes its place, if no heartbeat follows.
    pub remaining: SignedDuration,
}

/// The UID of this cluster's Namespace `kube-system`.
#[must_use]
pub fn own_uid(snapshot: &MemberSnapshot) -> Option<String> {
    get(&snapshot.namespaces, "", names::SYSTEM_NAMESPACE)?.uid()
}

/// The UID in an announce, if it is not this one.
#[must_use]
pub fn foreign_uid<'a>(announce: &'a MemberClusterAnnounce, own: Option<&str>) -> Option<&'a str> {
    let uid = announce.annotations().get(names::ANNOTATION_CLUSTER_UID)?;
    Some(uid.as_str()).filter(|uid| own.is_some_and(|own| own != *uid))
}

/// The cluster that writes the announce of this one's ID, while its heartbeats go on.
pub(super) fn other_cluster(
    snapshot: &MemberSnapshot,
    leader: &RemoteObjects,
    set: &ClusterSet,
) -> Option<OtherCluster> {
    let own = own_uid(snapshot);
    let uid = foreign_uid(announce(leader, set)?, own.as_deref())?;
    let remaining = TAKEOVER_DELAY.checked_sub(snapshot.announce_unchanged_for)?;
    let remaining = SignedDuration::try_from(remaining).ok()?;
    remaining.is_positive().then(|| OtherCluster {
        uid: uid.to_owned(),
        remaining,
    })
}
