//! `ClusterClaim`: how older guides say what a cluster and its set are called. Its fields are at the top level.

use std::borrow::Cow;

use k8s_openapi::{
    NamespaceResourceScope, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Resource, ResourceExt, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    crd::{self, Column, TopLevel},
    names,
};

/// The property that is the cluster's ID.
pub const CLUSTER_ID: &str = "id.k8s.io";
/// The property that is the set's ID; `clusterSet.k8s.io` in v1alpha1.
pub const CLUSTER_SET_ID: &str = "clusterset.k8s.io";

/// A property of a cluster. In v1alpha2 the object has the property's name, in v1alpha1 any, and [`Self::name`] has it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterClaim {
    /// Always `multicluster.crd.antrea.io/v1alpha2`.
    pub api_version: String,
    /// Always `ClusterClaim`.
    pub kind: String,
    /// Namespace: that of the `ClusterSet`.
    pub metadata: ObjectMeta,
    /// v1alpha1: which property.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What it is.
    pub value: String,
}

/// The fields of a [`ClusterClaim`], as its CRD describes them.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "read by the schema generator only")]
struct Fields {
    /// Which property, `id.k8s.io` or `clusterSet.k8s.io`; the object's name where it is absent.
    #[serde(default)]
    name: String,
    /// What it is.
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
    /// Whether it is about that property.
    #[must_use]
    pub fn is(&self, property: &str) -> bool {
        let claimed = if self.name.is_empty() {
            self.name_any()
        } else {
            self.name.clone()
        };
        claimed.eq_ignore_ascii_case(property)
    }

    /// The CRD: both forms, each with all fields, because an API server that converts nothing drops the fields the
    /// stored version does not have.
    #[must_use]
    pub fn crd() -> CustomResourceDefinition {
        let newest = crd::top_level::<Self, Fields>(&TopLevel {
            doc: "A property of this cluster: its ID, or that of its set.",
            columns: &[
                Column::string("Value", ".value", "What the property is"),
                Column::age(),
            ],
            status: false,
            short_names: &[],
        });
        let mut crd = crd::also_served(newest, "v1alpha1");
        for schema in crd::schemas(&mut crd, "v1alpha1") {
            schema.required = Some(vec!["name".to_owned(), "value".to_owned()]);
        }
        crd
    }
}
