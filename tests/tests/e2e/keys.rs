//! Public keys of Nodes: from the agents through the Gateways to the other cluster.

use http::Method;
use serde_json::{Value, json};

use crate::{
    api::dry_run,
    clusters::{Cluster, EAST, SHORT_TIMEOUT, WEST},
};

const NAMESPACE: &str = "kube-system";
const ACCOUNT: &str = "system:serviceaccount:kube-system:mc-gateway";

/// The string at a path in an object, empty if absent.
fn text(object: &Value, path: &str) -> String {
    object
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Names and public keys of the `NodeKey`s.
fn node_keys(cluster: Cluster) -> Vec<(String, String)> {
    let of = |object: &Value| (text(object, "/metadata/name"), text(object, "/spec/publicKey"));
    cluster.list(NAMESPACE, "nodekey", "").iter().map(of).collect()
}

#[test]
fn the_public_key_of_a_gateway_reaches_the_other_cluster() {
    for (cluster, other) in [(EAST, WEST), (WEST, EAST)] {
        let keys = node_keys(cluster);
        assert_eq!(keys.len(), 2, "one for each Node: {keys:?}");
        let import = format!("test-cluster-{}-clusterinfo", cluster.0);
        other.wait_for(&format!("public keys of {}", cluster.0), SHORT_TIMEOUT, || {
            let gateways = cluster.list(NAMESPACE, "gateway", "");
            let infos = other.get(NAMESPACE, "clusterinfoimport", &import);
            let infos = infos.map(|import| import["spec"]["gatewayInfos"].clone());
            for gateway in &gateways {
                let name = text(gateway, "/metadata/name");
                let own = keys.iter().find(|(node, _)| *node == name).map(|(_, key)| key);
                let stated = text(gateway, "/publicKey");
                let address = text(gateway, "/gatewayIP");
                let received = infos
                    .as_ref()
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .find(|info| info["gatewayIP"] == address.as_str())
                    .map(|info| text(info, "/publicKey"));
                if own != Some(&stated) || received.as_ref() != own || stated.is_empty() {
                    return Err(format!(
                        "{name}: NodeKey {own:?}, Gateway {stated:?}, received {received:?}"
                    ));
                }
            }
            if gateways.is_empty() {
                Err("no Gateway".to_owned())
            } else {
                Ok(())
            }
        });
    }
}

#[test]
fn no_agent_replaces_the_public_key_of_a_node() {
    let before = node_keys(EAST);
    let (node, _) = before.first().expect("a NodeKey");
    let forged = r#"{"spec":{"publicKey":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}}"#;
    let agent = format!("--as={ACCOUNT}");
    let patch = [
        "patch",
        "nodekey",
        node,
        "-n",
        NAMESPACE,
        "--type=merge",
        "-p",
        forged,
    ];
    let error = EAST
        .try_kubectl(&[&patch[..], &[agent.as_str()]].concat())
        .unwrap_err();
    assert!(error.contains("Forbidden"), "{error}");
    let error = EAST
        .try_kubectl(&["delete", "nodekey", node, "-n", NAMESPACE, &agent])
        .unwrap_err();
    assert!(error.contains("Forbidden"), "{error}");
    let error = EAST.try_kubectl(&patch).unwrap_err();
    assert!(error.contains("immutable"), "{error}");
    assert_eq!(node_keys(EAST), before);
}

/// Creates the `NodeKey` of `node` in a dry run, as an agent whose token names the Node `from`. Returns status code and
/// answer.
fn create_as_agent(node: &str, from: Option<&str>) -> (u16, String) {
    let path = format!("/apis/mc-gateway.io/v1alpha1/namespaces/{NAMESPACE}/nodekeys");
    let object = json!({
        "apiVersion": "mc-gateway.io/v1alpha1",
        "kind": "NodeKey",
        "metadata": {"name": node},
        "spec": {"publicKey": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="},
    });
    let body = Some(("application/json", object));
    dry_run(ACCOUNT, from, &Method::POST, &path, body)
}

#[test]
fn an_agent_creates_the_node_key_of_its_own_node_only() {
    let own = create_as_agent("joining", Some("joining"));
    assert_eq!(own.0, 201, "{own:?}");
    for from in [None, Some("east-n1")] {
        let (code, answer) = create_as_agent("joining", from);
        assert_eq!(code, 422, "{from:?}: {answer}");
        assert!(
            answer.contains("NodeKey joining: an agent creates that of its own Node only"),
            "{from:?}: {answer}"
        );
    }
}
