//! `ClusterNetworkPolicy` and `Tier` of Antrea (`crd.antrea.io`), reduced to the fields for replication: the spec of a
//! policy is opaque here.

use std::borrow::Cow;

use k8s_openapi::ClusterResourceScope;
use kube::{Resource, core::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The group of these kinds.
pub const GROUP: &str = "crd.antrea.io";
/// The Tier of a policy that names none.
pub const DEFAULT_TIER: &str = "application";

/// A policy for all Namespaces of a cluster.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterNetworkPolicy {
    /// Always `crd.antrea.io/v1beta1`.
    pub api_version: String,
    /// Always `ClusterNetworkPolicy`.
    pub kind: String,
    /// Name, and the annotation of imported policies.
    pub metadata: ObjectMeta,
    /// The rules, opaque.
    pub spec: Value,
}

/// The precedence class of a policy; it must exist before a policy refers to it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tier {
    /// Name.
    pub metadata: ObjectMeta,
}

// === impl ClusterNetworkPolicy ===

impl Default for ClusterNetworkPolicy {
    fn default() -> Self {
        Self {
            api_version: Self::api_version(&()).into_owned(),
            kind: Self::kind(&()).into_owned(),
            metadata: ObjectMeta::default(),
            spec: Value::Null,
        }
    }
}

macro_rules! cluster_scoped {
    ($type:ty, $kind:literal, $plural:literal) => {
        impl Resource for $type {
            type DynamicType = ();
            type Scope = ClusterResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                GROUP.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                "v1beta1".into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

cluster_scoped!(
    ClusterNetworkPolicy,
    "ClusterNetworkPolicy",
    "clusternetworkpolicies"
);
cluster_scoped!(Tier, "Tier", "tiers");

/// The Tier of a policy's spec.
#[must_use]
pub fn tier(spec: &Value) -> &str {
    spec.get("tier")
        .and_then(Value::as_str)
        .filter(|t| !t.is_empty())
        .unwrap_or(DEFAULT_TIER)
}

/// Removes null fields, which are equivalent to absent ones.
#[must_use]
pub fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(k, v)| (k.clone(), without_nulls(v)))
            .collect(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}
