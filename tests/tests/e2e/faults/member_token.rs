//! Tokens of west's accounts in the leader cluster, copied to west as in the guide.

use serde_json::{Value, json};

use super::{LEADER_NAMESPACE, MEMBER_NAMESPACE};
use crate::clusters::{LEADER, SHORT_TIMEOUT, WEST};

/// West's account in the leader cluster.
pub(super) const ACCOUNT: &str = "member-west";
/// Its Secret, in both clusters.
pub(super) const SECRET: &str = "member-west-token";

/// Creates a static token of an account, and returns the content of its Secret.
pub(super) fn create_token(secret: &str, account: &str) -> Value {
    LEADER.apply(
        &json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
            "metadata": {
                "name": secret, "namespace": LEADER_NAMESPACE,
                "annotations": { "kubernetes.io/service-account.name": account },
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

/// Replaces west's Secret by a token, which obtains short-lived tokens of `token_account`, if any.
pub(super) fn copy_to_west(token: &Value, token_account: Option<&str>) {
    let mut secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": token,
        "metadata": { "name": SECRET, "namespace": MEMBER_NAMESPACE },
    });
    if let Some(account) = token_account {
        secret["stringData"] = json!({ "serviceAccount": account });
    }
    WEST.try_kubectl_stdin(&["replace", "--filename", "-"], &secret.to_string())
        .expect("west's Secret is replaced");
}

/// UID and restart count of west's controller Pods.
pub(super) fn west_controller_pods() -> Vec<String> {
    let pods = WEST.list(MEMBER_NAMESPACE, "pods", "component=antrea-mc-controller");
    pods.iter()
        .map(|pod| {
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            format!("{} {restarts}", pod["metadata"]["uid"])
        })
        .collect()
}
