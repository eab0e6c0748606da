//! Token rotation and a leader with a new API server address, during normal operation.

use serde_json::json;

use super::{
    LEADER_NAMESPACE, MEMBER_NAMESPACE, SET, TrafficFlow, export, member_condition,
    member_token::{ACCOUNT, SECRET, copy_to_west, create_token, west_controller_pods},
    run, wait_all_connected, wait_condition, withdraw,
};
use crate::{
    clusters::{EAST, LEADER, LONG_TIMEOUT, SHORT_TIMEOUT, WEST, on_node},
    workload::Namespace,
};

/// Another Secret of west's account.
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

fn revoke(secret: &str) {
    LEADER.kubectl(&["delete", "secret", secret, "-n", LEADER_NAMESPACE]);
}

#[test]
fn a_token_can_be_rotated_and_revoked_while_the_member_works() {
    let mut flow = TrafficFlow::start("e2e-token");
    let (first, late) = ("e2e-token-first", "e2e-token-late");
    let [first, late] = [first, late].map(Namespace::create);
    let controller = west_controller_pods();
    copy_to_west(&create_token(NEXT_SECRET, ACCOUNT), None);
    revoke(SECRET);
    export(&first, WEST);
    first.wait_imported(EAST, 1);
    flow.assert_undisturbed();
    // In the other order the member is disconnected for a while and loses nothing.
    let back = create_token(SECRET, ACCOUNT);
    revoke(NEXT_SECRET);
    export(&late, WEST);
    WEST.wait_for("west without access", SHORT_TIMEOUT, || {
        match &member_condition(WEST)[..] {
            ready if ready.starts_with("False") => Ok(()),
            other => Err(other.to_owned()),
        }
    });
    flow.assert_undisturbed();
    copy_to_west(&back, None);
    late.wait_imported(EAST, 1);
    wait_all_connected();
    assert_eq!(west_controller_pods(), controller, "no controller was restarted");
    withdraw(&first, WEST);
    withdraw(&late, WEST);
    flow.finish();
}

#[test]
fn a_member_follows_its_leader_to_another_address() {
    let mut flow = TrafficFlow::start("e2e-moved");
    let late = Namespace::create("e2e-moved-late");
    let controller = west_controller_pods();
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
    assert_eq!(west_controller_pods(), controller, "no controller was restarted");
    withdraw(&late, WEST);
    flow.finish();
}
