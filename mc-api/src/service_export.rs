//! `ServiceExport` of the MCS API: exports the Service of the same name to the ClusterSet. A kind whose `spec` may be
//! absent, hence no `CustomResource` derive of kube.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    NamespaceResourceScope, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Resource, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    condition::Condition,
    names,
    schema::{self, Column, TopLevelKind},
};

/// Condition type: the Service can be exported.
pub const VALID: &str = "Valid";
/// Condition type: the Service is exported.
pub const READY: &str = "Ready";
/// Condition type: the export conflicts with those of other clusters.
pub const CONFLICT: &str = "Conflict";
/// Condition type, superset: other clusters report that they cannot import the Service, or import it in part.
pub const IMPORT_FAILED: &str = "ImportFailed";

/// The reasons of [`VALID`].
pub mod reason {
    /// There is no Service of that name.
    pub const NOT_FOUND: &str = "ServiceNotFound";
    /// The Service is of an unsupported type.
    pub const TYPE_NOT_SUPPORTED: &str = "ServiceTypeNotSupported";
    /// The Service has no IPv4 cluster IP.
    pub const NO_CLUSTER_IP: &str = "ServiceNoClusterIP";
    /// The Service has no ready endpoint.
    pub const WITHOUT_ENDPOINTS: &str = "ServiceWithoutEndpoints";
    /// The Service is itself an import.
    pub const IMPORTED: &str = "ImportedService";
    /// The name is so long that no cluster can import the Service.
    pub const NAME_NOT_IMPORTABLE: &str = "NameNotImportable";
    /// `namespacePolicy` of the member controller's configuration closes the Namespace.
    pub const NAMESPACE_NOT_ALLOWED: &str = "NamespaceNotAllowed";
    /// Another `ServiceExport` has the same derived name in the leader cluster.
    pub const NAME_TAKEN: &str = "NameTaken";
    /// An exported label or annotation is invalid.
    pub const INVALID_METADATA: &str = "InvalidExportedMetadata";
    /// Exported.
    pub const SUCCEED: &str = "Succeed";
}

/// The reasons of [`READY`].
pub mod ready {
    /// The leader has merged the export.
    pub const EXPORTED: &str = "Exported";
    /// The leader has not merged the export yet.
    pub const PENDING: &str = "Pending";
    /// The Service is not exported; the message has the cause.
    pub const FAILED: &str = "Failed";
}

/// The reasons of [`CONFLICT`] (KEP-1645, v1beta1); several are joined by commas.
pub mod conflict {
    /// Ports.
    pub const PORT: &str = "PortConflict";
    /// Headless or not.
    pub const TYPE: &str = "TypeConflict";
    /// `sessionAffinity`.
    pub const SESSION_AFFINITY: &str = "SessionAffinityConflict";
    /// `sessionAffinityConfig`.
    pub const SESSION_AFFINITY_CONFIG: &str = "SessionAffinityConfigConflict";
    /// `exportedLabels`.
    pub const LABELS: &str = "LabelsConflict";
    /// `exportedAnnotations`.
    pub const ANNOTATIONS: &str = "AnnotationsConflict";
    /// `internalTrafficPolicy`.
    pub const INTERNAL_TRAFFIC_POLICY: &str = "InternalTrafficPolicyConflict";
    /// `trafficDistribution`.
    pub const TRAFFIC_DISTRIBUTION: &str = "TrafficDistributionConflict";
    /// `ipFamilies`.
    pub const IP_FAMILY: &str = "IPFamilyConflict";
    /// A leader of another implementation gave no field.
    pub const UNSPECIFIED: &str = "Conflict";
    /// No conflict.
    pub const NONE: &str = "NoConflicts";
}

/// Exports the Service of the same name and Namespace to the ClusterSet.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceExport {
    /// Always `multicluster.x-k8s.io/v1beta1`.
    pub api_version: String,
    /// Always `ServiceExport`.
    pub kind: String,
    /// Name and Namespace: the Service's.
    pub metadata: ObjectMeta,
    /// Labels and annotations of the imports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<ServiceExportSpec>,
    /// State of the export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ServiceExportStatus>,
}

/// Labels and annotations of the imports.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceExportSpec {
    /// Labels of the imports.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exported_labels: BTreeMap<String, String>,
    /// Annotations of the imports.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exported_annotations: BTreeMap<String, String>,
}

/// State of the export.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceExportStatus {
    /// By type: `Valid`, `Ready`, `Conflict`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::standard_conditions")]
    pub conditions: Vec<Condition>,
}

/// The fields of a [`ServiceExport`], as its CRD describes them.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "read by the schema generator only")]
struct Fields {
    /// Labels and annotations of the imports.
    spec: Option<ServiceExportSpec>,
    /// State of the export.
    status: Option<ServiceExportStatus>,
}

// === impl ServiceExport ===

impl Default for ServiceExport {
    fn default() -> Self {
        Self {
            api_version: Self::api_version(&()).into_owned(),
            kind: Self::kind(&()).into_owned(),
            metadata: ObjectMeta::default(),
            spec: None,
            status: None,
        }
    }
}

impl Resource for ServiceExport {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ServiceExport".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        names::MCS_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1beta1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "serviceexports".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl ServiceExport {
    /// The CRD.
    #[must_use]
    pub fn crd() -> CustomResourceDefinition {
        schema::top_level::<Self, Fields>(&TopLevelKind {
            doc: "Exports the Service of the same name and Namespace to the ClusterSet.",
            columns: &[
                Column::string(
                    "Valid",
                    ".status.conditions[?(@.type=='Valid')].status",
                    "Whether the Service can be exported",
                ),
                Column::string(
                    "Ready",
                    ".status.conditions[?(@.type=='Ready')].status",
                    "Whether the Service is exported",
                ),
                Column::string(
                    "Conflict",
                    ".status.conditions[?(@.type=='Conflict')].status",
                    "Whether the export conflicts with those of other clusters",
                ),
                Column::string(
                    "Reason",
                    ".status.conditions[?(@.type=='Valid')].reason",
                    "The reason of Valid",
                ),
                Column::age(),
            ],
            status: true,
            short_names: &["svcex", "svcexport"],
        })
    }
}
