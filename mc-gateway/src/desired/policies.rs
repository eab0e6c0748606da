//! Policy tables of this node: the policies that select its Pods, compiled.
//!
//! *Guarantees*: tables depend on the objects alone; they are compiled again only when an object of theirs changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use mc_api::network_policy::Policy;
use mc_gateway_common::abi::Addr;
use mc_gateway_common::abi::policy::{
    MAX_PEER_RULES, NO_RULES, POD_CLOSED, POD_DROPS_UNKNOWN, PolicyPod, unselected_number,
};

use super::LocalNode;
use super::identity_tables::{IdentityTables, identity_tables, without_slot};
use super::node_policies::NodePolicies;
use super::policy_capacity::Excess;
use super::policy_rules::{SetsByMap, rule_entries};
use super::policy_set::{add_peers, policy_set};
use super::rule_names::{RuleName, rule_ids, rule_names};
use crate::cidr::{abi_prefix_len, parse_address, parse_prefix, to_abi_addr};
use crate::identity_objects::{IdentityInfo, IdentityObjects, NamespaceInfo};
use crate::ids::cluster_id;
use crate::objects::{FieldError, Objects, PodInfo};
use crate::policy::{
    ClosedPods, Mode, PodSets, PolicySet, ProxiedEndpoints, SetInfo, Tables, compile, protected_pods,
    shadowed,
};
use crate::policy_objects::PolicyObjects;
use crate::policy_report;
use crate::policy_tables::PolicyTables;

/// Inputs of the tables, and the tables.
#[derive(Clone, Debug, Default)]
pub(super) struct PolicyCache {
    inputs: Option<Inputs>,
    policies: NodePolicies,
    rejected: Vec<FieldError>,
}

#[derive(Clone, Debug)]
struct Inputs {
    mode: Mode,
    objects: PolicyObjects,
    namespaces: Vec<Arc<NamespaceInfo>>,
    identities: Vec<Arc<IdentityInfo>>,
    pods: Vec<Arc<PodInfo>>,
    /// All Pods, some as groups; none where rules about the own cluster are not enforced.
    cluster_pods: Vec<Arc<PodInfo>>,
    clusters: BTreeSet<String>,
    /// Pod CIDRs of other clusters; none where rules about the own cluster are enforced.
    remote_pods: Vec<IpNet>,
    /// Addresses of Nodes; none without a node port among the Services.
    node_ips: BTreeSet<IpAddr>,
    proxied: ProxiedEndpoints,
}

impl PolicyCache {
    /// The policies on this node, and the rejected fields of their objects; none if policies are not enforced.
    pub(super) fn update(
        &mut self,
        objects: &Objects,
        me: &LocalNode,
        proxied: ProxiedEndpoints,
        rejected: &mut Vec<FieldError>,
    ) -> NodePolicies {
        let Some(mode) = objects.policy_mode else {
            return NodePolicies::default();
        };
        let absent = IdentityObjects::default();
        let known = objects.identities.as_ref().unwrap_or(&absent);
        let on_node = |pod: &&Arc<PodInfo>| pod.node == me.node_name && !pod.ips.is_empty();
        let pods: Vec<_> = objects.pods.iter().filter(on_node).cloned().collect();
        let cluster_pods = match mode {
            Mode::All => objects
                .pods
                .iter()
                .chain(&objects.address_groups)
                .cloned()
                .collect(),
            Mode::ClusterSetOnly => Vec::new(),
        };
        let remotes = objects.remotes.iter();
        let clusters: BTreeSet<_> = remotes.clone().map(|remote| remote.cluster_id.clone()).collect();
        let remote_pods = match mode {
            Mode::All => Vec::new(),
            Mode::ClusterSetOnly => {
                let nets = remotes.flat_map(|remote| &remote.pod_cidrs);
                nets.filter_map(|net| parse_prefix(net).ok()).collect()
            }
        };
        let node_ips = node_ips(objects);
        let is_current = self.inputs.as_ref().is_some_and(|inputs| {
            inputs.mode == mode
                && inputs.objects == objects.policies
                && inputs.namespaces == known.namespaces
                && inputs.identities == known.identities
                && inputs.pods == pods
                && inputs.cluster_pods == cluster_pods
                && inputs.clusters == clusters
                && inputs.remote_pods == remote_pods
                && inputs.node_ips == node_ips
                && inputs.proxied == proxied
        });
        if !is_current {
            let inputs = Inputs {
                mode,
                objects: objects.policies.clone(),
                namespaces: known.namespaces.clone(),
                identities: known.identities.clone(),
                pods,
                cluster_pods,
                clusters,
                remote_pods,
                node_ips,
                proxied,
            };
            let (mut policies, rejected) = compute(&inputs, me);
            share(&mut policies.tables, &self.policies.tables);
            (self.policies, self.rejected) = (policies, rejected);
            self.inputs = Some(inputs);
        }
        rejected.extend(self.rejected.iter().cloned());
        self.policies.clone()
    }
}

/// The addresses of Nodes at which packets may reach node ports; none if no Service has one.
fn node_ips(objects: &Objects) -> BTreeSet<IpAddr> {
    let mut ports = objects
        .policies
        .services
        .iter()
        .flat_map(|service| &service.ports);
    if !ports.any(|port| port.node_port.is_some()) {
        return BTreeSet::new();
    }
    let nodes = objects.nodes.iter();
    let addrs = nodes.flat_map(|node| node.internal_ips.iter().chain(&node.external_ips));
    addrs.filter_map(|text| parse_address(text).ok()).collect()
}

/// Shares the rules with the known tables, which the maps still have.
fn share(tables: &mut Arc<PolicyTables>, known: &PolicyTables) {
    let tables = Arc::make_mut(tables);
    tables.rules = std::mem::take(&mut tables.rules).sharing(&known.rules);
}

fn compute(inputs: &Inputs, me: &LocalNode) -> (NodePolicies, Vec<FieldError>) {
    let (objects, mode) = (&inputs.objects, inputs.mode);
    let mut rejected: Vec<FieldError> = Vec::new();
    let errors = objects.policies.iter().flat_map(|policy| &policy.errors);
    let errors = errors
        .chain(objects.groups.iter().flat_map(|group| &group.errors))
        .chain(objects.tiers.iter().flat_map(|tier| &tier.errors));
    rejected.extend(errors.map(field_error));
    // Without a policy there is no peer.
    let (peers, identities) = if objects.policies.is_empty() {
        (&[][..], &[][..])
    } else {
        (&*inputs.cluster_pods, &*inputs.identities)
    };
    let mut set = policy_set(objects, &inputs.namespaces, &inputs.pods, mode);
    add_peers(&mut set, objects, peers, identities, &inputs.node_ips);
    let compiled = compile_fitting(&mut set, inputs, me);
    let pods = set.local_pods.iter().flat_map(|pod| pod.ips.iter().copied());
    rejected.extend(compiled.issues);
    rejected.extend(without_slot(identities));
    if mode == Mode::ClusterSetOnly {
        rejected.extend(shadowed(&set, &inputs.remote_pods));
    }
    let report = policy_report::report(objects, &compiled.selecting, &rejected, mode);
    let policies = NodePolicies {
        pods: Arc::new(pods.collect()),
        rules: Arc::new(compiled.names),
        tables: Arc::new(compiled.entries),
        polices_cluster: mode == Mode::All,
        protected: Arc::new(protected_pods(&set, &inputs.proxied)),
        has_rules: compiled.has_rules,
        report: Some(Arc::new(report)),
    };
    (policies, rejected)
}

/// A set of policies as the maps have it.
struct Compiled {
    entries: PolicyTables,
    names: BTreeMap<u32, RuleName>,
    /// Kind and name of the policies with a rule for a Pod.
    selecting: BTreeSet<Arc<str>>,
    /// [`NodePolicies::has_rules`].
    has_rules: bool,
    issues: Vec<FieldError>,
}

impl Compiled {
    fn new(set: &PolicySet, closed: &ClosedPods, inputs: &Inputs, me: &LocalNode) -> Self {
        let (mut tables, issues) = compile(set);
        let ids = rule_ids(&me.cluster_id_key, &tables.rule_names);
        Self {
            names: rule_names(&tables, &ids),
            selecting: std::mem::take(&mut tables.policies),
            has_rules: tables.has_rules_in_force,
            entries: map_entries(tables, &ids, closed, inputs, me),
            issues,
        }
    }
}

/// The policies as the maps can hold them. Those that do not fit beside older ones are issues, and the Pods that they
/// select are closed.
fn compile_fitting(set: &mut PolicySet, inputs: &Inputs, me: &LocalNode) -> Compiled {
    let mut compiled = Compiled::new(set, &ClosedPods::default(), inputs, me);
    let Some(excess) = Excess::of(&compiled.entries) else {
        return compiled;
    };
    // Freed, because the next ones take megabytes, too.
    compiled.entries = PolicyTables::default();
    let policies = std::mem::take(&mut set.policies);
    let at = |indices: &[usize]| {
        indices
            .iter()
            .filter_map(|at| policies.get(*at))
            .cloned()
            .collect()
    };
    let left_out = excess.left_out(&policies, &compiled.selecting, |kept| {
        set.policies = at(kept);
        let tables = Compiled::new(set, &ClosedPods::default(), inputs, me).entries;
        Excess::of(&tables).is_none()
    });
    let (left_out, kept): (Vec<_>, Vec<_>) = (0..policies.len()).partition(|at| left_out.contains(at));
    let (left_out, kept): (Vec<Policy>, _) = (at(&left_out), at(&kept));
    compiled
        .issues
        .extend(left_out.iter().map(|policy| excess.error(policy)));

    set.policies = policies;
    let closed = ClosedPods::of(set, &left_out.iter().map(Policy::object).collect());
    let all = std::mem::replace(&mut set.policies, kept);
    let fitting = Compiled::new(set, &closed, inputs, me);
    set.policies = all;
    Compiled {
        entries: fitting.entries,
        names: fitting.names,
        ..compiled
    }
}

/// The tables with the keys of the maps. Without a selected Pod there is nothing to enforce. The rules are freed while
/// they are converted: both forms take megabytes.
fn map_entries(
    tables: Tables,
    ids: &[u32],
    closed: &ClosedPods,
    inputs: &Inputs,
    me: &LocalNode,
) -> PolicyTables {
    let has_rules = !tables.pods.is_empty() || !tables.egress_pods.is_empty();
    if !has_rules && closed.is_empty() {
        return PolicyTables::default();
    }
    let by_map = SetsByMap::new(tables.rules.keys(), MAX_PEER_RULES / 2);
    let instances = instances(&inputs.pods);
    let instance = |addr: &Addr| instances.get(addr).copied().unwrap_or_default();
    let pod = |addr: &Addr, sets: &PodSets| {
        let at = usize::try_from(sets.enforced).ok();
        let at = at.and_then(|enforced| enforced.checked_sub(1));
        let drops_unknown = at.is_some_and(|at| {
            let info = tables.sets.get(at);
            info.is_none_or(|SetInfo { drop_unknown }| *drop_unknown)
        });
        PolicyPod {
            set: by_map.number(sets.all),
            enforced: by_map.number(sets.enforced),
            flags: if drops_unknown { POD_DROPS_UNKNOWN } else { 0 },
            instance: instance(addr),
        }
    };
    let without_rules = |addr: &Addr| PolicyPod {
        set: NO_RULES,
        enforced: NO_RULES,
        flags: 0,
        instance: instance(addr),
    };
    let pods = |pods: &BTreeMap<IpAddr, PodSets>, closed: &BTreeSet<IpAddr>| {
        let rows = pods.iter().map(|(addr, sets)| (to_abi_addr(*addr), sets));
        let mut rows: BTreeMap<_, _> = rows.map(|(addr, sets)| (addr, pod(&addr, sets))).collect();
        for addr in closed.iter().map(|addr| to_abi_addr(*addr)) {
            rows.entry(addr).or_insert_with(|| without_rules(&addr)).flags |= POD_CLOSED;
        }
        rows
    };
    let mut ingress = pods(&tables.pods, &closed.ingress);
    let egress = pods(&tables.egress_pods, &closed.egress);
    for addr in egress.keys() {
        ingress.entry(*addr).or_insert_with(|| without_rules(addr));
    }
    let local = instances.keys().copied();
    let unselected: BTreeSet<Addr> = local.filter(|addr| !ingress.contains_key(addr)).collect();
    let cluster_id = |cluster: &str| cluster_id(&me.cluster_id_key, cluster);
    // A closed Pod needs no identities, which may be those that the maps cannot hold.
    let identities = if has_rules {
        identity_tables(
            &tables.identities,
            &inputs.identities,
            &inputs.clusters,
            cluster_id,
        )
    } else {
        IdentityTables::default()
    };
    let classes = tables.address_classes.iter();
    PolicyTables {
        pods: ingress,
        egress_pods: egress,
        unselected_slots: unselected_slots(&unselected),
        unselected,
        identities: identities.identities,
        exporters: identities.exporters,
        address_classes: classes.map(|(net, class)| (network(*net), *class)).collect(),
        rules: rule_entries(tables.rules, &by_map, ids),
    }
}

/// The entries of `mc_unselected` in one half.
fn unselected_slots(unselected: &BTreeSet<Addr>) -> BTreeMap<u32, Addr> {
    let mut slots = BTreeMap::new();
    for addr in unselected {
        slots.entry(unselected_number(addr)).or_insert(*addr);
    }
    slots
}

/// The Pod at each address; of several Pods there a value that changes with each of them.
fn instances(pods: &[Arc<PodInfo>]) -> BTreeMap<Addr, u32> {
    let mut instances = BTreeMap::new();
    for pod in pods {
        for addr in pod.ips.iter().filter_map(|text| parse_address(text).ok()) {
            *instances.entry(to_abi_addr(addr)).or_default() ^= pod.instance;
        }
    }
    instances
}

fn network(net: IpNet) -> (u32, Addr) {
    (abi_prefix_len(net), to_abi_addr(net.network()))
}

fn field_error(error: &mc_api::network_policy::FieldError) -> FieldError {
    FieldError {
        object: error.object.clone(),
        field: error.field.clone(),
        value: error.value.clone(),
        reason: error.reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_pods_with_one_slot_the_first_has_the_entry() {
        let addr = |text: &str| to_abi_addr(text.parse().expect("an address"));
        let [first, same, other] = ["10.1.0.6", "10.1.4.6", "10.1.4.7"].map(addr);
        let slots = unselected_slots(&[same, first, other].into());
        let expected = [
            (unselected_number(&first), first),
            (unselected_number(&other), other),
        ];
        assert_eq!(slots, expected.into());
    }
}
