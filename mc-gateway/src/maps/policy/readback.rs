//! Comparison of the policy maps with known entries, without a copy of the maps: a large set of policies has hundreds
//! of thousands of entries.

use aya::maps::lpm_trie::Key;
use mc_gateway_common::abi::policy::{
    self as abi, ADDRESS_CLASS_BITS, AddressClassKey, DIRECTION_EGRESS, ExporterKey, PeerRulesKey, PolicyPod,
    PolicyPodKey, RuleKey, half_slot,
};

use super::{PinnedPolicyMaps, PolicyContents, peer_class, rule_prefix};
use crate::maps::batch;
use crate::maps::entries::has_entries;
use crate::maps::error::{MapsError, map_error};
use crate::policy_tables::PolicyTables;

impl PinnedPolicyMaps {
    /// Reads every entry. The maps are read to another copy only if they differ from the `known` entries.
    pub(in crate::maps) fn read_again(&self, known: &PolicyContents) -> Result<PolicyContents, MapsError> {
        if self.has(known, self.identities.len())? {
            Ok(known.clone())
        } else {
            self.read()
        }
    }

    /// Whether the maps hold exactly the expected entries. Slots of identities beyond the expected ones, which are
    /// most of that map, are compared by [`Self::read_again`] only.
    pub(in crate::maps) fn is_unchanged(&self, expected: &PolicyContents) -> Result<bool, MapsError> {
        let last = expected
            .tables
            .iter()
            .filter_map(|of| of.identities.keys().next_back());
        let slots = last
            .max()
            .map_or(0, |number| half_slot(*number, 1).saturating_add(1));
        self.has(expected, slots)
    }

    /// Whether the maps hold exactly the expected entries, among them the identities in the first `slots`.
    fn has(&self, expected: &PolicyContents, slots: u32) -> Result<bool, MapsError> {
        let state = self
            .state
            .get(&0, 0)
            .map_err(map_error(abi::POLICY_STATE, "read"))?;
        let pods = has_entries(
            batch::entries(&self.pods),
            |key| expected_pod(expected.half(key.half.into()), key),
            expected.count(PolicyTables::pods),
            abi::POLICY_PODS,
        );
        let unselected = |(number, half): &(u32, u32)| expected.half(*half).unselected_slots.get(number);
        let identity = |(number, half): &(u32, u32)| expected.half(*half).identities.get(number);
        let exporter = |key: &ExporterKey| {
            let exporters = &expected.half(key.half).exporters;
            exporters.contains(&(key.set, key.cluster)).then_some(1)
        };
        let class = |key: &Key<AddressClassKey>| {
            let AddressClassKey { half, addr } = key.data();
            let len = key.prefix_len().saturating_sub(ADDRESS_CLASS_BITS);
            expected.half(half).address_classes.get(&(len, addr))
        };
        let peer_rules = |key: &PeerRulesKey| {
            let (peer, half) = peer_class(key);
            expected.half(half).peer_rules(peer)
        };
        let rule = |key: &Key<RuleKey>| {
            let (prefix, half) = rule_prefix(key);
            expected.half(half).rules.get(&prefix)
        };
        Ok(state.half & 1 == expected.half
            && pods?
            && has_entries(
                self.unselected_slots(),
                unselected,
                expected.count(|of| of.unselected_slots.len()),
                abi::UNSELECTED_PODS,
            )?
            && has_entries(
                self.known_identities(slots),
                identity,
                expected.count(|of| of.identities.len()),
                abi::IDENTITIES,
            )?
            && has_entries(
                batch::entries(&self.exporters),
                exporter,
                expected.count(|of| of.exporters.len()),
                abi::EXPORTERS,
            )?
            && has_entries(
                batch::entries(&self.address_classes),
                class,
                expected.count(|of| of.address_classes.len()),
                abi::ADDRESS_CLASSES,
            )?
            && has_entries(
                batch::entries(&self.peer_rules),
                peer_rules,
                expected.count(|of| of.peers().count()),
                abi::PEER_RULES,
            )?
            && has_entries(
                batch::entries(&self.rules),
                rule,
                expected.count(PolicyTables::rules_by_prefix),
                abi::POLICY_RULES,
            )?)
    }
}

/// The entry of `mc_policy_pods` with this key, for the tables of its half.
fn expected_pod<'t>(tables: &'t PolicyTables, key: &PolicyPodKey) -> Option<&'t PolicyPod> {
    if key.direction == DIRECTION_EGRESS {
        return tables.egress_pods.get(&key.addr);
    }
    let is_unselected = tables.unselected.contains(&key.addr);
    let unselected = is_unselected.then_some(&PolicyPod::UNSELECTED);
    tables.pods.get(&key.addr).or(unselected)
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::abi::policy::DIRECTION_INGRESS;

    use super::*;

    #[test]
    fn pods_are_expected_in_the_map_of_their_direction() {
        let addr = |last| [last; 16];
        let selected = |set| PolicyPod {
            set,
            ..PolicyPod::default()
        };
        let tables = PolicyTables {
            pods: [(addr(1), selected(7))].into(),
            egress_pods: [(addr(1), selected(8))].into(),
            unselected: [addr(2)].into(),
            ..PolicyTables::default()
        };
        let expected = |last, direction| {
            let key = PolicyPodKey {
                addr: addr(last),
                half: 0,
                direction,
            };
            expected_pod(&tables, &key).copied()
        };
        assert_eq!(expected(1, DIRECTION_INGRESS), Some(selected(7)));
        assert_eq!(expected(1, DIRECTION_EGRESS), Some(selected(8)));
        assert_eq!(expected(2, DIRECTION_INGRESS), Some(PolicyPod::UNSELECTED));
        assert_eq!(expected(2, DIRECTION_EGRESS), None);
    }
}
