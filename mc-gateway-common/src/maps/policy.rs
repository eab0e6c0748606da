//! Access to the maps of network policies.

use crate::abi::{
    Addr,
    policy::{
        AddressClassKey, ExporterKey, LabelIdentity, PeerRulesKey, PolicyPod, PolicyPodKey, PolicyState,
        Rule, RuleKey,
    },
    service::ReplyKey,
};

/// The tables of policies, and the flows that pass.
pub trait Policies {
    /// The tables in use.
    fn policy_state(&self) -> PolicyState;
    /// A Pod of this node.
    fn policy_pod(&self, key: &PolicyPodKey) -> Option<PolicyPod>;
    /// The Pod in an [`unselected_slot`](crate::abi::policy::unselected_slot); zeros in an unused one.
    fn unselected_pod(&self, slot: u32) -> Addr;
    /// The label identity in a [`half_slot`](crate::abi::policy::half_slot); the default value for a number
    /// that no label has.
    fn identity(&self, slot: u32) -> LabelIdentity;
    /// Whether a cluster exports the label identities with a set of exporters.
    fn is_exporter(&self, key: &ExporterKey) -> bool;
    /// Class of the longest block that contains the address.
    fn address_class(&self, key: &AddressClassKey) -> Option<u32>;
    /// The rule for a port in network order, of a set without
    /// [`SET_BY_PREFIX`](crate::abi::policy::SET_BY_PREFIX); [`Rule::NONE`] without any. An optional rule
    /// would be copied while it is undefined, which the verifier rejects.
    fn peer_rule(&self, key: &PeerRulesKey, port: [u8; 2]) -> Rule;
    /// The rule for a packet, of a set with [`SET_BY_PREFIX`](crate::abi::policy::SET_BY_PREFIX); [`Rule::NONE`]
    /// without any.
    fn policy_rule(&self, key: &RuleKey) -> Rule;
    /// Counts a packet of this many bytes on which a rule has decided, by the ID of the rule.
    fn count_rule(&self, rule: u32, bytes: u32);
    /// Time of the last packet of a flow.
    fn policy_flow(&self, key: &ReplyKey) -> Option<u64>;
    /// Stores the time of the last packet of a flow. Without an entry, the rules decide on the next packet again.
    fn set_policy_flow(&self, key: &ReplyKey, time: u64);
}

#[cfg(any(test, feature = "std"))]
pub use host::PolicyMaps;

#[cfg(any(test, feature = "std"))]
mod host {
    use std::{
        cell::RefCell,
        collections::{BTreeMap, BTreeSet},
    };

    use super::{
        Addr, AddressClassKey, ExporterKey, LabelIdentity, PeerRulesKey, Policies, PolicyPod, PolicyPodKey,
        PolicyState, ReplyKey, Rule, RuleKey,
    };
    use crate::{
        abi::policy::{ADDRESS_CLASS_BITS, PeerRules, RULE_BITS, RuleCounter},
        maps::MemoryMaps,
    };

    /// The maps of policies in memory.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct PolicyMaps {
        /// See [`Policies::policy_state`].
        pub state: PolicyState,
        /// See [`Policies::policy_pod`].
        pub pods: BTreeMap<PolicyPodKey, PolicyPod>,
        /// See [`Policies::unselected_pod`].
        pub unselected: BTreeMap<u32, Addr>,
        /// See [`Policies::identity`].
        pub identities: BTreeMap<u32, LabelIdentity>,
        /// See [`Policies::is_exporter`].
        pub exporters: BTreeSet<ExporterKey>,
        /// Length and key to class.
        pub address_classes: BTreeMap<(u32, AddressClassKey), u32>,
        /// See [`Policies::peer_rule`].
        pub peer_rules: BTreeMap<PeerRulesKey, PeerRules>,
        /// Length and key to rule.
        pub rules: BTreeMap<(u32, RuleKey), Rule>,
        /// See [`Policies::policy_flow`].
        pub flows: RefCell<BTreeMap<ReplyKey, u64>>,
        /// See [`Policies::count_rule`].
        pub counters: RefCell<BTreeMap<u32, RuleCounter>>,
    }

    impl Policies for MemoryMaps {
        fn policy_state(&self) -> PolicyState {
            self.policies.state
        }

        fn policy_pod(&self, key: &PolicyPodKey) -> Option<PolicyPod> {
            self.policies.pods.get(key).copied()
        }

        fn unselected_pod(&self, slot: u32) -> Addr {
            self.policies.unselected.get(&slot).copied().unwrap_or_default()
        }

        fn identity(&self, slot: u32) -> LabelIdentity {
            self.policies.identities.get(&slot).copied().unwrap_or_default()
        }

        fn is_exporter(&self, key: &ExporterKey) -> bool {
            self.policies.exporters.contains(key)
        }

        fn address_class(&self, key: &AddressClassKey) -> Option<u32> {
            let addr = u128::from_be_bytes(key.addr);
            let classes = &self.policies.address_classes;
            (ADDRESS_CLASS_BITS..=ADDRESS_CLASS_BITS.wrapping_add(128))
                .rev()
                .find_map(|len| {
                    let host_bits = ADDRESS_CLASS_BITS.wrapping_add(128).wrapping_sub(len);
                    let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
                    let network = AddressClassKey {
                        addr: (addr & mask).to_be_bytes(),
                        ..*key
                    };
                    classes.get(&(len, network)).copied()
                })
        }

        fn peer_rule(&self, key: &PeerRulesKey, port: [u8; 2]) -> Rule {
            let rules = self.policies.peer_rules.get(key);
            rules.map_or(Rule::NONE, |rules| rules.at(port))
        }

        fn policy_rule(&self, key: &RuleKey) -> Rule {
            let port = u16::from_be_bytes(key.port);
            let longest = (0..=16_u32).rev().find_map(|bits| {
                let mask = u16::MAX.checked_shl(16_u32.wrapping_sub(bits)).unwrap_or(0);
                let prefix = RuleKey {
                    port: (port & mask).to_be_bytes(),
                    ..*key
                };
                self.policies
                    .rules
                    .get(&(RULE_BITS.wrapping_add(bits), prefix))
                    .copied()
            });
            longest.unwrap_or(Rule::NONE)
        }

        fn count_rule(&self, rule: u32, bytes: u32) {
            let mut counters = self.policies.counters.borrow_mut();
            counters.entry(rule).or_default().count(bytes);
        }

        fn policy_flow(&self, key: &ReplyKey) -> Option<u64> {
            self.policies.flows.borrow().get(key).copied()
        }

        fn set_policy_flow(&self, key: &ReplyKey, time: u64) {
            self.policies.flows.borrow_mut().insert(*key, time);
        }
    }
}
