//! The rules of compiled policies as entries of the maps. Pure.

use std::collections::{BTreeMap, BTreeSet};

use mc_api::network_policy::Action;
use mc_gateway_common::abi::policy::{
    DIMENSION_ADDRESS, DIMENSION_IDENTITY, PEER_RULE_PORTS, RULE_ALLOW, RULE_AUDITED, RULE_DROP, RULE_PASS,
    RULE_REJECT, Rule, SET_BY_PREFIX,
};

use crate::policy::{Dimension, RuleKey, RuleValue};
use crate::policy_tables::{PeerClass, RulePrefix};
use crate::shared_map::SharedMap;

/// The map that has the rules of each set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SetsByMap {
    /// Sets with their rules in `mc_policy_rules`.
    by_prefix: BTreeSet<u32>,
}

/// Size of a set in `mc_peer_rules`.
#[derive(Default)]
struct SetSize {
    entries: u32,
    /// Most prefixes of ports in an entry.
    ports: usize,
}

impl SetsByMap {
    /// The map of each set with one of these keys, which are sorted. `mc_peer_rules` has room for `capacity` entries:
    /// sets of smaller number precede others.
    pub(super) fn new<'k>(keys: impl Iterator<Item = &'k RuleKey>, capacity: u32) -> Self {
        let mut sizes: BTreeMap<u32, SetSize> = BTreeMap::new();
        let mut previous = None;
        let mut ports = 0;
        for key in keys {
            let size = sizes.entry(key.set).or_default();
            let peer = Some((key.set, key.dimension, key.class, key.protocol));
            if peer != previous {
                (previous, ports) = (peer, 0);
                size.entries = size.entries.saturating_add(1);
            }
            ports += 1;
            size.ports = size.ports.max(ports);
        }
        let mut room = capacity;
        let has_room = |(set, size): (u32, SetSize)| {
            let left = room
                .checked_sub(size.entries)
                .filter(|_| size.ports <= PEER_RULE_PORTS);
            room = left.unwrap_or(room);
            left.is_none().then_some(set)
        };
        Self {
            by_prefix: sizes.into_iter().filter_map(has_room).collect(),
        }
    }

    /// The number of a set in the maps.
    pub(super) fn number(&self, set: u32) -> u32 {
        if self.by_prefix.contains(&set) {
            set | SET_BY_PREFIX
        } else {
            set
        }
    }
}

/// The entries of the rules; `ids` are the IDs of the rules by index. The rules are freed while they are converted:
/// both forms take megabytes.
pub(super) fn rule_entries(
    rules: SharedMap<RuleKey, RuleValue>,
    by_map: &SetsByMap,
    ids: &[u32],
) -> SharedMap<RulePrefix, Rule> {
    let entries = rules.into_iter();
    entries
        .map(|(key, value)| (rule_prefix(&key, by_map), rule(&value, ids)))
        .collect()
}

fn rule_prefix(key: &RuleKey, by_map: &SetsByMap) -> RulePrefix {
    RulePrefix {
        peer: PeerClass {
            set: by_map.number(key.set),
            dimension: match key.dimension {
                Dimension::Identity => DIMENSION_IDENTITY,
                Dimension::Address => DIMENSION_ADDRESS,
            },
            class: key.class,
            proto: key.protocol,
        },
        port: key.port,
        bits: key.port_bits,
    }
}

fn rule(value: &RuleValue, ids: &[u32]) -> Rule {
    let at = usize::try_from(value.rule).ok();
    let action = match value.action {
        Action::Allow => RULE_ALLOW,
        Action::Drop => RULE_DROP,
        Action::Reject => RULE_REJECT,
        Action::Pass => RULE_PASS,
    };
    Rule {
        precedence: value.precedence,
        action: if value.is_audited {
            action | RULE_AUDITED
        } else {
            action
        },
        rule: at.and_then(|at| ids.get(at)).copied().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(entries: &[(u32, u32, u16)]) -> Vec<RuleKey> {
        let key = |(set, class, port): &(u32, u32, u16)| RuleKey {
            set: *set,
            dimension: Dimension::Address,
            class: *class,
            protocol: 6,
            port: *port,
            port_bits: 16,
        };
        entries.iter().map(key).collect()
    }

    fn by_prefix(keys: &[RuleKey], capacity: u32) -> Vec<u32> {
        SetsByMap::new(keys.iter(), capacity)
            .by_prefix
            .into_iter()
            .collect()
    }

    #[test]
    fn a_set_with_more_ports_than_an_entry_is_by_prefix() {
        let ports = u16::try_from(PEER_RULE_PORTS).unwrap();
        let mut entries: Vec<_> = (0..ports).map(|port| (1, 7, port)).collect();
        entries.extend((0..ports).map(|port| (1, 8, port)));
        entries.extend((0..=ports).map(|port| (2, 7, port)));
        entries.push((3, 7, 0));
        let keys = keys(&entries);
        let by_map = SetsByMap::new(keys.iter(), 100);
        assert_eq!([1, 2, 3].map(|set| by_map.number(set)), [1, 2 | SET_BY_PREFIX, 3]);
    }

    #[test]
    fn sets_beyond_the_capacity_are_by_prefix() {
        // Two entries each in the first two sets, one in the others.
        let entries = [
            (1, 1, 80),
            (1, 2, 80),
            (1, 2, 81),
            (2, 1, 80),
            (2, 2, 80),
            (3, 1, 80),
            (4, 1, 80),
        ];
        let keys = keys(&entries);
        assert_eq!(by_prefix(&keys, 6), [0_u32; 0]);
        assert_eq!(by_prefix(&keys, 5), [4]);
        assert_eq!(
            by_prefix(&keys, 3),
            [2, 4],
            "a smaller set fits behind a larger one"
        );
        assert_eq!(by_prefix(&keys, 0), [1, 2, 3, 4]);
    }
}
