//! The agents' reports: an agent writes those of its own Node only.

use http::Method;
use serde_json::{Value, json};

use crate::{api::dry_run, clusters::EAST};

const NAMESPACE: &str = "/apis/mc-gateway.io/v1alpha1/namespaces/kube-system";
const ACCOUNT: &str = "system:serviceaccount:kube-system:mc-gateway";
/// No Node has this name.
const NODE: &str = "e2e-foreign";

/// A dry run as an agent whose token names the Node `from`; returns status code and answer.
fn send_as_agent(method: &Method, plural: &str, from: Option<&str>, object: &Value) -> (u16, String) {
    let collection = format!("{NAMESPACE}/{plural}");
    let body = Some(("application/json", object.clone()));
    let (path, body) = match *method {
        Method::POST => (collection, body),
        Method::PUT => (format!("{collection}/{NODE}"), body),
        _ => (format!("{collection}/{NODE}"), None),
    };
    dry_run(ACCOUNT, from, method, &path, body)
}

/// The own Node's agent succeeds, all others are denied.
fn check(method: &Method, plural: &str, success: u16, object: &Value) {
    let own = send_as_agent(method, plural, Some(NODE), object);
    assert_eq!(own.0, success, "{method}: {own:?}");
    let kind = object["kind"].as_str().expect("a kind");
    for from in [None, Some("east-n1")] {
        let (code, answer) = send_as_agent(method, plural, from, object);
        assert_eq!(code, 422, "{method} from {from:?}: {answer}");
        let message = format!("{kind} {NODE}: an agent writes that of its own Node only");
        assert!(answer.contains(&message), "{method} from {from:?}: {answer}");
    }
}

#[test]
fn an_agent_writes_the_reports_of_its_own_node_only() {
    for (kind, plural, spec, forged) in [
        (
            "NodePolicyStatus",
            "nodepolicystatuses",
            json!({"enforcement": "all", "observedPolicies": "", "policies": []}),
            json!({"enforcement": "all", "observedPolicies": "forged", "policies": []}),
        ),
        (
            "NodeReachability",
            "nodereachabilities",
            json!({"reachable": ["test-cluster-west"], "unreachable": []}),
            json!({"reachable": [], "unreachable": ["test-cluster-west"]}),
        ),
    ] {
        let mut object = json!({
            "apiVersion": "mc-gateway.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": NODE, "namespace": "kube-system"},
            "spec": spec,
        });
        check(&Method::POST, plural, 201, &object);
        EAST.apply(&object.to_string());
        let stored = EAST.get("kube-system", plural, NODE).expect("the report");
        object["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
        object["spec"] = forged;
        check(&Method::PUT, plural, 200, &object);
        check(&Method::DELETE, plural, 200, &object);
        EAST.kubectl(&["delete", plural, NODE, "-n", "kube-system"]);
    }
}
