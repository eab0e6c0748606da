//! The objects that a member makes from `ResourceImport`s, and the names of these.

use kube::ResourceExt;
use mc_api::names;
use mc_kube::NamespacedName;

use crate::{
    plan::{ApiServer, Kind, ObjectRef, Write, WriteOp},
    snapshot::MemberSnapshot,
};

/// The kinds made from imports.
const IMPORTED_KINDS: [Kind; 6] = [
    Kind::ClusterInfoImport,
    Kind::ClusterNetworkPolicy,
    Kind::EndpointSlice,
    Kind::LabelIdentity,
    Kind::Service,
    Kind::ServiceImport,
];

/// Whether a write deletes an object that may have been made from an import.
pub(super) fn deletes_import(write: &Write) -> bool {
    matches!(write.op, WriteOp::Delete { .. })
        && write.target.side == ApiServer::Local
        && IMPORTED_KINDS.contains(&write.target.kind)
}

/// The names of the `ResourceImport`s that an imported object is made from; for those of a Service first that of the
/// Service, then that of its endpoints. Empty if the object is none of ours.
pub(super) fn source_imports(snapshot: &MemberSnapshot, target: &ObjectRef) -> Vec<String> {
    let namespace = target.namespace.as_str();
    let of_service = |service: Option<&str>| {
        let names = service.map(|service| {
            [
                names::service_import(namespace, service),
                names::endpoints_import(namespace, service),
            ]
        });
        names.into_iter().flatten().collect()
    };
    match target.kind {
        Kind::Service => of_service(names::exported_service(&target.name)),
        Kind::ServiceImport => of_service(Some(&target.name)),
        Kind::EndpointSlice => {
            let name = NamespacedName::new(namespace, target.name.as_str());
            let slice = snapshot.endpoint_slices.get(&name);
            let label = slice.and_then(|slice| slice.labels().get(names::LABEL_MCS_SERVICE_NAME));
            of_service(label.map(String::as_str))
        }
        Kind::ClusterNetworkPolicy => {
            let policy = names::exported_policy(&target.name);
            policy.map(names::policy_import).into_iter().collect()
        }
        // Other imported objects have the names of their imports.
        _ => vec![target.name.clone()],
    }
}
