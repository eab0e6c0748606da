//! `MemberClusterAnnounce`: a member's registration and heartbeat in the leader cluster. Fields at the top level, hence
//! no `CustomResource` derive of kube, which supports spec and status only.

use std::borrow::Cow;

use k8s_openapi::{
    NamespaceResourceScope, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Resource, ResourceExt as _, core::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    names,
    schema::{self, Column, TopLevelKind},
};

/// A member's registration; the annotation `touch-ts` is its heartbeat.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberClusterAnnounce {
    /// Always `multicluster.crd.antrea.io/v1alpha1`.
    pub api_version: String,
    /// Always `MemberClusterAnnounce`.
    pub kind: String,
    /// Name: `member-announce-from-<clusterID>`; Namespace: that of the leader controller.
    pub metadata: ObjectMeta,
    /// The member's ID.
    #[serde(rename = "clusterID", skip_serializing_if = "String::is_empty")]
    pub cluster_id: String,
    /// The ClusterSet ID in the member's configuration.
    #[serde(rename = "clusterSetID", skip_serializing_if = "String::is_empty")]
    pub cluster_set_id: String,
    /// The leader's cluster ID in the member's configuration.
    #[serde(rename = "leaderClusterID", skip_serializing_if = "String::is_empty")]
    pub leader_cluster_id: String,
}

/// The fields of a [`MemberClusterAnnounce`], as its CRD describes them.
#[derive(JsonSchema)]
#[expect(
    dead_code,
    clippy::struct_field_names,
    reason = "read by the schema generator only; the names are the API's"
)]
struct Fields {
    /// The member's ID.
    #[serde(rename = "clusterID", default)]
    cluster_id: String,
    /// The ClusterSet ID in the member's configuration.
    #[serde(rename = "clusterSetID", default)]
    cluster_set_id: String,
    /// The leader's cluster ID in the member's configuration.
    #[serde(rename = "leaderClusterID", default)]
    leader_cluster_id: String,
}

// === impl MemberClusterAnnounce ===

impl Default for MemberClusterAnnounce {
    fn default() -> Self {
        Self {
            api_version: Self::api_version(&()).into_owned(),
            kind: Self::kind(&()).into_owned(),
            metadata: ObjectMeta::default(),
            cluster_id: String::new(),
            cluster_set_id: String::new(),
            leader_cluster_id: String::new(),
        }
    }
}

impl Resource for MemberClusterAnnounce {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "MemberClusterAnnounce".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        names::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "memberclusterannounces".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl MemberClusterAnnounce {
    /// The last heartbeat as written by the member, empty without one.
    #[must_use]
    pub fn heartbeat(&self) -> &str {
        let heartbeat = self.annotations().get(names::ANNOTATION_TOUCH_TS);
        heartbeat.map_or("", String::as_str)
    }

    /// The CRD.
    #[must_use]
    pub fn crd() -> CustomResourceDefinition {
        schema::top_level::<Self, Fields>(&TopLevelKind {
            doc: "The registration and heartbeat of a member cluster in the leader cluster.",
            columns: &[
                Column::string("Cluster ID", ".clusterID", "The ID of the member cluster"),
                Column::string("ClusterSet ID", ".clusterSetID", "The ID of the ClusterSet"),
                Column::age(),
            ],
            status: false,
            short_names: &[],
        })
    }
}
