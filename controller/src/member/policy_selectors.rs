//! Pod selectors of policy peers with scope `ClusterSet`.
//!
//! Pure. Guarantee: a peer with unknown or invalid fields matches all Pods: a superfluous label identity is cheaper
//! than a rule that misses a Pod.

use std::collections::{BTreeMap, BTreeSet};

use mc_api::{label_identity::NAMESPACE_NAME, label_selector::LabelSelector, network_policy::without_nulls};
use serde_json::{Value, json};

/// The supported fields of a peer.
const KNOWN_FIELDS: [&str; 3] = ["podSelector", "namespaceSelector", "scope"];

/// The peers with scope `ClusterSet` of some policies.
#[derive(Clone, Debug, Default)]
pub struct PeerSelectors(BTreeSet<Peer>);

/// Selectors by labels; `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Peer {
    namespace: Option<LabelSelector>,
    pod: Option<LabelSelector>,
}

/// The exported form of a peer in a cluster's own policy. In a policy of a Namespace, a peer without
/// `namespaceSelector` selects the Pods of that Namespace. A peer with an unknown field selects all Pods.
#[must_use]
pub fn exported_peer(peer: &Value, namespace: Option<&str>) -> Value {
    let Value::Object(mut fields) = without_nulls(peer) else {
        return json!({});
    };
    fields.remove("scope");
    if fields.keys().any(|key| !KNOWN_FIELDS.contains(&key.as_str())) {
        return json!({});
    }
    if let Some(namespace) = namespace {
        let own = || json!({ "matchLabels": { NAMESPACE_NAME: namespace } });
        fields.entry("namespaceSelector").or_insert_with(own);
    }
    fields.into()
}

/// The peers with scope `ClusterSet` in the ingress rules of a policy. Egress rules have none.
pub fn cluster_set_peers(policy: &Value) -> impl Iterator<Item = &Value> {
    fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
        value.get(key).and_then(Value::as_array).into_iter().flatten()
    }
    list(policy, "ingress")
        .flat_map(|rule| list(rule, "from"))
        .filter(|peer| peer.get("scope").and_then(Value::as_str) == Some("ClusterSet"))
}

// === impl PeerSelectors ===

impl PeerSelectors {
    /// The peers of the ingress rules of `policies`, and `peers`, those of other clusters' own policies
    /// ([`mc_api::policy_selectors`]).
    pub fn new<'a>(
        policies: impl IntoIterator<Item = &'a Value>,
        peers: impl IntoIterator<Item = &'a Value>,
    ) -> Self {
        let replicated = policies.into_iter().flat_map(cluster_set_peers);
        Self(replicated.chain(peers).map(Peer::parse).collect())
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
        PeerSelectors::new([&policy], [])
            .matches(&labels(&[("role", "tenant")]), &labels(&[("app", "client")]))
    }

    #[test]
    fn an_exported_peer_of_a_namespace_selects_its_pods() {
        let pods = json!({ "matchLabels": { "app": "client" } });
        let peer = json!({ "scope": "ClusterSet", "podSelector": pods, "namespaceSelector": null });
        assert_eq!(exported_peer(&peer, None), json!({ "podSelector": pods }));
        let own = json!({ "matchLabels": { "kubernetes.io/metadata.name": "shop" } });
        assert_eq!(
            exported_peer(&peer, Some("shop")),
            json!({ "podSelector": pods, "namespaceSelector": own })
        );
        let tenants = json!({ "namespaceSelector": { "matchLabels": { "role": "tenant" } } });
        assert_eq!(exported_peer(&tenants, Some("shop")), tenants);
        for all in [
            json!({ "scope": "ClusterSet", "group": "g" }),
            json!({ "scope": "ClusterSet", "namespaces": { "match": "Self" }, "podSelector": pods }),
            json!(5),
        ] {
            assert_eq!(exported_peer(&all, Some("shop")), json!({}), "{all}");
        }
    }

    #[test]
    fn only_peers_with_scope_cluster_set_match() {
        assert!(!is_matched(&json!({ "podSelector": {} })));
        assert!(is_matched(&json!({ "scope": "ClusterSet", "podSelector": {} })));
        assert!(
            !PeerSelectors::new(
                [&json!({ "egress": [{ "to": [{ "scope": "ClusterSet" }] }] })],
                []
            )
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
                !PeerSelectors::new([&invalid], []).matches(&labels(&[]), &labels(&[])),
                "{invalid}"
            );
        }
    }
}
