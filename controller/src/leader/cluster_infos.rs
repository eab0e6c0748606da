//! Distributes each member's `ClusterInfo` to all members.

use std::collections::BTreeSet;

use kube::ResourceExt;
use mc_api::{
    resource_export::{CONVERGE_FAILURE, kind as export_kind},
    resource_import::{ResourceImportSpec, kind},
};

use super::{
    export_status,
    network_exports::rejection,
    prefix_owners::OwnedPrefixes,
    resources::{import, is_active, remove_finalizer},
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// Plans one import for each active export, under the same name, with the prefixes that its cluster owns.
pub(super) fn plan(snapshot: &LeaderSnapshot, prefixes: &OwnedPrefixes, plan: &mut Plan) {
    let mut wanted = BTreeSet::new();
    let exports = snapshot.exports.values();
    for export in exports.filter(|e| e.spec.kind == export_kind::CLUSTER_INFO) {
        let name = export.name_any();
        if let Some(reason) = rejection(export) {
            remove_finalizer(export, plan);
            plan.warning_event(
                ApiServer::Local,
                export.as_ref(),
                CONVERGE_FAILURE,
                reason.as_str(),
            );
            plan.issue(IssueCode::ExportRefused, format!("ResourceExport {name}"), reason);
            continue;
        }
        let old = get(&snapshot.imports, &snapshot.namespace, &name);
        if !is_active(export) {
            // The export is released after the deletion of its import.
            if old.is_none() {
                remove_finalizer(export, plan);
            }
            continue;
        }
        let refusal = prefixes.refusal(&export.spec.cluster_id);
        let has_status = export
            .status
            .as_ref()
            .is_some_and(|status| !status.conditions.is_empty());
        if refusal.is_some() || has_status {
            export_status::write(snapshot, export, refusal.as_deref(), plan);
        }
        let info = prefixes.network(&export.spec.cluster_id);
        if export.spec.cluster_info.is_some() && info.is_none() {
            continue;
        }
        wanted.insert(name.clone());
        let spec = ResourceImportSpec {
            name: name.clone(),
            namespace: snapshot.namespace.clone(),
            kind: kind::CLUSTER_INFO.to_owned(),
            cluster_info: info.cloned().map(Box::new),
            ..ResourceImportSpec::default()
        };
        if old.is_none_or(|o| o.spec != spec) {
            plan.apply(ApiServer::Local, &import(&snapshot.namespace, &name, spec));
        }
    }
    let imports = snapshot.imports.values();
    for import in imports.filter(|i| i.spec.kind == kind::CLUSTER_INFO) {
        if !wanted.contains(&import.name_any()) {
            plan.delete(ApiServer::Local, import.as_ref());
        }
    }
}
