//! Classes of label identities that the same peers match.

use std::collections::BTreeMap;

use mc_api::label_identity::{Labels, NAMESPACE_NAME};
use mc_api::label_selector::LabelSelector;
use mc_api::network_policy::{NamespaceMatch, PodMatch};

use super::model::{HOST_IDENTITY, Identity};
use super::numbers::Numbers;
use super::selection::{LabelledPod, has_account};
use super::tables::{UNKNOWN_CLASS, UNMATCHED_CLASS};

/// A peer by labels, for one of the Pods that its rule applies to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LabelPeer<'a> {
    namespaces: Namespaces<'a>,
    pods: &'a LabelSelector,
    service_account: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Namespaces<'a> {
    Any,
    Named(&'a str),
    Selector(&'a LabelSelector),
    /// Values of labels.
    Labels(Vec<(&'a str, &'a str)>),
}

/// The classes.
#[derive(Debug, Default)]
pub(super) struct IdentityClasses {
    /// By identity.
    pub(super) by_id: BTreeMap<u32, u32>,
    /// The classes that a peer matches, by its number.
    pub(super) by_peer: BTreeMap<u32, Vec<u32>>,
    /// All classes, with that of unknown identities.
    pub(super) all: Vec<u32>,
}

// === impl LabelPeer ===

impl<'a> LabelPeer<'a> {
    /// The peer for this Pod, unless it matches nothing.
    pub(super) fn new(peer: &'a PodMatch, of: &LabelledPod<'a>) -> Option<Self> {
        let namespaces = match &peer.namespaces {
            NamespaceMatch::Any => Namespaces::Any,
            NamespaceMatch::Named(name) => Namespaces::Named(name),
            NamespaceMatch::Selector(selector) => Namespaces::Selector(selector),
            NamespaceMatch::Same => Namespaces::Named(&of.pod.namespace),
            NamespaceMatch::SameLabels(keys) => {
                let value = |key: &'a String| Some((key.as_str(), of.namespace.get(key)?.as_str()));
                Namespaces::Labels(keys.iter().map(value).collect::<Option<_>>()?)
            }
        };
        Some(Self {
            namespaces,
            pods: &peer.pods,
            service_account: peer.service_account.as_deref(),
        })
    }

    /// Whether the peer matches Pods with these labels and this `ServiceAccount` in a Namespace with those labels.
    pub(super) fn matches(&self, namespace: &Labels, pod: &Labels, service_account: Option<&str>) -> bool {
        let has = |key: &str, value: &str| namespace.get(key).is_some_and(|v| v == value);
        let is_in_namespace = match &self.namespaces {
            Namespaces::Any => true,
            Namespaces::Named(name) => has(NAMESPACE_NAME, name),
            Namespaces::Selector(selector) => selector.matches(namespace),
            Namespaces::Labels(labels) => labels.iter().all(|(key, value)| has(key, value)),
        };
        is_in_namespace && has_account(self.service_account, service_account) && self.pods.matches(pod)
    }
}

// === impl IdentityClasses ===

impl IdentityClasses {
    pub(super) fn new(identities: &BTreeMap<u32, &Identity>, peers: &BTreeMap<LabelPeer<'_>, u32>) -> Self {
        let mut classes = Numbers::beginning_with(Vec::new(), UNMATCHED_CLASS);
        let mut by_id: BTreeMap<u32, u32> = [(HOST_IDENTITY, UNMATCHED_CLASS)].into();
        for (id, identity) in identities {
            let matching = peers
                .iter()
                .filter(|(peer, _)| peer.matches(&identity.namespace, &identity.pod, None));
            let class = classes.number(matching.map(|(_, number)| *number).collect());
            by_id.insert(*id, class);
        }
        Self {
            by_id,
            by_peer: classes.by_member(),
            all: (UNKNOWN_CLASS..classes.next).collect(),
        }
    }
}
