//! `ResourceExport`s of this cluster.

use std::collections::BTreeMap;

use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{
    names,
    resource_export::{ResourceExport, ResourceExportSpec, kind},
};
use mc_kube::NamespacedName;

use super::ActiveMembership;
use crate::{
    plan::{ApiServer, Plan},
    snapshot::get,
};

/// The names of a Service's two exports: of itself, and of its endpoints.
pub(super) fn export_names(membership: &ActiveMembership<'_>, service: &NamespacedName) -> [String; 2] {
    [
        names::service_export(membership.cluster_id, &service.namespace, &service.name),
        names::endpoints_export(membership.cluster_id, &service.namespace, &service.name),
    ]
}

/// This cluster's export `name`.
pub(super) fn existing_export<'a>(
    membership: &ActiveMembership<'a>,
    name: &str,
) -> Option<&'a ResourceExport> {
    get(&membership.leader.exports, membership.leader_namespace, name).map(AsRef::as_ref)
}

/// Writes the export unless it is up to date; returns whether it was.
pub(super) fn apply_export(
    membership: &ActiveMembership<'_>,
    name: &str,
    spec: ResourceExportSpec,
    plan: &mut Plan,
) -> bool {
    let old = existing_export(membership, name);
    if let Some(old) = old {
        // An export that is being deleted is created again when it is gone.
        if old.metadata.deletion_timestamp.is_some() {
            return false;
        }
        // The leader cluster does not admit a change of the exported object.
        let of_service = [kind::SERVICE, kind::ENDPOINTS].contains(&spec.kind.as_str());
        if of_service && (&old.spec.namespace, &old.spec.name) != (&spec.namespace, &spec.name) {
            plan.delete(ApiServer::Leader, old);
            return false;
        }
    }
    let labels = labels(&spec);
    let same = old.is_some_and(|o| {
        o.spec == spec
            && labels.iter().all(|(k, v)| o.labels().get(k) == Some(v))
            && o.finalizers()
                .iter()
                .any(|f| f == names::FINALIZER_RESOURCE_EXPORT)
    });
    if !same {
        let export = ResourceExport {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(membership.leader_namespace.to_owned()),
                labels: Some(labels),
                finalizers: Some(vec![names::FINALIZER_RESOURCE_EXPORT.to_owned()]),
                ..ObjectMeta::default()
            },
            spec,
            status: None,
        };
        plan.apply(ApiServer::Leader, &export);
    }
    same
}

fn labels(spec: &ResourceExportSpec) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (names::LABEL_SOURCE_KIND.to_owned(), spec.kind.clone()),
        (names::LABEL_SOURCE_CLUSTER_ID.to_owned(), spec.cluster_id.clone()),
    ]);
    if spec.kind != kind::CLUSTER_INFO {
        labels.insert(names::LABEL_SOURCE_NAME.to_owned(), spec.name.clone());
        labels.insert(names::LABEL_SOURCE_NAMESPACE.to_owned(), spec.namespace.clone());
    }
    labels
}
