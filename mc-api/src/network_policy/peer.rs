//! Peers of rules, and the Pods to which rules apply.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use serde_json::Value;

use super::{
    direction::Direction,
    error::{Errors, PolicyError},
    fields::{Fields, Rejected},
    object_name::ObjectName,
};
use crate::{label_selector::LabelSelector, names::imported_service, validation::cidr};

/// An entry of `from` or `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Pods by labels.
    Pods {
        /// The clusters of the Pods.
        scope: Scope,
        /// Their labels.
        pods: PodMatch,
    },
    /// Addresses of any cluster.
    Block(IpBlock),
    /// A group.
    Group {
        /// The clusters of its Pods.
        scope: Scope,
        /// Its name.
        name: String,
    },
    /// A Service of the own cluster, by the addresses that its clients use: an entry of `toServices`. One of scope
    /// `ClusterSet` is the Service of its import, as in Antrea.
    Service(ObjectName),
    /// An entry with an error: it matches nothing.
    Unsupported {
        /// The clusters it refers to.
        scope: Scope,
    },
}

/// The clusters in which a peer selects Pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The cluster of the policy.
    #[default]
    Cluster,
    /// All clusters of the `ClusterSet`.
    ClusterSet,
}

/// An entry of `appliedTo`. Always Pods of the cluster of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppliedTo {
    /// Pods by labels; [`NamespaceMatch::Same`] and [`NamespaceMatch::SameLabels`] do not occur.
    Pods(PodMatch),
    /// Pods of a group.
    Group(String),
    /// An entry with an error: it matches no Pod.
    Unsupported,
}

/// Pods by labels of their Namespaces and their own, or by `ServiceAccount`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodMatch {
    /// The Namespaces.
    pub namespaces: NamespaceMatch,
    /// The labels of Pods.
    pub pods: LabelSelector,
    /// Name of the `ServiceAccount` of Pods, in their Namespace; any if absent. It matches Pods of the own cluster
    /// only: a label identity names no account.
    pub service_account: Option<String>,
}

/// Namespaces of Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMatch {
    /// All.
    #[default]
    Any,
    /// The one of this name: that of a namespaced object.
    Named(String),
    /// Those with these labels.
    Selector(LabelSelector),
    /// The Namespace of the Pod to which the rule applies.
    Same,
    /// Those with the values of these labels in the Namespace of the Pod to which the rule applies; none if it lacks
    /// one of them.
    SameLabels(BTreeSet<String>),
}

/// Addresses in a prefix, without exceptions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IpBlock {
    /// The prefix.
    pub cidr: IpNet,
    /// Prefixes inside it that do not count.
    pub except: BTreeSet<IpNet>,
}

// === impl IpBlock ===

impl IpBlock {
    /// Whether the block contains this address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.cidr.contains(&address) && !self.except.iter().any(|except| except.contains(&address))
    }
}

/// The peers of a rule; `None` for any.
pub(super) fn parse_peers(
    rule: &Fields<'_>,
    direction: Direction,
    namespace: Option<&str>,
    errors: &mut Errors,
) -> Result<Option<Vec<Peer>>, Rejected> {
    let key = match direction {
        Direction::Ingress => "from",
        Direction::Egress => "to",
    };
    let list = rule.list(key, errors)?;
    let mut peers = Vec::new();
    for (index, peer) in list.iter().enumerate() {
        let path = rule.path_of(&format!("{key}[{index}]"));
        peers.push(parse_peer(peer, path, direction, namespace, errors));
    }
    if direction == Direction::Egress {
        rule.excludes("toServices", &["to", "ports", "protocols"], errors)?;
        for (index, service) in rule.list("toServices", errors)?.iter().enumerate() {
            let path = rule.path_of(&format!("toServices[{index}]"));
            let parsed = parse_service_peer(service, path, namespace, errors);
            peers.push(parsed.unwrap_or(Peer::Unsupported {
                scope: Scope::Cluster,
            }));
        }
    }
    Ok(Some(peers).filter(|peers| !peers.is_empty()))
}

/// An entry of `toServices`; a namespaced policy refers to its own Namespace by default.
fn parse_service_peer(
    value: &Value,
    path: String,
    namespace: Option<&str>,
    errors: &mut Errors,
) -> Result<Peer, Rejected> {
    let peer = Fields::new(value, path, errors)?;
    peer.only(&["name", "namespace", "scope"], &[], errors)?;
    let scope = parse_scope(&peer, errors)?;
    let Some(name) = peer.text("name", errors)? else {
        return Err(peer.reject("name", PolicyError::Missing, errors));
    };
    let Some(namespace) = peer.text("namespace", errors)?.or(namespace) else {
        return Err(peer.reject("namespace", PolicyError::Missing, errors));
    };
    let name = match scope {
        Scope::Cluster => name.to_owned(),
        Scope::ClusterSet => imported_service(name),
    };
    Ok(Peer::Service(ObjectName::namespaced(namespace, &name)))
}

fn parse_peer(
    value: &Value,
    path: String,
    direction: Direction,
    namespace: Option<&str>,
    errors: &mut Errors,
) -> Peer {
    let mut scope = Scope::Cluster;
    let parse = || {
        let peer = Fields::new(value, path, errors)?;
        scope = parse_scope(&peer, errors)?;
        if scope == Scope::ClusterSet && direction == Direction::Egress {
            return Err(peer.reject("scope", PolicyError::IngressOnly, errors));
        }
        parse_scoped(&peer, scope, namespace, errors)
    };
    parse().unwrap_or(Peer::Unsupported { scope })
}

fn parse_scope(peer: &Fields<'_>, errors: &mut Errors) -> Result<Scope, Rejected> {
    match peer.text("scope", errors)? {
        None | Some("Cluster") => Ok(Scope::Cluster),
        Some("ClusterSet") => Ok(Scope::ClusterSet),
        Some(_) => Err(peer.reject("scope", PolicyError::Scope, errors)),
    }
}

fn parse_scoped(
    peer: &Fields<'_>,
    scope: Scope,
    namespace: Option<&str>,
    errors: &mut Errors,
) -> Result<Peer, Rejected> {
    const SELECTORS: [&str; 6] = [
        "ipBlock",
        "group",
        "podSelector",
        "namespaceSelector",
        "namespaces",
        "serviceAccount",
    ];
    peer.only(
        &[&SELECTORS[..], &["scope"]].concat(),
        &["fqdn", "nodeSelector", "externalEntitySelector"],
        errors,
    )?;
    peer.excludes("ipBlock", &SELECTORS, errors)?;
    peer.excludes("group", &SELECTORS, errors)?;
    peer.excludes("serviceAccount", &SELECTORS, errors)?;
    peer.excludes("namespaces", &["namespaceSelector"], errors)?;
    if let Some(block) = peer.get("ipBlock") {
        return parse_block(block, peer.path_of("ipBlock"), errors).map(Peer::Block);
    }
    if let Some(name) = peer.text("group", errors)? {
        let name = name.to_owned();
        return Ok(Peer::Group { scope, name });
    }
    if let Some(pods) = parse_service_account(peer, namespace, errors)? {
        if scope == Scope::ClusterSet {
            return Err(peer.reject("serviceAccount", PolicyError::OwnCluster, errors));
        }
        return Ok(Peer::Pods { scope, pods });
    }
    let mut pods = parse_pods(peer, namespace, errors)?;
    if let Some(namespaces) = peer.get("namespaces") {
        if namespace.is_some() {
            return Err(peer.reject("namespaces", PolicyError::ClusterOnly, errors));
        }
        pods.namespaces = parse_namespaces(namespaces, peer.path_of("namespaces"), errors)?;
    }
    Ok(Peer::Pods { scope, pods })
}

fn parse_namespaces(value: &Value, path: String, errors: &mut Errors) -> Result<NamespaceMatch, Rejected> {
    let namespaces = Fields::new(value, path, errors)?;
    namespaces.only(&["match", "sameLabels"], &[], errors)?;
    let keys = namespaces.list("sameLabels", errors)?;
    match namespaces.text("match", errors)? {
        Some("Self") if keys.is_empty() => Ok(NamespaceMatch::Same),
        Some("Self") => {
            Err(namespaces.reject("match", PolicyError::Excludes { other: "sameLabels" }, errors))
        }
        Some(_) => Err(namespaces.reject("match", PolicyError::Unsupported, errors)),
        None if keys.is_empty() => Err(namespaces.reject("match", PolicyError::Missing, errors)),
        None => keys
            .iter()
            .map(|key| key.as_str().map(str::to_owned))
            .collect::<Option<_>>()
            .map(NamespaceMatch::SameLabels)
            .ok_or_else(|| {
                let expected = "a list of strings";
                namespaces.reject("sameLabels", PolicyError::Type { expected }, errors)
            }),
    }
}

/// The selectors `podSelector` and `namespaceSelector`; without the latter a namespaced object refers to its own
/// Namespace.
pub(super) fn parse_pods(
    fields: &Fields<'_>,
    namespace: Option<&str>,
    errors: &mut Errors,
) -> Result<PodMatch, Rejected> {
    let namespaces = match (fields.selector("namespaceSelector", errors)?, namespace) {
        (Some(selector), _) => NamespaceMatch::Selector(selector),
        (None, Some(namespace)) => NamespaceMatch::Named(namespace.to_owned()),
        (None, None) => NamespaceMatch::Any,
    };
    let pods = fields.selector("podSelector", errors)?.unwrap_or_default();
    Ok(PodMatch {
        namespaces,
        pods,
        service_account: None,
    })
}

/// The field `serviceAccount`, if it is present: the Pods of one account. Antrea has it in cluster-scoped policies.
fn parse_service_account(
    fields: &Fields<'_>,
    namespace: Option<&str>,
    errors: &mut Errors,
) -> Result<Option<PodMatch>, Rejected> {
    const FIELD: &str = "serviceAccount";
    let Some(value) = fields.get(FIELD) else {
        return Ok(None);
    };
    if namespace.is_some() {
        return Err(fields.reject(FIELD, PolicyError::ClusterOnly, errors));
    }
    let account = Fields::new(value, fields.path_of(FIELD), errors)?;
    account.only(&["name", "namespace"], &[], errors)?;
    let mut text = |key| match account.text(key, errors)? {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => Err(account.reject(key, PolicyError::Missing, errors)),
    };
    let (namespace, name) = (text("namespace")?, text("name")?);
    Ok(Some(PodMatch {
        namespaces: NamespaceMatch::Named(namespace),
        pods: LabelSelector::default(),
        service_account: Some(name),
    }))
}

/// An `IPBlock`.
pub(super) fn parse_block(value: &Value, path: String, errors: &mut Errors) -> Result<IpBlock, Rejected> {
    let block = Fields::new(value, path, errors)?;
    block.only(&["cidr", "except"], &[], errors)?;
    let Some(text) = block.text("cidr", errors)? else {
        return Err(block.reject("cidr", PolicyError::Missing, errors));
    };
    let net = cidr(text).map_err(|error| block.reject("cidr", error.into(), errors))?;
    let mut except = BTreeSet::new();
    for (index, value) in block.list("except", errors)?.iter().enumerate() {
        let path = block.path_of(&format!("except[{index}]"));
        let parsed = match value.as_str().map(cidr) {
            None => Err(PolicyError::Type { expected: "a string" }),
            Some(Err(error)) => Err(error.into()),
            Some(Ok(inner)) if !net.contains(&inner) => Err(PolicyError::OutsideBlock { cidr: net }),
            Some(Ok(inner)) => Ok(inner),
        };
        match parsed {
            Ok(inner) => except.insert(inner),
            Err(reason) => {
                errors.add(&path, value, reason);
                return Err(Rejected);
            }
        };
    }
    Ok(IpBlock { cidr: net, except })
}

/// The entries of `appliedTo`.
pub(super) fn parse_applied_to(
    fields: &Fields<'_>,
    namespace: Option<&str>,
    errors: &mut Errors,
) -> Result<Vec<AppliedTo>, Rejected> {
    let list = fields.list("appliedTo", errors)?;
    let mut applied_to = Vec::new();
    for (index, entry) in list.iter().enumerate() {
        let path = fields.path_of(&format!("appliedTo[{index}]"));
        applied_to.push(parse_entry(entry, path, namespace, errors).unwrap_or(AppliedTo::Unsupported));
    }
    Ok(applied_to)
}

fn parse_entry(
    value: &Value,
    path: String,
    namespace: Option<&str>,
    errors: &mut Errors,
) -> Result<AppliedTo, Rejected> {
    let entry = Fields::new(value, path, errors)?;
    entry.only(
        &["podSelector", "namespaceSelector", "group", "serviceAccount"],
        &["nodeSelector", "service", "externalEntitySelector"],
        errors,
    )?;
    entry.excludes(
        "group",
        &["podSelector", "namespaceSelector", "serviceAccount"],
        errors,
    )?;
    entry.excludes("serviceAccount", &["podSelector", "namespaceSelector"], errors)?;
    if let Some(name) = entry.text("group", errors)? {
        return Ok(AppliedTo::Group(name.to_owned()));
    }
    if let Some(pods) = parse_service_account(&entry, namespace, errors)? {
        return Ok(AppliedTo::Pods(pods));
    }
    if namespace.is_some() && entry.has("namespaceSelector") {
        return Err(entry.reject("namespaceSelector", PolicyError::ClusterOnly, errors));
    }
    if !entry.has("podSelector") && !entry.has("namespaceSelector") {
        return Err(entry.reject("podSelector", PolicyError::Missing, errors));
    }
    parse_pods(&entry, namespace, errors).map(AppliedTo::Pods)
}
