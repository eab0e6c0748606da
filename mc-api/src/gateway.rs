//! `Gateway`: a Node that serves as gateway of this cluster, and the election of the primary. Fields at the top level,
//! hence no `CustomResource` derive of kube, which supports spec and status only.

use std::borrow::Cow;

use k8s_openapi::{
    NamespaceResourceScope, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Resource, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    names,
    schema::{self, Column, TopLevelKind},
    wire_guard::WireGuardInfo,
};

/// Maximum number of gateways of a cluster: the size of a next-hop group.
pub const MAX_GATEWAYS: usize = 16;

/// The weight of a gateway without one.
pub const DEFAULT_WEIGHT: u32 = 1;

/// A Node that serves as gateway; the object has the Node's name.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gateway {
    /// Always `multicluster.crd.antrea.io/v1alpha1`.
    pub api_version: String,
    /// Always `Gateway`.
    pub kind: String,
    /// Name: the Node's; Namespace: that of the member controller.
    pub metadata: ObjectMeta,
    /// Tunnel endpoint for other clusters.
    #[serde(rename = "gatewayIP", skip_serializing_if = "String::is_empty")]
    pub gateway_ip: String,
    /// Tunnel endpoint for the other Nodes of this cluster.
    #[serde(rename = "internalIP", skip_serializing_if = "String::is_empty")]
    pub internal_ip: String,
    /// The Service CIDR of this cluster.
    #[serde(rename = "serviceCIDR", skip_serializing_if = "String::is_empty")]
    pub service_cidr: String,
    /// Share of the flows relative to the other gateways; 0 while draining, 1 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Superset: X25519 public key of this Node's agent, base64.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub public_key: String,
    /// The `WireGuard` key of this gateway.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_guard: Option<WireGuardInfo>,
}

/// Sort key of the election of the primary Gateway: the smallest is the primary.
///
/// The primary is announced first and is the only gateway known to Antrea clusters, which have one gateway each. Agents
/// and the member controller elect it by the same rule: one that is not draining, one that is marked, the oldest, by
/// name. `T` is the creation time in any ordered form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PrimaryRank<'a, T> {
    // The order of the fields is the rule.
    draining: bool,
    unmarked: bool,
    not_created: bool,
    created: Option<T>,
    name: &'a str,
}

/// The fields of a [`Gateway`], as its CRD describes them.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "read by the schema generator only")]
struct Fields {
    /// Tunnel endpoint for other clusters.
    #[serde(rename = "gatewayIP", default)]
    gateway_ip: String,
    /// Tunnel endpoint for the other Nodes of this cluster.
    #[serde(rename = "internalIP", default)]
    internal_ip: String,
    /// The Service CIDR of this cluster.
    #[serde(rename = "serviceCIDR", default)]
    service_cidr: String,
    /// Share of the flows relative to the other gateways; 0 while draining, 1 when absent.
    #[schemars(range(max = 255))]
    weight: Option<u32>,
    /// Superset: X25519 public key of this Node's agent, base64.
    #[serde(default)]
    public_key: String,
    /// The `WireGuard` key of this gateway.
    wire_guard: Option<WireGuardInfo>,
}

// === impl Gateway ===

impl Default for Gateway {
    fn default() -> Self {
        Self {
            api_version: Self::api_version(&()).into_owned(),
            kind: Self::kind(&()).into_owned(),
            metadata: ObjectMeta::default(),
            gateway_ip: String::new(),
            internal_ip: String::new(),
            service_cidr: String::new(),
            weight: None,
            public_key: String::new(),
            wire_guard: None,
        }
    }
}

impl Resource for Gateway {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Gateway".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        names::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "gateways".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Gateway {
    /// The effective weight.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight.unwrap_or(DEFAULT_WEIGHT)
    }

    /// Whether the Gateway is marked as primary although another is older.
    #[must_use]
    pub fn is_marked_primary(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.contains_key(names::ANNOTATION_PRIMARY))
    }

    /// The CRD.
    #[must_use]
    pub fn crd() -> CustomResourceDefinition {
        schema::top_level::<Self, Fields>(&TopLevelKind {
            doc: "A Node that serves as gateway of this cluster to the other clusters of the ClusterSet.",
            columns: &[
                Column::string("Gateway IP", ".gatewayIP", "Tunnel endpoint for other clusters"),
                Column::string(
                    "Internal IP",
                    ".internalIP",
                    "Tunnel endpoint for the other Nodes of this cluster",
                ),
                Column::integer("Weight", ".weight", "Share of the flows; 0 while draining"),
                Column::age(),
            ],
            status: true,
            short_names: &["mcgw"],
        })
    }
}

// === impl PrimaryRank ===

impl<'a, T> PrimaryRank<'a, T> {
    /// The rank of a Gateway with these properties; a Gateway without a creation time does not exist yet.
    #[must_use]
    pub fn new(weight: u32, marked: bool, created: Option<T>, name: &'a str) -> Self {
        Self {
            draining: weight == 0,
            unmarked: !marked,
            not_created: created.is_none(),
            created,
            name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primary_is_active_then_marked_then_oldest_then_first_by_name() {
        let ranked = [
            PrimaryRank::new(1, true, Some(3), "d"),
            PrimaryRank::new(7, true, None, "a"),
            PrimaryRank::new(9, false, Some(1), "c"),
            PrimaryRank::new(1, false, Some(2), "a"),
            PrimaryRank::new(1, false, Some(2), "b"),
            PrimaryRank::new(1, false, None, "a"),
            PrimaryRank::new(0, true, Some(0), "a"),
            PrimaryRank::new(0, false, Some(0), "a"),
        ];
        assert!(ranked.is_sorted());
    }
}
