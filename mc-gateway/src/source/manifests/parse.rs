//! Parsing of manifest files: YAML and JSON documents to objects.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use mc_api::address_group_slice::AddressGroupSlice;
use mc_api::cluster_info::ClusterInfoImport;
use mc_api::gateway::Gateway;
use mc_api::label_identity::LabelIdentity;
use mc_api::network_policy::{
    self, ClusterGroup, ClusterNetworkPolicy, Group, NamespacedGroup, NetworkPolicy, Policy, Tier,
};
use mc_api::node_key::NodeKey;
use mc_api::service_export::ServiceExport;
use mc_kube::NamespacedName;
use mc_kube::pod::Pod;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_yaml_ng::{Deserializer, Value};

use crate::identity_objects::{IdentityInfo, NamespaceInfo};
use crate::objects::{GatewayInfo, NodeInfo, NodeKeyInfo, PodInfo, RemoteCluster};
use crate::policy_objects::{self, Parsed, TierInfo};
use crate::service_objects::{ServiceInfo, SliceInfo};
use crate::source::address_groups::{self, AddressGroups};
use crate::source::convert;
use crate::source::pod;

/// An object of a supported kind, as large as a pointer and its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// `v1` Node.
    Node(Box<NodeInfo>),
    /// Gateway.
    Gateway(Box<GatewayInfo>),
    /// ClusterInfoImport.
    Remote(Arc<RemoteCluster>),
    /// `v1` Pod.
    Pod(Arc<PodInfo>),
    /// `v1` Service.
    Service(Box<ServiceInfo>),
    /// EndpointSlice.
    Slice(Box<SliceInfo>),
    /// ServiceExport.
    Export(Box<NamespacedName>),
    /// `AddressGroupSlice`.
    AddressGroups(Arc<AddressGroups>),
    /// `NodeKey`.
    NodeKey(Box<NodeKeyInfo>),
    /// `v1` Namespace.
    Namespace(Arc<NamespaceInfo>),
    /// LabelIdentity.
    Identity(Arc<IdentityInfo>),
    /// ClusterNetworkPolicy or NetworkPolicy of `crd.antrea.io`.
    Policy(Arc<Parsed<Policy>>),
    /// ClusterGroup or Group.
    Group(Arc<Parsed<Group>>),
    /// Tier.
    Tier(Arc<Parsed<TierInfo>>),
}

/// Kind, and name or `namespace/name`.
pub(super) type ObjectKey = (&'static str, String);

impl Object {
    pub(super) fn key(&self) -> ObjectKey {
        match self {
            Self::Node(node) => ("Node", node.name.clone()),
            Self::Gateway(gateway) => ("Gateway", gateway.name.clone()),
            Self::Remote(remote) => ("ClusterInfoImport", remote.name.clone()),
            Self::Pod(pod) => ("Pod", pod.name.clone()),
            Self::Service(service) => ("Service", format!("{}/{}", service.namespace, service.name)),
            Self::Slice(slice) => ("EndpointSlice", format!("{}/{}", slice.namespace, slice.name)),
            Self::Export(name) => ("ServiceExport", name.to_string()),
            Self::AddressGroups(slice) => ("AddressGroupSlice", slice.name.clone()),
            Self::NodeKey(key) => ("NodeKey", key.name.clone()),
            Self::Namespace(namespace) => ("Namespace", namespace.name.clone()),
            Self::Identity(identity) => ("LabelIdentity", identity.name.clone()),
            Self::Policy(policy) => {
                let name = &policy.object.name;
                let kind = match name.namespace {
                    Some(_) => "NetworkPolicy",
                    None => "ClusterNetworkPolicy",
                };
                (kind, name.to_string())
            }
            Self::Group(group) => {
                let name = &group.object.name;
                let kind = match name.namespace {
                    Some(_) => "Group",
                    None => "ClusterGroup",
                };
                (kind, name.to_string())
            }
            Self::Tier(tier) => ("Tier", tier.object.0.clone()),
        }
    }
}

/// An invalid document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ManifestError {
    /// The file.
    pub file: PathBuf,
    /// Number of the document in the file, from 1; none if the file cannot be read.
    pub document: Option<usize>,
    /// The error of the parser, with field and value.
    pub reason: String,
}

impl fmt::Display for ManifestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        if let Some(document) = self.document {
            write!(f, "document {document}: ")?;
        }
        f.write_str(&self.reason)
    }
}

/// The contents of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ParsedFile {
    pub(super) objects: Vec<Object>,
    /// Number and error of invalid documents.
    pub(super) errors: Vec<(Option<usize>, String)>,
    /// Objects with invalid fields.
    pub(super) invalid: BTreeSet<ObjectKey>,
    /// Whether the text after the last object is unreadable.
    pub(super) truncated: bool,
    /// Unsupported kinds.
    pub(super) ignored: BTreeSet<String>,
}

/// Parses all documents of a file.
pub(super) fn parse(text: &str) -> ParsedFile {
    let mut parsed = ParsedFile::default();
    let mut values = Vec::new();
    for document in Deserializer::from_str(text) {
        match Value::deserialize(document) {
            Ok(value) => values.push(value),
            Err(error) => {
                let number = values.len().saturating_add(1);
                parsed
                    .errors
                    .push((Some(number), format!("malformed YAML: {error}")));
                parsed.truncated = true;
                break;
            }
        }
    }
    // The second pass parses the text, so that errors contain field, value and line.
    for (index, (value, document)) in values.iter().zip(Deserializer::from_str(text)).enumerate() {
        let number = index.saturating_add(1);
        let kind = string(value, "kind");
        match (kind.as_str(), value) {
            (_, Value::Null) => {}
            ("List", _) => {
                let items = value.get("items").and_then(Value::as_sequence);
                for item in items.into_iter().flatten() {
                    parsed.add(number, item, item.clone());
                }
            }
            _ => parsed.add(number, value, document),
        }
    }
    parsed
}

/// The name in the key of an object: with namespace for namespaced kinds.
fn object_name(kind: &str, value: &Value, name: String) -> String {
    const NAMESPACED: [&str; 6] = [
        "Pod",
        "Service",
        "EndpointSlice",
        "ServiceExport",
        "NetworkPolicy",
        "Group",
    ];
    if !NAMESPACED.contains(&kind) {
        return name;
    }
    let metadata = value.get("metadata");
    let namespace = metadata.map(|metadata| string(metadata, "namespace"));
    let namespace = namespace.filter(|namespace| !namespace.is_empty());
    format!("{}/{name}", namespace.as_deref().unwrap_or("default"))
}

fn string(value: &Value, field: &str) -> String {
    value
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

impl ParsedFile {
    fn add<'de, D: serde::Deserializer<'de>>(&mut self, number: usize, value: &Value, document: D)
    where
        D::Error: fmt::Display,
    {
        let kind = string(value, "kind");
        let version = string(value, "apiVersion");
        let group = version.rsplit_once('/').map_or("", |(group, _)| group);
        match (kind.as_str(), group) {
            ("Node", "") => self.read("Node", number, value, document, |node: Node| {
                Object::Node(Box::new(convert::node(&node)))
            }),
            ("Pod", "") => self.read("Pod", number, value, document, |pod: Pod| {
                Object::Pod(pod::convert(&pod))
            }),
            ("Gateway", convert::GROUP) => {
                self.read("Gateway", number, value, document, |gateway: Gateway| {
                    Object::Gateway(Box::new(convert::gateway(&gateway)))
                });
            }
            ("ClusterInfoImport", convert::GROUP) => {
                self.read(
                    "ClusterInfoImport",
                    number,
                    value,
                    document,
                    |import: ClusterInfoImport| Object::Remote(convert::remote(&import)),
                );
            }
            ("Service", "") => self.read("Service", number, value, document, |service: Service| {
                Object::Service(Box::new(convert::service(&service)))
            }),
            ("AddressGroupSlice", convert::MC_GATEWAY_GROUP) => {
                self.read(
                    "AddressGroupSlice",
                    number,
                    value,
                    document,
                    |slice: AddressGroupSlice| Object::AddressGroups(address_groups::convert(&slice)),
                );
            }
            ("NodeKey", convert::MC_GATEWAY_GROUP) => {
                self.read("NodeKey", number, value, document, |key: NodeKey| {
                    Object::NodeKey(Box::new(convert::node_key(&key)))
                });
            }
            ("EndpointSlice", convert::DISCOVERY_GROUP) => {
                self.read(
                    "EndpointSlice",
                    number,
                    value,
                    document,
                    |slice: EndpointSlice| Object::Slice(Box::new(convert::slice(&slice))),
                );
            }
            ("ServiceExport", convert::MCS_GROUP) => {
                self.read(
                    "ServiceExport",
                    number,
                    value,
                    document,
                    |export: ServiceExport| Object::Export(Box::new(convert::export(&export))),
                );
            }
            ("Namespace", "") => {
                self.read("Namespace", number, value, document, |namespace: Namespace| {
                    Object::Namespace(convert::namespace(&namespace))
                });
            }
            ("LabelIdentity", convert::GROUP) => {
                self.read(
                    "LabelIdentity",
                    number,
                    value,
                    document,
                    |identity: LabelIdentity| Object::Identity(convert::label_identity(&identity)),
                );
            }
            (kind, network_policy::GROUP) => self.add_policy(kind, &version, number, value, document),
            ("", _) => {
                let reason = format!("kind: {kind:?} is missing: not a Kubernetes object");
                self.errors.push((Some(number), reason));
            }
            _ => {
                self.ignored.insert(format!("{kind} ({version})"));
            }
        }
    }

    /// Adds an object of a kind of network policies.
    fn add_policy<'de, D: serde::Deserializer<'de>>(
        &mut self,
        kind: &str,
        version: &str,
        number: usize,
        value: &Value,
        document: D,
    ) where
        D::Error: fmt::Display,
    {
        match kind {
            "ClusterNetworkPolicy" => {
                self.read(
                    "ClusterNetworkPolicy",
                    number,
                    value,
                    document,
                    |policy: ClusterNetworkPolicy| {
                        Object::Policy(policy_objects::cluster_network_policy(&policy))
                    },
                );
            }
            "NetworkPolicy" => {
                self.read(
                    "NetworkPolicy",
                    number,
                    value,
                    document,
                    |policy: NetworkPolicy| Object::Policy(policy_objects::network_policy(&policy)),
                );
            }
            "ClusterGroup" => {
                self.read("ClusterGroup", number, value, document, |group: ClusterGroup| {
                    Object::Group(policy_objects::cluster_group(&group))
                });
            }
            "Group" => {
                self.read("Group", number, value, document, |group: NamespacedGroup| {
                    Object::Group(policy_objects::namespaced_group(&group))
                });
            }
            "Tier" => {
                self.read("Tier", number, value, document, |tier: Tier| {
                    Object::Tier(policy_objects::tier(&tier))
                });
            }
            _ => {
                self.ignored.insert(format!("{kind} ({version})"));
            }
        }
    }

    fn read<'de, T: DeserializeOwned, D: serde::Deserializer<'de>>(
        &mut self,
        kind: &'static str,
        number: usize,
        value: &Value,
        document: D,
        convert: impl Fn(T) -> Object,
    ) where
        D::Error: fmt::Display,
    {
        let name = value
            .get("metadata")
            .map(|metadata| string(metadata, "name"))
            .unwrap_or_default();
        if name.is_empty() {
            let reason = format!("{kind}: metadata.name: {name:?} is missing");
            self.errors.push((Some(number), reason));
            return;
        }
        match T::deserialize(document) {
            Ok(object) => self.objects.push(convert(object)),
            Err(error) => {
                self.errors
                    .push((Some(number), format!("{kind} {name}: {error}")));
                self.invalid.insert((kind, object_name(kind, value, name)));
            }
        }
    }
}
