//! The rules in force and those of audited policies, in their order, with groups and Services resolved.
//!
//! Where Antrea enforces the rest of the policies, only peers by labels in other clusters are in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use mc_api::network_policy::{
    Action, AppliedTo, BASELINE_TIER, DEFAULT_TIER, DEFAULT_TIERS, GroupContents, IpBlock, NamespaceMatch,
    ObjectName, Peer, PodMatch, Policy, Realization, Rule, Scope, Service,
};

use super::model::{Direction, Mode, PolicySet, RulePart, RuleRef, ServicePeer};
use crate::objects::FieldError;

/// A rule in force, or one that is audited.
#[derive(Debug)]
pub(super) struct EnforcedRule<'a> {
    pub(super) name: RuleRef,
    pub(super) action: Action,
    /// Ports and protocols; `None` for all.
    pub(super) services: Option<&'a [Service]>,
    /// The Pods it applies to.
    pub(super) applied_to: Vec<&'a PodMatch>,
    /// The peers it matches.
    pub(super) peers: Vec<RulePeer<'a>>,
    /// Whether it has peers by labels in other clusters, also ones that match nothing.
    pub(super) has_label_peers: bool,
    /// Whether it decides on no packet.
    pub(super) is_audited: bool,
}

/// Peers of a rule.
#[derive(Clone, Copy, Debug)]
pub(super) enum RulePeer<'a> {
    /// All, also those of unknown identity.
    Every,
    /// Senders in other clusters of unknown identity.
    UnknownSenders,
    /// Pods in other clusters by labels.
    RemotePods(&'a PodMatch),
    /// Pods in the own cluster by labels.
    ClusterPods(&'a PodMatch),
    /// Addresses.
    Block(&'a IpBlock),
    /// A Service.
    Service(&'a ServicePeer),
}

/// The members of a group that a rule refers to.
struct Members<'a> {
    pods: Vec<&'a PodMatch>,
    blocks: Vec<&'a IpBlock>,
    /// Whether a spec in it has an error.
    is_unsupported: bool,
}

/// Conversion of one set of policies.
struct Orderer<'a> {
    mode: Mode,
    groups: BTreeMap<&'a ObjectName, &'a GroupContents>,
    services: BTreeMap<&'a ObjectName, &'a ServicePeer>,
    issues: Vec<FieldError>,
}

/// The rules of the set's mode in their order, audited ones included, and issues of their references.
pub(super) fn enforced_rules(set: &PolicySet) -> (Vec<EnforcedRule<'_>>, Vec<FieldError>) {
    ordered_rules(set, set.mode)
}

/// As [`enforced_rules`], with the rules of another mode.
pub(super) fn ordered_rules(set: &PolicySet, mode: Mode) -> (Vec<EnforcedRule<'_>>, Vec<FieldError>) {
    let mut orderer = Orderer {
        mode,
        groups: set
            .groups
            .iter()
            .map(|group| (&group.name, &group.contents))
            .collect(),
        services: set
            .services
            .iter()
            .map(|service| (&service.name, service))
            .collect(),
        issues: Vec::new(),
    };
    let mut policies = Vec::new();
    for policy in &set.policies {
        let tier = orderer.tier_order(set, policy);
        policies.push(((tier, policy.priority, &policy.created, &policy.name), policy));
    }
    policies.sort_by_key(|(order, _)| *order);
    let mut rules = Vec::new();
    for (_, policy) in policies {
        let object: Arc<str> = policy.object().into();
        for (direction, list) in [
            (Direction::Ingress, &policy.ingress),
            (Direction::Egress, &policy.egress),
        ] {
            for (index, rule) in list.iter().enumerate() {
                let name = RuleRef {
                    policy: Arc::clone(&object),
                    direction,
                    index,
                    part: RulePart::Rule,
                };
                rules.extend(orderer.enforced(policy, name, rule));
            }
        }
    }
    // The programs drop unknown senders behind all rules, so the audited drops come last.
    let unknown_senders: Vec<_> = rules.iter().filter_map(EnforcedRule::unknown_senders).collect();
    rules.extend(unknown_senders);
    orderer
        .issues
        .sort_by(|a, b| (&a.object, &a.field, &a.value).cmp(&(&b.object, &b.field, &b.value)));
    orderer.issues.dedup();
    (rules, orderer.issues)
}

// === impl Orderer ===

impl<'a> Orderer<'a> {
    /// Orders Tiers: the baseline Tier is the last one. A policy of an unknown Tier is enforced in the default one, as
    /// Antrea does: left out, its rules would not drop any packet.
    fn tier_order(&mut self, set: &PolicySet, policy: &Policy) -> (bool, u8) {
        let default = |name: &str| {
            DEFAULT_TIERS
                .iter()
                .find(|(tier, _)| *tier == name)
                .map(|(_, p)| *p)
        };
        let known = default(&policy.tier).or_else(|| set.tiers.get(&policy.tier).copied());
        if known.is_none() {
            let reason = format!("is not a Tier, so the policy is enforced in the Tier {DEFAULT_TIER}");
            self.issue(policy.object(), "spec.tier".to_owned(), &policy.tier, reason);
        }
        let priority = known.or_else(|| default(DEFAULT_TIER)).unwrap_or(u8::MAX);
        (policy.tier == BASELINE_TIER, priority)
    }

    fn issue(&mut self, object: String, field: String, value: &str, reason: String) {
        self.issues.push(FieldError {
            object,
            field,
            value: value.to_owned(),
            reason,
        });
    }

    fn enforced(&mut self, policy: &'a Policy, name: RuleRef, rule: &'a Rule) -> Option<EnforcedRule<'a>> {
        let of_antrea = name.direction == Direction::Egress && self.mode == Mode::ClusterSetOnly;
        if rule.realization == Realization::None || of_antrea {
            return None;
        }
        let mut enforced = EnforcedRule {
            name,
            action: rule.action,
            services: rule.services.as_deref(),
            applied_to: Vec::new(),
            peers: Vec::new(),
            has_label_peers: false,
            is_audited: policy.is_audited(),
        };
        // Both are converted before either leaves the rule out, so that all issues are reported at once.
        let is_supported = self.add_applied_to(policy, rule, &mut enforced);
        let is_supported = self.add_peers(policy, rule, &mut enforced) && is_supported;
        if !is_supported && rule.action.denies() {
            return None;
        }
        (!enforced.peers.is_empty() || enforced.has_label_peers).then_some(enforced)
    }

    /// Whether all entries are supported; others select no Pod.
    fn add_applied_to(
        &mut self,
        policy: &'a Policy,
        rule: &'a Rule,
        enforced: &mut EnforcedRule<'a>,
    ) -> bool {
        let mut is_supported = true;
        for entry in &*rule.applied_to {
            match entry {
                AppliedTo::Pods(pods) => enforced.applied_to.push(pods),
                AppliedTo::Unsupported => is_supported = false,
                AppliedTo::Group(name) => {
                    // The entry is that of the policy, unless the rule has its own.
                    let members = self.members(policy, "appliedTo", name);
                    let has_only_own = members.pods.iter().all(|pods| is_own(policy, pods));
                    if !has_only_own || !members.blocks.is_empty() {
                        let reason = if has_only_own {
                            "has addresses, to which no rule applies"
                        } else {
                            "has Pods of other Namespaces, to which a namespaced policy does not apply"
                        };
                        self.issue(policy.object(), "appliedTo".to_owned(), name, reason.to_owned());
                        is_supported = false;
                    } else {
                        is_supported &= !members.is_unsupported;
                        enforced.applied_to.extend(members.pods);
                    }
                }
            }
        }
        is_supported
    }

    /// Whether all peers are supported; others match nothing.
    fn add_peers(&mut self, policy: &'a Policy, rule: &'a Rule, enforced: &mut EnforcedRule<'a>) -> bool {
        let all = self.mode == Mode::All;
        let Some(peers) = &rule.peers else {
            if all {
                enforced.peers.push(RulePeer::Every);
            }
            return true;
        };
        let mut is_supported = true;
        for (index, peer) in peers.iter().enumerate() {
            match peer {
                Peer::Pods { scope, pods } => enforced.add_pods(self.mode, *scope, &[pods]),
                Peer::Unsupported { scope } => enforced.add_pods(self.mode, *scope, &[]),
                Peer::Block(block) if all => enforced.peers.push(RulePeer::Block(block)),
                Peer::Block(_) => {}
                Peer::Service(name) => {
                    let service = self.services.get(name).copied();
                    if service.is_none_or(|service| service.ips.is_empty()) {
                        let field = format!("{}.toServices", enforced.name.path());
                        let reason = "is not a Service with an address".to_owned();
                        self.issue(policy.object(), field, &name.to_string(), reason);
                    }
                    enforced.peers.extend(service.map(RulePeer::Service));
                }
                Peer::Group { scope, name } => {
                    let list = match enforced.name.direction {
                        Direction::Ingress => "from",
                        Direction::Egress => "to",
                    };
                    let field = format!("{}.{list}[{index}].group", enforced.name.path());
                    let members = self.members(policy, &field, name);
                    is_supported &= !members.is_unsupported;
                    enforced.add_pods(self.mode, *scope, &members.pods);
                    if all {
                        enforced
                            .peers
                            .extend(members.blocks.into_iter().map(RulePeer::Block));
                    }
                }
            }
        }
        is_supported
    }

    /// The members of a group and of its child groups. An absent group has none until it exists, which is an issue.
    fn members(&mut self, policy: &Policy, field: &str, name: &str) -> Members<'a> {
        let mut members = Members {
            pods: Vec::new(),
            blocks: Vec::new(),
            is_unsupported: false,
        };
        match self.group(policy, field, name) {
            Some(GroupContents::Children(children)) => {
                for child in children {
                    match self.group(policy, field, child) {
                        Some(GroupContents::Children(_)) => {
                            let reason = "has child groups, which a child group must not have".to_owned();
                            self.issue(policy.object(), field.to_owned(), child, reason);
                            members.is_unsupported = true;
                        }
                        contents => members.add(contents),
                    }
                }
            }
            contents => members.add(contents),
        }
        if members.is_unsupported {
            let reason = "is a group with an unsupported spec".to_owned();
            self.issue(policy.object(), field.to_owned(), name, reason);
        }
        members
    }

    fn group(&mut self, policy: &Policy, field: &str, name: &str) -> Option<&'a GroupContents> {
        let key = ObjectName {
            namespace: policy.name.namespace.clone(),
            name: name.to_owned(),
        };
        let contents = self.groups.get(&key).copied();
        if contents.is_none() {
            let reason = "is not a group".to_owned();
            self.issue(policy.object(), field.to_owned(), name, reason);
        }
        contents
    }
}

/// Whether a policy may apply to these Pods of a group: a namespaced one to those of its Namespace.
fn is_own(policy: &Policy, pods: &PodMatch) -> bool {
    match (&policy.name.namespace, &pods.namespaces) {
        (None, _) => true,
        (Some(own), NamespaceMatch::Named(name)) => own == name,
        (Some(_), _) => false,
    }
}

// === impl EnforcedRule ===

impl<'a> EnforcedRule<'a> {
    /// Whether the rule has no condition on packets.
    pub(super) fn matches_every_packet(&self) -> bool {
        self.services.is_none() && self.peers.iter().any(|peer| matches!(peer, RulePeer::Every))
    }

    /// Whether a Service is one of its peers.
    pub(super) fn names(&self, service: &ObjectName) -> bool {
        self.peers
            .iter()
            .any(|peer| matches!(peer, RulePeer::Service(peer) if peer.name == *service))
    }

    /// Whether a peer depends on the Namespace of the Pod that the rule applies to.
    pub(super) fn has_relative_peers(&self) -> bool {
        self.peers.iter().any(|peer| match peer {
            RulePeer::RemotePods(pods) | RulePeer::ClusterPods(pods) => matches!(
                pods.namespaces,
                NamespaceMatch::Same | NamespaceMatch::SameLabels(_)
            ),
            RulePeer::Every | RulePeer::UnknownSenders | RulePeer::Block(_) | RulePeer::Service(_) => false,
        })
    }

    /// The drop of unknown senders that an audited rule with peers by labels in other clusters would bring about, as a
    /// rule behind all others.
    fn unknown_senders(&self) -> Option<Self> {
        (self.is_audited && self.has_label_peers).then(|| Self {
            name: RuleRef {
                part: RulePart::UnknownSenders,
                ..self.name.clone()
            },
            action: Action::Drop,
            services: None,
            applied_to: self.applied_to.clone(),
            peers: vec![RulePeer::UnknownSenders],
            has_label_peers: false,
            is_audited: true,
        })
    }

    /// Adds Pods of the clusters in the scope.
    fn add_pods(&mut self, mode: Mode, scope: Scope, pods: &[&'a PodMatch]) {
        if scope == Scope::ClusterSet {
            self.has_label_peers = true;
            self.peers.extend(pods.iter().copied().map(RulePeer::RemotePods));
        }
        if mode == Mode::All {
            self.peers.extend(pods.iter().copied().map(RulePeer::ClusterPods));
        }
    }
}

// === impl Members ===

impl<'a> Members<'a> {
    fn add(&mut self, contents: Option<&'a GroupContents>) {
        match contents {
            None | Some(GroupContents::Children(_)) => {}
            Some(GroupContents::Pods(pods)) => self.pods.push(pods),
            Some(GroupContents::Blocks(blocks)) => self.blocks.extend(blocks),
            Some(GroupContents::Unsupported) => self.is_unsupported = true,
        }
    }
}
