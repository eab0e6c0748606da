//! A leader without any object of its members, as one that was installed anew: the first member that joins it keeps
//! the imports of those that have not joined yet.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    LEADER_NAMESPACE, MEMBER_NAMESPACE, SET, TrafficFlow, WEST_ID, export, import_uid, member_condition,
    wait_all_connected, wait_condition,
};
use crate::{
    clusters::{Cluster, EAST, LEADER, LONG_TIMEOUT, WEST},
    workload::Namespace,
};

const DEPLOYMENT: &str = "deployment/antrea-mc-controller";
/// The time for which the exporter is away; longer than the holds after a relist (5 s) and of dead watches (15 s).
const ABSENCE: Duration = Duration::from_secs(30);
const ANNOUNCES: &str = "memberclusterannounces";
/// The exports of members, and the imports that the leader makes from them.
const EXCHANGED: [&str; 2] = ["resourceexports", "resourceimports"];
/// The leader's records about members.
const RECORDS: [&str; 2] = ["mc-gateway-prefix-owners", "antrea-mc-member-identities"];

/// A controller that does not run; started on drop.
struct Stopped(Cluster, &'static str);

impl Stopped {
    fn stop(cluster: Cluster, namespace: &'static str) -> Self {
        let stopped = Self(cluster, namespace);
        stopped.scale(0).expect("no replicas");
        cluster.wait_for("the end of the controller", LONG_TIMEOUT, || {
            let pods = cluster.list(namespace, "pods", "component=antrea-mc-controller");
            if pods.is_empty() {
                Ok(())
            } else {
                Err(format!("{} Pods", pods.len()))
            }
        });
        stopped
    }

    fn scale(&self, replicas: u32) -> Result<(), String> {
        let replicas = format!("--replicas={replicas}");
        let Self(cluster, namespace) = self;
        let args = ["scale", DEPLOYMENT, "-n", namespace, &replicas];
        cluster.try_kubectl(&args).map(drop)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Err(error) = self.scale(1) {
            println!("{}: {error}", self.0.0);
        }
    }
}

/// Deletes all objects of members in the leader cluster, and stops its controller.
fn empty_leader() -> Stopped {
    let delete = |kind| LEADER.kubectl(&["-n", LEADER_NAMESPACE, "delete", kind, "--all", "--wait=false"]);
    // Its controller alone may release the announces.
    delete(ANNOUNCES);
    LEADER.wait_for("the end of the announces", LONG_TIMEOUT, || {
        match LEADER.list(LEADER_NAMESPACE, ANNOUNCES, "").len() {
            0 => Ok(()),
            left => Err(format!("{left} are left")),
        }
    });
    let stopped = Stopped::stop(LEADER, LEADER_NAMESPACE);
    let patch = json!({ "metadata": { "finalizers": null } }).to_string();
    for kind in EXCHANGED {
        delete(kind);
        for object in LEADER.list(LEADER_NAMESPACE, kind, "") {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let release = ["patch", kind, name, "--type=merge", "-p", &patch];
            LEADER.kubectl(&[&["-n", LEADER_NAMESPACE][..], &release].concat());
        }
        assert_eq!(LEADER.list(LEADER_NAMESPACE, kind, ""), Vec::<Value>::new());
    }
    let delete = [
        "delete",
        "configmap",
        "--ignore-not-found",
        "-n",
        LEADER_NAMESPACE,
    ];
    LEADER.kubectl(&[&delete[..], &RECORDS].concat());
    stopped
}

/// Reason and message of the condition `DeletionsHeld` of east's ClusterSet.
fn held() -> Option<(String, String)> {
    let set = EAST.get(MEMBER_NAMESPACE, "clusterset", SET).unwrap_or_default();
    let conditions = set["status"]["conditions"].as_array().cloned();
    let conditions = conditions.unwrap_or_default();
    let held = conditions.iter().find(|c| c["type"] == "DeletionsHeld")?;
    let text = |field: &str| held[field].as_str().unwrap_or_default().to_owned();
    Some((text("reason"), text("message")))
}

#[test]
fn a_new_leader_takes_no_import_from_a_member_that_joins_first() {
    let mut flow = TrafficFlow::start("e2e-new-leader");
    let withdrawn = Namespace::create("e2e-new-leader-withdrawn");
    export(&withdrawn, WEST);
    withdrawn.wait_imported(EAST, 1);
    let withdrawn_uid = import_uid(&withdrawn, EAST);

    let east = Stopped::stop(EAST, MEMBER_NAMESPACE);
    let west = Stopped::stop(WEST, MEMBER_NAMESPACE);
    let leader = empty_leader();
    withdrawn.unexport(WEST);
    drop((leader, east));
    wait_condition("east", LONG_TIMEOUT, "True Connected", || member_condition(EAST));
    let (reason, message) = EAST.wait_for("held deletions", LONG_TIMEOUT, || {
        held().ok_or_else(|| "none are held".to_owned())
    });
    assert_eq!(reason, "ExportersAwaited", "{message}");
    assert!(message.contains(WEST_ID), "{message}");
    flow.assert_undisturbed_for(ABSENCE);
    assert_eq!(import_uid(&withdrawn, EAST), withdrawn_uid);
    println!("kept while west was away: {message}");

    drop(west);
    wait_all_connected();
    let took = EAST.wait_gone(withdrawn.0, "service", "antrea-mc-web", LONG_TIMEOUT);
    println!("an export that west withdrew meanwhile: gone {took:?} after west had joined");
    EAST.wait_for("no held deletions", LONG_TIMEOUT, || {
        held().map_or(Ok(()), |held| Err(format!("{held:?}")))
    });
    flow.assert_undisturbed();
    flow.finish();
}
