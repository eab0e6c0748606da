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

/// Whether an export is of that Service; a Service of another Namespace can have the same name in the leader cluster.
pub(super) fn is_of(export: &ResourceExport, service: &NamespacedName) -> bool {
    (&export.spec.namespace, &export.spec.name) == (&service.namespace, &service.name)
}

/// Writes the export unless it is up to date; returns whether it was.
pub(super) fn apply_export(
    membership: &ActiveMembership<'_>,
    name: &str,
    spec: ResourceExportSpec,
    plan: &mut Plan,
) -> bool {
    apply_labelled_export(membership, name, spec, BTreeMap::new(), plan)
}

/// Writes the export with additional labels unless it is up to date; returns whether it was.
pub(super) fn apply_labelled_export(
    membership: &ActiveMembership<'_>,
    name: &str,
    spec: ResourceExportSpec,
    labels: BTreeMap<String, String>,
    plan: &mut Plan,
) -> bool {
    let old = existing_export(membership, name);
    if let Some(old) = old {
        // An export that is being deleted is created again when it is gone.
        if old.metadata.deletion_timestamp.is_some() {
            return false;
        }
        // The leader cluster does not admit a change of the exported object.
        if is_of_service(&spec) && (&old.spec.namespace, &old.spec.name) != (&spec.namespace, &spec.name) {
            plan.delete(ApiServer::Leader, old);
            return false;
        }
    }
    let mut new = export(membership, name, spec);
    new.labels_mut().extend(labels);
    let complete = names::LABEL_EXPORTS_COMPLETE;
    let same = old.is_some_and(|o| {
        o.spec == new.spec
            && new.labels().iter().all(|(k, v)| o.labels().get(k) == Some(v))
            && o.labels().get(complete) == new.labels().get(complete)
            && new.finalizers().iter().all(|f| o.finalizers().contains(f))
    });
    if !same {
        plan.apply(ApiServer::Leader, &new);
    }
    same
}

/// The export with the labels of its kind. Exports of Pod labels, of policy peers and of failed imports have no
/// finalizer: those of Pod labels have none in Antrea, and nothing in the leader cluster depends on the others.
pub(super) fn export(
    membership: &ActiveMembership<'_>,
    name: &str,
    spec: ResourceExportSpec,
) -> ResourceExport {
    let of_members = [
        kind::LABEL_IDENTITY,
        kind::POLICY_SELECTORS,
        kind::IMPORT_FAILURES,
    ];
    let is_released_by_leader = !of_members.contains(&spec.kind.as_str());
    ResourceExport {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(membership.leader_namespace.to_owned()),
            labels: Some(labels(&spec)),
            finalizers: is_released_by_leader.then(|| vec![names::FINALIZER_RESOURCE_EXPORT.to_owned()]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

fn is_of_service(spec: &ResourceExportSpec) -> bool {
    [kind::SERVICE, kind::ENDPOINTS].contains(&spec.kind.as_str())
}

fn labels(spec: &ResourceExportSpec) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (names::LABEL_SOURCE_KIND.to_owned(), spec.kind.clone()),
        (names::LABEL_SOURCE_CLUSTER_ID.to_owned(), spec.cluster_id.clone()),
    ]);
    if is_of_service(spec) {
        labels.insert(names::LABEL_SOURCE_NAME.to_owned(), spec.name.clone());
        labels.insert(names::LABEL_SOURCE_NAMESPACE.to_owned(), spec.namespace.clone());
    }
    labels
}
