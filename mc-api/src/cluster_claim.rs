//! `ClusterClaim`: the cluster ID and ClusterSet ID as older Antrea guides configure them. Fields at the top level,
//! hence no `CustomResource` derive of kube, which supports spec and status only.

use std::borrow::Cow;

use k8s_openapi::{
    NamespaceResourceScope, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Resource, ResourceExt, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    names,
    schema::{self, Column, TopLevelKind},
};

/// The property with the cluster ID.
pub const CLUSTER_ID: &str = "id.k8s.io";
/// The property with the ClusterSet ID; `clusterSet.k8s.io` in v1alpha1.
pub const CLUSTER_SET_ID: &str = "clusterset.k8s.io";

/// A property of a cluster: in v1alpha2 named by the object's name, in v1alpha1 by [`Self::name`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterClaim {
    /// Always `multicluster.crd.antrea.io/v1alpha2`.
    pub api_version: String,
    /// Always `ClusterClaim`.
    pub kind: String,
    /// Namespace: that of the `ClusterSet`.
    pub metadata: ObjectMeta,
    /// v1alpha1: name of the property.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Value of the property.
    pub value: String,
}

/// The fields of a [`ClusterClaim`], as its CRD describes them.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "read by the schema generator only")]
struct Fields {
    /// Name of the property, `id.k8s.io` or `clusterSet.k8s.io`; the object's name when absent.
    #[serde(default)]
    name: String,
    /// Value of the property.
    value: String,
}

// === impl ClusterClaim ===

impl Default for ClusterClaim {
    fn default() -> Self {
        Self {
            api_version: Self::api_version(&()).into_owned(),
            kind: Self::kind(&()).into_owned(),
            metadata: ObjectMeta::default(),
            name: String::new(),
            value: String::new(),
        }
    }
}

impl Resource for ClusterClaim {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ClusterClaim".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        names::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1alpha2".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "clusterclaims".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl ClusterClaim {
    /// Whether the claim states `property`.
    #[must_use]
    pub fn has_property(&self, property: &str) -> bool {
        let name = if self.name.is_empty() {
            self.name_any()
        } else {
            self.name.clone()
        };
        name.eq_ignore_ascii_case(property)
    }

    /// The CRD. Both versions have all fields: without conversion the API server drops the fields that the stored
    /// version does not have.
    #[must_use]
    pub fn crd() -> CustomResourceDefinition {
        let newest = schema::top_level::<Self, Fields>(&TopLevelKind {
            doc: "A property of this cluster: its ID, or that of its ClusterSet.",
            columns: &[
                Column::string("Value", ".value", "Value of the property"),
                Column::age(),
            ],
            status: false,
            short_names: &[],
        });
        let mut crd = schema::serve_older_version(newest, "v1alpha1");
        for schema in schema::of_version(&mut crd, "v1alpha1") {
            schema.required = Some(vec!["name".to_owned(), "value".to_owned()]);
        }
        crd
    }
}
