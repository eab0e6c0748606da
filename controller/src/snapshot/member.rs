//! The input of a member's plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Node, Secret, Service},
    discovery::v1::EndpointSlice,
};
use mc_api::{
    address_group_slice::AddressGroupSlice,
    cluster_claim::ClusterClaim,
    cluster_info::ClusterInfoImport,
    cluster_set::ClusterSet,
    config::Config,
    gateway::Gateway,
    label_identity::LabelIdentity,
    member_cluster_announce::MemberClusterAnnounce,
    network_policy::{ClusterGroup, ClusterNetworkPolicy, NamespacedGroup, NetworkPolicy, Tier},
    node_key::NodeKey,
    node_policy_status::NodePolicyStatus,
    node_reachability::NodeReachability,
    resource_export::ResourceExport,
    resource_import::ResourceImport,
    service_export::ServiceExport,
    service_import::ServiceImport,
};
use mc_kube::{NamespacedName, ObjectMap, OptionalKind};

use super::{DeregistrationState, Instance, Membership, PodAddresses, PodLabelCounts, StatusTimes};
use crate::plan::ObjectRef;

/// The input of a member's plan; the local lists are complete.
#[derive(Clone, Debug)]
pub struct MemberSnapshot {
    /// The time.
    pub now: Timestamp,
    /// The namespace of this controller.
    pub namespace: String,
    /// The configuration file.
    pub config: Config,
    /// The Service CIDRs, configured or discovered, at most one of each IP family; empty while unknown.
    pub service_cidrs: Vec<IpNet>,
    /// The `ClusterSet`s; one is expected.
    pub cluster_sets: ObjectMap<ClusterSet>,
    /// Those that cannot be decoded ([`mc_kube::FullSnapshot::unreadable`]).
    pub unreadable_cluster_sets: BTreeSet<NamespacedName>,
    /// The cluster's ID, as older guides configure it.
    pub cluster_claims: OptionalKind<ClusterClaim>,
    /// The membership record.
    pub memberships: ObjectMap<ConfigMap>,
    /// The public keys of the Nodes' agents.
    pub node_keys: ObjectMap<NodeKey>,
    /// The state of each deregistration of this process.
    pub deregistrations: BTreeMap<Membership, DeregistrationState>,
    /// The Nodes.
    pub nodes: ObjectMap<Node>,
    /// The namespaces.
    pub namespaces: ObjectMap<Namespace>,
    /// The Services.
    pub services: ObjectMap<Service>,
    /// The `EndpointSlice`s.
    pub endpoint_slices: ObjectMap<EndpointSlice>,
    /// The `ServiceExport`s.
    pub service_exports: ObjectMap<ServiceExport>,
    /// The `ServiceImport`s.
    pub service_imports: ObjectMap<ServiceImport>,
    /// The Gateways.
    pub gateways: ObjectMap<Gateway>,
    /// The networks of the other clusters.
    pub cluster_infos: ObjectMap<ClusterInfoImport>,
    /// The labels of all Pods, where they are exported and once the list is complete.
    pub pod_labels: Option<PodLabelCounts>,
    /// The label identities of the set.
    pub label_identities: OptionalKind<LabelIdentity>,
    /// The cluster's policies, imported or its own.
    pub policies: OptionalKind<ClusterNetworkPolicy>,
    /// The cluster's policies of Namespaces.
    pub network_policies: OptionalKind<NetworkPolicy>,
    /// The groups of `ClusterNetworkPolicies`.
    pub cluster_groups: OptionalKind<ClusterGroup>,
    /// The groups of policies of Namespaces.
    pub groups: OptionalKind<NamespacedGroup>,
    /// The agents' reports about policies.
    pub node_policy_statuses: OptionalKind<NodePolicyStatus>,
    /// The gateway agents' reports about the other clusters.
    pub node_reachabilities: OptionalKind<NodeReachability>,
    /// The addresses of Pods as the agents have them.
    pub address_group_slices: OptionalKind<AddressGroupSlice>,
    /// The addresses of all Pods, while agents enforce every rule and once the list is complete.
    pub pod_addresses: Option<PodAddresses>,
    /// The Tiers that policies may refer to.
    pub tiers: OptionalKind<Tier>,
    /// Writes that failed more than once, with the error; in the leader cluster only rejected ones.
    pub persistent_failures: BTreeMap<ObjectRef, String>,
    /// The times of this process's last writes of the statuses of policies.
    pub status_times: StatusTimes,
    /// The token Secret.
    pub secret: SecretState,
    /// The state of the connection to the leader.
    pub connection: LeaderConnectionState,
    /// The time for which this cluster's announce in the leader cluster has been the same, by the monotonic clock: zero
    /// without a connection, and since it was made.
    pub announce_unchanged_for: Duration,
    /// The instance of this run of the controller.
    pub instance: Instance,
    /// The leader's objects, as last seen; kept while the leader is unreachable.
    pub leader: Option<RemoteObjects>,
}

/// The lookup state of the Secret that a `ClusterSet` names.
#[derive(Clone, Debug, Default)]
pub enum SecretState {
    /// It has not been read yet.
    #[default]
    Pending,
    /// The Secret does not exist.
    Missing,
    /// The Secret exists.
    Present(Arc<Secret>),
}

/// The result of the last exchange with the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LeaderConnectionState {
    /// No connection is configured.
    #[default]
    Idle,
    /// The first answer is outstanding.
    Connecting,
    /// The last request succeeded.
    Up,
    /// The last request failed.
    Down {
        /// The error.
        error: String,
    },
}

/// The statement of a cluster that the leader has all of its exports ([`mc_api::names::LABEL_EXPORTS_COMPLETE`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompleteExports {
    /// The UID of its announce.
    pub announce: String,
    /// The time since which this connection knows it.
    pub since: Timestamp,
}

/// The leader's objects that this member may read.
#[derive(Clone, Debug, Default)]
pub struct RemoteObjects {
    /// Whether the lists below are complete.
    pub synced: bool,
    /// This member's announce.
    pub announces: ObjectMap<MemberClusterAnnounce>,
    /// This member's exports.
    pub exports: ObjectMap<ResourceExport>,
    /// All clusters' exports of kind `PolicySelectors`, where they are read and once their list is complete.
    pub policy_selectors: Option<ObjectMap<ResourceExport>>,
    /// All clusters' exports of kind `ImportFailures`, once their list is complete.
    pub import_failures: Option<ObjectMap<ResourceExport>>,
    /// The imports of the set.
    pub imports: ObjectMap<ResourceImport>,
    /// Those that cannot be decoded ([`mc_kube::FullSnapshot::unreadable`]).
    pub unreadable_imports: BTreeSet<NamespacedName>,
    /// The names of the imports since the last relist, or since the connection was opened, deleted ones included; each
    /// with all clusters that its endpoints had.
    pub listed_imports: Arc<BTreeMap<String, BTreeSet<String>>>,
    /// The clusters of which the leader has all exports, by ID.
    pub complete_exports: Arc<BTreeMap<String, CompleteExports>>,
    /// The time until which an absent object may have been lost by the leader ([`crate::member::deletion_guard`]).
    pub suppress_deletions_until: Option<Timestamp>,
}
