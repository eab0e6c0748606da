//! The first rule of a set for a packet, as a subprogram: the verifier checks it once.

use crate::{
    abi::policy::{
        CLASS_UNKNOWN, DIMENSION_ADDRESS, DIMENSION_IDENTITY, PeerRulesKey, Rule, RuleKey, SET_BY_PREFIX,
    },
    maps::Maps,
    packed::impl_bits,
};

/// A packet as the rules of a set see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RuleQuery {
    /// The set of rules of the Pod.
    pub set: u32,
    /// Class of the peer's identity.
    pub identity: u32,
    /// Class of the peer's address; [`CLASS_UNKNOWN`] without one.
    pub address: u32,
    /// The half of the maps.
    pub half: u8,
    /// As [`PeerRulesKey::proto`].
    pub proto: u8,
    /// As [`RuleKey::port`].
    pub port: [u8; 2],
}

/// A rule without its precedence, or the absence of one.
///
/// Bits 0 to 31: ID of the rule; 32 to 39: action; 40: whether there is a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedRule(u64);

impl_bits!(PackedRule, u64);

impl PackedRule {
    /// No rule.
    pub const NONE: Self = Self(0);
    const EXISTS: u64 = 1 << 40;

    #[inline(always)]
    const fn new(rule: Rule) -> Self {
        if rule.precedence == Rule::NONE.precedence {
            return Self::NONE;
        }
        Self(Self::EXISTS | (rule.action as u64 & 0xff) << 32 | rule.rule as u64)
    }

    /// The rule, with any precedence.
    #[inline(always)]
    pub(super) const fn rule(self) -> Option<Rule> {
        if self.0 & Self::EXISTS == 0 {
            return None;
        }
        Some(Rule {
            precedence: 0,
            action: (self.0 >> 32) as u32 & 0xff,
            rule: (self.0 & 0xffff_ffff) as u32,
        })
    }
}

/// The first rule of a set for the class of the peer's identity, or for the class of its address if it has one.
#[inline(always)]
#[must_use]
pub fn first_rule<M: Maps>(maps: &M, query: &RuleQuery) -> PackedRule {
    let mut first = find_rule(maps, query, DIMENSION_IDENTITY, query.identity);
    if query.address != CLASS_UNKNOWN {
        let by_address = find_rule(maps, query, DIMENSION_ADDRESS, query.address);
        if by_address.precedence < first.precedence {
            first = by_address;
        }
    }
    PackedRule::new(first)
}

/// The first rule of a set for the class of a peer; [`Rule::NONE`] without any.
#[inline(always)]
fn find_rule<M: Maps>(maps: &M, query: &RuleQuery, dimension: u8, class: u32) -> Rule {
    let peer = PeerRulesKey {
        set: query.set,
        class,
        half: query.half,
        dimension,
        proto: query.proto,
        pad: 0,
    };
    if peer.set & SET_BY_PREFIX == 0 {
        maps.peer_rule(&peer, query.port)
    } else {
        maps.policy_rule(&RuleKey {
            peer,
            pad_to_port: 0,
            port: query.port,
        })
    }
}

const _: () = assert!(size_of::<RuleQuery>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_unpacked_as_it_was() {
        let rule = Rule {
            precedence: 0,
            action: 0x84,
            rule: u32::MAX,
        };
        assert_eq!(PackedRule::new(rule).rule(), Some(rule));
        let zeros = Rule {
            action: 0,
            rule: 0,
            ..rule
        };
        assert_eq!(PackedRule::new(zeros).rule(), Some(zeros));
        assert_eq!(PackedRule::new(Rule::NONE).rule(), None);
    }
}
