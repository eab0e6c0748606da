//! The lifecycle of `ResourceExport`s and the construction of `ResourceImport`s, common to all kinds.

use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{
    names,
    resource_export::{ResourceExport, kind},
    resource_import::{ResourceImport, ResourceImportSpec},
};
use serde_json::json;

use crate::plan::{ApiServer, Plan};

/// The kinds of exports reconciled by the leader.
const KINDS: [&str; 5] = [
    kind::SERVICE,
    kind::ENDPOINTS,
    kind::CLUSTER_INFO,
    kind::LABEL_IDENTITY,
    kind::CLUSTER_NETWORK_POLICY,
];

/// Whether the export is not being deleted.
pub(super) fn is_active(export: &ResourceExport) -> bool {
    export.metadata.deletion_timestamp.is_none()
}

/// Whether the leader reconciles exports of this kind.
pub(super) fn is_known_kind(export: &ResourceExport) -> bool {
    KINDS.contains(&export.spec.kind.as_str())
}

/// Removes the leader's finalizers from a deleted export. The caller ensures that no import depends on it any more.
pub(super) fn remove_finalizer(export: &ResourceExport, plan: &mut Plan) {
    if is_active(export) {
        return;
    }
    let ours = [
        names::FINALIZER_RESOURCE_EXPORT,
        names::FINALIZER_RESOURCE_EXPORT_LEGACY,
    ];
    let (strip, keep): (Vec<_>, Vec<_>) = export
        .finalizers()
        .iter()
        .partition(|f| ours.contains(&f.as_str()));
    if !strip.is_empty() {
        let patch = json!({ "metadata": { "finalizers": keep } });
        plan.patch(ApiServer::Local, export, patch);
    }
}

/// A `ResourceImport` with the given spec.
pub(super) fn import(namespace: &str, name: &str, spec: ResourceImportSpec) -> ResourceImport {
    ResourceImport {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}
