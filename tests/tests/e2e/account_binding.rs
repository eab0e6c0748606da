//! ServiceAccounts without a cluster ID: each belongs to the first cluster that joins with it, and another one gains
//! nothing from that.

use mc_api::names;
use serde_json::{Value, json};

use crate::{
    clusters::{LEADER, LEADER_NAMESPACE, LONG_TIMEOUT, SET, SHORT_TIMEOUT},
    isolation::{Member, MemberRequest, Mode, announce, request_as},
    trust::{create_account, delete_in_leader, wait_bound},
};

const NOVICE: Member = Member {
    account: "e2e-novice",
    id: "e2e-cluster-novice",
};
/// An account that joins nowhere.
const THIEF: &str = "e2e-thief";
const STATEMENT: &str = "mc-gateway.io/service-account";

/// The two accounts, without annotation.
struct Accounts;

impl Accounts {
    fn create() -> Self {
        for account in [NOVICE.account, THIEF] {
            create_account(account, &json!({}));
        }
        Self
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        let announce = format!("member-announce-from-{}", NOVICE.id);
        let deletions: [&[&str]; 3] = [
            &["memberclusterannounces", &announce],
            &["rolebinding", NOVICE.account, THIEF],
            &["serviceaccount", NOVICE.account, THIEF],
        ];
        delete_in_leader(&deletions);
    }
}

fn request(account: &'static str, object: &Value, mode: Mode) -> Result<Value, String> {
    request_as(Member { account, id: "" }, &MemberRequest::Apply(object), mode)
}

/// A request that the API server refuses for this reason.
fn refused(account: &'static str, object: &Value, reason: &str) {
    let answer = request(account, object, Mode::Persisted).expect_err("a refusal");
    assert!(answer.contains(reason), "{reason:?} not in {answer}");
}

/// The announce of a cluster that states an account.
fn joins(id: &str, account: &str) -> Value {
    let mut announce = announce(id);
    announce["metadata"]["annotations"] = json!({ STATEMENT: account });
    announce
}

/// The export of a Service of a cluster.
pub(crate) fn export(id: &str) -> Value {
    json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
        "metadata": {
            "name": format!("{id}-default-web-service"), "namespace": LEADER_NAMESPACE,
            "labels": {
                "sourceClusterID": id, "sourceKind": "Service", "sourceNamespace": "default", "sourceName": "web",
            },
            "finalizers": ["resourceexport.antrea.io/finalizer"],
        },
        "spec": {
            "clusterID": id, "kind": "Service", "namespace": "default", "name": "web",
            "service": { "serviceSpec": { "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }] } },
        },
    })
}

/// Sets `accountBinding` of the leader, and waits until the admission policies see it.
fn set_mode(mode: &str) {
    LEADER.configure_in(LEADER_NAMESPACE, "accountBinding", mode);
    LEADER.wait_for(&format!("accountBinding {mode}"), SHORT_TIMEOUT, || {
        let map = LEADER.get(LEADER_NAMESPACE, "configmaps", "antrea-mc-member-identities");
        let seen = map
            .map(|map| map["metadata"]["annotations"].clone())
            .unwrap_or_default();
        if seen["mc-gateway.io/account-binding"] == mode {
            Ok(())
        } else {
            Err(seen.to_string())
        }
    });
}

#[test]
fn an_account_without_a_cluster_id_belongs_to_the_first_cluster_that_joins_with_it() {
    let _accounts = Accounts::create();
    // A statement is that of the account which writes it.
    refused(
        THIEF,
        &joins(NOVICE.id, NOVICE.account),
        "metadata.annotations[mc-gateway.io/service-account]: must be e2e-thief",
    );
    LEADER.wait_for("the announce is written", SHORT_TIMEOUT, || {
        request(NOVICE.account, &joins(NOVICE.id, NOVICE.account), Mode::Persisted)
    });
    wait_bound(NOVICE.account, NOVICE.id);
    LEADER.wait_for("the cluster is accepted", SHORT_TIMEOUT, || {
        let name = format!("member-announce-from-{}", NOVICE.id);
        let announce = LEADER.get(LEADER_NAMESPACE, "memberclusterannounces", &name);
        let finalizers = announce
            .map(|a| a["metadata"]["finalizers"].clone())
            .unwrap_or_default();
        if finalizers.is_array() {
            Ok(())
        } else {
            Err(finalizers.to_string())
        }
    });
    // Another account has no part in the cluster, the account none in another cluster.
    let bound = "is bound to another ServiceAccount than e2e-thief";
    refused(THIEF, &export(NOVICE.id), bound);
    refused(THIEF, &joins(NOVICE.id, THIEF), bound);
    let other = joins("e2e-cluster-other", NOVICE.account);
    refused(NOVICE.account, &other, "clusterID: must be e2e-cluster-novice");
    refused(
        NOVICE.account,
        &export("e2e-cluster-other"),
        "spec.clusterID: must be e2e-cluster-novice",
    );
    let mut forged = joins(NOVICE.id, NOVICE.account);
    forged["metadata"]["annotations"]["mc-gateway.io/bound-account"] = json!(THIEF);
    refused(NOVICE.account, &forged, "only the leader sets it");
    // Names of exports of "e2e-cluster" could be those of the cluster.
    let ambiguous = "differ by something behind a dash only";
    refused(THIEF, &export("e2e-cluster"), ambiguous);
    refused(THIEF, &joins("e2e-cluster", THIEF), ambiguous);
    wait_event();

    let unbound = export("e2e-stranger");
    request(THIEF, &unbound, Mode::DryRun).expect("an export of an unbound cluster");
    set_mode("Required");
    let reason = "ServiceAccount e2e-thief has no cluster ID";
    LEADER.wait_for("the policies require a binding", SHORT_TIMEOUT, || match request(
        THIEF,
        &unbound,
        Mode::DryRun,
    ) {
        Err(answer) if answer.contains(reason) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    refused(THIEF, &joins("e2e-stranger", THIEF), reason);
    set_mode("OnFirstUse");
}

/// The Event by which an administrator learns of the binding.
fn wait_event() {
    let name = format!("member-announce-from-{}", NOVICE.id);
    LEADER.wait_for("Event AccountBound", SHORT_TIMEOUT, || {
        let events = LEADER.list(LEADER_NAMESPACE, "events", "");
        let of_announce = events
            .iter()
            .filter(|e| e["involvedObject"]["name"] == name.as_str());
        let seen: Vec<_> = of_announce
            .map(|e| (e["reason"].to_string(), e["message"].to_string()))
            .collect();
        let wanted = |(reason, message): &(String, String)| {
            reason.contains("AccountBound") && message.contains(NOVICE.account) && message.contains(NOVICE.id)
        };
        if seen.iter().any(wanted) {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    });
}

/// Sets the actions of the binding of a policy.
fn set_action(policy: &str, action: &str) {
    let patch = json!({ "spec": { "validationActions": [action] } }).to_string();
    let binding = ["validatingadmissionpolicybinding", policy];
    LEADER.kubectl(&[&["patch", "--type=merge", "-p", &patch][..], &binding].concat());
}

/// Waits for the status of the leader's condition and for a policy in its message.
fn wait_restricted(status: &str, policy: &str) {
    LEADER.wait_for(&format!("MembersRestricted {status}"), LONG_TIMEOUT, || {
        let set = LEADER
            .get(LEADER_NAMESPACE, "clusterset", SET)
            .unwrap_or_default();
        let mut conditions = set["status"]["conditions"].as_array().into_iter().flatten();
        match conditions.find(|c| c["type"] == "MembersRestricted") {
            Some(found)
                if found["status"] == status
                    && found["message"]
                        .as_str()
                        .is_some_and(|text| text.contains(policy)) =>
            {
                Ok(())
            }
            found => Err(format!("{found:?}")),
        }
    });
}

#[test]
fn a_leader_without_a_policy_reports_that() {
    const EXPORTS: &str = "antrea-mc-resourceexports";
    wait_restricted("True", "");
    set_action(EXPORTS, "Audit");
    wait_restricted("False", EXPORTS);
    set_action(names::MEMBER_TOKENS_POLICY, "Audit");
    set_action(EXPORTS, "Deny");
    wait_restricted("False", names::MEMBER_TOKENS_POLICY);
    set_action(names::MEMBER_TOKENS_POLICY, "Deny");
    wait_restricted("True", "");
}
