//! Cache of the watched objects, by kind and name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::runtime::watcher::Event;
use mc_api::network_policy::{Group, Policy};
use mc_kube::NamespacedName;

use crate::config::PolicyEnforcement;
use crate::desired::selects_pods;
use crate::identity_objects::{IdentityInfo, IdentityObjects, NamespaceInfo};
use crate::objects::{GatewayInfo, NodeInfo, NodeKeyInfo, Objects, PodInfo, RemoteCluster};
use crate::policy::Mode;
use crate::policy_objects::{Parsed, PolicyObjects, ServicesNeeded, TierInfo, services_needed};
use crate::service_objects::{ExportedService, ServiceInfo, SliceInfo, exported_services};
use crate::source::address_groups::{AddressGroups, further_groups};
use crate::source::enforcement::mode;

/// An event of one of the watched kinds.
#[derive(Debug)]
pub(super) enum ObjectEvent {
    Node(Event<NodeInfo>),
    Gateway(Event<GatewayInfo>),
    Remote(Event<Arc<RemoteCluster>>),
    Pod(Event<Arc<PodInfo>>),
    Service(Event<ServiceInfo>),
    Slice(Event<SliceInfo>),
    Export(Event<NamespacedName>),
    NodeKey(Event<NodeKeyInfo>),
    Namespace(Event<Arc<NamespaceInfo>>),
    Identity(Event<Arc<IdentityInfo>>),
    ClusterPolicy(Event<Arc<Parsed<Policy>>>),
    Policy(Event<Arc<Parsed<Policy>>>),
    ClusterGroup(Event<Arc<Parsed<Group>>>),
    Group(Event<Arc<Parsed<Group>>>),
    Tier(Event<Arc<Parsed<TierInfo>>>),
    AddressGroups(Event<Arc<AddressGroups>>),
    /// The name of an `AntreaControllerInfo`.
    AntreaController(Event<String>),
    /// The name of an `AntreaAgentInfo`, which is the name of its Node.
    AntreaAgent(Event<String>),
}

/// The mode of network policies depends on objects that were not listed completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnknownMode;

/// The objects of a kind by name.
#[derive(Debug)]
pub(super) struct Store<T> {
    pub(super) current: BTreeMap<String, T>,
    /// Objects of a list that is not complete yet.
    relist: BTreeMap<String, T>,
    /// Whether one list was complete.
    pub(super) synced: bool,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            current: BTreeMap::new(),
            relist: BTreeMap::new(),
            synced: false,
        }
    }
}

/// The key of an object in its [`Store`].
pub(super) trait Keyed: Clone {
    fn key(&self) -> String;
}

impl Keyed for NodeInfo {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for GatewayInfo {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for Arc<RemoteCluster> {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for NodeKeyInfo {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for Arc<NamespaceInfo> {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for Arc<IdentityInfo> {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for String {
    fn key(&self) -> String {
        self.clone()
    }
}

impl<T> Keyed for Arc<Parsed<T>> {
    fn key(&self) -> String {
        self.key.clone()
    }
}

impl Keyed for Arc<PodInfo> {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for Arc<AddressGroups> {
    fn key(&self) -> String {
        self.name.clone()
    }
}

impl Keyed for ServiceInfo {
    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Keyed for SliceInfo {
    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Keyed for NamespacedName {
    fn key(&self) -> String {
        self.to_string()
    }
}

impl<T: Keyed> Store<T> {
    /// Applies an event; whether the current objects may have changed.
    fn apply(&mut self, event: Event<T>) -> bool {
        match event {
            Event::Apply(object) => {
                self.current.insert(object.key(), object);
            }
            Event::Delete(object) => {
                self.current.remove(&object.key());
            }
            Event::Init => {
                self.relist.clear();
                return false;
            }
            Event::InitApply(object) => {
                self.relist.insert(object.key(), object);
                return false;
            }
            // Only a complete list replaces the current objects.
            Event::InitDone => {
                self.current = std::mem::take(&mut self.relist);
                self.synced = true;
            }
        }
        true
    }

    fn list(&self) -> Vec<T> {
        self.current.values().cloned().collect()
    }
}

/// The objects of all watches.
#[derive(Debug, Default)]
pub(super) struct ObjectCache {
    /// Namespace of the agent's own objects.
    namespace: String,
    /// The agent's Node.
    node: String,
    /// The network policies to enforce.
    enforcement: PolicyEnforcement,
    pub(super) nodes: Store<NodeInfo>,
    pub(super) gateways: Store<GatewayInfo>,
    remotes: Store<Arc<RemoteCluster>>,
    pub(super) pods: Store<Arc<PodInfo>>,
    pub(super) services: Store<ServiceInfo>,
    slices: Store<SliceInfo>,
    exports: Store<NamespacedName>,
    node_keys: Store<NodeKeyInfo>,
    pub(super) namespaces: Store<Arc<NamespaceInfo>>,
    pub(super) identities: Store<Arc<IdentityInfo>>,
    cluster_policies: Store<Arc<Parsed<Policy>>>,
    policies: Store<Arc<Parsed<Policy>>>,
    cluster_groups: Store<Arc<Parsed<Group>>>,
    groups: Store<Arc<Parsed<Group>>>,
    tiers: Store<Arc<Parsed<TierInfo>>>,
    pub(super) address_groups: Store<Arc<AddressGroups>>,
    /// Whether `address_groups` replaces the Pods of other Nodes.
    pub(super) uses_address_groups: bool,
    antrea_controllers: Store<String>,
    antrea_agents: Store<String>,
}

impl ObjectCache {
    pub(super) fn new(namespace: &str, node: &str, enforcement: PolicyEnforcement) -> Self {
        Self {
            namespace: namespace.to_owned(),
            node: node.to_owned(),
            enforcement,
            ..Self::default()
        }
    }

    /// Applies an event; whether the current objects may have changed.
    pub(super) fn apply(&mut self, event: ObjectEvent) -> bool {
        match event {
            ObjectEvent::Node(event) => self.nodes.apply(event),
            ObjectEvent::Gateway(event) => self.gateways.apply(event),
            ObjectEvent::Remote(event) => self.remotes.apply(event),
            ObjectEvent::Pod(event) => self.pods.apply(match event {
                Event::Apply(pod) => Event::Apply(self.without_foreign_labels(pod)),
                Event::InitApply(pod) => Event::InitApply(self.without_foreign_labels(pod)),
                other => other,
            }),
            ObjectEvent::Service(event) => self.services.apply(event),
            ObjectEvent::Slice(event) => self.slices.apply(event),
            ObjectEvent::Export(event) => self.exports.apply(event),
            ObjectEvent::NodeKey(event) => self.node_keys.apply(event),
            ObjectEvent::Namespace(event) => self.namespaces.apply(event),
            ObjectEvent::Identity(event) => self.identities.apply(event),
            ObjectEvent::ClusterPolicy(event) => self.cluster_policies.apply(event),
            ObjectEvent::Policy(event) => self.policies.apply(event),
            ObjectEvent::ClusterGroup(event) => self.cluster_groups.apply(event),
            ObjectEvent::Group(event) => self.groups.apply(event),
            ObjectEvent::Tier(event) => self.tiers.apply(event),
            ObjectEvent::AddressGroups(event) => self.address_groups.apply(event),
            ObjectEvent::AntreaController(event) => self.antrea_controllers.apply(event),
            ObjectEvent::AntreaAgent(event) => self.antrea_agents.apply(event),
        }
    }

    /// The rules to enforce; none while policies are off.
    pub(super) fn policy_mode(&self) -> Result<Option<Mode>, UnknownMode> {
        let has_antrea = match self.enforcement {
            PolicyEnforcement::Auto => self.has_antrea()?,
            PolicyEnforcement::All | PolicyEnforcement::ClusterSetOnly | PolicyEnforcement::Off => false,
        };
        Ok(mode(self.enforcement, has_antrea))
    }

    /// Whether Antrea enforces policies on the agent's Node: its controller computes the rules, and its agent on the
    /// Node has started. The controller alone enforces nothing.
    fn has_antrea(&self) -> Result<bool, UnknownMode> {
        let has_controller = !self.antrea_controllers.current.is_empty();
        if !self.antrea_controllers.synced || (has_controller && !self.antrea_agents.synced) {
            return Err(UnknownMode);
        }
        Ok(has_controller && self.antrea_agents.current.contains_key(&self.node))
    }

    /// Whether Pods of other Nodes keep their labels, for policies: also with `auto`, whose mode may change.
    fn keeps_labels(&self) -> bool {
        self.enforcement.may_be_all()
    }

    /// Whether rules may concern the Pods of other Nodes: a policy selects a Pod of the agent's Node, or the Node is a
    /// gateway, which closes the Services of selected Pods on any Node.
    pub(super) fn needs_peers(&self) -> bool {
        if self.cluster_policies.current.is_empty() && self.policies.current.is_empty() {
            return false;
        }
        if self.gateways.current.contains_key(&self.node) {
            return true;
        }
        let own = self.pods.current.values().filter(|pod| pod.node == self.node);
        let own: Vec<_> = own.cloned().collect();
        let namespaces = if self.identities_are_synced() {
            self.namespaces.list()
        } else {
            Vec::new()
        };
        selects_pods(&self.policies_without_services(), &namespaces, &own)
    }

    /// Whether rules for egress are enforced.
    fn enforces_egress(&self) -> bool {
        self.policy_mode() == Ok(Some(Mode::All))
    }

    /// Whether every kind of policies was listed completely, and Services and EndpointSlices as far as policies depend
    /// on them: without these, a rule that drops would lack the addresses of Services.
    pub(super) fn policies_are_synced(&self) -> bool {
        let policies = self.cluster_policies.current.values();
        let policies = policies.chain(self.policies.current.values());
        let needed = if self.enforces_egress() {
            services_needed(policies)
        } else {
            ServicesNeeded::None
        };
        self.cluster_policies.synced
            && self.policies.synced
            && self.cluster_groups.synced
            && self.groups.synced
            && self.tiers.synced
            && (self.services.synced || needed == ServicesNeeded::None)
            && (self.slices.synced || needed != ServicesNeeded::WithEndpoints)
    }

    fn policy_objects(&self) -> PolicyObjects {
        let mut objects = self.policies_without_services();
        if self.enforces_egress() {
            objects.add_services(self.services.current.values(), self.slices.current.values());
        }
        objects
    }

    fn policies_without_services(&self) -> PolicyObjects {
        let (mut policies, mut groups) = (self.cluster_policies.list(), self.cluster_groups.list());
        policies.extend(self.policies.list());
        groups.extend(self.groups.list());
        PolicyObjects {
            policies,
            groups,
            tiers: self.tiers.list(),
            ..PolicyObjects::default()
        }
    }

    /// The Pod without unused fields if it runs on another Node: an agent may watch all Pods of the cluster.
    fn without_foreign_labels(&self, mut pod: Arc<PodInfo>) -> Arc<PodInfo> {
        if pod.node != self.node && !self.keeps_labels() {
            let pod = Arc::make_mut(&mut pod);
            pod.ports = Vec::new();
            pod.labels = Arc::default();
            pod.service_account = Arc::default();
        }
        pod
    }

    /// Whether Namespaces and label identities were listed completely.
    fn identities_are_synced(&self) -> bool {
        self.namespaces.synced && self.identities.synced
    }

    /// Namespaces and label identities, once both were listed completely.
    fn identity_objects(&self) -> Option<IdentityObjects> {
        self.identities_are_synced().then(|| IdentityObjects {
            namespaces: self.namespaces.list(),
            identities: self.identities.list(),
        })
    }

    /// The exported Services, once Services, EndpointSlices and ServiceExports were listed completely.
    fn exported(&self) -> Option<Vec<ExportedService>> {
        let synced = self.services.synced && self.slices.synced && self.exports.synced;
        synced.then(|| {
            let exports: BTreeSet<NamespacedName> = self.exports.current.values().cloned().collect();
            exported_services(
                self.services.current.values(),
                self.slices.current.values(),
                &exports,
            )
        })
    }

    /// Services in the agent's namespace that reserve addresses for Nodes.
    fn reservations(&self) -> Vec<ServiceInfo> {
        let all = self.services.current.values();
        let ours = all.filter(|service| service.reserves && service.namespace == self.namespace);
        ours.cloned().collect()
    }

    /// All objects, once Nodes, Gateways, ClusterInfoImports and public keys were listed completely and the mode of
    /// policies is known. Services are optional: where they cannot be read, Pods still reach each other, unless
    /// policies depend on Services.
    pub(super) fn objects(&self) -> Option<Objects> {
        let policy_mode = self.policy_mode().ok()?;
        let synced =
            self.nodes.synced && self.gateways.synced && self.remotes.synced && self.node_keys.synced;
        synced.then(|| Objects {
            nodes: self.nodes.list(),
            gateways: self.gateways.list(),
            remotes: self.remotes.list(),
            pods: self.pods.list(),
            address_groups: if self.uses_address_groups {
                further_groups(self.pods.current.values(), self.address_groups.current.values())
            } else {
                Vec::new()
            },
            services: self.exported(),
            node_keys: self.node_keys.list(),
            reservations: self.reservations(),
            identities: self.identity_objects(),
            policy_mode,
            policies: self.policy_objects(),
        })
    }
}

#[cfg(test)]
mod tests {
    use mc_api::network_policy::ClusterNetworkPolicy;

    use super::*;

    fn node(name: &str) -> NodeInfo {
        NodeInfo {
            host_addresses: Vec::new(),
            name: name.into(),
            ..NodeInfo::default()
        }
    }

    fn synced() -> ObjectCache {
        let mut cache = ObjectCache::default();
        cache.apply(ObjectEvent::Node(Event::Init));
        cache.apply(ObjectEvent::Node(Event::InitApply(node("n1"))));
        cache.apply(ObjectEvent::Node(Event::InitDone));
        cache.apply(ObjectEvent::Gateway(Event::InitDone));
        assert_eq!(cache.objects(), None, "ClusterInfoImports were not listed yet");
        cache.apply(ObjectEvent::Remote(Event::InitDone));
        assert_eq!(cache.objects(), None, "public keys were not listed yet");
        cache.apply(ObjectEvent::NodeKey(Event::InitDone));
        cache
    }

    #[test]
    fn no_objects_before_all_kinds_were_listed() {
        assert_eq!(synced().objects().unwrap().nodes, [node("n1")]);
    }

    #[test]
    fn an_incomplete_list_removes_nothing() {
        let mut cache = synced();
        cache.apply(ObjectEvent::Node(Event::Init));
        cache.apply(ObjectEvent::Node(Event::InitApply(node("n2"))));
        assert_eq!(cache.objects().unwrap().nodes, [node("n1")]);
        cache.apply(ObjectEvent::Node(Event::Init));
        cache.apply(ObjectEvent::Node(Event::InitApply(node("n3"))));
        cache.apply(ObjectEvent::Node(Event::InitDone));
        assert_eq!(cache.objects().unwrap().nodes, [node("n3")]);
    }

    #[test]
    fn single_events_add_and_delete() {
        let mut cache = synced();
        cache.apply(ObjectEvent::Node(Event::Apply(node("n2"))));
        cache.apply(ObjectEvent::Node(Event::Delete(node("n1"))));
        assert_eq!(cache.objects().unwrap().nodes, [node("n2")]);
    }

    #[test]
    fn exported_services_need_a_list_of_all_three_kinds() {
        let mut cache = synced();
        assert_eq!(cache.objects().unwrap().services, None);
        let web = ServiceInfo {
            namespace: "shop".into(),
            name: "web".into(),
            ..ServiceInfo::default()
        };
        cache.apply(ObjectEvent::Service(Event::InitApply(web)));
        cache.apply(ObjectEvent::Service(Event::InitDone));
        cache.apply(ObjectEvent::Slice(Event::InitDone));
        assert_eq!(cache.objects().unwrap().services, None);
        cache.apply(ObjectEvent::Export(Event::InitDone));
        assert_eq!(cache.objects().unwrap().services, Some(vec![]));
        cache.apply(ObjectEvent::Export(Event::Apply(NamespacedName::new(
            "shop", "web",
        ))));
        assert_eq!(cache.objects().unwrap().services.unwrap().len(), 1);
    }

    /// A new agent replaced the tables of its predecessor by tables without the addresses of Services.
    #[test]
    fn policies_are_unknown_before_the_services_that_they_drop() {
        let policy = |egress: serde_json::Value| {
            let object = ClusterNetworkPolicy {
                metadata: kube::core::ObjectMeta {
                    name: Some("p".into()),
                    ..Default::default()
                },
                spec: serde_json::json!({
                    "priority": 1, "appliedTo": [{ "podSelector": {} }], "egress": [egress],
                }),
                ..Default::default()
            };
            crate::policy_objects::cluster_network_policy(&object)
        };
        let by_labels = serde_json::json!({ "action": "Drop", "to": [{ "podSelector": {} }] });
        let by_name =
            serde_json::json!({ "action": "Drop", "toServices": [{ "name": "web", "namespace": "shop" }] });
        let all = serde_json::json!({ "action": "Drop" });
        let of_antrea = PolicyEnforcement::ClusterSetOnly;
        for (enforcement, rule, [none, services, both]) in [
            (PolicyEnforcement::All, all, [true; 3]),
            (PolicyEnforcement::All, by_name, [false, true, true]),
            (PolicyEnforcement::All, by_labels.clone(), [false, false, true]),
            (of_antrea, by_labels, [true; 3]),
        ] {
            let mut cache = ObjectCache::new("kube-system", "n1", enforcement);
            cache.apply(ObjectEvent::ClusterPolicy(Event::InitApply(policy(rule.clone()))));
            cache.apply(ObjectEvent::ClusterPolicy(Event::InitDone));
            cache.apply(ObjectEvent::Policy(Event::InitDone));
            cache.apply(ObjectEvent::ClusterGroup(Event::InitDone));
            cache.apply(ObjectEvent::Group(Event::InitDone));
            assert!(!cache.policies_are_synced(), "Tiers were not listed yet");
            cache.apply(ObjectEvent::Tier(Event::InitDone));
            assert_eq!(cache.policies_are_synced(), none, "{rule}");
            cache.apply(ObjectEvent::Service(Event::InitDone));
            assert_eq!(cache.policies_are_synced(), services, "{rule}");
            cache.apply(ObjectEvent::Slice(Event::InitDone));
            assert_eq!(cache.policies_are_synced(), both, "{rule}");
        }
    }

    #[test]
    fn identities_are_unknown_before_both_kinds_were_listed() {
        let mut cache = synced();
        cache.apply(ObjectEvent::Identity(Event::InitDone));
        assert_eq!(cache.objects().unwrap().identities, None);
        cache.apply(ObjectEvent::Namespace(Event::InitDone));
        assert_eq!(
            cache.objects().unwrap().identities,
            Some(IdentityObjects::default())
        );
    }

    #[test]
    fn pods_of_other_nodes_keep_their_labels_for_policies_only() {
        for (enforcement, foreign) in [
            (PolicyEnforcement::Off, ""),
            (PolicyEnforcement::ClusterSetOnly, ""),
            (PolicyEnforcement::All, "app=web"),
            (PolicyEnforcement::Auto, "app=web"),
        ] {
            let mut cache = ObjectCache::new("kube-system", "n1", enforcement);
            for node in ["n1", "n2"] {
                cache.apply(ObjectEvent::Pod(Event::Apply(Arc::new(PodInfo {
                    name: format!("shop/{node}"),
                    node: node.into(),
                    labels: "app=web".into(),
                    ..PodInfo::default()
                }))));
            }
            let labels = cache.pods.current.values().map(|pod| &*pod.labels);
            assert_eq!(labels.collect::<Vec<_>>(), ["app=web", foreign]);
        }
    }

    #[test]
    fn nothing_is_known_before_antrea_was_looked_for_and_later_changes_are_seen() {
        let mut cache = ObjectCache::new("kube-system", "n1", PolicyEnforcement::Auto);
        cache.apply(ObjectEvent::AntreaAgent(Event::InitApply("n1".into())));
        cache.apply(ObjectEvent::AntreaAgent(Event::InitDone));
        for listed in [
            ObjectEvent::Node(Event::InitDone),
            ObjectEvent::Gateway(Event::InitDone),
            ObjectEvent::Remote(Event::InitDone),
            ObjectEvent::NodeKey(Event::InitDone),
        ] {
            cache.apply(listed);
        }
        assert_eq!(cache.policy_mode(), Err(UnknownMode));
        cache.apply(ObjectEvent::AntreaController(Event::InitApply(
            "antrea-controller".into(),
        )));
        assert_eq!(cache.objects(), None, "the list is not complete");
        for (event, mode) in [
            (Event::InitDone, Mode::ClusterSetOnly),
            (Event::Delete("antrea-controller".into()), Mode::All),
            (Event::Apply("antrea-controller".into()), Mode::ClusterSetOnly),
            (Event::Init, Mode::ClusterSetOnly),
            // An empty list, as of a kind that the API server does not serve any more.
            (Event::InitDone, Mode::All),
        ] {
            let shown = format!("{event:?}");
            cache.apply(ObjectEvent::AntreaController(event));
            assert_eq!(cache.objects().unwrap().policy_mode, Some(mode), "{shown}");
        }
    }

    /// Agents left rules to Antrea from the creation of its controller on, before Antrea's agents enforced any.
    #[test]
    fn rules_are_left_to_antrea_only_once_its_agent_on_the_node_has_started() {
        let mut cache = ObjectCache::new("kube-system", "n1", PolicyEnforcement::Auto);
        cache.apply(ObjectEvent::AntreaController(Event::InitDone));
        assert_eq!(
            cache.policy_mode(),
            Ok(Some(Mode::All)),
            "no agent matters without the controller"
        );
        cache.apply(ObjectEvent::AntreaController(Event::Apply(
            "antrea-controller".into(),
        )));
        assert_eq!(
            cache.policy_mode(),
            Err(UnknownMode),
            "the agent was not listed yet"
        );
        for (event, mode) in [
            (Event::InitDone, Mode::All),
            (Event::Apply("n2".into()), Mode::All),
            (Event::Apply("n1".into()), Mode::ClusterSetOnly),
            (Event::Delete("n2".into()), Mode::ClusterSetOnly),
            (Event::Delete("n1".into()), Mode::All),
        ] {
            let shown = format!("{event:?}");
            cache.apply(ObjectEvent::AntreaAgent(event));
            assert_eq!(cache.policy_mode(), Ok(Some(mode)), "{shown}");
        }
    }

    #[test]
    fn only_labelled_services_of_the_agents_namespace_reserve_addresses() {
        let mut cache = synced();
        cache.namespace = "kube-system".into();
        for (namespace, reserves) in [("shop", true), ("kube-system", false), ("kube-system", true)] {
            let name = format!("mc-node-{namespace}-{reserves}");
            cache.apply(ObjectEvent::Service(Event::Apply(ServiceInfo {
                namespace: namespace.into(),
                name,
                reserves,
                ..ServiceInfo::default()
            })));
        }
        let found = cache.objects().unwrap().reservations;
        let names: Vec<&str> = found.iter().map(|service| service.name.as_str()).collect();
        assert_eq!(names, ["mc-node-kube-system-true"]);
    }
}
