//! `ResourceExport`: a resource one member exports to the ClusterSet; stored in the leader cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EndpointSubset, ServiceSpec};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{cluster_info::ClusterInfo, condition::Condition, label_identity, schema};

/// The kinds of [`ResourceExportSpec::kind`] supported by this controller.
pub mod kind {
    /// The ports of an exported Service.
    pub const SERVICE: &str = "Service";
    /// The endpoints of an exported Service.
    pub const ENDPOINTS: &str = "Endpoints";
    /// The network of the exporting cluster.
    pub const CLUSTER_INFO: &str = "ClusterInfo";
    /// The labels of Pods.
    pub const LABEL_IDENTITY: &str = "LabelIdentity";
    /// A policy replicated to all members; created by an administrator.
    pub const CLUSTER_NETWORK_POLICY: &str = "AntreaClusterNetworkPolicy";
    /// Superset: the peers in the exporting cluster's own policies; read by members, not by the leader.
    pub const POLICY_SELECTORS: &str = "PolicySelectors";
    /// Superset: the Services that the exporting cluster cannot import; read by members, not by the leader.
    pub const IMPORT_FAILURES: &str = "ImportFailures";
}

/// Condition type: merged into a `ResourceImport`.
pub const SUCCEEDED: &str = "Succeeded";
/// Condition type: not merged.
pub const FAILURE: &str = "Failure";
/// The reason of [`FAILURE`].
pub const CONVERGE_FAILURE: &str = "ConvergeFailure";

// Rare payloads are boxed: caches hold thousands of these.
/// The exported resource and its cluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "multicluster.crd.antrea.io",
    version = "v1alpha1",
    kind = "ResourceExport",
    plural = "resourceexports",
    namespaced,
    status = "ResourceExportStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A resource one member cluster exports to the ClusterSet.",
    printcolumn = r#"{"name":"Cluster ID","type":"string","jsonPath":".spec.clusterID","description":"The exporting cluster"}"#,
    printcolumn = r#"{"name":"Kind","type":"string","jsonPath":".spec.kind","description":"Kind of the exported resource"}"#,
    printcolumn = r#"{"name":"Namespace","type":"string","jsonPath":".spec.namespace","description":"Namespace of the exported object"}"#,
    printcolumn = r#"{"name":"Name","type":"string","jsonPath":".spec.name","description":"Name of the exported object"}"#,
    printcolumn = r#"{"name":"Outcome","type":"string","jsonPath":".status.conditions[0].type","description":"Succeeded or Failure"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceExportSpec {
    /// The exporting cluster.
    #[serde(rename = "clusterID", skip_serializing_if = "String::is_empty")]
    pub cluster_id: String,
    /// Name of the exported object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Namespace of the exported object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// `Service`, `Endpoints`, `ClusterInfo`, `AntreaClusterNetworkPolicy`, `LabelIdentity`, `PolicySelectors` …
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Payload of kind `Service`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<Box<ServiceExportPayload>>,
    /// Payload of kind `Endpoints`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<EndpointsExport>,
    /// Payload of kind `ClusterInfo`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_info: Option<Box<ClusterInfo>>,
    /// Payload of kind `AntreaClusterNetworkPolicy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub cluster_network_policy: Option<Value>,
    /// Payload of kind `LabelIdentity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "label_identity::export_schema")]
    pub label_identity: Option<Value>,
    /// Payload of kind `ExternalEntity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub external_entity: Option<Value>,
    /// Payload of any other kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub raw: Option<Value>,
}

/// The exported Service.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceExportPayload {
    /// The spec of the Service in the exporting cluster, reduced to the imported fields; `clusterIP` only if `None`.
    #[schemars(schema_with = "schema::any_object")]
    pub service_spec: ServiceSpec,
    /// Superset: labels of the import.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exported_labels: BTreeMap<String, String>,
    /// Superset: annotations of the import.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exported_annotations: BTreeMap<String, String>,
}

/// The exported endpoints.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointsExport {
    /// Addresses and their ports.
    #[schemars(schema_with = "schema::any_objects")]
    pub subsets: Vec<EndpointSubset>,
}

/// State of the export in the leader cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceExportStatus {
    /// The first is `Succeeded` or `Failure`; superset: `Conflict` between exporting clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
