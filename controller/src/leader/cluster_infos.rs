//! The network of each cluster, passed on to all of them.

use std::collections::BTreeSet;

use kube::{ResourceExt, core::ObjectMeta};

use super::{live, release};
use crate::{
    api::{
        names,
        resource_export::{CONVERGE_FAILURE, kind as export_kind},
        resource_import::{ResourceImport, ResourceImportSpec, kind},
    },
    plan::{Plan, Side},
    world::{LeaderWorld, get},
};

/// One import for each live export, under the same name.
pub fn plan(world: &LeaderWorld, plan: &mut Plan) {
    let mut wanted = BTreeSet::new();
    for export in world
        .exports
        .values()
        .filter(|e| e.spec.kind == export_kind::CLUSTER_INFO)
    {
        let name = export.name_any();
        // The import has its name: one of any other name could be in somebody else's place.
        if name != names::cluster_info(&export.spec.cluster_id) {
            release(export, plan);
            let why = format!(
                "ignored: spec.clusterID {:?} does not fit the name",
                export.spec.cluster_id
            );
            plan.remark(Side::Local, export.as_ref(), CONVERGE_FAILURE, why.as_str());
            plan.notice(format!("ResourceExport {name}"), why);
            continue;
        }
        let old = get(&world.imports, &world.namespace, &name);
        if !live(export) {
            // Gone first where the members look, then here.
            if old.is_none() {
                release(export, plan);
            }
            continue;
        }
        wanted.insert(name.clone());
        let spec = ResourceImportSpec {
            name: name.clone(),
            namespace: world.namespace.clone(),
            kind: kind::CLUSTER_INFO.to_owned(),
            cluster_info: export.spec.cluster_info.clone(),
            ..ResourceImportSpec::default()
        };
        if old.is_none_or(|o| o.spec != spec) {
            plan.apply(Side::Local, &import(&world.namespace, &name, spec));
        }
    }
    for import in world
        .imports
        .values()
        .filter(|i| i.spec.kind == kind::CLUSTER_INFO)
    {
        if !wanted.contains(&import.name_any()) {
            plan.delete(Side::Local, import.as_ref());
        }
    }
}

/// A `ResourceImport` with nothing but its spec.
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
