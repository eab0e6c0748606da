//! The rules of a set for the peers of a class, as `mc_peer_rules` has them. Pure.

use mc_gateway_common::abi::policy::{PeerRules, PortRule, Rule};

use super::{PolicyTables, RulePrefix};
/// Set, peer and protocol of rules: a key of `mc_peer_rules` without its half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerClass {
    /// Set of rules, with `SET_BY_PREFIX` if its rules are in `mc_policy_rules`.
    pub set: u32,
    /// `DIMENSION_*`.
    pub dimension: u8,
    /// Class in the dimension.
    pub class: u32,
    /// Protocol, or `PROTO_OTHER`.
    pub proto: u8,
}

// === impl PeerClass ===

impl PeerClass {
    /// The prefix of all ports, the first one in the order of prefixes.
    const fn all_ports(self) -> RulePrefix {
        RulePrefix {
            peer: self,
            port: 0,
            bits: 0,
        }
    }

    /// The rules of an entry.
    pub fn rules(self, entry: &PeerRules) -> impl Iterator<Item = (RulePrefix, Rule)> {
        entry.rules().map(move |rule| {
            let prefix = RulePrefix {
                peer: self,
                port: u16::from_be_bytes(rule.port),
                bits: rule.bits,
            };
            (prefix, rule.rule())
        })
    }
}

// === impl PolicyTables ===

impl PolicyTables {
    /// Number of entries in `mc_policy_rules`.
    #[must_use]
    pub fn rules_by_prefix(&self) -> usize {
        self.rules.keys().filter(|prefix| prefix.is_by_prefix()).count()
    }

    /// Keys of `mc_peer_rules` in their order.
    pub fn peers(&self) -> impl Iterator<Item = PeerClass> {
        let mut previous = None;
        let prefixes = self.rules.keys().filter(|prefix| !prefix.is_by_prefix());
        prefixes
            .map(|prefix| prefix.peer)
            .filter(move |peer| previous.replace(*peer) != Some(*peer))
    }

    /// Whether there is a rule for these peers.
    #[must_use]
    pub fn has_rules(&self, peer: PeerClass) -> bool {
        let mut next = self.rules.iter_from(&peer.all_ports());
        next.next().is_some_and(|(prefix, _)| prefix.peer == peer)
    }

    /// The entry of `mc_peer_rules` for these peers; none without a rule.
    #[must_use]
    pub fn peer_rules(&self, peer: PeerClass) -> Option<PeerRules> {
        let of_peer = self.rules.iter_from(&peer.all_ports());
        let of_peer = of_peer.take_while(|(prefix, _)| prefix.peer == peer);
        let entry = PeerRules::new(
            of_peer.map(|(prefix, rule)| PortRule::new(rule, prefix.port.to_be_bytes(), prefix.bits)),
        );
        (entry != PeerRules::NONE).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::abi::policy::{
        PEER_RULE_PORTS, RULE_ALLOW, RULE_AUDITED, RULE_DROP, SET_BY_PREFIX,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::shared_map::SharedMap;

    const PEER: PeerClass = PeerClass {
        set: 7,
        dimension: 1,
        class: 9,
        proto: 17,
    };

    fn entry(peer: PeerClass, port: u16, bits: u8, precedence: u32) -> (RulePrefix, Rule) {
        let rule = Rule {
            precedence,
            action: if precedence.is_multiple_of(2) {
                RULE_ALLOW
            } else {
                RULE_DROP | RULE_AUDITED
            },
            rule: precedence + 100,
        };
        let prefix = RulePrefix { peer, port, bits };
        (prefix, rule)
    }

    fn tables(entries: impl IntoIterator<Item = (RulePrefix, Rule)>) -> PolicyTables {
        PolicyTables {
            rules: entries.into_iter().collect(),
            ..PolicyTables::default()
        }
    }

    #[test]
    fn entries_have_the_rules_of_their_peers_only() {
        let other = PeerClass { class: 10, ..PEER };
        let by_prefix = PeerClass {
            set: 8 | SET_BY_PREFIX,
            ..PEER
        };
        let tables = tables([
            entry(PEER, 0, 0, 5),
            entry(PEER, 80, 16, 1),
            entry(PEER, 0x1f00, 8, 2),
            entry(other, 0, 0, 3),
            entry(by_prefix, 0, 0, 4),
        ]);
        assert_eq!(tables.peers().collect::<Vec<_>>(), [PEER, other]);
        assert_eq!(tables.rules_by_prefix(), 1);
        let rules = tables.peer_rules(PEER).unwrap();
        let at = |port: u16| rules.at(port.to_be_bytes()).precedence;
        assert_eq!([80, 0x1f07, 81].map(at), [1, 2, 5]);
        assert_eq!(tables.peer_rules(PeerClass { class: 8, ..PEER }), None);
        let has_rules = [7, 8, 9, 10].map(|class| tables.has_rules(PeerClass { class, ..PEER }));
        assert_eq!(has_rules, [false, false, true, true]);
        let without_all = self::tables([entry(PEER, 80, 16, 1)]).peer_rules(PEER).unwrap();
        assert_eq!(without_all.at([0, 81]), Rule::NONE);
        assert_eq!(PeerRules::NONE.at([0, 80]), Rule::NONE);
    }

    proptest! {
        /// The agent reads the map after a restart: it must find the tables that it has written.
        #[test]
        fn an_entry_has_all_rules_of_its_prefixes(
            prefixes in proptest::collection::btree_set((any::<u16>(), 0..=16_u8), 1..=PEER_RULE_PORTS),
        ) {
            let masked = |(port, bits): (u16, u8)| port & u16::MAX.checked_shl(16 - u32::from(bits)).unwrap_or(0);
            let rules = (0..).zip(prefixes).map(|(n, prefix)| entry(PEER, masked(prefix), prefix.1, n));
            let tables = tables(rules);
            let written = tables.peer_rules(PEER).unwrap();
            let read = PEER.rules(&written).collect::<SharedMap<_, _>>();
            prop_assert_eq!(read, tables.rules);
        }
    }
}
