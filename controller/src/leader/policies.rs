//! Policies that an administrator exports in the leader cluster, passed on to all members.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt;
use serde_json::Value;

use super::{cluster_infos::import, live, release, services::report};
use crate::{
    api::{
        names,
        network_policy::without_nulls,
        resource_export::{ResourceExport, kind as export_kind},
        resource_import::{ResourceImportSpec, kind},
        validation,
    },
    plan::{Plan, Side},
    world::{LeaderWorld, get},
};

/// The longest name whose import and imported policy can have names of their own.
const MAX_NAME: usize = 226;

/// One import for each policy; of exports that contradict each other the first counts.
pub fn plan(world: &LeaderWorld, plan: &mut Plan) {
    let mut groups: BTreeMap<&str, Vec<&Arc<ResourceExport>>> = BTreeMap::new();
    for export in world
        .exports
        .values()
        .filter(|e| e.spec.kind == export_kind::CLUSTER_NETWORK_POLICY)
    {
        groups.entry(&export.spec.name).or_default().push(export);
    }
    let mut wanted = BTreeSet::new();
    for (name, exports) in groups {
        let settled = merge(world, name, &exports, &mut wanted, plan);
        for export in exports.iter().filter(|_| settled) {
            release(export, plan);
        }
    }
    for import in world.imports.values() {
        if import.spec.kind == kind::CLUSTER_NETWORK_POLICY && !wanted.contains(&import.name_any()) {
            plan.delete(Side::Local, import.as_ref());
        }
    }
}

/// Whether the import is what it should be, so that deleted exports may go.
fn merge(
    world: &LeaderWorld,
    name: &str,
    exports: &[&Arc<ResourceExport>],
    wanted: &mut BTreeSet<String>,
    plan: &mut Plan,
) -> bool {
    let import_name = names::policy_import(name);
    let old = get(&world.imports, &world.namespace, &import_name);
    let taken = old
        .filter(|o| o.spec.kind != kind::CLUSTER_NETWORK_POLICY)
        .map(|o| {
            format!(
                "the name {import_name:?} is taken by a ResourceImport of kind {:?}",
                o.spec.kind
            )
        });
    let standing = old.and_then(|o| o.spec.cluster_network_policy.as_ref());
    let mut good: Vec<(&Arc<ResourceExport>, Value)> = vec![];
    for export in exports {
        match policy(world, export).and_then(|p| taken.clone().map_or(Ok(p), Err)) {
            Ok(policy) => good.push((export, policy)),
            Err(why) => report(world, export, Some(&why), plan),
        }
    }
    good.sort_by_key(|(export, policy)| {
        (
            !live(export),
            standing != Some(policy),
            export.creation_timestamp(),
            export.name_any(),
        )
    });
    let Some((first, policy)) = good.first().filter(|(export, _)| live(export)) else {
        return old.is_none() || taken.is_some();
    };
    for (export, other) in &good {
        let why = (other != policy).then(|| {
            format!(
                "ResourceExport {:?} was first to say what policy {name:?} is, and says something else",
                first.name_any()
            )
        });
        report(world, export, why.as_deref(), plan);
    }
    wanted.insert(import_name.clone());
    let spec = ResourceImportSpec {
        name: name.to_owned(),
        kind: kind::CLUSTER_NETWORK_POLICY.to_owned(),
        cluster_network_policy: Some(policy.clone()),
        ..ResourceImportSpec::default()
    };
    let same = old.is_some_and(|o| o.spec == spec);
    if !same {
        plan.apply(Side::Local, &import(&world.namespace, &import_name, spec));
    }
    same
}

/// What an export says, or why it counts for nothing.
fn policy(world: &LeaderWorld, export: &ResourceExport) -> Result<Value, String> {
    let spec = &export.spec;
    validation::dns_subdomain(&spec.name, MAX_NAME).map_err(|e| format!("spec.name: {e}"))?;
    let leader = |id: &str| world.cluster_sets.values().any(|s| s.spec.cluster_id == id);
    let member = [
        Some(&spec.cluster_id),
        export.labels().get(names::LABEL_SOURCE_CLUSTER_ID),
    ];
    if let Some(id) = member
        .into_iter()
        .flatten()
        .find(|id| !id.is_empty() && !leader(id))
    {
        return Err(format!(
            "spec.clusterID {id:?}: policies are exported by administrators of the set, not by members"
        ));
    }
    match &spec.cluster_network_policy {
        Some(policy @ Value::Object(_)) => Ok(without_nulls(policy)),
        _ => Err("spec.clusterNetworkPolicy is missing".to_owned()),
    }
}
