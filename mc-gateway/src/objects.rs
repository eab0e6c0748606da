//! The objects a plan is made from, reduced to the fields the data path needs.
//!
//! Values are kept as written: [`crate::desired`] checks them, so that both sources refuse the same
//! things with the same words.

use std::fmt;
use std::sync::Arc;

use crate::service_objects::{ExportedService, ServiceInfo};

/// A `v1` Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// `metadata.name`.
    pub name: String,
    /// Addresses of type `InternalIP` in `status.addresses`, in their order.
    pub internal_ips: Vec<String>,
    /// `spec.podCIDRs`, else `spec.podCIDR`.
    pub pod_cidrs: Vec<String>,
    /// Addresses the CNI took from its Pods' for the Node itself, by the annotation that says so.
    pub host_addresses: Vec<(&'static str, String)>,
}

/// A `Gateway` of this cluster; its name is the Node's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayInfo {
    /// `metadata.name`, the Node's name.
    pub name: String,
    /// `gatewayIP`: what other clusters send to.
    pub gateway_ip: String,
    /// `internalIP`: what this cluster's Nodes send to.
    pub internal_ip: String,
    /// `serviceCIDR` of this cluster; one for each family, with a comma between them.
    pub service_cidr: String,
    /// `weight`: its share of the flows next to other gateways, 0 while it is drained.
    pub weight: u32,
    /// `metadata.creationTimestamp` in RFC 3339, UTC, where there is one.
    pub created: Option<String>,
    /// Marked as the one other clusters are told of first, although it is not the oldest.
    pub primary: bool,
}

/// A `ClusterInfoImport`: another cluster of the ClusterSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteCluster {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.creationTimestamp` in RFC 3339, UTC, where there is one.
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

/// A gateway of another cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemoteGateway {
    /// `gatewayIP`.
    pub ip: String,
    /// `weight`: its share of the flows next to other gateways, 0 while it is drained.
    pub weight: u32,
}

/// A Pod that has addresses of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodInfo {
    /// `metadata.namespace/metadata.name`.
    pub name: String,
    /// `spec.nodeName`.
    pub node: String,
    /// `status.podIPs`; none where it is not to be found by address.
    pub ips: Vec<String>,
}

/// Everything a source knows, sorted by name within a kind; nothing is known of Services by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// All Nodes of this cluster.
    pub nodes: Vec<NodeInfo>,
    /// All Gateways of this cluster.
    pub gateways: Vec<GatewayInfo>,
    /// All other clusters.
    pub remotes: Vec<RemoteCluster>,
    /// The Pods this node has to know; shared, because there may be many.
    pub pods: Vec<Arc<PodInfo>>,
    /// Services that are exported, by Namespace and name; none while they are not known.
    pub services: Option<Vec<ExportedService>>,
    /// Services of ours that reserve addresses for Nodes, by Namespace and name.
    pub reservations: Vec<ServiceInfo>,
}

/// Part of an object that is not used, and why. The rest of the object is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldError {
    /// Kind and name.
    pub object: String,
    /// Path of the field inside the object.
    pub field: String,
    /// Its value as written.
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
