//! The snapshot a plan is made from.

#[cfg(test)]
pub(crate) mod fake;

use std::{collections::BTreeMap, sync::Arc};

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Namespace, Node, Secret, Service, ServiceAccount},
        discovery::v1::EndpointSlice,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

use crate::api::{
    cluster_claim::ClusterClaim,
    cluster_info::ClusterInfoImport,
    cluster_set::ClusterSet,
    config::Config,
    gateway::Gateway,
    label_identity::LabelIdentity,
    member_cluster_announce::MemberClusterAnnounce,
    network_policy::{ClusterNetworkPolicy, Tier},
    resource_export::ResourceExport,
    resource_import::ResourceImport,
    service_export::ServiceExport,
    service_import::ServiceImport,
};
use crate::{
    member::parting::{Goodbye, Membership},
    plan::Target,
};

/// Namespace (empty for cluster-scoped kinds) and name.
pub type Key = (String, String);

/// All objects of a kind, as last seen; cheap to clone.
pub type Objects<K> = Arc<BTreeMap<Key, Arc<K>>>;

/// All objects of a kind that a cluster need not know.
#[derive(Clone, Debug, Default)]
pub enum Optional<K> {
    /// Not looked, or not completely.
    #[default]
    Pending,
    /// The API server does not know the kind.
    Absent,
    /// All of them.
    Present(Objects<K>),
}

/// The labels Pods have: Namespace and what [`crate::api::label_identity::sorted`] makes of the Pod's, and how many
/// Pods have them.
pub type PodLabels = Arc<BTreeMap<(String, Arc<str>), usize>>;

/// The object of that Namespace and name.
#[must_use]
pub fn get<'a, K>(objects: &'a Objects<K>, namespace: &str, name: &str) -> Option<&'a Arc<K>> {
    objects.get(&(namespace.to_owned(), name.to_owned()))
}

/// What the leader's plan is made from. Only made of complete lists.
#[derive(Clone, Debug)]
pub struct LeaderWorld {
    /// The time.
    pub now: Timestamp,
    /// Where the exchanged objects are.
    pub namespace: String,
    /// The configuration file.
    pub config: Config,
    /// The sets; one is expected.
    pub cluster_sets: Objects<ClusterSet>,
    /// What the cluster is called, in older guides.
    pub claims: Optional<ClusterClaim>,
    /// Those members' tokens are of, and others.
    pub service_accounts: Objects<ServiceAccount>,
    /// What is known of them to the admission policies.
    pub identities: Objects<ConfigMap>,
    /// The members' signs of life.
    pub announces: Objects<MemberClusterAnnounce>,
    /// What members offer.
    pub exports: Objects<ResourceExport>,
    /// What is offered to members.
    pub imports: Objects<ResourceImport>,
    /// The records of label identities, where those are exchanged.
    pub records: Option<Objects<ConfigMap>>,
    /// When each `MemberClusterAnnounce`, by name, was last seen to change, by our own clock.
    pub heard: BTreeMap<String, Heard>,
}

/// The last change of a `MemberClusterAnnounce`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// Its heartbeat then.
    pub touch: String,
    /// When we saw it.
    pub at: Timestamp,
}

/// What a member's plan is made from. The local lists are complete.
#[derive(Clone, Debug)]
pub struct MemberWorld {
    /// The time.
    pub now: Timestamp,
    /// Where this controller runs.
    pub namespace: String,
    /// The configuration file.
    pub config: Config,
    /// The Service CIDRs, configured or found out, one of each IP family at most; empty while not known.
    pub service_cidrs: Vec<IpNet>,
    /// The sets; one is expected.
    pub cluster_sets: Objects<ClusterSet>,
    /// What the cluster is called, in older guides.
    pub claims: Optional<ClusterClaim>,
    /// The record of memberships, if there is one.
    pub memberships: Objects<ConfigMap>,
    /// How it goes with those that ended, as long as this controller knows of them.
    pub goodbyes: BTreeMap<Membership, Goodbye>,
    /// The Nodes.
    pub nodes: Objects<Node>,
    /// The Namespaces.
    pub namespaces: Objects<Namespace>,
    /// All Services.
    pub services: Objects<Service>,
    /// All `EndpointSlice`s.
    pub slices: Objects<EndpointSlice>,
    /// What is to be exported.
    pub service_exports: Objects<ServiceExport>,
    /// What was imported.
    pub service_imports: Objects<ServiceImport>,
    /// The gateways.
    pub gateways: Objects<Gateway>,
    /// The networks of the other clusters.
    pub cluster_infos: Objects<ClusterInfoImport>,
    /// The labels of all Pods, where they are exported and once they are all read.
    pub pod_labels: Option<PodLabels>,
    /// The label identities of the set.
    pub label_identities: Optional<LabelIdentity>,
    /// The cluster's policies, imported or its own.
    pub policies: Optional<ClusterNetworkPolicy>,
    /// What policies may name.
    pub tiers: Optional<Tier>,
    /// What could not be written, more than once, and why; in the leader cluster only what was refused.
    pub failing: BTreeMap<Target, String>,
    /// The token Secret.
    pub secret: SecretSeen,
    /// How it goes with the leader.
    pub link: Link,
    /// The leader's objects, as last seen; kept while the leader is away.
    pub leader: Option<LeaderView>,
}

/// What is known about the Secret a `ClusterSet` names.
#[derive(Clone, Debug, Default)]
pub enum SecretSeen {
    /// Not looked yet.
    #[default]
    Pending,
    /// It does not exist.
    Missing,
    /// It exists.
    Present(Arc<Secret>),
}

/// How the last exchanges with the leader went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// None was tried.
    #[default]
    Idle,
    /// Trying.
    Connecting,
    /// The last one succeeded.
    Up,
    /// The last one failed.
    Down {
        /// Why.
        error: String,
    },
}

/// The leader's objects this member may see.
#[derive(Clone, Debug, Default)]
pub struct LeaderView {
    /// Whether the lists below are complete.
    pub synced: bool,
    /// This member's sign of life.
    pub announces: Objects<MemberClusterAnnounce>,
    /// This member's exports.
    pub exports: Objects<ResourceExport>,
    /// Everything offered.
    pub imports: Objects<ResourceImport>,
    /// Until when something that is absent may have been forgotten ([`crate::member::doubt`]).
    pub doubt: Option<Timestamp>,
}

// === impl Optional ===

impl<K> Optional<K> {
    /// All objects, if they are known.
    #[must_use]
    pub fn objects(&self) -> Option<&Objects<K>> {
        match self {
            Self::Present(objects) => Some(objects),
            Self::Pending | Self::Absent => None,
        }
    }
}

/// `timestamp` as the API writes it, in whole seconds.
#[must_use]
pub fn time(timestamp: Timestamp) -> Time {
    Time(Timestamp::from_second(timestamp.as_second()).unwrap_or(timestamp))
}
