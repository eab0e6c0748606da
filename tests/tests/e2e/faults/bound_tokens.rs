//! A member with short-lived tokens: replaced without a person, revoked with one Secret, and of no use beyond it.

use std::{thread, time::Duration};

use http::Method;
use mc_tests::fixture::is_long_run;
use serde_json::{Value, json};

use super::{
    Partition, TrafficFlow, export, member_condition,
    member_token::{ACCOUNT, SECRET, copy_to_west, create_token, west_controller_pods},
    wait_all_connected, wait_condition, withdraw,
};
use crate::{
    api::{connect, connect_as, send, wait},
    clusters::{EAST, LEADER, LEADER_NAMESPACE, LONG_TIMEOUT, SHORT_TIMEOUT, WEST},
    trust::delete_in_leader,
    workload::Namespace,
};

/// The account that requests tokens of west's account, with its token in a Secret of the same name.
const BOOTSTRAP: &str = "member-west-bootstrap";
/// A binding of the bootstrap account to all accounts of the Namespace.
const WIDE: &str = "e2e-all-tokens";
/// The lifetime of the member's tokens.
const LIFETIME: Duration = Duration::from_mins(10);

/// West works with short-lived tokens; its static token returns on drop.
struct ShortLived;

impl ShortLived {
    fn start() -> Self {
        let short_lived = Self;
        allow_token_requests(BOOTSTRAP, &[ACCOUNT]);
        copy_bootstrap_token();
        short_lived
    }
}

impl Drop for ShortLived {
    fn drop(&mut self) {
        if !thread::panicking() {
            copy_to_west(&create_token(SECRET, ACCOUNT), None);
            wait_all_connected();
        }
        delete_in_leader(&[
            &["rolebinding,role", BOOTSTRAP, WIDE],
            &["secret", BOOTSTRAP],
            &["serviceaccount", BOOTSTRAP],
        ]);
    }
}

fn copy_bootstrap_token() {
    copy_to_west(&create_token(BOOTSTRAP, BOOTSTRAP), Some(ACCOUNT));
}

/// Creates the bootstrap account and a Role for the tokens of `accounts`; none means all.
fn allow_token_requests(name: &str, accounts: &[&str]) {
    let mut allowed =
        json!({ "apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"] });
    if !accounts.is_empty() {
        allowed["resourceNames"] = json!(accounts);
    }
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": BOOTSTRAP, "namespace": LEADER_NAMESPACE },
    });
    let metadata = json!({ "name": name, "namespace": LEADER_NAMESPACE });
    let api = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": metadata, "rules": [allowed],
    });
    let binding = json!({
        "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": { "apiGroup": api, "kind": "Role", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": BOOTSTRAP, "namespace": LEADER_NAMESPACE }],
    });
    LEADER.apply(&format!("{account}\n---\n{role}\n---\n{binding}\n"));
}

/// Creates west's account anew: the tokens of the former one are void, and a static one needs a new Secret.
fn replace_account() {
    let account = LEADER
        .get(LEADER_NAMESPACE, "serviceaccount", ACCOUNT)
        .expect("west's account");
    let annotations = &account["metadata"]["annotations"];
    LEADER.kubectl(&["-n", LEADER_NAMESPACE, "delete", "serviceaccount", ACCOUNT]);
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {
            "name": ACCOUNT, "namespace": LEADER_NAMESPACE,
            "annotations": {
                "multicluster.antrea.io/cluster-id": annotations["multicluster.antrea.io/cluster-id"],
            },
        },
    });
    LEADER.apply(&account.to_string());
}

/// Sends a request to the leader as an account of its Namespace.
fn request_as(account: &str, method: &Method, path: &str, body: Option<Value>) -> (u16, Value) {
    wait(async {
        let client = connect_as(LEADER, Some((LEADER_NAMESPACE, account))).await;
        let body = body.map(|body| ("application/json", body));
        send(&client, method.clone(), path, body).await
    })
}

/// Requests a token of `of` as another account.
fn request_token(account: &str, of: &str, spec: &Value) -> (u16, Value) {
    let path = format!("/api/v1/namespaces/{LEADER_NAMESPACE}/serviceaccounts/{of}/token");
    let body = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec });
    request_as(account, &Method::POST, &path, Some(body))
}

/// The request of a member.
fn member_spec() -> Value {
    json!({
        "boundObjectRef": { "apiVersion": "v1", "kind": "Secret", "name": BOOTSTRAP },
        "expirationSeconds": LIFETIME.as_secs(),
    })
}

/// A token such as west has.
fn bound_token() -> String {
    let (code, answer) = request_token(BOOTSTRAP, ACCOUNT, &member_spec());
    assert_eq!(code, 201, "{answer}");
    answer["status"]["token"].as_str().expect("a token").to_owned()
}

/// Whether the leader's API server accepts a token.
fn is_accepted(token: &str) -> bool {
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token },
    });
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let (code, answer) = wait(async {
        let client = connect(LEADER).await;
        send(&client, Method::POST, path, Some(("application/json", review))).await
    });
    assert_eq!(code, 201, "{answer}");
    answer["status"]["authenticated"] == true
}

fn wait_void(token: &str, timeout: Duration) {
    LEADER.wait_for("the token is void", timeout, || {
        if is_accepted(token) {
            Err("accepted".to_owned())
        } else {
            Ok(())
        }
    });
}

/// Sends a request that must be refused for this reason.
fn refused((code, answer): (u16, Value), reason: &str) {
    assert!((401..=422).contains(&code), "{reason}: {code} {answer}");
    assert!(answer.to_string().contains(reason), "{reason:?} not in {answer}");
}

/// Tokens that a thief of the bootstrap token, or of a short-lived one, could use longer or as another member.
fn request_foreign_tokens() {
    let forbidden = "forbidden";
    for (account, of) in [
        (BOOTSTRAP, "member-east"),
        (ACCOUNT, ACCOUNT),
        ("member-east", ACCOUNT),
    ] {
        refused(request_token(account, of, &member_spec()), forbidden);
    }
    let group = format!("/apis/multicluster.crd.antrea.io/v1alpha1/namespaces/{LEADER_NAMESPACE}");
    for kind in ["resourceimports", "resourceexports", "memberclusterannounces"] {
        let path = format!("{group}/{kind}");
        refused(request_as(BOOTSTRAP, &Method::GET, &path, None), forbidden);
    }
    let secrets = format!("/api/v1/namespaces/{LEADER_NAMESPACE}/secrets");
    refused(request_as(BOOTSTRAP, &Method::GET, &secrets, None), forbidden);

    let mut unbound = member_spec();
    unbound["boundObjectRef"] = Value::Null;
    let mut elsewhere = member_spec();
    elsewhere["boundObjectRef"]["name"] = json!("member-east-token");
    let mut long = member_spec();
    long["expirationSeconds"] = json!(86401);
    for (spec, reason) in [
        (
            &unbound,
            "spec.boundObjectRef: must be Secret member-west-bootstrap",
        ),
        (
            &elsewhere,
            "spec.boundObjectRef: must be Secret member-west-bootstrap",
        ),
        (&long, "spec.expirationSeconds: 86401 is more than a day"),
    ] {
        refused(request_token(BOOTSTRAP, ACCOUNT, spec), reason);
    }
    // A Role that was written too wide opens no other member.
    allow_token_requests(WIDE, &[]);
    LEADER.wait_for("the wide Role is in force", SHORT_TIMEOUT, || {
        let (_, answer) = request_token(BOOTSTRAP, "member-east", &member_spec());
        let answer = answer.to_string();
        let reason = "may not request tokens of member-east, only member-east-bootstrap may";
        if answer.contains(reason) {
            Ok(())
        } else {
            Err(answer)
        }
    });
    refused(
        request_token(BOOTSTRAP, "antrea-mc-controller", &member_spec()),
        "may not request tokens of antrea-mc-controller",
    );
}

#[test]
fn a_member_renews_short_lived_tokens_without_a_person() {
    let mut flow = TrafficFlow::start("e2e-tokens");
    let [first, late] = ["e2e-tokens-first", "e2e-tokens-late"].map(Namespace::create);
    let controller = west_controller_pods();
    let short_lived = ShortLived::start();
    // The static token is not used any more.
    delete_in_leader(&[&["secret", SECRET]]);
    let token = bound_token();
    assert!(is_accepted(&token), "a token of a bootstrap account is accepted");
    export(&first, WEST);
    first.wait_imported(EAST, 1);
    request_foreign_tokens();

    // All tokens of the account are void at once, as after a time without the leader that is longer than their life.
    replace_account();
    wait_void(&token, SHORT_TIMEOUT);
    export(&late, WEST);
    late.wait_imported(EAST, 1);
    wait_all_connected();
    flow.assert_undisturbed();

    // One Secret revokes the bootstrap token and all others.
    let token = bound_token();
    assert!(is_accepted(&token), "a token of the new account is accepted");
    delete_in_leader(&[&["secret", BOOTSTRAP]]);
    wait_void(&token, SHORT_TIMEOUT);
    wait_condition("west", LONG_TIMEOUT, "False Disconnected", || {
        member_condition(WEST)
    });
    flow.assert_undisturbed();
    copy_bootstrap_token();
    wait_all_connected();
    assert_eq!(west_controller_pods(), controller, "no controller was restarted");
    withdraw(&first, WEST);
    withdraw(&late, WEST);
    flow.finish();
    if is_long_run() {
        outlive_the_tokens();
    }
    drop(short_lived);
}

/// A member that is cut off for longer than its tokens live rejoins by itself.
fn outlive_the_tokens() {
    let token = bound_token();
    let partition = Partition::west();
    wait_void(&token, LIFETIME + Duration::from_secs(30));
    drop(partition);
    wait_all_connected();
}
