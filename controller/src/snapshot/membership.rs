//! Identity and end of a membership.

use std::time::Duration;

use kube::ResourceExt;
use mc_api::{cluster_set::ClusterSet, names};

/// The identity of a membership: connections with equal values belong to the same one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Membership {
    /// The ID of the set.
    pub cluster_set: String,
    /// The ID of the local cluster.
    pub cluster_id: String,
    /// The namespace of the exchanged objects in the leader cluster.
    pub namespace: String,
}

/// The progress of a deregistration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeregistrationState {
    /// It has started.
    InProgress,
    /// The announce is gone, and no earlier request can create it again.
    Confirmed,
    /// The last attempt failed with this error.
    Failing(String),
}

/// The namespace of the exchanged objects in the leader cluster.
#[must_use]
pub fn leader_namespace(set: &ClusterSet) -> &str {
    if set.spec.namespace.is_empty() {
        names::LEADER_NAMESPACE
    } else {
        &set.spec.namespace
    }
}

// === impl Membership ===

impl Membership {
    /// The membership of a `ClusterSet`; `None` while the cluster's ID is unknown.
    #[must_use]
    pub fn from_cluster_set(set: &ClusterSet) -> Option<Self> {
        (!set.spec.cluster_id.is_empty()).then(|| Self {
            cluster_set: set.name_any(),
            cluster_id: set.spec.cluster_id.clone(),
            namespace: leader_namespace(set).to_owned(),
        })
    }

    /// Whether this may be the membership of `set`, whose cluster ID may be unknown.
    #[must_use]
    pub fn may_match(&self, set: &ClusterSet) -> bool {
        match Self::from_cluster_set(set) {
            Some(membership) => membership == *self,
            None => self.cluster_set == set.name_any(),
        }
    }

    /// Whether this membership has ended, given the active `ClusterSet`.
    #[must_use]
    pub fn has_ended(&self, set: Option<&ClusterSet>) -> bool {
        !set.is_some_and(|set| self.may_match(set))
    }
}

/// The instance of this run of a member controller ([`crate::member::instance`]), and its rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Instance {
    /// Its random name.
    pub own: String,
    /// The instance of a run elsewhere, to which this one yields.
    pub other: Option<String>,
    /// The time until this run may write more than heartbeats, if the instance remains undisputed.
    pub writes_in: Option<Duration>,
    /// The same for deletions of exports.
    pub deletes_in: Option<Duration>,
}
