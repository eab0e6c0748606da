//! `NodePolicyStatus`: the network policies that a Node's agent enforces, their errors there, and the counters of their
//! rules. Superset: Antrea's agents report to its controller.
//!
//! The agent writes the object of its own Node, and the member's controller derives the status of each policy from all
//! of them. The object is owned by its Node, so that Kubernetes deletes it with the Node.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{label_identity::digest, node_key::owned_by_node};

/// Most policies of an object; [`NodePolicyStatusSpec::omitted`] counts the others.
pub const MAX_POLICIES: usize = 500;
/// Most errors of a policy; [`PolicyReport::omitted_errors`] counts the others.
pub const MAX_ERRORS: usize = 10;
/// Most errors of an object.
pub const MAX_ALL_ERRORS: usize = 500;
/// Longest text of an error, in bytes.
pub const MAX_TEXT: usize = 256;
/// Most rules with counters of an object; [`PolicyReport::omitted_rules`] counts the others.
pub const MAX_ALL_RULES: usize = 1_000;
/// Longest name of a rule, in bytes.
pub const MAX_RULE_NAME: usize = 64;
/// Largest number of a counter: integers of the API are signed and have 64 bits.
pub const MAX_COUNT: u64 = i64::MAX.cast_unsigned();

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
    /// The rules that have decided on a packet, sorted by name; 1,000 of all policies at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<RuleReport>,
    /// Number of further rules that have decided on a packet.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted_rules: u32,
}

/// The packets of the Node on which a rule has decided, since its counter began.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleReport {
    /// Path of the rule inside the policy.
    pub name: String,
    /// Packets, 2^63 - 1 at most; a super-packet counts once.
    #[schemars(extend("format" = "int64"))]
    pub packets: u64,
    /// Their bytes with the link-layer header, 2^63 - 1 at most.
    #[schemars(extend("format" = "int64"))]
    pub bytes: u64,
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
        owned_by_node(Self::new(node, spec), node, uid)
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
        let mut spec = Self {
            enforcement,
            observed_policies,
            policies,
            omitted,
        };
        spec.bound_rules();
        spec
    }

    /// Sorts the rules of each policy, leaves out those without a packet, and counts those beyond [`MAX_ALL_RULES`].
    pub fn bound_rules(&mut self) {
        let mut room = MAX_ALL_RULES;
        for policy in &mut self.policies {
            policy.bound_rules(room);
            room = room.saturating_sub(policy.rules.len());
        }
    }
}

// === impl RuleReport ===

impl RuleReport {
    /// The counters of a rule. The API has signed numbers: larger ones are 2^63 - 1.
    #[must_use]
    pub fn new(name: &str, packets: u64, bytes: u64) -> Self {
        Self {
            name: name.to_owned(),
            packets: packets.min(MAX_COUNT),
            bytes: bytes.min(MAX_COUNT),
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
                bound_text(text, MAX_TEXT);
            }
        }
    }

    fn bound_rules(&mut self, room: usize) {
        self.rules.retain(|rule| rule.packets > 0 || rule.bytes > 0);
        for rule in &mut self.rules {
            bound_text(&mut rule.name, MAX_RULE_NAME);
        }
        self.rules.sort_unstable();
        let omitted = count(self.rules.len().saturating_sub(room));
        self.omitted_rules = self.omitted_rules.saturating_add(omitted);
        self.rules.truncate(room);
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
fn bound_text(text: &mut String, longest: usize) {
    if text.chars().any(char::is_control) {
        *text = text.replace(char::is_control, " ");
    }
    let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end));
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
            let name = |number: usize| format!("{}{number:04}", "\"".repeat(MAX_RULE_NAME - 4));
            policy.rules = (0..2 * MAX_ALL_RULES / MAX_POLICIES)
                .map(|number| RuleReport::new(&name(number), u64::MAX, u64::MAX))
                .collect();
            policy
        };
        let spec = bounded((0..2 * MAX_POLICIES).map(longest).collect());
        let size = serde_json::to_string(&spec).unwrap().len();
        assert!(size < 1_000_000, "{size}");
        assert!(spec.policies.iter().all(PolicyReport::has_error));
        let rules: usize = spec.policies.iter().map(|policy| policy.rules.len()).sum();
        assert_eq!(rules, MAX_ALL_RULES);
    }

    #[test]
    fn rules_are_sorted_and_bounded() {
        let rule = |number: usize| RuleReport::new(&format!("spec.ingress[{number:04}]"), 1, 60);
        let with_rules = |name: &str, numbers: std::ops::Range<usize>| PolicyReport {
            rules: numbers.rev().map(rule).collect(),
            ..policy(name, 0)
        };
        let mut spec = bounded(vec![
            with_rules("a", 0..MAX_ALL_RULES - 1),
            with_rules("b", 0..3),
            with_rules("c", 0..2),
        ]);
        let counts = |spec: &NodePolicyStatusSpec| -> Vec<_> {
            let policies = spec.policies.iter();
            policies
                .map(|policy| (policy.rules.len(), policy.omitted_rules))
                .collect()
        };
        assert_eq!(counts(&spec), [(MAX_ALL_RULES - 1, 0), (1, 2), (0, 2)]);
        assert_eq!(spec.policies[1].rules, [rule(0)]);
        assert!(spec.policies[0].rules.is_sorted());
        let once = spec.clone();
        spec.bound_rules();
        assert_eq!(spec, once, "a second time changes nothing");
    }

    #[test]
    fn rules_without_a_packet_are_left_out_and_numbers_and_names_are_bounded() {
        let long = "\u{1}".repeat(2 * MAX_RULE_NAME);
        let spec = bounded(vec![PolicyReport {
            rules: vec![
                RuleReport::new("spec.egress[0]", u64::MAX, u64::MAX),
                RuleReport::new("spec.egress[1]", 0, 0),
                RuleReport::new(&long, 1, 60),
            ],
            ..policy("a", 0)
        }]);
        let [control, first] = &spec.policies[0].rules[..] else {
            panic!("{spec:?}")
        };
        assert_eq!(control.name, " ".repeat(MAX_RULE_NAME));
        assert_eq!((first.packets, first.bytes), (MAX_COUNT, MAX_COUNT));
        let value = serde_json::to_value(first).unwrap();
        assert_eq!(value["packets"].as_i64(), Some(i64::MAX));
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
        for field in ["errors", "rules", "omittedRules"] {
            assert_eq!(value["policies"][0].get(field), None, "{field}");
        }
        assert_eq!(value.get("omitted"), None);
        assert_eq!(
            serde_json::from_value::<NodePolicyStatusSpec>(value).unwrap(),
            spec
        );
    }
}
