//! The CRDs, generated from the Rust types.

mod policy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;

use crate::{
    address_group_slice::AddressGroupSlice, cluster_claim::ClusterClaim, cluster_info::ClusterInfoImport,
    cluster_set::ClusterSet, gateway::Gateway, label_identity::LabelIdentity,
    member_cluster_announce::MemberClusterAnnounce, node_key::NodeKey, node_policy_status::NodePolicyStatus,
    node_reachability::NodeReachability, resource_export::ResourceExport, resource_import::ResourceImport,
    schema::serve_older_version, service_export::ServiceExport, service_import::ServiceImport,
};

/// The CRDs of a leader cluster.
#[must_use]
pub fn leader() -> Vec<CustomResourceDefinition> {
    [
        ClusterClaim::crd(),
        ClusterSet::versioned_crd(),
        MemberClusterAnnounce::crd(),
        ResourceExport::crd(),
        ResourceImport::crd(),
    ]
    .map(finalize)
    .into()
}

/// The CRDs of a member cluster.
#[must_use]
pub fn member() -> Vec<CustomResourceDefinition> {
    [
        AddressGroupSlice::crd(),
        ClusterClaim::crd(),
        ClusterInfoImport::crd(),
        ClusterSet::versioned_crd(),
        Gateway::crd(),
        LabelIdentity::crd(),
        NodeKey::immutable_crd(),
        NodePolicyStatus::crd(),
        NodeReachability::crd(),
        serve_older_version(ServiceExport::crd(), "v1alpha1"),
        serve_older_version(ServiceImport::crd(), "v1alpha1"),
    ]
    .map(finalize)
    .into()
}

/// The CRDs of network policies, for clusters without Antrea.
#[must_use]
pub fn policy() -> Vec<CustomResourceDefinition> {
    policy::crds().into_iter().map(finalize).collect()
}

/// Adds the label (a label of the derive macro would be on the objects, too) and removes the defaults: they are those
/// of serde, and the API server must not write them into objects.
fn finalize(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    crd.metadata.labels = Some([("app".to_owned(), "antrea".to_owned())].into());
    let schemas = crd.spec.versions.iter_mut().filter_map(|v| v.schema.as_mut());
    schemas
        .filter_map(|s| s.open_api_v3_schema.as_mut())
        .for_each(remove_defaults);
    crd
}

fn remove_defaults(schema: &mut JSONSchemaProps) {
    schema.default = None;
    schema
        .properties
        .iter_mut()
        .flat_map(BTreeMap::values_mut)
        .for_each(remove_defaults);
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        remove_defaults(items);
    }
}
