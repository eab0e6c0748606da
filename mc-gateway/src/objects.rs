//! Input objects, reduced to the fields of the data path.
//!
//! Values are unvalidated: [`crate::desired`] validates them, so that both sources reject the same values with the same
//! errors.

use std::fmt;
use std::sync::Arc;

use crate::identity_objects::IdentityObjects;
use crate::policy::Mode;
use crate::policy_objects::PolicyObjects;
use crate::service_objects::{ExportedService, ServiceInfo};

/// A `v1` Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// `metadata.name`.
    pub name: String,
    /// Addresses of type `InternalIP` in `status.addresses`, in their order.
    pub internal_ips: Vec<String>,
    /// Those of type `ExternalIP`.
    pub external_ips: Vec<String>,
    /// `spec.podCIDRs`, else `spec.podCIDR`.
    pub pod_cidrs: Vec<String>,
    /// Addresses in the Pod network assigned to the Node by its CNI, with their annotations.
    pub host_addresses: Vec<(&'static str, String)>,
}

/// A `Gateway` of this cluster; its name is the Node's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayInfo {
    /// `metadata.name`, the Node's name.
    pub name: String,
    /// `gatewayIP`: destination of packets from other clusters.
    pub gateway_ip: String,
    /// `internalIP`: destination of packets from this cluster's Nodes.
    pub internal_ip: String,
    /// `serviceCIDR` of this cluster; one per family, separated by a comma.
    pub service_cidr: String,
    /// `weight`: share of the flows among the gateways; 0 drains.
    pub weight: u32,
    /// `metadata.creationTimestamp` in RFC 3339, UTC, if set.
    pub created: Option<String>,
    /// Whether it is marked as the primary gateway.
    pub primary: bool,
}

/// A `ClusterInfoImport`: a remote cluster of the ClusterSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteCluster {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp` in RFC 3339, UTC, if set.
    pub created: Option<String>,
    /// `spec.clusterID`.
    pub cluster_id: String,
    /// `spec.serviceCIDR`.
    pub service_cidr: String,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<String>,
    /// `spec.gatewayInfos`.
    pub gateways: Vec<RemoteGateway>,
}

impl RemoteCluster {
    /// Kind and name.
    #[must_use]
    pub fn object(&self) -> String {
        format!("ClusterInfoImport {}", self.name)
    }
}

/// A gateway of a remote cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteGateway {
    /// `gatewayIP`.
    pub ip: String,
    /// `weight`: share of the flows among the gateways; 0 drains.
    pub weight: u32,
    /// `publicKey`; empty without one.
    pub public_key: String,
}

/// A `NodeKey`: the public key of a Node's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeKeyInfo {
    /// `metadata.name`, the Node's name.
    pub name: String,
    /// Whether the Node owns it.
    pub owned: bool,
    /// `spec.publicKey`.
    pub public_key: String,
}

/// A Pod with addresses of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodInfo {
    /// `metadata.namespace/metadata.name`.
    pub name: String,
    /// Hash of name and `metadata.uid`: different for the next Pod with the name or the address.
    pub instance: u32,
    /// `spec.nodeName`.
    pub node: String,
    /// `status.podIPs`; empty for Pods of the host network and finished Pods.
    pub ips: Vec<String>,
    /// `metadata.labels` of a Pod of this Node, joined by [`mc_api::label_identity::join_labels`].
    pub labels: Arc<str>,
    /// `spec.serviceAccountName`, of a Pod with `labels`.
    pub service_account: Arc<str>,
    /// Named ports of its containers, of a Pod with `labels`.
    pub ports: Vec<NamedPort>,
}

/// A named port of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedPort {
    /// Its name.
    pub name: String,
    /// Number of its protocol.
    pub protocol: u8,
    /// Its number.
    pub number: u16,
}

/// All objects of a source, sorted by name within a kind; Services are unknown by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// All Nodes of this cluster.
    pub nodes: Vec<NodeInfo>,
    /// All Gateways of this cluster.
    pub gateways: Vec<GatewayInfo>,
    /// All remote clusters; shared, because they may have many prefixes.
    pub remotes: Vec<Arc<RemoteCluster>>,
    /// The Pods relevant to this node; shared, because there may be many.
    pub pods: Vec<Arc<PodInfo>>,
    /// The addresses that no Pod of `pods` has, as peers of rules; none where `pods` has all. Each group is a Pod
    /// without Node and with a name that ends after the Namespace and `/`.
    pub address_groups: Vec<Arc<PodInfo>>,
    /// Exported Services, by namespace and name; none while unknown.
    pub services: Option<Vec<ExportedService>>,
    /// Public keys of Nodes.
    pub node_keys: Vec<NodeKeyInfo>,
    /// Services that reserve addresses for Nodes, by namespace and name.
    pub reservations: Vec<ServiceInfo>,
    /// Namespaces and label identities; none while they cannot be read.
    pub identities: Option<IdentityObjects>,
    /// The rules to enforce; none while policies are not enforced.
    pub policy_mode: Option<Mode>,
    /// Network policies; none where they are not enforced.
    pub policies: PolicyObjects,
}

/// A rejected field of an object; the rest of the object is used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldError {
    /// Kind and name.
    pub object: String,
    /// Path of the field inside the object.
    pub field: String,
    /// Its value.
    pub value: String,
    /// Completes "value …".
    pub reason: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            object,
            field,
            value,
            reason,
        } = self;
        write!(f, "{object}: {field}: {value:?} {reason}")
    }
}
