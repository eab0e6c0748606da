//! `NodePolicyStatus`: the network policies that a Node's agent enforces, and their errors there. Superset: Antrea's
//! agents report to its controller.
//!
//! The agent writes the object of its own Node, and the member's controller derives the status of each policy from all
//! of them. The object is owned by its Node, so that Kubernetes deletes it with the Node.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{label_identity::digest, node_key::node_owner};

/// Most policies of an object; [`NodePolicyStatusSpec::omitted`] counts the others.
pub const MAX_POLICIES: usize = 500;
/// Most errors of a policy; [`PolicyReport::omitted_errors`] counts the others.
pub const MAX_ERRORS: usize = 10;
/// Most errors of an object.
pub const MAX_ALL_ERRORS: usize = 500;
/// Longest text of an error, in bytes.
pub const MAX_TEXT: usize = 256;

/// The network policies that a Node's agent enforces. The object has the Node's name.
#[derive(Clone, CustomResource, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[kube(
    group = "mc-gateway.io",
    version = "v1alpha1",
    kind = "NodePolicyStatus",
    plural = "nodepolicystatuses",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    doc = "The network policies that the gateway agent of a Node enforces, and their errors there.",
    printcolumn = r#"{"name":"Enforcement","type":"string","jsonPath":".spec.enforcement","description":"The rules that are enforced"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct NodePolicyStatusSpec {
    /// The rules that are enforced.
    pub enforcement: Enforcement,
    /// Hash of the UIDs and generations of all policies of the cluster, as far as the agent has applied them.
    pub observed_policies: String,
    /// The policies that select a Pod of the Node or have an error, by kind, namespace and name; 500 at most.
    pub policies: Vec<PolicyReport>,
    /// Number of further policies; those without an error are omitted first.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted: u32,
}

/// The rules that an agent enforces.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Enforcement {
    /// Rules with peers of scope `ClusterSet`; Antrea enforces the rest and writes the status of policies.
    #[default]
    ClusterSetOnly,
    /// Every rule.
    All,
}

/// A policy on a Node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyReport {
    /// `ClusterNetworkPolicy` or `NetworkPolicy` of `crd.antrea.io`.
    pub kind: String,
    /// Its namespace; absent for a `ClusterNetworkPolicy`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The generation of its spec that the agent has applied.
    pub generation: i64,
    /// Whether a rule in force applies to a Pod of the Node.
    pub selects_pods: bool,
    /// The fields that are not enforced as written; 10 at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldReport>,
    /// Number of further errors.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted_errors: u32,
}

/// A field that is not enforced as written.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FieldReport {
    /// Path of the field inside the policy.
    pub field: String,
    /// Its value; empty for an absent field.
    pub value: String,
    /// The cause; completes "value …".
    pub reason: String,
}

// === impl NodePolicyStatus ===

impl NodePolicyStatus {
    /// The object for a Node with this UID.
    #[must_use]
    pub fn of_node(node: &str, uid: &str, spec: NodePolicyStatusSpec) -> Self {
        let mut object = Self::new(node, spec);
        object.metadata.owner_references = Some(vec![node_owner(node, uid)]);
        object
    }
}

// === impl NodePolicyStatusSpec ===

impl NodePolicyStatusSpec {
    /// The object's content within its bounds: errors beyond [`MAX_ERRORS`] and [`MAX_ALL_ERRORS`], and policies beyond
    /// [`MAX_POLICIES`], are counted.
    #[must_use]
    pub fn bounded(
        enforcement: Enforcement,
        observed_policies: String,
        mut policies: Vec<PolicyReport>,
    ) -> Self {
        // Policies with errors stay.
        policies.sort_by_cached_key(|policy| (!policy.has_error(), policy.key()));
        let omitted = count(policies.len().saturating_sub(MAX_POLICIES));
        policies.truncate(MAX_POLICIES);
        policies.sort_by_cached_key(PolicyReport::key);
        let mut room = MAX_ALL_ERRORS;
        for policy in &mut policies {
            policy.bound(room);
            room = room.saturating_sub(policy.errors.len());
        }
        Self {
            enforcement,
            observed_policies,
            policies,
            omitted,
        }
    }
}

// === impl PolicyReport ===

impl PolicyReport {
    /// Whether a field is not enforced as written.
    #[must_use]
    pub fn has_error(&self) -> bool {
        !self.errors.is_empty() || self.omitted_errors > 0
    }

    fn key(&self) -> (String, String, String) {
        (self.kind.clone(), self.namespace.clone(), self.name.clone())
    }

    fn bound(&mut self, room: usize) {
        let kept = self.errors.len().min(MAX_ERRORS).min(room);
        let omitted = count(self.errors.len().saturating_sub(kept));
        self.omitted_errors = self.omitted_errors.saturating_add(omitted);
        self.errors.truncate(kept);
        for error in &mut self.errors {
            for text in [&mut error.field, &mut error.value, &mut error.reason] {
                bound_text(text);
            }
        }
    }
}

/// Hash of UIDs and generations, regardless of their order; the agents and the controllers compare it.
#[must_use]
pub fn observed_policies<'a>(policies: impl IntoIterator<Item = (&'a str, i64)>) -> String {
    let mut lines: Vec<String> = policies
        .into_iter()
        .map(|(uid, generation)| format!("{uid}/{generation}\n"))
        .collect();
    lines.sort_unstable();
    digest(&lines.concat()).chars().take(16).collect()
}

/// Cuts a text. Control characters, which take six bytes in JSON, are replaced.
fn bound_text(text: &mut String) {
    if text.chars().any(char::is_control) {
        *text = text.replace(char::is_control, " ");
    }
    let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
}

fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is that of serde")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, errors: usize) -> PolicyReport {
        let error = FieldReport {
            field: "spec.priority".to_owned(),
            value: "ä".repeat(MAX_TEXT),
            reason: "is not between 1 and 10000".to_owned(),
        };
        PolicyReport {
            kind: "ClusterNetworkPolicy".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-of-{name}"),
            errors: vec![error; errors],
            ..PolicyReport::default()
        }
    }

    fn bounded(policies: Vec<PolicyReport>) -> NodePolicyStatusSpec {
        NodePolicyStatusSpec::bounded(Enforcement::All, String::new(), policies)
    }

    #[test]
    fn the_list_is_sorted_and_policies_with_errors_stay() {
        let mut all: Vec<_> = (0..MAX_POLICIES + 7)
            .map(|i| policy(&format!("p{i:04}"), 0))
            .collect();
        all.push(policy("zzz", 1));
        all.reverse();
        let spec = bounded(all);
        assert_eq!((spec.policies.len(), spec.omitted), (MAX_POLICIES, 8));
        assert!(spec.policies.is_sorted());
        assert_eq!(spec.policies.last().unwrap().name, "zzz");
    }

    #[test]
    fn errors_and_their_texts_are_bounded() {
        let spec = bounded(vec![policy("a", MAX_ERRORS + 3)]);
        let [policy] = &spec.policies[..] else {
            panic!("{spec:?}")
        };
        assert_eq!((policy.errors.len(), policy.omitted_errors), (MAX_ERRORS, 3));
        assert_eq!(policy.errors[0].value, "ä".repeat(MAX_TEXT / 2));
    }

    #[test]
    fn the_largest_object_fits_into_the_api_servers_store() {
        let longest = |i: usize| {
            let mut policy = policy(&format!("{i:0253}"), MAX_ERRORS);
            policy.namespace = "n".repeat(63);
            policy.uid = "u".repeat(36);
            for error in &mut policy.errors {
                error.field = "\u{1}".repeat(2 * MAX_TEXT);
                error.reason = "\"".repeat(2 * MAX_TEXT);
            }
            policy
        };
        let spec = bounded((0..2 * MAX_POLICIES).map(longest).collect());
        let size = serde_json::to_string(&spec).unwrap().len();
        assert!(size < 1_000_000, "{size}");
        assert!(spec.policies.iter().all(PolicyReport::has_error));
    }

    #[test]
    fn the_hash_depends_on_uids_and_generations_alone() {
        let hash = |list: &[(&str, i64)]| observed_policies(list.iter().copied());
        assert_eq!(hash(&[("a", 1), ("b", 2)]), hash(&[("b", 2), ("a", 1)]));
        assert_ne!(hash(&[("a", 1), ("b", 2)]), hash(&[("a", 1), ("b", 3)]));
        assert_ne!(hash(&[("a", 1)]), hash(&[]));
    }

    #[test]
    fn fields_without_content_are_absent() {
        let spec = bounded(vec![policy("a", 0)]);
        let value = serde_json::to_value(&spec).unwrap();
        assert_eq!(value["enforcement"], "all");
        assert_eq!(value["policies"][0].get("errors"), None);
        assert_eq!(value.get("omitted"), None);
        assert_eq!(
            serde_json::from_value::<NodePolicyStatusSpec>(value).unwrap(),
            spec
        );
    }
}
