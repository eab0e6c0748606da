//! `ResourceImport`: a resource of the ClusterSet for its members; merged from `ResourceExport`s by the leader.
//!
//! The casing of the JSON is Antrea's and not regular: `clusterinfo`, `externalentity`, `clusternetworkpolicy`.

use k8s_openapi::api::core::v1::EndpointSubset;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    cluster_info::ClusterInfo, condition::Condition, label_identity, schema, service_import::ServiceImport,
};

/// The kinds of [`ResourceImportSpec::kind`] supported by this controller.
pub mod kind {
    /// Merged from exports of kind `Service`.
    pub const SERVICE_IMPORT: &str = "ServiceImport";
    /// Merged from exports of kind `Endpoints`.
    pub const ENDPOINTS: &str = "Endpoints";
    /// Copy of the export of kind `ClusterInfo`.
    pub const CLUSTER_INFO: &str = "ClusterInfo";
    /// Merged from exports of kind `LabelIdentity`: the label and its ID.
    pub const LABEL_IDENTITY: &str = "LabelIdentity";
    /// Merged from exports of the same kind.
    pub const CLUSTER_NETWORK_POLICY: &str = "AntreaClusterNetworkPolicy";
}

/// The imported resource.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "multicluster.crd.antrea.io",
    version = "v1alpha1",
    kind = "ResourceImport",
    plural = "resourceimports",
    namespaced,
    status = "ResourceImportStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A resource of the ClusterSet for its members.",
    printcolumn = r#"{"name":"Kind","type":"string","jsonPath":".spec.kind","description":"Kind of the imported resource"}"#,
    printcolumn = r#"{"name":"Namespace","type":"string","jsonPath":".spec.namespace","description":"Namespace of the imported object"}"#,
    printcolumn = r#"{"name":"Name","type":"string","jsonPath":".spec.name","description":"Name of the imported object"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceImportSpec {
    /// The target clusters; empty: all.
    #[serde(rename = "clusterID", skip_serializing_if = "Vec::is_empty")]
    pub cluster_ids: Vec<String>,
    /// Name of the imported object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Namespace of the imported object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// `ServiceImport`, `Endpoints`, `ClusterInfo` …
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Payload of kind `ServiceImport`: the object created by the members.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub service_import: Option<Box<ServiceImport>>,
    /// Payload of kind `Endpoints`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<EndpointsImport>,
    /// Payload of kind `ClusterInfo`.
    #[serde(rename = "clusterinfo", skip_serializing_if = "Option::is_none")]
    pub cluster_info: Option<Box<ClusterInfo>>,
    /// Payload of kind `AntreaClusterNetworkPolicy`.
    #[serde(rename = "clusternetworkpolicy", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub cluster_network_policy: Option<Value>,
    /// Payload of kind `LabelIdentity`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "label_identity::import_schema")]
    pub label_identity: Option<Value>,
    /// Payload of kind `ExternalEntity`.
    #[serde(rename = "externalentity", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub external_entity: Option<Value>,
    /// Payload of any other kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::any_object")]
    pub raw: Option<Value>,
}

/// The endpoints in all exporting clusters.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointsImport {
    /// The subsets of all clusters, concatenated; read by Antrea members.
    #[schemars(schema_with = "schema::any_objects")]
    pub subsets: Vec<EndpointSubset>,
    /// Superset: the subsets by exporting cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<ClusterEndpoints>,
}

/// The endpoints of one exporting cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterEndpoints {
    /// The exporting cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// Its subsets.
    #[schemars(schema_with = "schema::any_objects")]
    pub subsets: Vec<EndpointSubset>,
}

/// State of the import.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceImportStatus {
    /// One entry for each exporting cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cluster_statuses: Vec<ResourceImportClusterStatus>,
}

/// State of the import in one cluster.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceImportClusterStatus {
    /// The cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// `Succeeded`.
    pub conditions: Vec<Condition>,
}
