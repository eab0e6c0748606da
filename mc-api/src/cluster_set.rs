//! `ClusterSet`: this cluster's membership; `metadata.name` is the ClusterSet ID. Stored as v1alpha2 and served as
//! v1alpha1, too, where `clusterID` is optional ([`crate::cluster_claim`]).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, ValidationRule,
};
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{condition::Condition, schema};

/// The ID of this cluster and the address of its leader.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[kube(
    group = "multicluster.crd.antrea.io",
    version = "v1alpha2",
    kind = "ClusterSet",
    plural = "clustersets",
    namespaced,
    status = "ClusterSetStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "The membership of this cluster in a ClusterSet; metadata.name is the ClusterSet ID.",
    printcolumn = r#"{"name":"Leader Cluster Namespace","type":"string","jsonPath":".spec.namespace","description":"The Namespace of the leader cluster that holds the exchanged objects"}"#,
    printcolumn = r#"{"name":"Total Clusters","type":"string","jsonPath":".status.totalClusters","description":"Number of clusters seen"}"#,
    printcolumn = r#"{"name":"Ready Clusters","type":"string","jsonPath":".status.readyClusters","description":"Number of ready clusters"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSetSpec {
    /// The ID of the local cluster.
    #[serde(rename = "clusterID", default)]
    #[schemars(!default)]
    pub cluster_id: String,
    /// The leader; exactly one.
    #[serde(default)]
    #[schemars(!default, length(min = 1, max = 1))]
    pub leaders: Vec<LeaderClusterInfo>,
    /// Member only: the Namespace of the leader cluster that holds the exchanged objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Older form, leader: the members, and the `ServiceAccount` of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<LeaderClusterInfo>,
}

/// Address and credentials of the leader.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaderClusterInfo {
    /// The ID of the leader cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// Member only: the URL of the leader's API server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server: String,
    /// Member only: the Secret with `ca.crt` and `token`, in the Namespace of the `ClusterSet`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub secret: String,
    /// Older form, leader: the `ServiceAccount` of a member.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_account: String,
}

/// Observed state of the ClusterSet.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSetStatus {
    /// On the leader: members; on a member: leaders.
    pub total_clusters: i32,
    /// Number of ready ones.
    pub ready_clusters: i32,
    /// Generation of the spec this status describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` of the ClusterSet.
    pub conditions: Vec<Condition>,
    /// On the leader: an entry for each member; on a member: one for the leader, then one for each other cluster with
    /// an imported network.
    pub cluster_statuses: Vec<ClusterStatus>,
}

/// Observed state of one cluster of the set.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterStatus {
    /// The ID of the cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// `Ready` of a member or leader; on a member also `IsLeader` of the leader, and `DataPathReady` of other clusters:
    /// whether a gateway of this cluster reaches one of theirs.
    pub conditions: Vec<Condition>,
}

/// IDs are immutable once set, as Antrea's webhook enforces, too.
const RULES: [(&str, &str); 2] = [
    (
        "!has(oldSelf.clusterID) || oldSelf.clusterID == '' || has(self.clusterID) && self.clusterID == oldSelf.clusterID",
        "clusterID: may not change; delete the ClusterSet and create it anew",
    ),
    (
        "!has(oldSelf.leaders[0].clusterID) || oldSelf.leaders[0].clusterID == '' || has(self.leaders[0].clusterID) && self.leaders[0].clusterID == oldSelf.leaders[0].clusterID",
        "leaders[0].clusterID: may not change; delete the ClusterSet and create it anew",
    ),
];

// === impl ClusterSet ===

impl ClusterSet {
    /// The CRD in both versions. Both have all fields: without conversion the API server drops the fields that the
    /// stored version does not have.
    #[must_use]
    pub fn versioned_crd() -> CustomResourceDefinition {
        let mut crd = Self::crd();
        for spec in
            schema::of_version(&mut crd, "v1alpha2").filter_map(|s| s.properties.as_mut()?.get_mut("spec"))
        {
            let rules = RULES.map(|(rule, message)| ValidationRule {
                rule: rule.to_owned(),
                message: Some(message.to_owned()),
                ..ValidationRule::default()
            });
            spec.x_kubernetes_validations = Some(rules.into());
        }
        let mut crd = schema::serve_older_version(crd, "v1alpha1");
        for spec in
            schema::of_version(&mut crd, "v1alpha1").filter_map(|s| s.properties.as_mut()?.get_mut("spec"))
        {
            spec.required = Some(vec!["leaders".to_owned()]);
        }
        crd
    }
}
