//! `ClusterInfo`, the exported network of a cluster, and `ClusterInfoImport`, its copy in another member cluster.

use ipnet::IpNet;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{condition::Condition, gateway::DEFAULT_WEIGHT, validation, wire_guard::WireGuardInfo};

/// The network of one cluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "multicluster.crd.antrea.io",
    version = "v1alpha1",
    kind = "ClusterInfoImport",
    plural = "clusterinfoimports",
    namespaced,
    status = "ClusterInfoImportStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "The network of another cluster of the ClusterSet, as that cluster exported it.",
    printcolumn = r#"{"name":"Cluster ID","type":"string","jsonPath":".spec.clusterID","description":"ID of the exporting cluster"}"#,
    printcolumn = r#"{"name":"Service CIDR","type":"string","jsonPath":".spec.serviceCIDR","description":"Service CIDR of the exporting cluster"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status","description":"Whether this cluster can use the network","priority":1}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].reason","description":"The cause if it cannot","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInfo {
    /// The ID of the cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// Its Service CIDR.
    #[serde(rename = "serviceCIDR", skip_serializing_if = "String::is_empty")]
    pub service_cidr: String,
    /// Superset: the Service CIDRs of a dual-stack cluster, `serviceCIDR` among them.
    #[serde(rename = "serviceCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub service_cidrs: Vec<String>,
    /// Its gateways, the primary first: implementations with one gateway per cluster use that.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateway_infos: Vec<GatewayInfo>,
    /// Its Pod CIDRs; empty when Pods are not reachable by address.
    #[serde(rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    pub pod_cidrs: Vec<String>,
    /// Its `WireGuard` key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_guard: Option<WireGuardInfo>,
}

/// One gateway of a cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayInfo {
    /// Tunnel endpoint for other clusters.
    #[serde(rename = "gatewayIP")]
    pub gateway_ip: String,
    /// Share of the flows relative to the other gateways; 0 while draining, 1 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 255))]
    pub weight: Option<u32>,
    /// Superset: X25519 public key of the gateway's agent, base64. Packets to and from the gateway have a secret
    /// derived from it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub public_key: String,
}

/// State of the import.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInfoImportStatus {
    /// `Ready`: whether this cluster accepts the network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

// === impl ClusterInfo ===

impl ClusterInfo {
    /// All Service CIDRs, each with its field.
    #[must_use]
    pub fn service_cidrs(&self) -> Vec<(String, &str)> {
        let more = self.service_cidrs.iter().enumerate();
        let more = more.filter(|(_, cidr)| **cidr != self.service_cidr);
        let one = ("spec.serviceCIDR".to_owned(), self.service_cidr.as_str());
        std::iter::once(one)
            .filter(|(_, cidr)| !cidr.is_empty())
            .chain(more.map(|(i, cidr)| (format!("spec.serviceCIDRs[{i}]"), cidr.as_str())))
            .collect()
    }

    /// The valid Service and Pod CIDRs.
    #[must_use]
    pub fn prefixes(&self) -> Vec<IpNet> {
        let services = self.service_cidrs().into_iter().map(|(_, cidr)| cidr);
        let all = services.chain(self.pod_cidrs.iter().map(String::as_str));
        all.filter_map(|cidr| validation::cidr(cidr).ok()).collect()
    }
}

// === impl GatewayInfo ===

impl GatewayInfo {
    /// The effective weight.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight.unwrap_or(DEFAULT_WEIGHT)
    }
}
