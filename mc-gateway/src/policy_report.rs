//! The report of this Node about network policies: those that select its Pods, their errors, and the counters of their
//! rules. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mc_api::network_policy::Policy;
use mc_api::node_policy_status::{
    Enforcement, FieldReport, NodePolicyStatusSpec, PolicyReport, RuleReport, observed_policies,
};
use mc_gateway_common::abi::policy::RuleCounter;
use mc_kube::NamespacedName;

use crate::desired::node_policies::NodePolicies;
use crate::desired::rule_names::RuleName;
use crate::objects::FieldError;
use crate::policy::Mode;
use crate::policy_objects::{Parsed, PolicyObjects, key};

/// The policies that a reconcile has applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedPolicies {
    /// The report without counters.
    pub report: Arc<NodePolicyStatusSpec>,
    /// The rules with counters, by ID.
    pub rules: Arc<BTreeMap<u32, RuleName>>,
}

/// The report. `selecting` has kind and name of the policies with a rule for a Pod of the Node, `errors` all rejected
/// fields.
#[must_use]
pub fn report(
    objects: &PolicyObjects,
    selecting: &BTreeSet<Arc<str>>,
    errors: &[FieldError],
    mode: Mode,
) -> NodePolicyStatusSpec {
    let mut by_object: BTreeMap<&str, BTreeSet<FieldReport>> = BTreeMap::new();
    for error in errors {
        by_object.entry(&error.object).or_default().insert(field(error));
    }
    let policies = objects.policies.iter().filter_map(|policy| {
        let selects_pods = selecting.contains(policy.key.as_str());
        let errors = by_object.remove(policy.key.as_str()).unwrap_or_default();
        let errors: Vec<_> = errors.into_iter().collect();
        (selects_pods || !errors.is_empty()).then(|| entry(policy, selects_pods, errors))
    });
    let enforcement = match mode {
        Mode::All => Enforcement::All,
        Mode::ClusterSetOnly => Enforcement::ClusterSetOnly,
    };
    let policies: Vec<_> = policies.collect();
    let all = objects.policies.iter();
    let observed = observed_policies(all.map(|policy| (policy.uid.as_str(), policy.generation)));
    NodePolicyStatusSpec::bounded(enforcement, observed, policies)
}

// === impl AppliedPolicies ===

impl AppliedPolicies {
    /// None while policies are not enforced. `unenforced` is an error of every policy that selects a Pod of the Node.
    #[must_use]
    pub fn new(policies: &NodePolicies, unenforced: Option<&FieldError>) -> Option<Self> {
        let report = policies.report.clone()?;
        let rules = Arc::clone(&policies.rules);
        let report = match unenforced {
            None => report,
            Some(error) => Arc::new(with_error(NodePolicyStatusSpec::clone(&report), error)),
        };
        Some(Self { report, rules })
    }

    /// The report with the counters by ID of the rule. Those of a removed rule have no name until the agent removes
    /// them, and are left out.
    #[must_use]
    pub fn with_counters(&self, counters: &BTreeMap<u32, RuleCounter>) -> NodePolicyStatusSpec {
        let mut by_policy: BTreeMap<&str, Vec<RuleReport>> = BTreeMap::new();
        for (id, counter) in counters {
            if let Some(name) = self.rules.get(id) {
                let rule = RuleReport::new(&name.rule, counter.packets, counter.bytes);
                by_policy.entry(&name.policy).or_default().push(rule);
            }
        }
        let mut spec = NodePolicyStatusSpec::clone(&self.report);
        for policy in &mut spec.policies {
            let name = NamespacedName::new(&policy.namespace, &policy.name);
            let key = key(&policy.kind, &name);
            policy.rules = by_policy.remove(&*key).unwrap_or_default();
        }
        spec.bound_rules();
        spec
    }
}

fn entry(policy: &Parsed<Policy>, selects_pods: bool, errors: Vec<FieldReport>) -> PolicyReport {
    let name = &policy.object.name;
    let kind = match name.namespace {
        None => "ClusterNetworkPolicy",
        Some(_) => "NetworkPolicy",
    };
    PolicyReport {
        kind: kind.to_owned(),
        namespace: name.namespace.clone().unwrap_or_default(),
        name: name.name.clone(),
        uid: policy.uid.clone(),
        generation: policy.generation,
        selects_pods,
        errors,
        ..PolicyReport::default()
    }
}

/// The report with an error of the Node as the first one of every policy that selects a Pod.
fn with_error(spec: NodePolicyStatusSpec, error: &FieldError) -> NodePolicyStatusSpec {
    let error = FieldReport {
        field: format!("{} of {}", error.field, error.object),
        ..field(error)
    };
    let mut policies = spec.policies;
    for policy in policies.iter_mut().filter(|policy| policy.selects_pods) {
        policy.errors.insert(0, error.clone());
    }
    let mut bounded = NodePolicyStatusSpec::bounded(spec.enforcement, spec.observed_policies, policies);
    bounded.omitted = bounded.omitted.saturating_add(spec.omitted);
    bounded
}

fn field(error: &FieldError) -> FieldReport {
    FieldReport {
        field: error.field.clone(),
        value: error.value.clone(),
        reason: error.reason.clone(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::ObjectMeta;
    use mc_api::network_policy::{ClusterNetworkPolicy, NetworkPolicy};
    use mc_api::node_policy_status::MAX_ALL_RULES;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::policy_objects::{cluster_network_policy, network_policy};

    fn metadata(namespace: Option<&str>, name: &str) -> ObjectMeta {
        ObjectMeta {
            namespace: namespace.map(str::to_owned),
            name: Some(name.to_owned()),
            uid: Some(format!("uid-{name}")),
            generation: Some(3),
            ..ObjectMeta::default()
        }
    }

    fn objects(names: &[&str]) -> PolicyObjects {
        let spec = json!({ "priority": 1 });
        let policies = names.iter().map(|name| match name.split_once('/') {
            None => cluster_network_policy(&ClusterNetworkPolicy {
                metadata: metadata(None, name),
                spec: spec.clone(),
                ..ClusterNetworkPolicy::default()
            }),
            Some((namespace, name)) => network_policy(&NetworkPolicy {
                metadata: metadata(Some(namespace), name),
                spec: spec.clone(),
                ..NetworkPolicy::default()
            }),
        });
        PolicyObjects {
            policies: policies.collect(),
            ..PolicyObjects::default()
        }
    }

    fn error(object: &str, value: &str) -> FieldError {
        FieldError {
            object: object.to_owned(),
            field: "spec.tier".to_owned(),
            value: value.to_owned(),
            reason: "is not a Tier".to_owned(),
        }
    }

    fn selecting(keys: &[&str]) -> BTreeSet<Arc<str>> {
        keys.iter().map(|key| Arc::from(*key)).collect()
    }

    #[test]
    fn policies_that_select_pods_or_have_errors_are_reported() {
        let objects = objects(&["web", "idle", "shop/bad"]);
        let errors = [error("NetworkPolicy shop/bad", "x"), error("Tier x", "y")];
        let spec = report(
            &objects,
            &selecting(&["ClusterNetworkPolicy web"]),
            &errors,
            Mode::All,
        );
        assert_eq!(spec.enforcement, Enforcement::All);
        let [web, bad] = &spec.policies[..] else {
            panic!("{spec:?}")
        };
        assert_eq!(
            (
                web.name.as_str(),
                web.uid.as_str(),
                web.generation,
                web.selects_pods,
                web.errors.len()
            ),
            ("web", "uid-web", 3, true, 0)
        );
        assert_eq!(
            (bad.namespace.as_str(), bad.name.as_str(), bad.selects_pods),
            ("shop", "bad", false)
        );
        assert_eq!(bad.errors, [field(&errors[0])]);
    }

    #[test]
    fn an_error_of_the_node_is_one_of_each_policy_that_selects_a_pod() {
        let objects = objects(&["web", "idle", "shop/bad"]);
        let keys = selecting(&["ClusterNetworkPolicy web", "NetworkPolicy shop/bad"]);
        let errors = [
            error("NetworkPolicy shop/bad", "x"),
            error("ClusterNetworkPolicy idle", "y"),
        ];
        let policies = NodePolicies {
            report: Some(Arc::new(report(&objects, &keys, &errors, Mode::All))),
            ..NodePolicies::default()
        };
        let of_node = FieldError {
            object: "this Node".to_owned(),
            field: "device".to_owned(),
            value: "cilium_host".to_owned(),
            reason: "is one".to_owned(),
        };
        let fields = |unenforced| {
            let applied = AppliedPolicies::new(&policies, unenforced).unwrap();
            let of = |policy: &PolicyReport| policy.errors.iter().map(|one| one.field.clone()).collect();
            applied.report.policies.iter().map(of).collect::<Vec<Vec<_>>>()
        };
        // Those of the cluster first.
        assert_eq!(fields(None), [vec!["spec.tier"], vec![], vec!["spec.tier"]]);
        let with = [
            vec!["spec.tier"],
            vec!["device of this Node"],
            vec!["device of this Node", "spec.tier"],
        ];
        assert_eq!(fields(Some(&of_node)), with);
    }

    fn applied(names: &[&str], rules: &[(u32, &str, &str)]) -> AppliedPolicies {
        let objects = objects(names);
        let keys: Vec<_> = objects
            .policies
            .iter()
            .map(|policy| policy.key.as_str())
            .collect();
        let rules = rules.iter().map(|(id, policy, rule)| {
            let name = RuleName {
                policy: (*policy).to_owned(),
                rule: (*rule).to_owned(),
                action: "Drop".to_owned(),
            };
            (*id, name)
        });
        AppliedPolicies {
            report: Arc::new(report(&objects, &selecting(&keys), &[], Mode::All)),
            rules: Arc::new(rules.collect()),
        }
    }

    fn counters(of: &[(u32, u64)]) -> BTreeMap<u32, RuleCounter> {
        let of = of.iter().map(|(id, packets)| {
            let bytes = packets.saturating_mul(74);
            (
                *id,
                RuleCounter {
                    packets: *packets,
                    bytes,
                },
            )
        });
        of.collect()
    }

    #[test]
    fn each_policy_has_the_counters_of_its_own_rules() {
        let applied = applied(
            &["web", "shop/web"],
            &[
                (1, "ClusterNetworkPolicy web", "spec.ingress[1]"),
                (2, "ClusterNetworkPolicy web", "spec.ingress[0]"),
                (3, "ClusterNetworkPolicy web", "spec.egress[0]"),
                (4, "NetworkPolicy shop/web", "spec.ingress[0]"),
                (5, "NetworkPolicy shop/other", "spec.ingress[0]"),
            ],
        );
        // Rule 3 has no packet, rule 5 is of a policy that is not in the report, and 6 is of a removed rule.
        let spec = applied.with_counters(&counters(&[
            (1, 3),
            (2, 7),
            (3, 0),
            (4, u64::MAX),
            (5, 9),
            (6, 9),
        ]));
        let [cluster, namespaced] = &spec.policies[..] else {
            panic!("{spec:?}")
        };
        let expected = [
            RuleReport::new("spec.ingress[0]", 7, 518),
            RuleReport::new("spec.ingress[1]", 3, 222),
        ];
        assert_eq!(cluster.rules, expected);
        let largest = RuleReport::new("spec.ingress[0]", u64::MAX, u64::MAX);
        assert_eq!(namespaced.rules, [largest]);
        assert_eq!(namespaced.rules[0].packets, i64::MAX.unsigned_abs());
        let without = applied.with_counters(&BTreeMap::new());
        assert_eq!(without, *applied.report, "counters that cannot be read");
    }

    #[test]
    fn rules_beyond_the_bound_are_counted() {
        let rules: Vec<_> = (0..MAX_ALL_RULES + 5)
            .map(|number| format!("spec.ingress[{number}]"))
            .collect();
        let named: Vec<_> = rules
            .iter()
            .zip(0..)
            .map(|(rule, id)| (id, "ClusterNetworkPolicy web", rule.as_str()))
            .collect();
        let all: Vec<_> = named.iter().map(|(id, _, _)| (*id, 1)).collect();
        let spec = applied(&["web"], &named).with_counters(&counters(&all));
        let [web] = &spec.policies[..] else {
            panic!("{spec:?}")
        };
        assert_eq!((web.rules.len(), web.omitted_rules), (MAX_ALL_RULES, 5));
    }

    proptest! {
        /// The order of objects and errors does not matter, so that a restart writes nothing.
        #[test]
        fn a_report_depends_on_its_content_alone(
            names in proptest::collection::btree_set("[a-c]{1,2}(/[a-c]{1,2})?", 0..8),
            picked in proptest::collection::vec((any::<prop::sample::Index>(), any::<bool>(), 0_u8..4), 0..12),
        ) {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            let mut objects = objects(&names);
            let keys: Vec<_> = objects.policies.iter().map(|policy| policy.key.clone()).collect();
            let mut selected = BTreeSet::new();
            let mut errors = Vec::new();
            for (index, selects, value) in picked.iter().filter(|_| !keys.is_empty()) {
                let key = index.get(&keys);
                if *selects {
                    selected.insert(Arc::from(key.as_str()));
                } else {
                    errors.push(error(key, &value.to_string()));
                }
            }
            let first = report(&objects, &selected, &errors, Mode::All);
            objects.policies.reverse();
            errors.reverse();
            prop_assert_eq!(&report(&objects, &selected, &errors, Mode::All), &first);
            prop_assert!(first.policies.is_sorted());
            for policy in &first.policies {
                prop_assert!(policy.selects_pods || policy.has_error());
            }
            let selecting = first.policies.iter().filter(|policy| policy.selects_pods).count();
            prop_assert_eq!(selecting, selected.len());
        }
    }
}
