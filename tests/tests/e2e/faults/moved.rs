//! A token that is replaced and a leader whose API server moves to another address, both while a member works.

use serde_json::{Value, json};

use super::{
    Flow, LEADER_NAMESPACE, MEMBER_NAMESPACE, SET, all_is_well, export, own, said, wait_said, withdraw,
};
use crate::{
    clusters::{EAST, LATER, LEADER, SOON, WEST, on_node},
    workload::Namespace,
};

/// West's account in the leader cluster, and the Secret on both sides.
const ACCOUNT: &str = "member-west";
const SECRET: &str = "member-west-token";
const NEXT_SECRET: &str = "member-west-token-next";
/// Where the leader's API server is, and another address its certificate is good for.
const SERVER: &str = "172.30.1.254";
const MOVED: &str = "10.10.0.1";
const NODES: [&str; 2] = ["west-n1", "west-n2"];

/// From west's nodes the leader's API server is reached at its other address only.
struct Moved;

impl Moved {
    fn away() -> Self {
        let rules = format!(
            "table ip mc_moved {{ \
             chain old {{ type filter hook prerouting priority -300; ip daddr {SERVER} drop; }}; \
             chain new {{ type nat hook prerouting priority -150; ip daddr {MOVED} tcp dport 6443 dnat to {SERVER}; }}; }}"
        );
        let moved = Self;
        for node in NODES {
            on_node(node, "nft", &[&rules]);
        }
        moved
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        for node in NODES {
            let namespace = format!("mc-{node}");
            let delete = [
                "netns", "exec", &namespace, "nft", "delete", "table", "ip", "mc_moved",
            ];
            if let Err(error) = said(std::process::Command::new("ip").args(delete)) {
                println!("{node}: {error}");
            }
        }
        if let Err(error) = point_to(SERVER) {
            println!("west: {error}");
        }
    }
}

/// Says to west where the leader is.
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

/// Makes a token of west's account and waits for it.
fn token(secret: &str) -> Value {
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
    LEADER.wait_for("a token", SOON, || {
        let made = LEADER.get(LEADER_NAMESPACE, "secret", secret).unwrap_or_default();
        match made["data"]["token"] {
            Value::String(_) => Ok(made["data"].clone()),
            _ => Err("no token".to_owned()),
        }
    })
}

/// Copies a token to west as its guide says.
fn give(data: &Value) {
    let copy = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
        "metadata": { "name": SECRET, "namespace": MEMBER_NAMESPACE },
    });
    WEST.apply(&copy.to_string());
}

fn revoke(secret: &str) {
    LEADER.kubectl(&["delete", "secret", secret, "-n", LEADER_NAMESPACE]);
}

/// The Pod of west's controller, which stays the same.
fn pod() -> Vec<String> {
    let pods = WEST.list(MEMBER_NAMESPACE, "pods", "component=antrea-mc-controller");
    pods.iter()
        .map(|pod| {
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            format!("{} {restarts}", pod["metadata"]["uid"])
        })
        .collect()
}

#[test]
fn a_token_may_be_replaced_and_revoked_while_the_member_works() {
    let mut flow = Flow::start("e2e-token");
    let (first, late) = ("e2e-token-first", "e2e-token-late");
    let [first, late] = [first, late].map(Namespace::create);
    let controller = pod();
    give(&token(NEXT_SECRET));
    revoke(SECRET);
    export(&first, WEST);
    first.wait_imported(EAST, 1);
    flow.assert_undisturbed();
    // The other way round it is without access for a while, and loses nothing.
    let back = token(SECRET);
    revoke(NEXT_SECRET);
    export(&late, WEST);
    WEST.wait_for("west without access", SOON, || match &own(WEST)[..] {
        ready if ready.starts_with("False") => Ok(()),
        other => Err(other.to_owned()),
    });
    flow.assert_undisturbed();
    give(&back);
    late.wait_imported(EAST, 1);
    all_is_well();
    assert_eq!(pod(), controller, "nothing had to be started anew");
    withdraw(&first, WEST);
    withdraw(&late, WEST);
    flow.finish();
}

#[test]
fn a_leader_is_followed_to_another_address() {
    let mut flow = Flow::start("e2e-moved");
    let late = Namespace::create("e2e-moved-late");
    let controller = pod();
    let moved = Moved::away();
    wait_said("west", LATER, "False Disconnected", || own(WEST));
    export(&late, WEST);
    flow.assert_undisturbed();
    point_to(MOVED).expect("the leader's new address");
    late.wait_imported(EAST, 1);
    wait_said("west", SOON, "True Connected", || own(WEST));
    flow.assert_undisturbed();
    drop(moved);
    all_is_well();
    assert_eq!(pod(), controller, "nothing had to be started anew");
    withdraw(&late, WEST);
    flow.finish();
}
