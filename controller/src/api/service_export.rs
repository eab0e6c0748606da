//! `ServiceExport` of the MCS API: offer the Service of the same name to the set. It has no spec.

use std::borrow::Cow;

use k8s_openapi::{
    NamespaceResourceScope, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Resource, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    condition::Condition,
    crd::{self, Column, TopLevel},
    names,
};

/// The one condition type of a `ServiceExport`.
pub const VALID: &str = "Valid";

/// The reasons of [`VALID`].
pub mod reason {
    /// There is no Service of that name.
    pub const NOT_FOUND: &str = "ServiceNotFound";
    /// The Service is of a type that cannot be exported.
    pub const TYPE_NOT_SUPPORTED: &str = "ServiceTypeNotSupported";
    /// The Service has no IPv4 cluster IP.
    pub const NO_CLUSTER_IP: &str = "ServiceNoClusterIP";
    /// The Service has no ready endpoint.
    pub const WITHOUT_ENDPOINTS: &str = "ServiceWithoutEndpoints";
    /// The Service is itself imported.
    pub const IMPORTED: &str = "ImportedService";
    /// Exported.
    pub const SUCCEED: &str = "Succeed";
    /// Superset: the leader could not merge this export with those of other clusters.
    pub const CONFLICT: &str = "Conflict";
}

/// Offers the Service of the same name and Namespace to the set.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceExport {
    /// Always `multicluster.x-k8s.io/v1alpha1`.
    pub api_version: String,
    /// Always `ServiceExport`.
    pub kind: String,
    /// Name and Namespace: the Service's.
    pub metadata: ObjectMeta,
    /// What became of the export.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ServiceExportStatus>,
}

/// What became of the export.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceExportStatus {
    /// By type; `Valid` only so far.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crd::standard_conditions")]
    pub conditions: Vec<Condition>,
}

/// The fields of a [`ServiceExport`], as its CRD describes them.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "read by the schema generator only")]
struct Fields {
    /// What became of the export.
    status: Option<ServiceExportStatus>,
}

// === impl ServiceExport ===

impl Default for ServiceExport {
    fn default() -> Self {
        Self {
            api_version: Self::api_version(&()).into_owned(),
            kind: Self::kind(&()).into_owned(),
            metadata: ObjectMeta::default(),
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
        "v1alpha1".into()
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
        crd::top_level::<Self, Fields>(&TopLevel {
            doc: "Offers the Service of the same name and Namespace to the ClusterSet.",
            columns: &[Column::age()],
            status: true,
            short_names: &["svcex"],
        })
    }
}
