//! All controllers started anew one after the other, as an upgrade does it.

use std::{collections::BTreeMap, thread, time::Duration};

use super::{Flow, LEADER_NAMESPACE, MEMBER_NAMESPACE, export, withdraw};
use crate::{
    clusters::{Cluster, EAST, LEADER, SOON, WEST},
    workload::Namespace,
};

/// Where each controller runs, and what is written there for an export and the ClusterSet. Heartbeats are not among it.
const WRITTEN: [(Cluster, &str, &[&str]); 3] = [
    (LEADER, LEADER_NAMESPACE, &["resourceexport", "resourceimport"]),
    (EAST, MEMBER_NAMESPACE, &["clusterinfoimport", "gateway"]),
    (WEST, MEMBER_NAMESPACE, &["clusterinfoimport", "gateway"]),
];
const MADE_OF_IT: [&str; 3] = ["serviceimport", "serviceexport", "endpointslice"];
/// Who has written nothing for that long has nothing to write.
const REST: Duration = Duration::from_secs(1);

/// UID and version of all of it, by cluster, kind and name.
fn versions(namespace: &str) -> BTreeMap<String, String> {
    let of_members = [EAST, WEST].map(|member| (member, namespace, &MADE_OF_IT[..]));
    let mut versions = BTreeMap::new();
    for (cluster, from, kinds) in WRITTEN.into_iter().chain(of_members) {
        for kind in kinds {
            for object in cluster.list(from, kind, "") {
                let metadata = &object["metadata"];
                // Exports of tests before this one may still be going.
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
fn new_controllers_find_everything_as_it_should_be() {
    let mut flow = Flow::start("e2e-rollout");
    let namespace = flow.ns.0;
    // The export's conditions come a moment after its import.
    let before = EAST.wait_for("the controllers at rest", SOON, || {
        let before = versions(namespace);
        thread::sleep(REST);
        if versions(namespace) == before {
            Ok(before)
        } else {
            Err("still writing".to_owned())
        }
    });
    for (cluster, from, _) in WRITTEN {
        cluster.restart_controller(from);
        flow.assert_undisturbed();
    }
    // Each has looked at everything once it has done what is new.
    let late = Namespace::create("e2e-rollout-late");
    export(&late, EAST);
    late.wait_imported(WEST, 1);
    assert!(before.len() >= 10, "{before:?}");
    flow.assert_undisturbed();
    assert_eq!(versions(namespace), before);
    println!(
        "faults: controllers started anew, {} objects as before, no request lost",
        before.len()
    );
    withdraw(&late, EAST);
    flow.finish();
}
