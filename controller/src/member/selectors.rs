//! Whom policies mean that speak of the whole set.
//!
//! Guarantee: in doubt a Pod is meant; an identity too many costs less than a rule that does not see somebody.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt as _};
use serde_json::Value;

/// The fields of a peer that are understood.
const KNOWN: [&str; 3] = ["podSelector", "namespaceSelector", "scope"];

/// The peers of scope `ClusterSet` of some policies.
#[derive(Clone, Debug, Default)]
pub struct Selectors(Vec<Peer>);

/// Pods by labels; `None` means all.
#[derive(Clone, Debug, Default)]
struct Peer {
    namespace: Option<Selector>,
    pod: Option<Selector>,
}

// === impl Selectors ===

impl Selectors {
    /// Those in the ingress rules of these policies.
    pub fn of<'a>(policies: impl IntoIterator<Item = &'a Value>) -> Self {
        let list =
            |value: &'a Value, key: &str| value.get(key).and_then(Value::as_array).into_iter().flatten();
        let peers = policies
            .into_iter()
            .flat_map(|policy| list(policy, "ingress"))
            .flat_map(|rule| list(rule, "from"))
            .filter(|peer| peer.get("scope").and_then(Value::as_str) == Some("ClusterSet"));
        Self(peers.map(Peer::read).collect())
    }

    /// Whether any of them means a Pod with these labels in a Namespace with those.
    #[must_use]
    pub fn mean(&self, namespace: &BTreeMap<String, String>, pod: &BTreeMap<String, String>) -> bool {
        self.0.iter().any(|peer| {
            peer.namespace.as_ref().is_none_or(|s| s.matches(namespace))
                && peer.pod.as_ref().is_none_or(|s| s.matches(pod))
        })
    }
}

// === impl Peer ===

impl Peer {
    fn read(peer: &Value) -> Self {
        let fields = peer.as_object().into_iter().flatten();
        if fields.into_iter().any(|(key, _)| !KNOWN.contains(&key.as_str())) {
            return Self::default();
        }
        let selector = |key: &str| {
            let selector: LabelSelector = serde_json::from_value(peer.get(key)?.clone()).ok()?;
            Selector::try_from(selector).ok()
        };
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

    fn meant(peer: &Value) -> bool {
        let policy = json!({ "ingress": [{ "action": "Allow", "from": [peer] }] });
        Selectors::of([&policy]).mean(&labels(&[("role", "tenant")]), &labels(&[("app", "client")]))
    }

    #[test]
    fn only_peers_of_the_set_count() {
        assert!(!meant(&json!({ "podSelector": {} })));
        assert!(meant(&json!({ "scope": "ClusterSet", "podSelector": {} })));
        assert!(
            !Selectors::of([&json!({ "egress": [{ "to": [{ "scope": "ClusterSet" }] }] })])
                .mean(&labels(&[]), &labels(&[]))
        );
    }

    #[test]
    fn both_selectors_have_to_agree() {
        let peer = |ns: Value, pod: Value| json!({ "scope": "ClusterSet", "namespaceSelector": ns, "podSelector": pod });
        let tenant = json!({ "matchLabels": { "role": "tenant" } });
        assert!(meant(&peer(
            tenant.clone(),
            json!({ "matchLabels": { "app": "client" } })
        )));
        assert!(!meant(&peer(
            tenant.clone(),
            json!({ "matchLabels": { "app": "db" } })
        )));
        assert!(!meant(&peer(
            json!({ "matchLabels": { "role": "admin" } }),
            json!({})
        )));
        assert!(meant(
            &json!({ "scope": "ClusterSet", "namespaceSelector": tenant })
        ));
        let not = json!([{ "key": "app", "operator": "NotIn", "values": ["db"] }]);
        assert!(meant(&peer(json!({}), json!({ "matchExpressions": not }))));
    }

    #[test]
    fn what_is_not_understood_means_everybody() {
        for peer in [
            json!({ "scope": "ClusterSet", "group": "g" }),
            json!({ "scope": "ClusterSet", "podSelector": 5 }),
            json!({ "scope": "ClusterSet", "podSelector": { "matchExpressions": [
                { "key": "app", "operator": "Like", "values": ["x"] },
            ] } }),
        ] {
            assert!(meant(&peer), "{peer}");
        }
        for odd in [
            json!(null),
            json!({ "ingress": {} }),
            json!({ "ingress": [{ "from": "all" }] }),
        ] {
            assert!(!Selectors::of([&odd]).mean(&labels(&[]), &labels(&[])), "{odd}");
        }
    }
}
