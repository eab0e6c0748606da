//! The failures of imports that members report to each other.

use std::collections::{BTreeMap, BTreeSet};

use mc_api::{import_failures::ImportFailures, names};
use mc_test_kit::fake_apiserver::store::{Actor, Key};

use crate::{
    expected_state::condition,
    invariants::{antrea, core, mcs},
    simulation::{Cluster, Simulation},
    user_actions::is_malformed,
};

/// The Services of the ClusterSet that a cluster cannot import, apart from endpoints that it leaves out.
fn impossible<'a>(
    cluster: &Cluster,
    imports: impl IntoIterator<Item = &'a Key>,
) -> BTreeMap<Key, &'static str> {
    let obstacle = |key: &Key| {
        let name = names::imported_service(&key.1);
        let service = cluster
            .store
            .get(&core("services"), &(key.0.clone(), name.clone()));
        if name.len() > 63 {
            Some("InvalidName")
        } else if cluster
            .store
            .get(&core("namespaces"), &(String::new(), key.0.clone()))
            .is_none()
        {
            Some("NamespaceNotFound")
        } else if service.is_some_and(|service| service.creator == Actor::User) {
            Some("NameTaken")
        } else {
            None
        }
    };
    let failed = imports
        .into_iter()
        .filter_map(|key| Some((key.clone(), obstacle(key)?)));
    failed.collect()
}

/// The wrong reports of members, and the wrong conditions of `ServiceExport`s by these reports.
pub(crate) fn wrong_reports(
    world: &Simulation,
    members: &BTreeMap<usize, String>,
    imports: &[&Key],
) -> Vec<String> {
    let leader = &world.clusters[0].store;
    let mut wrong = vec![];
    let mut reported: BTreeMap<&str, BTreeSet<Key>> = BTreeMap::new();
    for (i, id) in members {
        let export = (world.leader_namespace(*i), names::import_failures_export(id));
        let export = leader.get(&antrea("resourceexports"), &export);
        let failures = export.map(|export| ImportFailures::from_raw(Some(&export.value["spec"]["raw"])));
        let failures = failures.transpose().unwrap_or_default().unwrap_or_default();
        let all = failures.failures().iter();
        let have: BTreeMap<Key, &str> = all
            .map(|f| ((f.namespace.clone(), f.name.clone()), f.reason.as_str()))
            .collect();
        reported.insert(id, have.keys().cloned().collect());
        let have: BTreeMap<_, _> = have
            .into_iter()
            .filter(|(_, reason)| *reason != "EndpointsLeftOut")
            .collect();
        let want = impossible(&world.clusters[*i], imports.iter().copied());
        if have != want {
            wrong.push(format!("failed imports of {id}: {have:?} instead of {want:?}"));
        }
    }
    for (i, id) in members {
        let exports = world.clusters[*i].store.all(&mcs("serviceexports"));
        for (key, export) in exports.filter(|(key, _)| !is_malformed(key)) {
            let others = reported.iter().filter(|(of, _)| **of != id.as_str());
            let want = others.into_iter().any(|(_, failed)| failed.contains(key));
            let have = condition(export, "ImportFailed").0 == "True";
            if have != want {
                wrong.push(format!(
                    "ServiceExport {key:?} of {id}: ImportFailed is {have} instead of {want}"
                ));
            }
        }
    }
    wrong
}
