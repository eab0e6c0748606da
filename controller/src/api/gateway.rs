//! `Gateway`: a Node that serves as gateway of this cluster. Its fields are at the top level.

use std::borrow::Cow;

use k8s_openapi::{
    NamespaceResourceScope, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Resource, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    cluster_info::WireGuardInfo,
    crd::{self, Column, TopLevel},
    names,
};

/// The most gateways a cluster has: as many as a data path chooses from.
pub const MAX_GATEWAYS: usize = 16;

/// The weight of a gateway that states none.
pub const DEFAULT_WEIGHT: u32 = 1;

/// A Node that serves as gateway; the object has the name of the Node.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gateway {
    /// Always `multicluster.crd.antrea.io/v1alpha1`.
    pub api_version: String,
    /// Always `Gateway`.
    pub kind: String,
    /// Name: the Node's; Namespace: that of the member controller.
    pub metadata: ObjectMeta,
    /// The address other clusters send to.
    #[serde(rename = "gatewayIP", skip_serializing_if = "String::is_empty")]
    pub gateway_ip: String,
    /// The address the other Nodes of this cluster send to.
    #[serde(rename = "internalIP", skip_serializing_if = "String::is_empty")]
    pub internal_ip: String,
    /// The Service CIDR of this cluster.
    #[serde(rename = "serviceCIDR", skip_serializing_if = "String::is_empty")]
    pub service_cidr: String,
    /// Its share of the flows next to the other gateways; 0 while it is being drained, 1 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The key of this gateway, once `WireGuard` is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wire_guard: Option<WireGuardInfo>,
}

/// The fields of a [`Gateway`], as its CRD describes them.
#[derive(JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(dead_code, reason = "read by the schema generator only")]
struct Fields {
    /// The address other clusters send to.
    #[serde(rename = "gatewayIP", default)]
    gateway_ip: String,
    /// The address the other Nodes of this cluster send to.
    #[serde(rename = "internalIP", default)]
    internal_ip: String,
    /// The Service CIDR of this cluster.
    #[serde(rename = "serviceCIDR", default)]
    service_cidr: String,
    /// Its share of the flows next to the other gateways; 0 while it is being drained, 1 when absent.
    #[schemars(range(max = 255))]
    weight: Option<u32>,
    /// The key of this gateway, once `WireGuard` is in use.
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
    /// The weight in force.
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight.unwrap_or(DEFAULT_WEIGHT)
    }

    /// Whether it is marked as the one other clusters are told of first.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.contains_key(names::ANNOTATION_PRIMARY))
    }

    /// The CRD.
    #[must_use]
    pub fn crd() -> CustomResourceDefinition {
        crd::top_level::<Self, Fields>(&TopLevel {
            doc: "A Node that serves as gateway of this cluster to the others of the ClusterSet.",
            columns: &[
                Column::string("Gateway IP", ".gatewayIP", "The address other clusters send to"),
                Column::string(
                    "Internal IP",
                    ".internalIP",
                    "The address the other Nodes of this cluster send to",
                ),
                Column::integer(
                    "Weight",
                    ".weight",
                    "Its share of the flows; 0 while it is being drained",
                ),
                Column::age(),
            ],
            status: true,
            short_names: &[],
        })
    }
}
