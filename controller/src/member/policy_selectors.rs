//! Pod selectors of policy peers with scope `ClusterSet`.
//!
//! Guarantee: a peer with unknown or invalid fields matches all Pods: a superfluous label identity is cheaper than a
//! rule that misses a Pod.

use std::collections::BTreeMap;

use mc_api::label_selector::LabelSelector;
use serde_json::Value;

/// The supported fields of a peer.
const KNOWN_FIELDS: [&str; 3] = ["podSelector", "namespaceSelector", "scope"];

/// The peers with scope `ClusterSet` of some policies.
#[derive(Clone, Debug, Default)]
pub struct PeerSelectors(Vec<Peer>);

/// Selectors by labels; `None` matches all.
#[derive(Clone, Debug, Default)]
struct Peer {
    namespace: Option<LabelSelector>,
    pod: Option<LabelSelector>,
}

// === impl PeerSelectors ===

impl PeerSelectors {
    /// The peers in the ingress rules of these policies.
    pub fn from_policies<'a>(policies: impl IntoIterator<Item = &'a Value>) -> Self {
        let list =
            |value: &'a Value, key: &str| value.get(key).and_then(Value::as_array).into_iter().flatten();
        let peers = policies
            .into_iter()
            .flat_map(|policy| list(policy, "ingress"))
            .flat_map(|rule| list(rule, "from"))
            .filter(|peer| peer.get("scope").and_then(Value::as_str) == Some("ClusterSet"));
        Self(peers.map(Peer::parse).collect())
    }

    /// Whether any peer matches a Pod with these labels in a namespace with those.
    #[must_use]
    pub fn matches(&self, namespace: &BTreeMap<String, String>, pod: &BTreeMap<String, String>) -> bool {
        self.0.iter().any(|peer| {
            peer.namespace.as_ref().is_none_or(|s| s.matches(namespace))
                && peer.pod.as_ref().is_none_or(|s| s.matches(pod))
        })
    }
}

// === impl Peer ===

impl Peer {
    fn parse(peer: &Value) -> Self {
        let fields = peer.as_object().into_iter().flatten();
        if fields
            .into_iter()
            .any(|(key, _)| !KNOWN_FIELDS.contains(&key.as_str()))
        {
            return Self::default();
        }
        let selector = |key: &str| LabelSelector::parse(peer.get(key)?).ok();
        Self {
            namespace: selector("namespaceSelector"),
            pod: selector("podSelector"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn is_matched(peer: &Value) -> bool {
        let policy = json!({ "ingress": [{ "action": "Allow", "from": [peer] }] });
        PeerSelectors::from_policies([&policy])
            .matches(&labels(&[("role", "tenant")]), &labels(&[("app", "client")]))
    }

    #[test]
    fn only_peers_with_scope_cluster_set_match() {
        assert!(!is_matched(&json!({ "podSelector": {} })));
        assert!(is_matched(&json!({ "scope": "ClusterSet", "podSelector": {} })));
        assert!(
            !PeerSelectors::from_policies([&json!({ "egress": [{ "to": [{ "scope": "ClusterSet" }] }] })])
                .matches(&labels(&[]), &labels(&[]))
        );
    }

    #[test]
    fn both_selectors_have_to_match() {
        let peer = |ns: Value, pod: Value| json!({ "scope": "ClusterSet", "namespaceSelector": ns, "podSelector": pod });
        let tenant = json!({ "matchLabels": { "role": "tenant" } });
        assert!(is_matched(&peer(
            tenant.clone(),
            json!({ "matchLabels": { "app": "client" } })
        )));
        assert!(!is_matched(&peer(
            tenant.clone(),
            json!({ "matchLabels": { "app": "db" } })
        )));
        assert!(!is_matched(&peer(
            json!({ "matchLabels": { "role": "admin" } }),
            json!({})
        )));
        assert!(is_matched(
            &json!({ "scope": "ClusterSet", "namespaceSelector": tenant })
        ));
        let not = json!([{ "key": "app", "operator": "NotIn", "values": ["db"] }]);
        assert!(is_matched(&peer(json!({}), json!({ "matchExpressions": not }))));
    }

    #[test]
    fn an_unsupported_peer_matches_all_pods() {
        for peer in [
            json!({ "scope": "ClusterSet", "group": "g" }),
            json!({ "scope": "ClusterSet", "podSelector": 5 }),
            json!({ "scope": "ClusterSet", "podSelector": { "matchExpressions": [
                { "key": "app", "operator": "Like", "values": ["x"] },
            ] } }),
        ] {
            assert!(is_matched(&peer), "{peer}");
        }
        for invalid in [
            json!(null),
            json!({ "ingress": {} }),
            json!({ "ingress": [{ "from": "all" }] }),
        ] {
            assert!(
                !PeerSelectors::from_policies([&invalid]).matches(&labels(&[]), &labels(&[])),
                "{invalid}"
            );
        }
    }
}
