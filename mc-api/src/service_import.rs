//! `ServiceImport` of the MCS API: a Service of the ClusterSet, usable in this cluster.

use k8s_openapi::api::core::v1::ServiceSpec;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{condition::Condition, schema};

/// The type of an import with a clusterset IP.
pub const CLUSTER_SET_IP: &str = "ClusterSetIP";
/// The type of an import whose Pods are resolved by DNS.
pub const HEADLESS: &str = "Headless";
/// The `clusterIP` of a Service without an address (core/v1, `ClusterIPNone`).
pub const NO_CLUSTER_IP: &str = "None";
/// Condition type: the import is usable.
pub const READY: &str = "Ready";

/// The reasons of [`READY`].
pub mod reason {
    /// The import is usable.
    pub const READY: &str = "Ready";
    /// The import has no address yet.
    pub const PENDING: &str = "Pending";
    /// This cluster has no Services of the import's IP families.
    pub const IP_FAMILY_NOT_SUPPORTED: &str = "IPFamilyNotSupported";
}

/// `endpointSliceObjects`: the endpoints exist as `EndpointSlice`s.
pub const PRESENT: &str = "Present";
/// `endpointSliceObjects`: no `EndpointSlice`s exist.
pub const ABSENT: &str = "Absent";

/// Whether a Service is headless.
#[must_use]
pub fn is_headless(service: &ServiceSpec) -> bool {
    service.cluster_ip.as_deref() == Some(NO_CLUSTER_IP)
}

/// A Service of the ClusterSet.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "multicluster.x-k8s.io",
    version = "v1beta1",
    kind = "ServiceImport",
    plural = "serviceimports",
    shortname = "svcim",
    shortname = "svcimport",
    category = "multicluster",
    namespaced,
    status = "ServiceImportStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A Service of the ClusterSet, usable in this cluster.",
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type","description":"ClusterSetIP or Headless"}"#,
    printcolumn = r#"{"name":"IP","type":"string","jsonPath":".spec.ips","description":"The address in this cluster"}"#,
    printcolumn = r#"{"name":"Clusters","type":"string","jsonPath":".status.clusters","description":"The exporting clusters"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status","description":"Whether the import is usable"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ServiceImportSpec {
    /// The ports of the Service.
    #[serde(default)]
    #[schemars(!default, extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<ServicePort>,
    /// The addresses of the Service in this cluster, one for each of `ipFamilies`, in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub ips: Vec<String>,
    /// `ClusterSetIP` or `Headless`.
    #[serde(rename = "type", default)]
    #[schemars(!default, extend("enum" = ["ClusterSetIP", "Headless"]))]
    pub type_: String,
    /// `None` or `ClientIP`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub session_affinity: String,
    /// Affinity timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub session_affinity_config: Option<Value>,
    /// `IPv4`, `IPv6` or both.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    pub ip_families: Vec<String>,
    /// `Cluster` or `Local`, as in a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal_traffic_policy: Option<String>,
    /// As in a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<String>,
}

/// One port of the Service.
#[derive(Clone, Debug, Default, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Required of more than one port.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `TCP` when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// The application protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
    /// The port of the Service.
    #[serde(default)]
    #[schemars(!default)]
    pub port: i32,
}

/// The exporting clusters and the state of the import.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceImportStatus {
    /// The exporting clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["cluster"]))]
    pub clusters: Vec<ExportingCluster>,
    /// `Present` if the endpoints exist as `EndpointSlice`s, else `Absent`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["Present", "Absent"]))]
    pub endpoint_slice_objects: String,
    /// By type: `Ready`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::standard_conditions")]
    pub conditions: Vec<Condition>,
}

/// One exporting cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportingCluster {
    /// Its ID.
    #[serde(default)]
    #[schemars(!default)]
    pub cluster: String,
}
