//! The tables of network policies as the maps have them, for one half.

mod peer_rules;

use std::collections::{BTreeMap, BTreeSet};

use mc_gateway_common::abi::Addr;
use mc_gateway_common::abi::policy::{
    ENFORCED_EGRESS, ENFORCED_INGRESS, LabelIdentity, NO_RULES, POD_CLOSED, PolicyPod, Rule, SET_BY_PREFIX,
};

pub use self::peer_rules::PeerClass;
use crate::shared_map::SharedMap;

/// Set, peer, protocol and ports of a rule. Sorted like [`RuleKey`](crate::policy::RuleKey), so that tables are
/// converted in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RulePrefix {
    /// Set, peer and protocol.
    pub peer: PeerClass,
    /// First port of the range.
    pub port: u16,
    /// Common bits of the ports, 0 to 16.
    pub bits: u8,
}

/// The entries of one half of the policy maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyTables {
    /// `mc_policy_pods` for ingress.
    pub pods: BTreeMap<Addr, PolicyPod>,
    /// `mc_policy_pods` for egress.
    pub egress_pods: BTreeMap<Addr, PolicyPod>,
    /// The other Pods of the node, which are in `mc_policy_pods` for ingress.
    pub unselected: BTreeSet<Addr>,
    /// `mc_unselected`: [`unselected_number`] to the Pod.
    ///
    /// [`unselected_number`]: mc_gateway_common::abi::policy::unselected_number
    pub unselected_slots: BTreeMap<u32, Addr>,
    /// `mc_identities`: numbers below `MAX_IDENTITIES` to their class and set of exporters.
    pub identities: BTreeMap<u32, LabelIdentity>,
    /// `mc_exporters`: number of a set and ID of a cluster in it.
    pub exporters: BTreeSet<(u32, u64)>,
    /// `mc_addr_classes`: length in bits, 96 and more for IPv4, and network to class.
    pub address_classes: BTreeMap<(u32, Addr), u32>,
    /// `mc_peer_rules` and `mc_policy_rules`; hundreds of thousands of rules in a large cluster.
    ///
    /// *Guarantee*: in a set without `SET_BY_PREFIX`, a peer and a protocol have `PEER_RULE_PORTS` prefixes at most.
    pub rules: SharedMap<RulePrefix, Rule>,
}

impl RulePrefix {
    /// Whether the rule is in `mc_policy_rules`.
    #[must_use]
    pub const fn is_by_prefix(&self) -> bool {
        self.peer.set & SET_BY_PREFIX != 0
    }
}

impl PolicyTables {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        let Self {
            pods,
            egress_pods,
            unselected,
            unselected_slots,
            identities,
            exporters,
            address_classes,
            rules,
        } = self;
        [
            pods.len(),
            egress_pods.len(),
            unselected.len(),
            unselected_slots.len(),
            identities.len(),
            exporters.len(),
            address_classes.len(),
            rules.len(),
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }

    /// Number of entries of `mc_policy_pods`.
    #[must_use]
    pub fn pods(&self) -> usize {
        let pods = self.pods.len().saturating_add(self.egress_pods.len());
        pods.saturating_add(self.unselected.len())
    }

    /// The directions with rules, as in [`PolicyState::enforced`].
    ///
    /// [`PolicyState::enforced`]: mc_gateway_common::abi::policy::PolicyState::enforced
    #[must_use]
    pub fn enforced(&self) -> u32 {
        let of = |pods: &BTreeMap<_, _>, flag| if pods.is_empty() { 0 } else { flag };
        of(&self.pods, ENFORCED_INGRESS) | of(&self.egress_pods, ENFORCED_EGRESS)
    }

    /// Whether some rule is in force: with audited policies alone, no packet is dropped.
    #[must_use]
    pub fn drops(&self) -> bool {
        let mut pods = self.pods.values().chain(self.egress_pods.values());
        pods.any(|pod| pod.enforced != NO_RULES || pod.flags & POD_CLOSED != 0)
    }

    /// Whether there is no entry: no policy is enforced or audited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
