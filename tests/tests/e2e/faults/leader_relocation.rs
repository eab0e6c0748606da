//! Token rotation and a leader with a new API server address, during normal operation.

use serde_json::{Value, json};

use super::{
    LEADER_NAMESPACE, MEMBER_NAMESPACE, SET, TrafficFlow, export, member_condition, run, wait_all_connected,
    wait_condition, withdraw,
};
use crate::{
    clusters::{EAST, LEADER, LONG_TIMEOUT, SHORT_TIMEOUT, WEST, on_node},
    workload::Namespace,
};

/// West's account in the leader cluster, and its Secrets.
const ACCOUNT: &str = "member-west";
const SECRET: &str = "member-west-token";
const NEXT_SECRET: &str = "member-west-token-next";
/// The leader's API server, and another address in its certificate.
const SERVER: &str = "172.30.1.254";
const NEW_SERVER: &str = "10.10.0.1";
const NODES: [&str; 2] = ["west-n1", "west-n2"];

/// From west's Nodes the leader's API server is reachable only at its new address; reverted on drop.
struct RelocatedLeader;

impl RelocatedLeader {
    fn away() -> Self {
        let rules = format!(
            "table ip mc_moved {{ \
             chain old {{ type filter hook prerouting priority -300; ip daddr {SERVER} drop; }}; \
             chain new {{ type nat hook prerouting priority -150; ip daddr {NEW_SERVER} tcp dport 6443 dnat to {SERVER}; }}; }}"
        );
        let relocated = Self;
        for node in NODES {
            on_node(node, "nft", &[&rules]);
        }
        relocated
    }
}

impl Drop for RelocatedLeader {
    fn drop(&mut self) {
        for node in NODES {
            let namespace = format!("mc-{node}");
            let delete = [
                "netns", "exec", &namespace, "nft", "delete", "table", "ip", "mc_moved",
            ];
            if let Err(error) = run(std::process::Command::new("ip").args(delete)) {
                println!("{node}: {error}");
            }
        }
        if let Err(error) = point_to(SERVER) {
            println!("west: {error}");
        }
    }
}

/// Changes the leader's address in west's `ClusterSet`.
fn point_to(address: &str) -> Result<(), String> {
    let server = format!("https://{address}:6443");
    let set = WEST.get(MEMBER_NAMESPACE, "clusterset", SET).unwrap_or_default();
    let mut leader = set["spec"]["leaders"][0].clone();
    leader["server"] = json!(server);
    let patch = json!({ "spec": { "leaders": [leader] } }).to_string();
    let args = [
        "patch",
        "clusterset",
        SET,
        "-n",
        MEMBER_NAMESPACE,
        "--type=merge",
        "-p",
        &patch,
    ];
    WEST.try_kubectl(&args).map(drop)
}

/// Creates a token of west's account and waits for it.
fn create_token(secret: &str) -> Value {
    LEADER.apply(
        &json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {
                "name": secret, "namespace": LEADER_NAMESPACE,
                "annotations": { "kubernetes.io/service-account.name": ACCOUNT },
            },
        })
        .to_string(),
    );
    LEADER.wait_for("a token", SHORT_TIMEOUT, || {
        let made = LEADER.get(LEADER_NAMESPACE, "secret", secret).unwrap_or_default();
        match made["data"]["token"] {
            Value::String(_) => Ok(made["data"].clone()),
            _ => Err("no token".to_owned()),
        }
    })
}

/// Copies a token to west, as in the guide.
fn copy_token(data: &Value) {
    let copy = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
        "metadata": { "name": SECRET, "namespace": MEMBER_NAMESPACE },
    });
    WEST.apply(&copy.to_string());
}

fn revoke(secret: &str) {
    LEADER.kubectl(&["delete", "secret", secret, "-n", LEADER_NAMESPACE]);
}

/// UID and restart count of west's controller Pods.
fn controller_pods() -> Vec<String> {
    let pods = WEST.list(MEMBER_NAMESPACE, "pods", "component=antrea-mc-controller");
    pods.iter()
        .map(|pod| {
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            format!("{} {restarts}", pod["metadata"]["uid"])
        })
        .collect()
}

#[test]
fn a_token_can_be_rotated_and_revoked_while_the_member_works() {
    let mut flow = TrafficFlow::start("e2e-token");
    let (first, late) = ("e2e-token-first", "e2e-token-late");
    let [first, late] = [first, late].map(Namespace::create);
    let controller = controller_pods();
    copy_token(&create_token(NEXT_SECRET));
    revoke(SECRET);
    export(&first, WEST);
    first.wait_imported(EAST, 1);
    flow.assert_undisturbed();
    // In the other order the member is disconnected for a while and loses nothing.
    let back = create_token(SECRET);
    revoke(NEXT_SECRET);
    export(&late, WEST);
    WEST.wait_for("west without access", SHORT_TIMEOUT, || {
        match &member_condition(WEST)[..] {
            ready if ready.starts_with("False") => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    flow.assert_undisturbed();
    copy_token(&back);
    late.wait_imported(EAST, 1);
    wait_all_connected();
    assert_eq!(controller_pods(), controller, "no controller was restarted");
    withdraw(&first, WEST);
    withdraw(&late, WEST);
    flow.finish();
}

#[test]
fn a_member_follows_its_leader_to_another_address() {
    let mut flow = TrafficFlow::start("e2e-moved");
    let late = Namespace::create("e2e-moved-late");
    let controller = controller_pods();
    let relocated = RelocatedLeader::away();
    wait_condition("west", LONG_TIMEOUT, "False Disconnected", || {
        member_condition(WEST)
    });
    export(&late, WEST);
    flow.assert_undisturbed();
    point_to(NEW_SERVER).expect("the leader's new address");
    late.wait_imported(EAST, 1);
    wait_condition("west", SHORT_TIMEOUT, "True Connected", || member_condition(WEST));
    flow.assert_undisturbed();
    drop(relocated);
    wait_all_connected();
    assert_eq!(controller_pods(), controller, "no controller was restarted");
    withdraw(&late, WEST);
    flow.finish();
}
