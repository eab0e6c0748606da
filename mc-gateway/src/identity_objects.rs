//! Objects that give Pods their label identities, reduced to the fields of the data path. Values are unvalidated.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A `v1` Namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
}

/// A `LabelIdentity`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityInfo {
    /// `metadata.name`.
    pub name: String,
    /// The name that belongs to `spec.label` ([`mc_api::label_identity::object_name`]).
    pub label_name: String,
    /// `spec.id`.
    pub id: u32,
    /// `spec.label`.
    pub label: String,
    /// `spec.clusters`: the clusters that export the label, each once and sorted; none if the leader does not name
    /// them. A set has memory for eleven, and a cluster may have 10,000 identities.
    pub clusters: Option<Box<[String]>>,
}

/// The objects of label identities, sorted by name within a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityObjects {
    /// All Namespaces; shared, because they change rarely.
    pub namespaces: Vec<Arc<NamespaceInfo>>,
    /// All `LabelIdentity` objects of this cluster: none of a cluster without stretched policies.
    pub identities: Vec<Arc<IdentityInfo>>,
}
