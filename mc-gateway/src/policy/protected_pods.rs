//! The Pods that rules for ingress protect and that Services of the service proxy have as endpoints. Pure.
//!
//! The service proxy of a gateway hides the sender of a packet from another cluster, so no rule can match its labels.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::model::{Direction, PolicySet};
use super::order::enforced_rules;
use super::selection::{applies_to, by_address, namespaces};

/// The endpoints of Services that are left to the service proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxiedEndpoints {
    /// Their addresses.
    pub addrs: BTreeSet<IpAddr>,
    /// The Pod CIDRs of all Nodes of this cluster.
    pub pod_cidrs: BTreeSet<IpNet>,
}

/// The Pods that must not get packets without the address of their sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProtectedPods {
    /// The addresses of such Pods among the endpoints.
    pub addrs: BTreeSet<IpAddr>,
    /// Whether rules for ingress may deny packets to any Pod.
    pub any: bool,
}

/// The endpoints that are Pods to which rules for ingress may deny packets. An address in a Pod CIDR without a known
/// Pod counts: the Pod may be new, or one of another Node where only those of this Node are known.
#[must_use]
pub fn protected_pods(set: &PolicySet, endpoints: &ProxiedEndpoints) -> ProtectedPods {
    let (mut rules, _) = enforced_rules(set);
    rules
        .retain(|rule| rule.name.direction == Direction::Ingress && !rule.is_audited && rule.action.denies());
    if rules.is_empty() || endpoints.addrs.is_empty() {
        return ProtectedPods {
            addrs: BTreeSet::new(),
            any: !rules.is_empty(),
        };
    }
    let namespaces = namespaces(set);
    let [local, cluster] = [&set.local_pods, &set.cluster_pods].map(|pods| by_address(pods, &namespaces));
    let is_protected = |addr: &IpAddr| match local.get(addr).or_else(|| cluster.get(addr)) {
        Some(pod) => rules.iter().any(|rule| applies_to(rule, pod)),
        None => endpoints.pod_cidrs.iter().any(|cidr| cidr.contains(addr)),
    };
    ProtectedPods {
        addrs: endpoints.addrs.iter().copied().filter(is_protected).collect(),
        any: true,
    }
}
