//! The stores of a member's local objects.

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Node, Service},
    discovery::v1::EndpointSlice,
};
use kube::runtime::watcher;
use mc_api::{
    address_group_slice::AddressGroupSlice,
    cluster_claim::ClusterClaim,
    cluster_info::ClusterInfoImport,
    cluster_set::ClusterSet,
    config::Config,
    gateway::Gateway,
    label_identity::LabelIdentity,
    names,
    network_policy::{ClusterGroup, ClusterNetworkPolicy, NamespacedGroup, NetworkPolicy, Tier},
    node_key::NodeKey,
    node_policy_status::NodePolicyStatus,
    node_reachability::NodeReachability,
    service_export::ServiceExport,
    service_import::ServiceImport,
};
use mc_kube::{AbortOnDrop, CacheState, Store, WatchContext};

use super::{
    cache::{self, DynStore},
    pod_labels::PodLabelWatch,
};
use crate::plan::ObjectRef;

/// The local objects.
pub(super) struct MemberStores {
    pub(super) cluster_sets: Store<ClusterSet>,
    pub(super) memberships: Store<ConfigMap>,
    pub(super) node_keys: Store<NodeKey>,
    pub(super) cluster_claims: Store<ClusterClaim>,
    pub(super) nodes: Store<Node>,
    pub(super) namespaces: Store<Namespace>,
    pub(super) services: Store<Service>,
    pub(super) endpoint_slices: Store<EndpointSlice>,
    pub(super) service_exports: Store<ServiceExport>,
    pub(super) service_imports: Store<ServiceImport>,
    pub(super) gateways: Store<Gateway>,
    pub(super) cluster_infos: Store<ClusterInfoImport>,
    pub(super) label_identities: Store<LabelIdentity>,
    pub(super) policies: Store<ClusterNetworkPolicy>,
    pub(super) network_policies: Store<NetworkPolicy>,
    pub(super) cluster_groups: Store<ClusterGroup>,
    pub(super) groups: Store<NamespacedGroup>,
    pub(super) node_policy_statuses: Store<NodePolicyStatus>,
    pub(super) node_reachabilities: Store<NodeReachability>,
    pub(super) address_group_slices: Store<AddressGroupSlice>,
    pub(super) tiers: Store<Tier>,
    /// Only where label identities are exported.
    pub(super) pods: Option<PodLabelWatch>,
    _tasks: Vec<AbortOnDrop>,
}

// === impl MemberStores ===

impl MemberStores {
    /// Watches the cluster, with this controller's own objects in `namespace`.
    pub(super) fn watch(context: &WatchContext, namespace: &str, config: &Config) -> Self {
        let mut tasks = vec![];
        macro_rules! watch {
            ($namespace:expr) => {
                watch!($namespace, watcher::Config::default())
            };
            ($namespace:expr, $config:expr) => {{
                let (store, task) = context.store($namespace, $config);
                tasks.push(task);
                store
            }};
        }
        macro_rules! watch_optional {
            ($namespace:expr) => {{
                let (store, task) = context.optional_store($namespace);
                tasks.push(task);
                store
            }};
        }
        let record = format!("metadata.name={}", names::MEMBERSHIP_RECORDS);
        Self {
            cluster_sets: watch!(Some(namespace)),
            memberships: watch!(Some(namespace), watcher::Config::default().fields(&record)),
            node_keys: watch!(Some(namespace)),
            gateways: watch!(Some(namespace)),
            cluster_infos: watch!(Some(namespace)),
            nodes: watch!(None),
            namespaces: watch!(None),
            services: watch!(None),
            endpoint_slices: watch!(None),
            service_exports: watch!(None),
            service_imports: watch!(None),
            cluster_claims: watch_optional!(Some(namespace)),
            label_identities: watch_optional!(None),
            policies: watch_optional!(None),
            network_policies: watch_optional!(None),
            cluster_groups: watch_optional!(None),
            groups: watch_optional!(None),
            node_policy_statuses: watch_optional!(Some(namespace)),
            node_reachabilities: watch_optional!(Some(namespace)),
            address_group_slices: watch_optional!(Some(namespace)),
            tiers: watch_optional!(None),
            pods: config.stretched_network_policy.then(|| {
                let (pods, task) = PodLabelWatch::watch(context, config.excluded_labels.clone());
                tasks.push(task);
                pods
            }),
            _tasks: tasks,
        }
    }

    /// Whether all required lists are complete.
    pub(super) fn synced(&self) -> bool {
        cache::synced(&self.required())
    }

    /// The cache's state of an object.
    pub(super) fn cache_state(&self, target: &ObjectRef) -> Option<CacheState> {
        let optional: [&dyn DynStore; 7] = [
            &self.address_group_slices,
            &self.label_identities,
            &self.policies,
            &self.network_policies,
            &self.cluster_groups,
            &self.groups,
            &self.tiers,
        ];
        cache::cache_state(&self.required(), target).or_else(|| cache::cache_state(&optional, target))
    }

    fn required(&self) -> [&dyn DynStore; 11] {
        [
            &self.cluster_sets,
            &self.memberships,
            &self.nodes,
            &self.namespaces,
            &self.services,
            &self.endpoint_slices,
            &self.service_exports,
            &self.service_imports,
            &self.gateways,
            &self.cluster_infos,
            &self.node_keys,
        ]
    }
}
