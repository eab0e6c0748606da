//! Compiled policies, as the programs find them in maps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use mc_api::network_policy::Action;
use mc_gateway_common::abi::policy::{CLASS_UNKNOWN, CLASS_UNMATCHED, PROTO_OTHER};

use super::model::{PROTOCOLS, RuleRef};
use crate::shared_map::SharedMap;

/// The class of unknown identities, and of addresses in no block.
pub const UNKNOWN_CLASS: u32 = CLASS_UNKNOWN;
/// The class of identities that no peer by labels matches, among them hosts, and of peers in the own cluster.
pub const UNMATCHED_CLASS: u32 = CLASS_UNMATCHED;
/// The key of protocols without tables of their own.
pub const OTHER_PROTOCOL: u8 = PROTO_OTHER;

/// Compiled policies; [`super::look_up()`] states their use.
///
/// *Guarantees*: equal input gives equal tables, regardless of the order of its lists. Set and class numbers are dense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Sets of rules for ingress by Pod address; Pods without rules are absent. Sets are numbered from 1.
    pub pods: BTreeMap<IpAddr, PodSets>,
    /// Sets of rules for egress by Pod address.
    pub egress_pods: BTreeMap<IpAddr, PodSets>,
    /// The sets; set 1 is the first one.
    pub sets: Vec<SetInfo>,
    /// Class by label identity; an absent identity is of [`UNKNOWN_CLASS`]. Identities of a class match the same peers.
    pub identities: BTreeMap<u32, u32>,
    /// Class by prefix of the peer, the longest one that contains its address; [`UNKNOWN_CLASS`] without one. Addresses
    /// of a class are in the same blocks, match the same peers by labels and belong to the same Services.
    pub address_classes: BTreeMap<IpNet, u32>,
    /// The rule for the ports of a prefix.
    ///
    /// *Guarantee*: of the entries that contain a port, the one with the longest prefix has the smallest precedence.
    ///
    /// Size: a rule for every peer and all protocols has six entries for each set and class of identities (six for
    /// egress), a peer by labels as many for each set and matching class. Only peers in rules of [`Self::pods`] and
    /// [`Self::egress_pods`] create classes.
    pub rules: SharedMap<RuleKey, RuleValue>,
    /// The rules that [`RuleValue::rule`] refers to.
    pub rule_names: Vec<RuleRef>,
    /// Kind and name of the policies with a rule for a Pod of [`Self::pods`].
    pub policies: BTreeSet<Arc<str>>,
    /// Whether a rule is in force, also if it applies to Pods of other Nodes only.
    pub has_rules_in_force: bool,
}

/// The sets of rules of a Pod, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodSets {
    /// All rules, audited ones included.
    pub all: u32,
    /// The rules in force, the same set if none is audited; 0 if all are.
    pub enforced: u32,
}

/// Properties of a set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetInfo {
    /// Whether packets of unknown identity that no rule matches are dropped.
    pub drop_unknown: bool,
}

/// The property of the peer that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dimension {
    /// Its label identity: peers by labels in other clusters, rules for every peer (in all classes, also
    /// [`UNKNOWN_CLASS`]), and [`super::RulePart::UnknownSenders`] (in that class alone). Peers of the own cluster, and
    /// all peers for egress, are of [`UNMATCHED_CLASS`].
    Identity,
    /// Its address: peers by prefix, by labels in the own cluster, and Services.
    Address,
}

/// Key of a rule. The port is matched by its longest prefix, all else exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleKey {
    /// The set of rules, by its number in [`PodSets`].
    pub set: u32,
    /// The property of the peer.
    pub dimension: Dimension,
    /// Its class, from [`Tables::identities`] or [`Tables::address_classes`].
    pub class: u32,
    /// One of [`PROTOCOLS`], else [`OTHER_PROTOCOL`]. A rule for all protocols has an entry for each of them.
    pub protocol: u8,
    /// The first port of the prefix; `type << 8 | code` for ICMP and `ICMPv6`.
    pub port: u16,
    /// Length of the prefix, 0 to 16; always 0 at [`OTHER_PROTOCOL`].
    pub port_bits: u8,
}

/// A rule and its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleValue {
    /// Order among the rules of the set, which differ in it; the smaller one applies.
    pub precedence: u32,
    /// The action on matching packets.
    pub action: Action,
    /// Index in [`Tables::rule_names`].
    pub rule: u32,
    /// Whether it decides on no packet, and [`PodSets::enforced`] has the rule that does.
    pub is_audited: bool,
}

/// The protocol in the key of packets with this protocol number.
#[must_use]
pub fn protocol_key(protocol: u8) -> u8 {
    if PROTOCOLS.contains(&protocol) {
        protocol
    } else {
        OTHER_PROTOCOL
    }
}
