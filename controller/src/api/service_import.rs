//! `ServiceImport` of the MCS API: a Service of the set, usable in this cluster.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::crd;

/// The type of an import that has an address of its own in every cluster.
pub const CLUSTER_SET_IP: &str = "ClusterSetIP";

/// A Service of the set.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "multicluster.x-k8s.io",
    version = "v1alpha1",
    kind = "ServiceImport",
    plural = "serviceimports",
    shortname = "svcim",
    namespaced,
    status = "ServiceImportStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A Service of the ClusterSet, usable in this cluster.",
    printcolumn = r#"{"name":"Type","type":"string","jsonPath":".spec.type","description":"ClusterSetIP or Headless"}"#,
    printcolumn = r#"{"name":"IP","type":"string","jsonPath":".spec.ips","description":"The address in this cluster"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ServiceImportSpec {
    /// The ports of the Service.
    #[serde(default)]
    #[schemars(!default, extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<ServicePort>,
    /// The address of the Service in this cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1))]
    pub ips: Vec<String>,
    /// `ClusterSetIP` or `Headless`.
    #[serde(rename = "type", default)]
    #[schemars(!default, extend("enum" = ["ClusterSetIP", "Headless"]))]
    pub type_: String,
    /// `None` or `ClientIP`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub session_affinity: String,
    /// How long affinity lasts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crd::any_object")]
    pub session_affinity_config: Option<Value>,
}

/// One port of the Service.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// Required when there is more than one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `TCP` when empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// The application protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
    /// The port clients connect to.
    #[serde(default)]
    #[schemars(!default)]
    pub port: i32,
}

/// Where the Service comes from.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceImportStatus {
    /// The exporting clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["cluster"]))]
    pub clusters: Vec<ExportingCluster>,
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
