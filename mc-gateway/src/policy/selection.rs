//! The Pods that rules apply to, and the known identities.

use std::collections::BTreeMap;
use std::net::IpAddr;

use mc_api::label_identity::{Labels, MAX_ID, MIN_ID, NAMESPACE_NAME};
use mc_api::network_policy::{NamespaceMatch, PodMatch};

use super::model::{Identity, LocalPod, PolicySet};
use super::order::{EnforcedRule, enforced_rules};

/// A Pod with the labels of its Namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct LabelledPod<'a> {
    pub(super) pod: &'a LocalPod,
    pub(super) namespace: &'a Labels,
}

/// Labels of the Namespaces of all Pods, each with its name.
pub(super) fn namespaces(set: &PolicySet) -> BTreeMap<&str, Labels> {
    let mut namespaces = BTreeMap::new();
    for pod in set.local_pods.iter().chain(&set.cluster_pods) {
        namespaces.entry(pod.namespace.as_str()).or_insert_with(|| {
            let mut labels = set.namespaces.get(&pod.namespace).cloned().unwrap_or_default();
            labels
                .entry(NAMESPACE_NAME.to_owned())
                .or_insert_with(|| pod.namespace.clone());
            labels
        });
    }
    namespaces
}

/// The Pod of each address; the first one by Namespace and name if several have it.
pub(super) fn by_address<'a>(
    pods: &'a [LocalPod],
    namespaces: &'a BTreeMap<&str, Labels>,
) -> BTreeMap<IpAddr, LabelledPod<'a>> {
    let mut pods: Vec<&LocalPod> = pods.iter().collect();
    pods.sort_by_key(|pod| (&pod.namespace, &pod.name));
    let mut by_address = BTreeMap::new();
    for pod in pods {
        let Some(namespace) = namespaces.get(pod.namespace.as_str()) else {
            continue;
        };
        for ip in &pod.ips {
            by_address.entry(*ip).or_insert(LabelledPod { pod, namespace });
        }
    }
    by_address
}

/// The identities by ID. An ID with two different labels is unknown: it is given to another label while the old one is
/// still present here, and either could be the sender's.
pub(super) fn identities(set: &PolicySet) -> (BTreeMap<u32, &Identity>, Vec<u32>) {
    let mut identities: BTreeMap<u32, &Identity> = BTreeMap::new();
    let mut ambiguous = Vec::new();
    for identity in &set.identities {
        if !(MIN_ID..=MAX_ID).contains(&identity.id) {
            continue;
        }
        let known = *identities.entry(identity.id).or_insert(identity);
        if known != identity {
            ambiguous.push(identity.id);
        }
    }
    identities.retain(|id, _| !ambiguous.contains(id));
    ambiguous.sort_unstable();
    ambiguous.dedup();
    (identities, ambiguous)
}

/// Whether a rule applies to a Pod of the node.
#[must_use]
pub fn selects_local_pods(set: &PolicySet) -> bool {
    let (rules, _) = enforced_rules(set);
    let namespaces = namespaces(set);
    let pods = by_address(&set.local_pods, &namespaces);
    pods.values()
        .any(|pod| rules.iter().any(|rule| applies_to(rule, pod)))
}

/// Whether a rule applies to a Pod.
pub(super) fn applies_to(rule: &EnforcedRule<'_>, pod: &LabelledPod<'_>) -> bool {
    rule.applied_to.iter().any(|pods| selects(pods, pod))
}

fn selects(pods: &PodMatch, LabelledPod { pod, namespace }: &LabelledPod<'_>) -> bool {
    let is_in_namespace = match &pods.namespaces {
        NamespaceMatch::Any => true,
        NamespaceMatch::Named(name) => *name == pod.namespace,
        NamespaceMatch::Selector(selector) => selector.matches(namespace),
        // Relative to the Pod: only in peers.
        NamespaceMatch::Same | NamespaceMatch::SameLabels(_) => false,
    };
    is_in_namespace
        && has_account(pods.service_account.as_deref(), Some(&pod.service_account))
        && pods.pods.matches(&pod.labels)
}

/// Whether the `ServiceAccount` of a Pod, which is unknown of one in another cluster, is the wanted one, if any.
pub(super) fn has_account(wanted: Option<&str>, account: Option<&str>) -> bool {
    wanted.is_none() || wanted == account
}
