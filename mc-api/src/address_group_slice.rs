//! `AddressGroupSlice`: the addresses of a cluster's Pods, by the attributes that peers of policies select. Superset:
//! Antrea's controller serves its `AddressGroup`s from memory, `EndpointSlice`s are the model for the size.
//!
//! The member's controller writes the slices while agents of its cluster enforce every rule. An agent reads them
//! instead of the Pods of other Nodes: a slice changes once for all Pods that start within a fraction of a second, a
//! Pod changes four or five times while it starts, and has much more than its labels and addresses.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the slice with [`AddressGroupSliceSpec::complete`].
pub const COMPLETE_NAME: &str = "complete";
/// Most addresses of a slice, as the default of `EndpointSlice`s (`--max-endpoints-per-slice`).
pub const MAX_ADDRESSES: usize = 100;

/// Addresses of Pods of the cluster.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[kube(
    group = "mc-gateway.io",
    version = "v1alpha1",
    kind = "AddressGroupSlice",
    plural = "addressgroupslices",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    doc = "Addresses of Pods, by the attributes that peers of policies select. The controller writes them.",
    printcolumn = r#"{"name":"Revision","type":"integer","jsonPath":".spec.revision","description":"Of two slices with an address, the one with the higher revision counts"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct AddressGroupSliceSpec {
    /// Of two slices with one address, the one with the higher revision counts: an address can move to another slice,
    /// which is written first.
    pub revision: i64,
    /// Whether the slices together have every Pod. Set in the slice with the name `complete`, which has no groups and
    /// which the controller creates after the others and deletes before them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub complete: bool,
    /// The groups, by namespace, labels, service account and ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<AddressGroup>,
}

/// Pods with equal attributes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AddressGroup {
    /// Their namespace.
    pub namespace: String,
    /// All their labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Name of their `ServiceAccount`.
    pub service_account: String,
    /// The named ports of their containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<AddressGroupPort>,
    /// Their addresses of both families, without those of hosts; each address is in one group of a revision.
    pub addresses: Vec<String>,
}

/// A named port.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AddressGroupPort {
    /// Its name.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Its number.
    pub port: u16,
}
