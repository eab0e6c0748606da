//! `ClusterSet`: this cluster's membership; the name of the object is the ID of the set. Stored as v1alpha2, served as
//! v1alpha1 as well, whose objects need not say which cluster this is ([`super::cluster_claim`]).

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, ValidationRule,
};
use kube::{CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{condition::Condition, crd};

/// Who this cluster is and where its leader is.
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
    doc = "The membership of this cluster in a set of clusters; metadata.name is the ID of the set.",
    printcolumn = r#"{"name":"Leader Cluster Namespace","type":"string","jsonPath":".spec.namespace","description":"The Namespace of the leader cluster that holds the exchanged objects"}"#,
    printcolumn = r#"{"name":"Total Clusters","type":"string","jsonPath":".status.totalClusters","description":"How many clusters were seen"}"#,
    printcolumn = r#"{"name":"Ready Clusters","type":"string","jsonPath":".status.readyClusters","description":"How many of them are ready"}"#,
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

/// How to reach the leader.
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

/// What the controller observed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSetStatus {
    /// On the leader: members; on a member: leaders.
    pub total_clusters: i32,
    /// Those of them that are ready.
    pub ready_clusters: i32,
    /// The generation of the spec this status speaks about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready` of the whole set.
    pub conditions: Vec<Condition>,
    /// One entry for each cluster seen.
    pub cluster_statuses: Vec<ClusterStatus>,
}

/// What is known about one cluster of the set.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterStatus {
    /// The ID of that cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: String,
    /// `Ready`, and `IsLeader` for the leader as seen by a member.
    pub conditions: Vec<Condition>,
}

/// What Antrea's webhook denies, too: an ID stands for good once there is one.
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
    /// The CRD. Both versions have all fields, because an API server that converts nothing drops the fields the stored
    /// version does not have.
    #[must_use]
    pub fn definition() -> CustomResourceDefinition {
        let mut crd = Self::crd();
        for spec in crd::schemas(&mut crd, "v1alpha2").filter_map(|s| s.properties.as_mut()?.get_mut("spec"))
        {
            let rules = RULES.map(|(rule, message)| ValidationRule {
                rule: rule.to_owned(),
                message: Some(message.to_owned()),
                ..ValidationRule::default()
            });
            spec.x_kubernetes_validations = Some(rules.into());
        }
        let mut crd = crd::also_served(crd, "v1alpha1");
        for spec in crd::schemas(&mut crd, "v1alpha1").filter_map(|s| s.properties.as_mut()?.get_mut("spec"))
        {
            spec.required = Some(vec!["leaders".to_owned()]);
        }
        crd
    }
}
