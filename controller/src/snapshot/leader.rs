//! The input of a leader's plan.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::ResourceExt;
use mc_api::{
    cluster_claim::ClusterClaim, cluster_set::ClusterSet, config::Config,
    member_cluster_announce::MemberClusterAnnounce, resource_export::ResourceExport,
    resource_import::ResourceImport,
};
use mc_kube::{NamespacedName, ObjectMap, OptionalKind};

use super::MemberNamespaces;

/// The input of a leader's plan; all lists are complete.
#[derive(Clone, Debug)]
pub struct LeaderSnapshot {
    /// The time.
    pub now: Timestamp,
    /// The namespace of the exchanged objects.
    pub namespace: String,
    /// The configuration file.
    pub config: Config,
    /// The `ClusterSet`s; one is expected.
    pub cluster_sets: ObjectMap<ClusterSet>,
    /// The cluster's ID, as older guides configure it.
    pub cluster_claims: OptionalKind<ClusterClaim>,
    /// The members' service accounts, and others.
    pub service_accounts: ObjectMap<ServiceAccount>,
    /// The binding of service accounts to cluster IDs that the admission policies read.
    pub service_account_bindings: ObjectMap<ConfigMap>,
    /// The record of the owners of prefixes.
    pub prefix_owners: ObjectMap<ConfigMap>,
    /// The members' announces with their heartbeats, of each cluster in its Namespace.
    pub announces: ObjectMap<MemberClusterAnnounce>,
    /// The members' exports, likewise.
    pub exports: ObjectMap<ResourceExport>,
    /// Those that cannot be decoded ([`mc_kube::FullSnapshot::unreadable`]).
    pub unreadable_exports: BTreeSet<NamespacedName>,
    /// The imports offered to members.
    pub imports: ObjectMap<ResourceImport>,
    /// The policies that restrict the writes of members.
    pub member_policies: MemberPolicies,
    /// The Namespaces of single members, with the objects that do not count.
    pub member_namespaces: MemberNamespaces,
    /// The label ID store, where label identities are exchanged.
    pub label_id_shards: Option<ObjectMap<ConfigMap>>,
    /// The last heartbeat of each `MemberClusterAnnounce`, by name.
    pub heartbeats: BTreeMap<String, LastHeartbeat>,
}

// === impl LeaderSnapshot ===

impl LeaderSnapshot {
    /// Whether an announce is in the Namespace that members without one of their own share.
    #[must_use]
    pub fn is_in_common(&self, announce: &MemberClusterAnnounce) -> bool {
        announce
            .namespace()
            .is_none_or(|namespace| namespace == self.namespace)
    }
}

/// The state of the admission policies that restrict the writes of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MemberPolicies {
    /// They have not been read yet.
    #[default]
    Unknown,
    /// All are in force.
    Installed,
    /// One is not.
    Missing {
        /// Its name.
        name: String,
    },
}

/// The last change of a `MemberClusterAnnounce`'s heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastHeartbeat {
    /// The heartbeat's value.
    pub heartbeat: String,
    /// The time at which it was first seen, by the leader's clock.
    pub seen_at: Timestamp,
}
