//! Distributes each member's `ClusterInfo` to all members.

use std::collections::BTreeSet;

use kube::ResourceExt;
use mc_api::{
    names,
    resource_export::{CONVERGE_FAILURE, kind as export_kind},
    resource_import::{ResourceImportSpec, kind},
};

use super::resources::{import, is_active, remove_finalizer};
use crate::{
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// Plans one import for each active export, under the same name.
pub fn plan(snapshot: &LeaderSnapshot, plan: &mut Plan) {
    let mut wanted = BTreeSet::new();
    let exports = snapshot.exports.values();
    for export in exports.filter(|e| e.spec.kind == export_kind::CLUSTER_INFO) {
        let name = export.name_any();
        // The import has the name of the export: another name could replace the import of another member.
        if name != names::cluster_info(&export.spec.cluster_id) {
            remove_finalizer(export, plan);
            let reason = format!(
                "ignored: spec.clusterID {:?} does not match the name",
                export.spec.cluster_id
            );
            plan.warning_event(
                ApiServer::Local,
                export.as_ref(),
                CONVERGE_FAILURE,
                reason.as_str(),
            );
            plan.issue(format!("ResourceExport {name}"), reason);
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
        wanted.insert(name.clone());
        let spec = ResourceImportSpec {
            name: name.clone(),
            namespace: snapshot.namespace.clone(),
            kind: kind::CLUSTER_INFO.to_owned(),
            cluster_info: export.spec.cluster_info.clone(),
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
