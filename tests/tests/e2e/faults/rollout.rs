//! Rolling restart of all controllers, as in an upgrade.

use std::{collections::BTreeMap, thread, time::Duration};

use super::{LEADER_NAMESPACE, MEMBER_NAMESPACE, TrafficFlow, export, withdraw};
use crate::{
    clusters::{Cluster, EAST, LEADER, SHORT_TIMEOUT, WEST},
    workload::Namespace,
};

/// Controllers with the kinds they write for exports and the ClusterSet, without heartbeats.
const CONTROLLERS: [(Cluster, &str, &[&str]); 3] = [
    (LEADER, LEADER_NAMESPACE, &["resourceexport", "resourceimport"]),
    (EAST, MEMBER_NAMESPACE, &["clusterinfoimport", "gateway"]),
    (WEST, MEMBER_NAMESPACE, &["clusterinfoimport", "gateway"]),
];
const DERIVED_KINDS: [&str; 3] = ["serviceimport", "serviceexport", "endpointslice"];
/// Period without writes that counts as idle: longer than a pause of an API server with busy CPUs.
const QUIET_PERIOD: Duration = Duration::from_secs(3);

/// UID and resource version by cluster, kind and name.
fn versions(namespace: &str) -> BTreeMap<String, String> {
    let of_members = [EAST, WEST].map(|member| (member, namespace, &DERIVED_KINDS[..]));
    let mut versions = BTreeMap::new();
    for (cluster, from, kinds) in CONTROLLERS.into_iter().chain(of_members) {
        for kind in kinds {
            for object in cluster.list(from, kind, "") {
                let metadata = &object["metadata"];
                // Exports of earlier tests may still be terminating.
                let of = object["spec"]["namespace"].as_str().unwrap_or_default();
                if ![namespace, MEMBER_NAMESPACE, LEADER_NAMESPACE, ""].contains(&of) {
                    continue;
                }
                versions.insert(
                    format!("{}: {kind} {}", cluster.0, metadata["name"]),
                    format!("{} {}", metadata["uid"], metadata["resourceVersion"]),
                );
            }
        }
    }
    versions
}

#[test]
fn restarted_controllers_write_nothing() {
    let mut flow = TrafficFlow::start("e2e-rollout");
    let namespace = flow.ns.0;
    // The export's conditions are written shortly after its import.
    let before = EAST.wait_for("the controllers to converge", SHORT_TIMEOUT, || {
        let before = versions(namespace);
        thread::sleep(QUIET_PERIOD);
        if versions(namespace) == before {
            Ok(before)
        } else {
            Err("still writing".to_owned())
        }
    });
    for (cluster, from, _) in CONTROLLERS {
        cluster.restart_controller(from);
        flow.assert_undisturbed();
    }
    // A new export shows that each controller has completed a pass.
    let late = Namespace::create("e2e-rollout-late");
    export(&late, EAST);
    late.wait_imported(WEST, 1);
    assert!(before.len() >= 10, "{before:?}");
    flow.assert_undisturbed();
    let after = versions(namespace);
    let written: Vec<_> = before
        .iter()
        .filter(|&(object, version)| after.get(object) != Some(version))
        .map(|(object, version)| (object, version, after.get(object)))
        .collect();
    let created: Vec<_> = after
        .keys()
        .filter(|object| !before.contains_key(*object))
        .collect();
    assert!(
        written.is_empty() && created.is_empty(),
        "written: {written:?}, created: {created:?}"
    );
    println!(
        "faults: controllers restarted, {} objects as before, no request lost",
        before.len()
    );
    withdraw(&late, EAST);
    flow.finish();
}
