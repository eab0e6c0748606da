//! The agents' reports about network policies: an agent writes that of its own Node only.

use http::{Method, Request};
use serde_json::{Value, json};

use crate::{
    api::{connect, send_request, wait},
    clusters::EAST,
};

const COLLECTION: &str = "/apis/mc-gateway.io/v1alpha1/namespaces/kube-system/nodepolicystatuses";
const ACCOUNT: &str = "system:serviceaccount:kube-system:mc-gateway";
/// In the token of a Pod (KEP-4193), as an HTTP header that impersonates.
const NODE_NAME: &str = "Impersonate-Extra-Authentication.kubernetes.io%2fnode-name";
/// No Node has this name.
const NODE: &str = "e2e-foreign";

/// A dry run as an agent whose token names the Node `from`; returns status code and answer.
fn send_as_agent(method: &Method, from: Option<&str>, object: &Value) -> (u16, String) {
    let (path, body) = match *method {
        Method::POST => (COLLECTION.to_owned(), Some(("application/json", object.clone()))),
        Method::PUT => (
            format!("{COLLECTION}/{NODE}"),
            Some(("application/json", object.clone())),
        ),
        _ => (format!("{COLLECTION}/{NODE}"), None),
    };
    let mut request = Request::builder()
        .method(method)
        .uri(format!("{path}?dryRun=All"))
        .header("Impersonate-User", ACCOUNT);
    if let Some(from) = from {
        request = request.header(NODE_NAME, from);
    }
    let (code, answer) = wait(async {
        let client = connect(EAST).await;
        send_request(&client, request, body).await
    });
    (code, answer.to_string())
}

/// The own Node's agent succeeds, all others are denied.
fn check(method: &Method, success: u16, object: &Value) {
    let own = send_as_agent(method, Some(NODE), object);
    assert_eq!(own.0, success, "{method}: {own:?}");
    for from in [None, Some("east-n1")] {
        let (code, answer) = send_as_agent(method, from, object);
        assert_eq!(code, 422, "{method} from {from:?}: {answer}");
        let message = format!("NodePolicyStatus {NODE}: an agent writes that of its own Node only");
        assert!(answer.contains(&message), "{method} from {from:?}: {answer}");
    }
}

#[test]
fn an_agent_writes_the_policy_report_of_its_own_node_only() {
    let mut object = json!({
        "apiVersion": "mc-gateway.io/v1alpha1",
        "kind": "NodePolicyStatus",
        "metadata": {"name": NODE, "namespace": "kube-system"},
        "spec": {"enforcement": "all", "observedPolicies": "", "policies": []},
    });
    check(&Method::POST, 201, &object);
    EAST.apply(&object.to_string());
    let stored = EAST
        .get("kube-system", "nodepolicystatuses", NODE)
        .expect("the report");
    object["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
    object["spec"]["observedPolicies"] = json!("forged");
    check(&Method::PUT, 200, &object);
    check(&Method::DELETE, 200, &object);
    EAST.kubectl(&["delete", "nodepolicystatus", NODE, "-n", "kube-system"]);
}
