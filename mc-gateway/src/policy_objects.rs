//! Objects of network policies, parsed as they arrive.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use kube::core::ObjectMeta;
use mc_api::network_policy::{
    ClusterGroup, ClusterNetworkPolicy, FieldError, Group, NamespacedGroup, NetworkPolicy, ObjectName, Peer,
    Policy, Rule, Tier, parse, parse_group, parse_tier,
};

use crate::service_objects::{ServiceInfo, SliceInfo, SlicePort};

/// An object and its rejected fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed<T> {
    /// Kind and name, or kind, Namespace and name.
    pub key: String,
    /// The object without the rejected fields.
    pub object: T,
    /// Rejected fields.
    pub errors: Vec<FieldError>,
    /// `metadata.uid`; empty in manifests.
    pub uid: String,
    /// `metadata.generation`; 0 in manifests.
    pub generation: i64,
}

/// A Tier; no priority if it is rejected.
pub type TierInfo = (String, Option<u8>);

/// The objects of network policies, sorted by key within a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyObjects {
    /// ClusterNetworkPolicies and NetworkPolicies of `crd.antrea.io`.
    pub policies: Vec<Arc<Parsed<Policy>>>,
    /// ClusterGroups and Groups.
    pub groups: Vec<Arc<Parsed<Group>>>,
    /// Tiers.
    pub tiers: Vec<Arc<Parsed<TierInfo>>>,
    /// The Services that the policies name; all if a rule for egress matches Services by their endpoints.
    pub services: Vec<ServiceInfo>,
    /// The endpoints of the Services, if a rule for egress matches Services by them.
    pub endpoints: Vec<SliceEndpoints>,
}

/// Endpoints in an EndpointSlice, regardless of their conditions: these change often, and rules do not depend on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceEndpoints {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub service: String,
    /// `ports`.
    pub ports: Vec<SlicePort>,
    /// Addresses of the `endpoints`.
    pub addresses: Vec<String>,
}

/// Services that policies depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServicesNeeded {
    /// None.
    None,
    /// Those that rules name.
    Named,
    /// All, with their endpoints.
    WithEndpoints,
}

// === impl PolicyObjects ===

impl PolicyObjects {
    /// Adds the Services that the policies concern.
    pub fn add_services<'a>(
        &mut self,
        services: impl IntoIterator<Item = &'a ServiceInfo>,
        slices: impl IntoIterator<Item = &'a SliceInfo>,
    ) {
        let services = services.into_iter();
        match services_needed(&self.policies) {
            ServicesNeeded::None => {}
            ServicesNeeded::Named => {
                let names: BTreeSet<&ObjectName> = named_services(&self.policies).collect();
                let is_named = |service: &&ServiceInfo| {
                    names.contains(&ObjectName::namespaced(&service.namespace, &service.name))
                };
                self.services.extend(services.filter(is_named).cloned());
            }
            ServicesNeeded::WithEndpoints => {
                let services = services.filter(|service| !service.cluster_ips.is_empty());
                self.services.extend(services.cloned());
                self.endpoints
                    .extend(slices.into_iter().map(SliceEndpoints::from));
            }
        }
    }
}

/// The Services that rules for egress in these policies depend on.
#[must_use]
pub fn services_needed<'a>(
    policies: impl IntoIterator<Item = &'a Arc<Parsed<Policy>>> + Clone,
) -> ServicesNeeded {
    let mut rules = policies
        .clone()
        .into_iter()
        .flat_map(|policy| &policy.object.egress);
    if rules.any(Rule::compares_endpoints) {
        ServicesNeeded::WithEndpoints
    } else if named_services(policies).next().is_some() {
        ServicesNeeded::Named
    } else {
        ServicesNeeded::None
    }
}

/// The Services that rules for egress name.
fn named_services<'a>(
    policies: impl IntoIterator<Item = &'a Arc<Parsed<Policy>>>,
) -> impl Iterator<Item = &'a ObjectName> {
    let rules = policies.into_iter().flat_map(|policy| &policy.object.egress);
    let peers = rules.flat_map(|rule| rule.peers.iter().flatten());
    peers.filter_map(|peer| match peer {
        Peer::Service(name) => Some(name),
        _ => None,
    })
}

impl From<&SliceInfo> for SliceEndpoints {
    fn from(slice: &SliceInfo) -> Self {
        let addresses = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        Self {
            namespace: slice.namespace.clone(),
            service: slice.service.clone(),
            ports: slice.ports.clone(),
            addresses: addresses.cloned().collect(),
        }
    }
}

/// Name of an object of a cluster, or of a Namespace.
fn name_of(metadata: &ObjectMeta, namespaced: bool) -> ObjectName {
    let name = metadata.name.as_deref().unwrap_or_default();
    if namespaced {
        ObjectName::namespaced(metadata.namespace.as_deref().unwrap_or("default"), name)
    } else {
        ObjectName::cluster(name)
    }
}

/// Kind and name of an object, as [`Parsed::key`].
pub(crate) fn key(kind: &str, name: &impl fmt::Display) -> String {
    format!("{kind} {name}")
}

fn parsed<T>(metadata: &ObjectMeta, key: String, object: T, errors: Vec<FieldError>) -> Arc<Parsed<T>> {
    Arc::new(Parsed {
        key,
        object,
        errors,
        uid: metadata.uid.clone().unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
    })
}

fn policy(metadata: &ObjectMeta, spec: &serde_json::Value, namespaced: bool) -> Arc<Parsed<Policy>> {
    let (mut policy, mut errors) = parse(name_of(metadata, namespaced), spec);
    errors.extend(policy.read_annotation(metadata));
    let created = metadata.creation_timestamp.as_ref();
    policy.created = created.map(|time| time.0.to_string());
    parsed(metadata, policy.object(), policy, errors)
}

/// A ClusterNetworkPolicy.
#[must_use]
pub fn cluster_network_policy(object: &ClusterNetworkPolicy) -> Arc<Parsed<Policy>> {
    policy(&object.metadata, &object.spec, false)
}

/// A NetworkPolicy of `crd.antrea.io`.
#[must_use]
pub fn network_policy(object: &NetworkPolicy) -> Arc<Parsed<Policy>> {
    policy(&object.metadata, &object.spec, true)
}

fn group(metadata: &ObjectMeta, spec: &serde_json::Value, namespaced: bool) -> Arc<Parsed<Group>> {
    let (group, errors) = parse_group(name_of(metadata, namespaced), spec);
    parsed(metadata, group.object(), group, errors)
}

/// A ClusterGroup.
#[must_use]
pub fn cluster_group(object: &ClusterGroup) -> Arc<Parsed<Group>> {
    group(&object.metadata, &object.spec, false)
}

/// A Group.
#[must_use]
pub fn namespaced_group(object: &NamespacedGroup) -> Arc<Parsed<Group>> {
    group(&object.metadata, &object.spec, true)
}

/// A Tier.
#[must_use]
pub fn tier(object: &Tier) -> Arc<Parsed<TierInfo>> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let (priority, errors) = match parse_tier(&name, &object.spec) {
        Ok(priority) => (Some(priority), Vec::new()),
        Err(error) => (None, vec![*error]),
    };
    parsed(&object.metadata, key("Tier", &name), (name, priority), errors)
}
