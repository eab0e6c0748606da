//! Policies of Antrea (`crd.antrea.io/v1beta1`), their Tiers and groups.
//!
//! The kinds carry an opaque spec, so that one invalid object does not stop the watch of its kind. [`parse()`],
//! [`parse_group`] and [`parse_tier`] convert specs to types: Pods, Namespaces, addresses and ports (layers 3 and 4).
//!
//! *Guarantee*: a field that is not supported never makes a rule match more, see [`Realization`].

mod direction;
mod enforcement;
mod error;
mod fields;
mod group;
mod group_status;
mod kinds;
mod object_name;
mod parse;
mod peer;
mod policy;
mod service;
mod status;
mod tier;

pub use direction::Direction;
pub use enforcement::{ENFORCEMENT_ACTION, EnforcementAction};
pub use error::{FieldError, PolicyError};
pub use group::{Group, GroupContents, parse_group};
pub use group_status::{GROUP_MEMBERS_COMPUTED, GroupCondition, GroupKind, GroupStatus};
pub use kinds::{
    AntreaAgentInfo, AntreaControllerInfo, ClusterGroup, ClusterNetworkPolicy, GROUP, NamespacedGroup,
    NetworkPolicy, Tier,
};
pub use object_name::ObjectName;
pub use parse::parse;
pub use peer::{AppliedTo, IpBlock, NamespaceMatch, Peer, PodMatch, Scope};
pub use policy::{Action, Policy, Priority, Realization, Rule};
pub use service::{L4Protocol, Service};
pub use status::{
    NetworkPolicyStatus, Phase, PolicyKind, REALIZABLE, REALIZATION_FAILURE, RuleTrafficStats, TrafficStats,
};
pub use tier::{BASELINE_TIER, DEFAULT_TIER, DEFAULT_TIERS, parse_tier, tier};

use serde_json::Value;

/// Removes null fields, which are equivalent to absent ones.
#[must_use]
pub fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, v)| !v.is_null())
            .map(|(k, v)| (k.clone(), without_nulls(v)))
            .collect(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
