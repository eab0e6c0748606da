//! Policies and their rules.

use std::{cmp::Ordering, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{
    enforcement::{ENFORCEMENT_ACTION, EnforcementAction},
    error::{FieldError, PolicyError},
    object_name::ObjectName,
    peer::{AppliedTo, Peer},
    service::Service,
};

/// A `ClusterNetworkPolicy`, or a `NetworkPolicy` if its name has a Namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name.
    pub name: ObjectName,
    /// `metadata.creationTimestamp` in RFC 3339, UTC, if set. Orders policies of equal priority; [`super::parse()`]
    /// leaves it empty.
    pub created: Option<String>,
    /// Name of its Tier.
    pub tier: String,
    /// Order within the Tier.
    pub priority: Priority,
    /// Whether its rules decide on packets; [`super::parse()`] leaves the default.
    pub enforcement: EnforcementAction,
    /// Rules for packets to the Pods, in order.
    pub ingress: Vec<Rule>,
    /// Rules for packets from the Pods, in order.
    pub egress: Vec<Rule>,
}

/// A rule. It matches a packet if Pod, peer and service match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its name, if set.
    pub name: Option<String>,
    /// The action on matching packets.
    pub action: Action,
    /// Pods of this cluster to which the rule applies: those of the rule, else those of the policy.
    pub applied_to: Arc<[AppliedTo]>,
    /// The other side of the traffic; `None` for any.
    pub peers: Option<Vec<Peer>>,
    /// Ports and protocols; `None` for all.
    pub services: Option<Vec<Service>>,
    /// The part of the rule that can be enforced.
    pub realization: Realization,
}

/// The part of a rule that can be enforced.
///
/// A rule with errors never matches more than its author intends, and never a part of the packets that it has to
/// reject:
///
/// - `Allow` and `Pass` lose the peers, ports and Pods that are in error (they match nothing). The packets concerned
///   reach later rules, as if the entry were absent.
/// - `Drop` and `Reject` are left out if any of their peers, ports or Pods is in error: a rule that rejects some of
///   its packets appears to be in force while others pass. The errors name the rule, so that its state is one of two.
/// - An error that no entry contains (action, layer 7 protocols, unknown fields) leaves out the rule, whose condition
///   is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Realization {
    /// The rule is left out.
    None,
    /// Entries with errors match nothing.
    Partial,
    /// The whole rule.
    Full,
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The packet passes.
    Allow,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped and its sender notified.
    Reject,
    /// The policies of Kubernetes decide.
    Pass,
}

/// The order of policies within a Tier: 1 to 10000, also fractions, a smaller number first.
#[derive(Clone, Copy, Debug)]
pub struct Priority(f64);

// === impl Policy ===

impl Policy {
    /// Kind and name, as in errors.
    #[must_use]
    pub fn object(&self) -> String {
        object(&self.name)
    }

    /// Takes the enforcement from the annotation of the policy's object. Returns the error of an unknown name, which
    /// has no effect, so that a misspelt one opens nothing.
    #[must_use]
    pub fn read_annotation(&mut self, metadata: &ObjectMeta) -> Option<FieldError> {
        match EnforcementAction::of_object(metadata) {
            Ok(enforcement) => {
                self.enforcement = enforcement;
                None
            }
            Err(name) => Some(FieldError::new(
                self.object(),
                &format!("metadata.annotations[{ENFORCEMENT_ACTION}]"),
                &Value::String(name.to_owned()),
                PolicyError::EnforcementAction,
            )),
        }
    }

    /// Whether its rules decide on no packet.
    #[must_use]
    pub fn is_audited(&self) -> bool {
        self.enforcement == EnforcementAction::Audit
    }
}

/// Kind and name of a policy.
pub(super) fn object(name: &ObjectName) -> String {
    name.with_kind("ClusterNetworkPolicy", "NetworkPolicy")
}

// === impl Rule ===

impl Rule {
    /// Whether a packet to a Service matches this rule for egress by the endpoints of the Service: unless the rule
    /// names Services, matches every packet, or has no port that a Service can have.
    #[must_use]
    pub fn compares_endpoints(&self) -> bool {
        let has_port = |service: &Service| matches!(service, Service::Ports { .. } | Service::Named { .. });
        let is_for_ports = |list: &Vec<Service>| list.iter().any(has_port);
        match &self.peers {
            None => self.services.as_ref().is_some_and(is_for_ports),
            Some(peers) => {
                peers.iter().any(|peer| !matches!(peer, Peer::Service(_)))
                    && self.services.as_ref().is_none_or(is_for_ports)
            }
        }
    }
}

// === impl Action ===

impl Action {
    /// Its value in a policy.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "Allow",
            Self::Drop => "Drop",
            Self::Reject => "Reject",
            Self::Pass => "Pass",
        }
    }

    /// The action of this name; `Deny` is `Drop`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "Allow" => Some(Self::Allow),
            "Drop" | "Deny" => Some(Self::Drop),
            "Reject" => Some(Self::Reject),
            "Pass" => Some(Self::Pass),
            _ => None,
        }
    }

    /// Whether matching packets do not reach the Pod.
    #[must_use]
    pub fn denies(self) -> bool {
        matches!(self, Self::Drop | Self::Reject)
    }
}

// === impl Priority ===

impl Priority {
    /// The last priority.
    pub const LAST: Self = Self(10_000.0);

    /// The priority of this value, if it is in range.
    #[must_use]
    pub fn try_new(value: f64) -> Option<Self> {
        (1.0..=10_000.0).contains(&value).then_some(Self(value))
    }
}

impl PartialEq for Priority {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Priority {}

impl PartialOrd for Priority {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Priority {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
