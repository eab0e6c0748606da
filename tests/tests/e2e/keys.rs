//! Public keys of Nodes: from the agents through the Gateways to the other cluster.

use serde_json::Value;

use crate::clusters::{Cluster, EAST, SHORT_TIMEOUT, WEST};

const NAMESPACE: &str = "kube-system";
const AGENT: &str = "--as=system:serviceaccount:kube-system:mc-gateway";

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
        other.wait_for(
            &format!("public keys of {}", cluster.0),
            SHORT_TIMEOUT,
            || {
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
            },
        );
    }
}

#[test]
fn no_agent_replaces_the_public_key_of_a_node() {
    let before = node_keys(EAST);
    let (node, _) = before.first().expect("a NodeKey");
    let forged = r#"{"spec":{"publicKey":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}}"#;
    let patch = ["patch", "nodekey", node, "-n", NAMESPACE, "--type=merge", "-p", forged];
    let error = EAST.try_kubectl(&[&patch[..], &[AGENT]].concat()).unwrap_err();
    assert!(error.contains("Forbidden"), "{error}");
    let error = EAST
        .try_kubectl(&["delete", "nodekey", node, "-n", NAMESPACE, AGENT])
        .unwrap_err();
    assert!(error.contains("Forbidden"), "{error}");
    let error = EAST.try_kubectl(&patch).unwrap_err();
    assert!(error.contains("immutable"), "{error}");
    assert_eq!(node_keys(EAST), before);
}
