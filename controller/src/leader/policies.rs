//! Replicates policies, exported by administrators in the leader cluster, to all members.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt;
use mc_api::{
    names,
    network_policy::without_nulls,
    resource_export::{ResourceExport, kind as export_kind},
    resource_import::{ResourceImportSpec, kind},
    validation,
};
use serde_json::Value;

use super::{
    export_status,
    resources::{import, is_active, remove_finalizer},
};
use crate::{
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// The longest policy name for which the derived names of import and imported policy are valid.
const MAX_NAME: usize = 226;

/// Plans one import for each policy; of conflicting exports the first is used.
pub fn plan(snapshot: &LeaderSnapshot, plan: &mut Plan) {
    let mut groups: BTreeMap<&str, Vec<&Arc<ResourceExport>>> = BTreeMap::new();
    for export in snapshot
        .exports
        .values()
        .filter(|e| e.spec.kind == export_kind::CLUSTER_NETWORK_POLICY)
    {
        groups.entry(&export.spec.name).or_default().push(export);
    }
    let mut wanted = BTreeSet::new();
    for (name, exports) in groups {
        let imports_current = merge(snapshot, name, &exports, &mut wanted, plan);
        for export in exports.iter().filter(|_| imports_current) {
            remove_finalizer(export, plan);
        }
    }
    for import in snapshot.imports.values() {
        if import.spec.kind == kind::CLUSTER_NETWORK_POLICY && !wanted.contains(&import.name_any()) {
            plan.delete(ApiServer::Local, import.as_ref());
        }
    }
}

/// Plans the import of a policy. Returns whether it is current, so that deleted exports may be released.
fn merge(
    snapshot: &LeaderSnapshot,
    name: &str,
    exports: &[&Arc<ResourceExport>],
    wanted: &mut BTreeSet<String>,
    plan: &mut Plan,
) -> bool {
    let import_name = names::policy_import(name);
    let old = get(&snapshot.imports, &snapshot.namespace, &import_name);
    let taken = old
        .filter(|o| o.spec.kind != kind::CLUSTER_NETWORK_POLICY)
        .map(|o| {
            format!(
                "the name {import_name:?} is taken by a ResourceImport of kind {:?}",
                o.spec.kind
            )
        });
    let current = old.and_then(|o| o.spec.cluster_network_policy.as_ref());
    let mut valid: Vec<(&Arc<ResourceExport>, Value)> = vec![];
    for export in exports {
        match policy(snapshot, export).and_then(|p| taken.clone().map_or(Ok(p), Err)) {
            Ok(policy) => valid.push((export, policy)),
            Err(why) => export_status::write(snapshot, export, Some(&why), plan),
        }
    }
    valid.sort_by_key(|(export, policy)| {
        (
            !is_active(export),
            current != Some(policy),
            export.creation_timestamp(),
            export.name_any(),
        )
    });
    let Some((first, policy)) = valid.first().filter(|(export, _)| is_active(export)) else {
        return old.is_none() || taken.is_some();
    };
    for (export, other) in &valid {
        let why = (other != policy).then(|| {
            format!(
                "conflicts with ResourceExport {:?}, the first of policy {name:?}",
                first.name_any()
            )
        });
        export_status::write(snapshot, export, why.as_deref(), plan);
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
        plan.apply(ApiServer::Local, &import(&snapshot.namespace, &import_name, spec));
    }
    same
}

/// The policy of an export, or the reason to reject it.
fn policy(snapshot: &LeaderSnapshot, export: &ResourceExport) -> Result<Value, String> {
    let spec = &export.spec;
    validation::dns_subdomain(&spec.name, MAX_NAME).map_err(|e| format!("spec.name: {e}"))?;
    let is_leader = |id: &str| snapshot.cluster_sets.values().any(|s| s.spec.cluster_id == id);
    let stated_ids = [
        Some(&spec.cluster_id),
        export.labels().get(names::LABEL_SOURCE_CLUSTER_ID),
    ];
    if let Some(id) = stated_ids
        .into_iter()
        .flatten()
        .find(|id| !id.is_empty() && !is_leader(id))
    {
        return Err(format!(
            "spec.clusterID {id:?}: policies are exported by administrators of the ClusterSet, not by members"
        ));
    }
    match &spec.cluster_network_policy {
        Some(policy @ Value::Object(_)) => Ok(without_nulls(policy)),
        _ => Err("spec.clusterNetworkPolicy is missing".to_owned()),
    }
}
