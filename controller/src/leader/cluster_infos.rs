//! Distributes each member's `ClusterInfo` to all members.

use std::collections::BTreeSet;

use kube::ResourceExt;
use mc_api::{
    names,
    resource_export::{CONVERGE_FAILURE, ResourceExport, kind as export_kind},
    resource_import::{ResourceImportSpec, kind},
};

use super::resources::{import, is_active, remove_finalizer};
use crate::{
    endpoint_ranges::EndpointRanges,
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// Plans one import for each active export, under the same name.
pub fn plan(snapshot: &LeaderSnapshot, plan: &mut Plan) {
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

/// The ranges out of which the members may export endpoints.
pub(super) fn endpoint_ranges(snapshot: &LeaderSnapshot) -> EndpointRanges {
    let exports = snapshot.exports.values().filter(|export| {
        export.spec.kind == export_kind::CLUSTER_INFO && is_active(export) && rejection(export).is_none()
    });
    let announced = exports.filter_map(|export| export.spec.cluster_info.as_deref());
    EndpointRanges::new(announced).with_additional(snapshot.config.additional_endpoint_cidrs.clone())
}

/// The reason to ignore an export: it could replace the network of another member, because imports have the names of
/// exports and the cluster ID of their content.
fn rejection(export: &ResourceExport) -> Option<String> {
    let cluster = &export.spec.cluster_id;
    if export.name_any() != names::cluster_info(cluster) {
        return Some(format!(
            "ignored: spec.clusterID {cluster:?} does not match the name"
        ));
    }
    let content = &export.spec.cluster_info.as_ref()?.cluster_id;
    (content != cluster).then(|| {
        format!("ignored: spec.clusterInfo.clusterID {content:?} is not spec.clusterID, {cluster:?}")
    })
}
