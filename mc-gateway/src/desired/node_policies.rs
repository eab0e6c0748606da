//! The policies on packets of this node's Pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use mc_api::node_policy_status::NodePolicyStatusSpec;

use super::rule_names::RuleName;
use crate::policy::ProtectedPods;
use crate::policy_tables::PolicyTables;

/// Policies on packets of this node's Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePolicies {
    /// The tables; empty if no policy selects a Pod here.
    pub tables: Arc<PolicyTables>,
    /// The rules in the tables, by ID.
    pub rules: Arc<BTreeMap<u32, RuleName>>,
    /// Addresses of all Pods of this node.
    pub pods: Arc<BTreeSet<IpAddr>>,
    /// Whether the packets of the own cluster are policed as well, at the devices of the Pods.
    pub polices_cluster: bool,
    /// The Pods behind Services that are left to the service proxy and that policies protect; gateways only.
    pub protected: Arc<ProtectedPods>,
    /// Whether a policy of the cluster has a rule in force, also if it selects no Pod here.
    pub has_rules: bool,
    /// The report to the controllers without counters; none while policies are not enforced.
    pub report: Option<Arc<NodePolicyStatusSpec>>,
}

impl NodePolicies {
    /// Whether the packets of this node's Pods are policed at their devices.
    #[must_use]
    pub fn polices_devices(&self) -> bool {
        self.polices_cluster && !self.tables.is_empty()
    }

    /// Whether a Pod of this node has no network until the agent has seen it: any rule may apply to it.
    #[must_use]
    pub fn guards_pods(&self) -> bool {
        self.polices_cluster && self.has_rules
    }
}
