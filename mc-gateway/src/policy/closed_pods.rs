//! The Pods of policies that are not enforced, which are closed. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::model::{Direction, PolicySet};
use super::order::enforced_rules;
use super::selection::{applies_to, by_address, namespaces};

/// Addresses of Pods of which new flows are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedPods {
    /// Those of which packets to the Pod are dropped.
    pub ingress: BTreeSet<IpAddr>,
    /// Those of which packets from the Pod are dropped.
    pub egress: BTreeSet<IpAddr>,
}

impl ClosedPods {
    /// The Pods of the Node to which a rule of these policies applies, by the directions of the rules. Audited policies
    /// close no Pod. `policies` has keys like [`Policy::object`](mc_api::network_policy::Policy::object).
    #[must_use]
    pub fn of(set: &PolicySet, policies: &BTreeSet<String>) -> Self {
        let mut closed = Self::default();
        let (mut rules, _) = enforced_rules(set);
        rules.retain(|rule| !rule.is_audited && policies.contains(&*rule.name.policy));
        let namespaces = namespaces(set);
        for (ip, pod) in by_address(&set.local_pods, &namespaces) {
            for rule in rules.iter().filter(|rule| applies_to(rule, &pod)) {
                match rule.name.direction {
                    Direction::Ingress => closed.ingress.insert(ip),
                    Direction::Egress => closed.egress.insert(ip),
                };
            }
        }
        closed
    }

    /// Whether no Pod is closed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ingress.is_empty() && self.egress.is_empty()
    }
}
