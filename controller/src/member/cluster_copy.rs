//! A copy of a member: a cluster that was restored from a backup elsewhere has the ID and the token of the original.
//!
//! Pure. The announce in the leader cluster carries the UID of the Namespace `kube-system` of the cluster that writes
//! it, which a backup of objects does not restore. A copy of etcd has the same UID and is recognised by the instance of
//! its controller ([`super::instance`]). Guarantee: while the heartbeats there are those of another cluster, this one
//! writes nothing to the leader, deregisters nothing and keeps its imports.

use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use mc_api::{cluster_set::ClusterSet, member_cluster_announce::MemberClusterAnnounce, names};

use super::{
    announce::announce,
    instance::{self, SETTLING_TIME, TAKEOVER_DELAY},
};
use crate::snapshot::{MemberSnapshot, RemoteObjects, get};

/// Another cluster with the ID of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OtherCluster {
    /// The difference from the announce of this one.
    pub mark: ForeignMark,
    /// The time until this cluster takes its place, if no heartbeat follows.
    pub remaining: SignedDuration,
}

/// The difference between the announces of two clusters with one ID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignMark {
    /// Another UID.
    #[error("with UID {0:?} of its Namespace kube-system: one of both is a copy")]
    Uid(String),
    /// The same UID.
    #[error(
        "with the same UID of its Namespace kube-system and another controller ({0:?}): one of both is a copy of its \
         etcd, or this cluster has two member controllers"
    )]
    Instance(String),
}

/// The marks by which a cluster distinguishes its announce from that of another one with its ID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterIdentity {
    /// The UID of its Namespace `kube-system`.
    pub uid: Option<String>,
    /// The instance of this run of its controller.
    pub instance: String,
}

/// The owner of an announce with the ID of this cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnnounceOwner {
    /// This cluster.
    Own,
    /// Another cluster.
    Other,
    /// A run of a controller that has ended, or another cluster with the same UID.
    Unknown,
}

/// The first statement of another run on an announce that this cluster does not write any more.
#[derive(Clone, Debug, Default)]
pub struct AnnounceObserver {
    first: Option<(String, Duration)>,
}

/// The UID of this cluster's Namespace `kube-system`.
#[must_use]
pub fn own_uid(snapshot: &MemberSnapshot) -> Option<String> {
    get(&snapshot.namespaces, "", names::SYSTEM_NAMESPACE)?.uid()
}

/// The UID in an announce, if it is not this one.
fn foreign_uid<'a>(announce: &'a MemberClusterAnnounce, own: Option<&str>) -> Option<&'a str> {
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
    let uid = foreign_uid(announce(leader, set)?, own.as_deref());
    let mark = uid
        .map(|uid| ForeignMark::Uid(uid.to_owned()))
        .or_else(|| snapshot.instance.other.clone().map(ForeignMark::Instance))?;
    let remaining = TAKEOVER_DELAY.checked_sub(snapshot.announce_unchanged_for)?;
    let remaining = SignedDuration::try_from(remaining).ok()?;
    remaining
        .is_positive()
        .then_some(OtherCluster { mark, remaining })
}

// === impl AnnounceObserver ===

impl AnnounceObserver {
    /// The owner of an announce that was read at a monotonic time. A statement of another run that stays the same for
    /// [`SETTLING_TIME`] is that of a former run of this cluster: those of another cluster change with each heartbeat.
    pub fn owner(
        &mut self,
        own: &ClusterIdentity,
        announce: &MemberClusterAnnounce,
        now: Duration,
    ) -> AnnounceOwner {
        if foreign_uid(announce, own.uid.as_deref()).is_some() {
            return AnnounceOwner::Other;
        }
        let statement = announce.annotations().get(names::ANNOTATION_INSTANCE);
        let Some(statement) = statement.filter(|statement| !instance::is_of(statement, &own.instance)) else {
            return AnnounceOwner::Own;
        };
        let (first, since) = self.first.get_or_insert_with(|| (statement.clone(), now));
        if first != statement {
            AnnounceOwner::Other
        } else if now.saturating_sub(*since) >= SETTLING_TIME {
            AnnounceOwner::Own
        } else {
            AnnounceOwner::Unknown
        }
    }
}
