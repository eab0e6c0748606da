//! Controllers of this and of the previous release in one ClusterSet: a downgrade and an upgrade, one after the other.

use std::env;

use mc_tests::skip::skipped;
use serde_json::Value;

use super::{LEADER_NAMESPACE, MEMBER_NAMESPACE, TrafficFlow, export, withdraw};
use crate::{
    clusters::{Cluster, EAST, LEADER, LONG_TIMEOUT, SHORT_TIMEOUT, WEST},
    policies::{self, POLICIES, TIERS},
    workload::Namespace,
};

const DEPLOYMENT: &str = "deployment/antrea-mc-controller";
const THIS_RELEASE: &str = "mc-gateway/mc-controller:latest";
/// Annotations with the key of this release and of the previous one.
const REJECTED_REASON: [&str; 2] = ["mc-gateway.io/rejected-reason", "mc-gateway.io/refused"];
const APPLIED_SPEC_HASH: [&str; 2] = ["mc-gateway.io/applied-spec-hash", "mc-gateway.io/applied"];
/// An announce that every leader rejects: it names another leader.
const REJECTED_ANNOUNCE: &str = "member-announce-from-e2e-skew";
/// The Role of the previous release's member controllers, which watch their token Secret.
const SECRETS: &str = "e2e-skew-secrets";
/// The replicated policy in the leader cluster and in east.
const POLICY_EXPORT: &str = "e2e-skew-for-all";
const POLICY: &str = "antrea-mc-e2e-skew";

/// Runs the controller of a cluster from an image; returns once its Pods are ready.
fn run_image(cluster: Cluster, namespace: &str, image: &str) {
    cluster.kubectl(&["set", "image", DEPLOYMENT, &format!("*={image}"), "-n", namespace]);
    cluster.kubectl(&["rollout", "status", DEPLOYMENT, "-n", namespace, "--timeout=120s"]);
}

/// Removes the test's objects and restores this release, also after a failure.
struct Cleanup;

impl Drop for Cleanup {
    fn drop(&mut self) {
        let mut results = vec![
            LEADER.try_kubectl(&[
                "delete",
                "resourceexport",
                POLICY_EXPORT,
                "-n",
                LEADER_NAMESPACE,
                "--ignore-not-found",
            ]),
            delete_announce(),
            EAST.try_kubectl(&["delete", "crd", POLICIES, TIERS, "--ignore-not-found"]),
        ];
        for member in [EAST, WEST] {
            let role = [
                "delete",
                "role,rolebinding",
                SECRETS,
                "-n",
                MEMBER_NAMESPACE,
                "--ignore-not-found",
            ];
            results.push(member.try_kubectl(&role));
        }
        for (cluster, namespace) in [
            (LEADER, LEADER_NAMESPACE),
            (EAST, MEMBER_NAMESPACE),
            (WEST, MEMBER_NAMESPACE),
        ] {
            let container = format!("*={THIS_RELEASE}");
            results.push(cluster.try_kubectl(&["set", "image", DEPLOYMENT, &container, "-n", namespace]));
            let wait = ["rollout", "status", DEPLOYMENT, "-n", namespace, "--timeout=120s"];
            results.push(cluster.try_kubectl(&wait));
        }
        for error in results.into_iter().filter_map(Result::err) {
            println!("cleanup: {error}");
        }
    }
}

/// Lets the member controller list and watch Secrets.
fn permit_secrets(member: Cluster) {
    let args = ["-n", MEMBER_NAMESPACE, "create"];
    let role = ["role", SECRETS, "--verb=list,watch", "--resource=secrets"];
    let account = format!("--serviceaccount={MEMBER_NAMESPACE}:antrea-mc-controller");
    let of_role = format!("--role={SECRETS}");
    member.kubectl(&[&args[..], &role].concat());
    member.kubectl(&[&args[..], &["rolebinding", SECRETS, &of_role, &account]].concat());
}

fn delete_announce() -> Result<String, String> {
    let kind = "memberclusterannounce";
    LEADER.try_kubectl(&[
        "delete",
        kind,
        REJECTED_ANNOUNCE,
        "-n",
        LEADER_NAMESPACE,
        "--ignore-not-found",
    ])
}

/// The values of an annotation under both keys.
fn values(object: &Value, keys: [&str; 2]) -> [Option<String>; 2] {
    keys.map(|key| object["metadata"]["annotations"][key].as_str().map(str::to_owned))
}

/// An export in each direction arrives and is withdrawn.
fn exchange_exports(name: &'static str) {
    let ns = Namespace::create(name);
    for (from, to) in [(EAST, WEST), (WEST, EAST)] {
        export(&ns, from);
        ns.wait_imported(to, 1);
        withdraw(&ns, from);
    }
}

/// The keys under which the leader writes the reason of a rejection.
fn keys_of_rejection() -> [bool; 2] {
    let announce = format!(
        "apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: MemberClusterAnnounce
metadata: {{name: {REJECTED_ANNOUNCE}, namespace: {LEADER_NAMESPACE}}}
clusterID: e2e-skew
clusterSetID: test-clusterset
leaderClusterID: another-leader
"
    );
    // The admission policy allows no announce of an administrator.
    let user = format!("--as=system:serviceaccount:{LEADER_NAMESPACE}:antrea-mc-controller");
    let apply = ["apply", "-f", "-", &user, "--as-group=system:masters"];
    LEADER
        .try_kubectl_stdin(&apply, &announce)
        .expect("apply the announce");
    let reasons = LEADER.wait_for("the reason of the rejection", SHORT_TIMEOUT, || {
        let announce = LEADER.get(LEADER_NAMESPACE, "memberclusterannounce", REJECTED_ANNOUNCE);
        let reasons = values(&announce.unwrap_or_default(), REJECTED_REASON);
        if reasons[1].is_some() {
            Ok(reasons)
        } else {
            Err(format!("{reasons:?}"))
        }
    });
    delete_announce().expect("delete the announce");
    LEADER.wait_gone(
        LEADER_NAMESPACE,
        "memberclusterannounce",
        REJECTED_ANNOUNCE,
        LONG_TIMEOUT,
    );
    reasons.map(|reason| reason.is_some())
}

/// Exports the policy with a priority.
fn export_policy(priority: u32) {
    LEADER.apply(&format!(
        "apiVersion: multicluster.crd.antrea.io/v1alpha1
kind: ResourceExport
metadata: {{name: {POLICY_EXPORT}, namespace: {LEADER_NAMESPACE}}}
spec:
  kind: AntreaClusterNetworkPolicy
  name: e2e-skew
  clusterNetworkPolicy:
    priority: {priority}
    tier: e2e-skew
    appliedTo: [{{namespaceSelector: {{}}}}]
    ingress: [{{action: Drop, from: [{{namespaceSelector: {{}}}}]}}]
"
    ));
}

/// Waits for the policy in east with a priority.
fn wait_policy(priority: u32) -> Value {
    // Missing kinds are looked up every 10 s.
    EAST.wait_for("the policy", LONG_TIMEOUT, || {
        let policy = EAST.get("", POLICIES, POLICY).unwrap_or_default();
        if policy["spec"]["priority"] == priority {
            Ok(policy)
        } else {
            Err(policy.to_string())
        }
    })
}

#[test]
fn controllers_of_both_releases_work_together() {
    let Ok(previous) = env::var("MC_PREVIOUS_CONTROLLER") else {
        skipped("the clone lacks the commit of the previous release");
        return;
    };
    let mut flow = TrafficFlow::start("e2e-skew");
    let _cleanup = Cleanup;
    EAST.apply(
        &(policies::crd("ClusterNetworkPolicy", "clusternetworkpolicies", false)
            + &policies::crd("Tier", "tiers", false)),
    );
    EAST.wait_for("the Tier", SHORT_TIMEOUT, || {
        let tier = "apiVersion: crd.antrea.io/v1beta1\nkind: Tier\nmetadata: {name: e2e-skew}\nspec: {priority: 100}\n";
        EAST.try_kubectl_stdin(&["apply", "-f", "-"], tier)
    });
    let set_members = |image: &str| {
        for member in [EAST, WEST] {
            run_image(member, MEMBER_NAMESPACE, image);
        }
    };

    // This release everywhere, then the leader goes back.
    assert_eq!(keys_of_rejection(), [true, true]);
    run_image(LEADER, LEADER_NAMESPACE, &previous);
    flow.assert_undisturbed();
    assert_eq!(
        keys_of_rejection(),
        [false, true],
        "a leader of the previous release"
    );
    exchange_exports("e2e-skew-old-leader");
    export_policy(1);
    let [this, other] = values(&wait_policy(1), APPLIED_SPEC_HASH);
    assert!(this.is_some() && this == other, "{this:?} {other:?}");

    // The members go back, too, with the Role of their manifest, and change an object of this release.
    for member in [EAST, WEST] {
        permit_secrets(member);
    }
    set_members(&previous);
    flow.assert_undisturbed();
    exchange_exports("e2e-skew-old-members");
    export_policy(2);
    let changed = wait_policy(2);
    let [stale, written] = values(&changed, APPLIED_SPEC_HASH);
    assert!(stale == this && written != this, "{stale:?} {written:?}");

    // The leader is upgraded first, as the documentation requires.
    run_image(LEADER, LEADER_NAMESPACE, THIS_RELEASE);
    flow.assert_undisturbed();
    assert_eq!(keys_of_rejection(), [true, true]);
    exchange_exports("e2e-skew-new-leader");

    // The upgraded members recognise the object and leave it alone until it changes.
    set_members(THIS_RELEASE);
    flow.assert_undisturbed();
    exchange_exports("e2e-skew-new-members");
    let seen = wait_policy(2);
    assert_eq!(
        seen["metadata"]["resourceVersion"],
        changed["metadata"]["resourceVersion"]
    );
    export_policy(3);
    let [this, other] = values(&wait_policy(3), APPLIED_SPEC_HASH);
    assert!(
        this.is_some() && this == other && this != written,
        "{this:?} {other:?}"
    );
    println!("faults: controllers of both releases exchanged exports in 4 combinations, no request lost");
    flow.finish();
}
