//! A `ClusterSet` that is deleted and created again by `kubectl replace --force`.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    clusters::{
        Cluster, EAST, LEADER, LEADER_NAMESPACE, LONG_TIMEOUT, MEMBER_NAMESPACE, SET, SHORT_TIMEOUT, WEST,
    },
    workload::Namespace,
};

const WEST_NODE: &str = "west-n2";
/// Time after the replacement in which a withdrawal would be seen; before the grace period, it took half a second.
const OBSERVATION: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(200);

#[test]
fn a_replaced_cluster_set_changes_no_import_and_no_gateway() {
    let ns = Namespace::create("e2e-replaced");
    ns.serve(WEST, WEST_NODE, 1);
    ns.export(WEST);
    ns.wait_imported(EAST, 1);
    for replaced in [EAST, WEST] {
        let before = uids(&ns);
        assert!(before.iter().all(Option::is_some), "{before:?}");
        replace(replaced);
        let start = Instant::now();
        while start.elapsed() < OBSERVATION {
            assert_eq!(
                uids(&ns),
                before,
                "{:?} after the ClusterSet of {} was replaced",
                start.elapsed(),
                replaced.0
            );
            thread::sleep(POLL);
        }
        wait_ready(replaced);
        println!("ClusterSet of {} replaced, all UIDs remain", replaced.0);
    }
    ns.unexport(WEST);
    let took = EAST.wait_gone(ns.0, "service", "antrea-mc-web", SHORT_TIMEOUT);
    println!("Service gone {took:?} after its export");
}

/// Replaces a member's `ClusterSet` by an equal one.
fn replace(cluster: Cluster) {
    let set = cluster.member_cluster_set();
    cluster
        .try_kubectl_stdin(&["replace", "--force", "-f", "-"], &set.to_string())
        .expect("it is replaced");
}

/// Waits until the membership is ready, and its record has no time of a missing `ClusterSet`.
fn wait_ready(cluster: Cluster) {
    cluster.wait_for("the membership", LONG_TIMEOUT, || {
        let set = cluster
            .get(MEMBER_NAMESPACE, "clusterset", SET)
            .unwrap_or_default();
        let record = cluster.get(MEMBER_NAMESPACE, "configmap", "mc-gateway-memberships");
        let annotations = record.unwrap_or_default()["metadata"]["annotations"].clone();
        if set["status"]["conditions"][0]["status"] == "True" && annotations == Value::Null {
            Ok(())
        } else {
            Err(format!("{set}, annotations of the record {annotations}"))
        }
    });
}

/// UIDs of the imported Service, of both clusters' gateways and announces, and of the export.
fn uids(ns: &Namespace) -> Vec<Option<String>> {
    let uid = |object: &Value| object["metadata"]["uid"].as_str().map(str::to_owned);
    let one = |cluster: Cluster, namespace: &str, kind: &str, name: &str| {
        cluster.get(namespace, kind, name).as_ref().and_then(uid)
    };
    let mut all = vec![
        one(EAST, ns.0, "service", "antrea-mc-web"),
        one(
            LEADER,
            LEADER_NAMESPACE,
            "resourceexport",
            &format!("test-cluster-west-{}-web-service", ns.0),
        ),
    ];
    for member in [EAST, WEST] {
        let announce = format!("member-announce-from-test-cluster-{}", member.0);
        all.push(one(LEADER, LEADER_NAMESPACE, "memberclusterannounce", &announce));
        all.extend(member.list(MEMBER_NAMESPACE, "gateway", "").iter().map(uid));
    }
    all
}
