//! Layout of the maps of network policies: the tables that an agent compiles from policies and label identities.
//!
//! The tables exist twice. [`PolicyState::half`] selects those in use, and the agent writes only the others: every
//! packet meets the tables of one moment. A key contains its half.

use core::cmp::Reverse;

use super::addr::Addr;

/// Name of the state: array of one [`PolicyState`].
pub const POLICY_STATE: &str = "mc_policy_state";
/// Name of the map of this node's Pods that policies select: hash of [`PolicyPodKey`] to [`PolicyPod`].
pub const POLICY_PODS: &str = "mc_policy_pods";
/// Name of the table of this node's Pods that no policy selects: array of [`Addr`] by [`unselected_slot`], zeros in an
/// unused slot. Packets of these Pods need no look-up in `mc_policy_pods`, which has the Pods as well. Of two Pods with
/// one slot, one has its entry there only.
pub const UNSELECTED_PODS: &str = "mc_unselected";
/// Name of the map of label identities: array of [`LabelIdentity`] by [`half_slot`] of
/// the number.
pub const IDENTITIES: &str = "mc_identities";
/// Name of the map of clusters that export identities: hash of [`ExporterKey`] to 1.
pub const EXPORTERS: &str = "mc_exporters";
/// Name of the map of address blocks in rules: longest-prefix match of [`AddressClassKey`] to the class of the address.
pub const ADDRESS_CLASSES: &str = "mc_addr_classes";
/// Name of the map of rules by peer: hash of [`PeerRulesKey`] to [`PeerRules`]. It has the sets without
/// [`SET_BY_PREFIX`].
pub const PEER_RULES: &str = "mc_peer_rules";
/// Name of the map of rules by prefix of the port: longest-prefix match of [`RuleKey`] to [`Rule`]. It has the sets
/// with [`SET_BY_PREFIX`].
pub const POLICY_RULES: &str = "mc_policy_rules";
/// Name of the map of flows without TCP that pass: LRU hash of [`super::service::ReplyKey`], for any Pod, to the time
/// of the last packet.
pub const POLICY_FLOWS: &str = "mc_policy_flows";
/// Name of the counters of rules: per-CPU hash of [`Rule::rule`] to [`RuleCounter`]. The agent creates the entries.
pub const RULE_COUNTERS: &str = "mc_rule_counts";

/// Capacity of `mc_policy_pods`, allocated on insertion.
pub const MAX_POLICY_PODS: u32 = 8_192;
/// Entries of `mc_unselected`, allocated at once.
pub const UNSELECTED_SLOTS: u32 = 2_048;
/// Largest number of an identity in `mc_identities`, plus one. Leaders give out the lowest free numbers.
pub const MAX_IDENTITIES: u32 = 131_072;
/// Entries of `mc_identities`, allocated at once.
pub const IDENTITY_SLOTS: u32 = MAX_IDENTITIES * 2;
/// Capacity of `mc_exporters`, allocated on insertion.
pub const MAX_EXPORTERS: u32 = 8_192;
/// Capacity of `mc_addr_classes`, allocated on insertion.
pub const MAX_ADDRESS_CLASSES: u32 = 65_536;
/// Capacity of `mc_peer_rules`, allocated on insertion.
pub const MAX_PEER_RULES: u32 = 131_072;
/// Capacity of `mc_policy_rules`, allocated on insertion.
pub const MAX_POLICY_RULES: u32 = 1_048_576;
/// Capacity of `mc_rule_counts`, allocated on insertion; rules beyond it have no counter.
pub const MAX_RULE_COUNTERS: u32 = 8_192;
/// Capacity of `mc_policy_flows`.
pub const MAX_POLICY_FLOWS: u32 = 32_768;

/// The tables in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PolicyState {
    /// 0 or 1.
    pub half: u32,
    /// [`ENFORCED_INGRESS`], [`ENFORCED_EGRESS`]; 0: all packets pass.
    pub enforced: u32,
}

/// [`PolicyState::enforced`]: rules for ingress select Pods of this node.
pub const ENFORCED_INGRESS: u32 = 1;
/// [`PolicyState::enforced`]: rules for egress select Pods of this node.
pub const ENFORCED_EGRESS: u32 = 1 << 1;

/// [`PolicyPodKey::direction`]: rules for packets to the Pod.
pub const DIRECTION_INGRESS: u16 = 0;
/// [`PolicyPodKey::direction`]: rules for packets from the Pod.
pub const DIRECTION_EGRESS: u16 = 1;

/// An address of this node's Pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(4))]
pub struct PolicyPodKey {
    /// The address.
    pub addr: Addr,
    /// The half.
    pub half: u16,
    /// [`DIRECTION_INGRESS`] or [`DIRECTION_EGRESS`].
    pub direction: u16,
}

/// [`PolicyPod::flags`]: packets of unknown senders that no rule concerns are dropped.
pub const POD_DROPS_UNKNOWN: u32 = 1;

/// [`PolicyPod::flags`]: the rules do not fit the maps, and new flows are dropped.
pub const POD_CLOSED: u32 = 1 << 1;

/// [`PolicyPod::flags`] of a known Pod that no policy selects, with [`NO_RULES`]: its packets pass, and its flows are
/// not recorded.
pub const POD_UNSELECTED: u32 = 1 << 2;

/// A set without rules. As [`PolicyPod::set`] of a Pod without rules for ingress, but with some for egress: packets to
/// it pass, and their flows are recorded for its replies.
pub const NO_RULES: u32 = 0;

/// Added to the number of a set with its rules in `mc_policy_rules`: for a peer it has more prefixes of ports than
/// [`PeerRules`] has room for, or `mc_peer_rules` has no room for the set. A walk through a prefix tree takes longer
/// with each doubling of all rules, a hash does not.
pub const SET_BY_PREFIX: u32 = 1 << 31;

/// A Pod of this node that a policy selects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PolicyPod {
    /// Number of its set of rules, audited ones included, or [`NO_RULES`].
    pub set: u32,
    /// Number of its set of rules in force: [`Self::set`] if none is audited, or [`NO_RULES`].
    pub enforced: u32,
    /// [`POD_DROPS_UNKNOWN`], [`POD_CLOSED`], [`POD_UNSELECTED`].
    pub flags: u32,
    /// Hash of the Pod's name and UID. When it changes, the agent removes the flows of the address.
    pub instance: u32,
}

/// Number of an address in `mc_unselected`, for [`half_slot`]. Most Pods of a node differ in the last bits of their
/// addresses.
#[inline(always)]
#[must_use]
pub const fn unselected_number(addr: &Addr) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the last four bytes")]
    let last = u128::from_be_bytes(*addr) as u32;
    last % (UNSELECTED_SLOTS / 2)
}

/// Index of an address in `mc_unselected`.
#[inline(always)]
#[must_use]
pub const fn unselected_slot(addr: &Addr, half: u32) -> u32 {
    half_slot(unselected_number(addr), half)
}

/// ID of no cluster.
pub const NO_CLUSTER: u64 = 0;
/// Class of an identity that the tables do not have.
pub const CLASS_UNKNOWN: u32 = 0;
/// Class of a peer that has no label identity of another cluster: a host, and every peer in the own cluster.
pub const CLASS_UNMATCHED: u32 = 1;

/// A label identity; the default value stands for a number that no label has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LabelIdentity {
    /// Its class, or [`CLASS_UNKNOWN`].
    pub class: u32,
    /// [`ExporterKey::set`] of the clusters that export it.
    pub exporters: u32,
}

/// Index of a number in an array with both halves. The halves of a number are neighbors: with the lowest numbers in
/// use, the slots behind them are unused in both halves.
#[inline(always)]
#[must_use]
pub const fn half_slot(number: u32, half: u32) -> u32 {
    number.wrapping_mul(2) | (half & 1)
}

/// The number and the half of a slot, the reverse of [`half_slot`].
#[must_use]
pub const fn of_half_slot(slot: u32) -> (u32, u32) {
    (slot / 2, slot & 1)
}

/// A cluster of a set of clusters that export an identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct ExporterKey {
    /// ID of a remote cluster as in [`super::Prefix::cluster`].
    pub cluster: u64,
    /// Number of the set of clusters.
    pub set: u32,
    /// The half.
    pub half: u32,
}

/// Bits in front of the address in an [`AddressClassKey`].
pub const ADDRESS_CLASS_BITS: u32 = 32;

/// An address of a peer, or a prefix of [`ADDRESS_CLASS_BITS`] and its own length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C, align(4))]
pub struct AddressClassKey {
    /// The half.
    pub half: u32,
    /// The address.
    pub addr: Addr,
}

/// [`PeerRulesKey::dimension`]: the class is that of an identity.
pub const DIMENSION_IDENTITY: u8 = 0;
/// [`PeerRulesKey::dimension`]: the class is that of an address.
pub const DIMENSION_ADDRESS: u8 = 1;
/// [`PeerRulesKey::proto`] of every protocol without rules of its own.
pub const PROTO_OTHER: u8 = 0;

/// The rules of a set for the peers of a class and a protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct PeerRulesKey {
    /// The set of rules of the Pod ([`PolicyPod::set`]).
    pub set: u32,
    /// Class of the peer in the dimension.
    pub class: u32,
    /// The half.
    pub half: u8,
    /// [`DIMENSION_IDENTITY`] or [`DIMENSION_ADDRESS`].
    pub dimension: u8,
    /// TCP, UDP, SCTP, ICMP, `ICMPv6` or [`PROTO_OTHER`].
    pub proto: u8,
    /// Always 0.
    pub pad: u8,
}

/// Bits in front of the port in a [`RuleKey`].
pub const RULE_BITS: u32 = 112;

/// A packet as the rules see it, or a range of ports: a prefix of [`RULE_BITS`] and the common bits of the ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct RuleKey {
    /// Set, peer and protocol.
    pub peer: PeerRulesKey,
    /// Always 0. Together with [`PeerRulesKey::pad`], padding of three bytes would be cleared by a call of `memset` for
    /// each key.
    pub pad_to_port: u16,
    /// Port of the destination, or type and code of an ICMP message, in network order.
    pub port: [u8; 2],
}

/// Prefixes of ports in [`PeerRules`].
pub const PEER_RULE_PORTS: usize = 8;

/// The first rule for each port, by prefixes of the port, of which the longest are first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PeerRules {
    /// The prefixes, and [`PortRule::NONE`] behind them.
    pub by_port: [PortRule; PEER_RULE_PORTS],
}

/// A rule for the ports of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PortRule {
    /// As [`Rule::precedence`].
    pub precedence: u32,
    /// As [`Rule::rule`].
    pub rule: u32,
    /// First port of the prefix, in network order. As [`RuleKey::port`].
    pub port: [u8; 2],
    /// Length of the prefix, 0 to 16.
    pub bits: u8,
    /// As [`Rule::action`].
    pub action: u8,
}

/// [`Rule::action`]: the packet passes.
pub const RULE_ALLOW: u32 = 1;
/// [`Rule::action`]: the packet is dropped.
pub const RULE_DROP: u32 = 2;
/// [`Rule::action`]: the packet is dropped with an answer to its sender.
pub const RULE_REJECT: u32 = 3;
/// [`Rule::action`]: the packet passes, for policies of other programs to decide.
pub const RULE_PASS: u32 = 4;
/// [`Rule::action`]: added to the action of a rule that is audited. Of the rules in [`PolicyPod::enforced`], another
/// one decides.
pub const RULE_AUDITED: u32 = 1 << 7;

/// The first rule, in the order of evaluation, for a class and ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    /// Place in the order of evaluation; the smaller one of both dimensions decides.
    pub precedence: u32,
    /// [`RULE_ALLOW`], [`RULE_DROP`], [`RULE_REJECT`] or [`RULE_PASS`], perhaps with [`RULE_AUDITED`]; anything else
    /// drops.
    pub action: u32,
    /// ID of the rule: the same after every restart of the node's agent, never 0.
    pub rule: u32,
}

/// The packets on which a rule has decided: the first segment of a TCP connection, and packets of other protocols that
/// belong to no known flow. Dropped packets are all counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct RuleCounter {
    /// Packets; a super-packet counts once.
    pub packets: u64,
    /// Their bytes with the link-layer header.
    pub bytes: u64,
}

impl PolicyPod {
    /// A known Pod that no policy selects.
    pub const UNSELECTED: Self = Self {
        set: NO_RULES,
        enforced: NO_RULES,
        flags: POD_UNSELECTED,
        instance: 0,
    };

    /// Whether no policy selects it.
    #[inline(always)]
    #[must_use]
    pub const fn is_unselected(&self) -> bool {
        self.flags & POD_UNSELECTED != 0
    }
}

impl PeerRules {
    /// Without a rule for any port.
    pub const NONE: Self = Self {
        by_port: [PortRule::NONE; PEER_RULE_PORTS],
    };

    /// An entry with these rules, [`PEER_RULE_PORTS`] at most: others are left out.
    #[must_use]
    pub fn new(rules: impl IntoIterator<Item = PortRule>) -> Self {
        let mut entry = Self::NONE;
        for (slot, rule) in entry.by_port.iter_mut().zip(rules) {
            *slot = rule;
        }
        let order = |rule: &PortRule| (*rule == PortRule::NONE, Reverse(rule.bits), rule.port);
        entry.by_port.sort_unstable_by_key(order);
        entry
    }

    /// The rules.
    pub fn rules(&self) -> impl Iterator<Item = &PortRule> {
        self.by_port.iter().take_while(|rule| **rule != PortRule::NONE)
    }

    /// The first rule for a port in network order, or [`Rule::NONE`].
    #[inline(always)]
    #[must_use]
    pub fn at(&self, port: [u8; 2]) -> Rule {
        let of_port = self.by_port.iter().find(|rule| rule.contains(port));
        of_port.map_or(Rule::NONE, PortRule::rule)
    }
}

impl PortRule {
    /// No rule: it contains every port, so that no entry behind it is compared.
    pub const NONE: Self = Self {
        precedence: Rule::NONE.precedence,
        rule: 0,
        port: [0; 2],
        bits: 0,
        action: 0,
    };

    /// The rule for the ports of a prefix, of which `port` is the first one in network order. A rule with an action
    /// above 255 drops packets.
    #[must_use]
    pub fn new(rule: &Rule, port: [u8; 2], bits: u8) -> Self {
        Self {
            precedence: rule.precedence,
            rule: rule.rule,
            port,
            bits,
            action: u8::try_from(rule.action).unwrap_or_default(),
        }
    }

    /// Whether a port in network order is in the prefix.
    #[inline(always)]
    const fn contains(&self, port: [u8; 2]) -> bool {
        let differing = u16::from_be_bytes(self.port) ^ u16::from_be_bytes(port);
        // 32 bits: a shift of 16 bits by 16 is undefined.
        (differing as u32) >> (16_u32.wrapping_sub(self.bits as u32) & 31) == 0
    }

    /// The rule.
    #[inline(always)]
    #[must_use]
    pub const fn rule(&self) -> Rule {
        Rule {
            precedence: self.precedence,
            action: self.action as u32,
            rule: self.rule,
        }
    }
}

impl Rule {
    /// The absence of a rule, behind all others.
    pub const NONE: Self = Self {
        precedence: u32::MAX,
        action: 0,
        rule: 0,
    };

    /// Whether it is audited.
    #[inline(always)]
    #[must_use]
    pub const fn is_audited(&self) -> bool {
        self.action & RULE_AUDITED != 0
    }

    /// Whether its action denies packets, an audited one as well.
    #[inline(always)]
    #[must_use]
    pub const fn denies(&self) -> bool {
        !matches!(self.action & !RULE_AUDITED, RULE_ALLOW | RULE_PASS)
    }
}

impl RuleCounter {
    /// Counts a packet of this many bytes.
    #[inline(always)]
    pub const fn count(&mut self, bytes: u32) {
        self.packets = self.packets.wrapping_add(1);
        self.bytes = self.bytes.wrapping_add(bytes as u64);
    }
}

const _: () = assert!(size_of::<PolicyPodKey>() == 20 && size_of::<PolicyPod>() == 16);
const _: () = assert!(
    size_of::<ExporterKey>() == 16 && size_of::<LabelIdentity>() == 8 && size_of::<AddressClassKey>() == 20
);
const _: () = assert!(size_of::<PeerRulesKey>() == 12 && size_of::<PortRule>() == 12);
const _: () = assert!(size_of::<RuleKey>() == 16 && size_of::<Rule>() == 12);
const _: () = assert!(size_of::<RuleCounter>() == 16);
const _: () = assert!(core::mem::offset_of!(RuleKey, port) * 8 == RULE_BITS as usize);

#[cfg(feature = "user")]
mod user {
    #![expect(unsafe_code, reason = "Pod is an unsafe marker trait")]
    use super::{
        AddressClassKey, ExporterKey, LabelIdentity, PeerRules, PeerRulesKey, PolicyPod, PolicyPodKey,
        PolicyState, Rule, RuleCounter, RuleKey,
    };

    impl_pod!(
        AddressClassKey,
        ExporterKey,
        LabelIdentity,
        PeerRules,
        PeerRulesKey,
        PolicyPod,
        PolicyPodKey,
        PolicyState,
        Rule,
        RuleCounter,
        RuleKey
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(first: u16, bits: u8) -> PortRule {
        PortRule {
            port: first.to_be_bytes(),
            bits,
            rule: u32::from(bits),
            ..PortRule::NONE
        }
    }

    #[test]
    fn a_prefix_contains_the_ports_with_its_bits() {
        for (first, bits, last) in [
            (0, 0, u16::MAX),
            (0x8000, 1, u16::MAX),
            (8_080, 12, 8_095),
            (80, 16, 80),
        ] {
            for port in 0..=u16::MAX {
                let contains = rule(first, bits).contains(port.to_be_bytes());
                assert_eq!(contains, (first..=last).contains(&port), "{first}/{bits}: {port}");
            }
        }
    }

    #[test]
    fn the_first_prefix_decides_and_none_follows_the_last() {
        let mut rules = PeerRules::NONE;
        assert_eq!(rules.at([0, 80]), Rule::NONE);
        let [first, second, ..] = &mut rules.by_port;
        (*first, *second) = (rule(80, 16), rule(64, 10));
        let found = [80, 81, 128].map(|port: u16| rules.at(port.to_be_bytes()).rule);
        assert_eq!(found, [16, 10, Rule::NONE.rule]);
        rules.by_port = core::array::from_fn(|_| rule(80, 16));
        assert_eq!(rules.at([0, 81]), Rule::NONE, "behind eight prefixes");
    }
}
