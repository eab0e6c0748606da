//! Network policies on a packet of a Pod of this node: the first rule that concerns peer and port decides. If it is
//! audited, the first one that is not decides.
//!
//! *Guarantees*: a sender has the class of an identity only if the leader has recorded that identity for the sender's
//! cluster. The number of look-ups does not depend on the number of rules, identities and address blocks.

use super::{
    first_rule::{PackedRule, RuleQuery},
    reset::{Reset, reset},
    service::l4_header::{L4Header, L4Kind},
    subprograms::{MapSubprograms, Subprograms},
};
use crate::{
    abi::{
        Addr, CLUSTER_LOCAL, IDENTITY_HOST, IDENTITY_UNKNOWN, PREFIX_POLICY,
        policy::{
            AddressClassKey, CLASS_UNKNOWN, CLASS_UNMATCHED, ExporterKey, NO_CLUSTER, POD_CLOSED,
            POD_DROPS_UNKNOWN, PROTO_OTHER, PolicyPod, PolicyPodKey, PolicyState, RULE_ALLOW, RULE_PASS,
            RULE_REJECT, half_slot, unselected_slot,
        },
    },
    maps::Maps,
    packet::{Packet, ip},
    verdict::{DropReason, Outcome},
};

/// The decision against a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denial {
    /// It is dropped.
    Drop(DropReason),
    /// A rule drops it and has its sender notified.
    Reject,
}

impl Denial {
    /// Turns the packet into the answer to its sender, with the link addresses swapped, or returns the reason to drop
    /// it.
    #[inline(always)]
    pub(super) fn answer<P: Subprograms, M: Maps>(
        self,
        packet: &mut P,
        maps: &M,
    ) -> Result<Outcome, DropReason> {
        let answered = match self {
            Self::Drop(reason) => return Err(reason),
            Self::Reject => match reset(packet) {
                Reset::Written => return Ok(Outcome::Reset),
                Reset::Impossible => packet.report_rejection(maps),
                Reset::Failed => None,
            },
        };
        answered.map(|()| Outcome::Rejected).ok_or(DropReason::Policy)
    }
}

impl From<DropReason> for Denial {
    #[inline(always)]
    fn from(reason: DropReason) -> Self {
        Self::Drop(reason)
    }
}

/// The sender of a packet from another cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    /// Address.
    pub(super) addr: Addr,
    /// ID of its cluster, or [`NO_CLUSTER`] if no prefix contains the address.
    pub(super) cluster: u64,
    /// Label identity.
    pub(super) identity: u32,
}

/// Decides on a packet from another cluster to `pod`, by rules for its protocol and port. `program` is the number of
/// the program in samples.
#[inline(always)]
pub(super) fn evaluate<P: Packet, M: MapSubprograms>(
    packet: &P,
    maps: &M,
    half: u8,
    sender: &Sender,
    pod: PolicyPod,
    port: (u8, [u8; 2]),
    program: u32,
) -> Result<(), Denial> {
    check_open(packet, pod)?;
    let class = identity_class(maps, half, sender)?;
    decide(packet, maps, half, (class, sender.addr), pod, port, program)
}

/// Decides on a packet of `pod` that is not from another cluster, by rules for its protocol and port. `peer` is the
/// other side, `program` the number of the program in samples.
#[inline(always)]
pub(super) fn evaluate_peer<P: Packet, M: MapSubprograms>(
    packet: &P,
    maps: &M,
    half: u8,
    peer: Addr,
    pod: PolicyPod,
    port: (u8, [u8; 2]),
    program: u32,
) -> Result<(), Denial> {
    check_open(packet, pod)?;
    decide(packet, maps, half, (CLASS_UNMATCHED, peer), pod, port, program)
}

/// Rejects new flows of a Pod with rules that do not fit the maps.
#[inline(always)]
fn check_open<P: Packet>(packet: &P, pod: PolicyPod) -> Result<(), DropReason> {
    if pod.flags & POD_CLOSED != 0 {
        packet.set_rule(0);
        return Err(DropReason::Policy);
    }
    Ok(())
}

/// Rejects an address without rules in a range of this node's Pods or of Services, unless the agent has seen a Pod
/// there: a policy may select the Pod that has it.
#[inline(always)]
pub(super) fn check_seen<M: Maps>(maps: &M, addr: Addr) -> Result<(), DropReason> {
    match maps.prefix(addr.into(), CLUSTER_LOCAL) {
        Some(prefix) if prefix.flags & PREFIX_POLICY != 0 => Err(DropReason::PolicyPod),
        _ => Ok(()),
    }
}

/// The rules for an address of this node's Pods in a direction.
#[inline(always)]
pub(super) fn pod_rules<M: Maps>(maps: &M, half: u8, addr: Addr, direction: u16) -> Option<PolicyPod> {
    maps.policy_pod(&PolicyPodKey {
        addr,
        half: half.into(),
        direction,
    })
}

/// Whether the agent has seen a Pod at the address and no policy selects it, as far as `mc_unselected` shows.
#[inline(always)]
pub(super) fn is_unselected<M: Maps>(maps: &M, half: u8, addr: Addr) -> bool {
    let known = maps.unselected_pod(unselected_slot(&addr, half.into()));
    // Numbers, so that the programs compare words instead of bytes. An unused slot is of no Pod.
    let [known, addr] = [known, addr].map(u128::from_ne_bytes);
    known == addr && addr != 0
}

/// The half of the maps that is in use.
#[inline(always)]
pub(super) fn half(state: PolicyState) -> u8 {
    u8::from(state.half & 1 != 0)
}

/// The decision of the first rule for the peer, by the class of its identity and by its address. The rule counts the
/// packet. An audited rule that would drop a packet that passes has it sampled.
#[inline(always)]
fn decide<P: Packet, M: MapSubprograms>(
    packet: &P,
    maps: &M,
    half: u8,
    (class, addr): (u32, Addr),
    pod: PolicyPod,
    port: (u8, [u8; 2]),
    program: u32,
) -> Result<(), Denial> {
    let address = AddressClassKey {
        half: half.into(),
        addr,
    };
    let (proto, port) = port;
    let mut query = RuleQuery {
        set: pod.set,
        identity: class,
        address: maps.address_class(&address).unwrap_or(CLASS_UNKNOWN),
        half,
        proto,
        port,
    };
    let rule = maps.first_rule(&query);
    let audited = match rule.rule() {
        Some(rule) if rule.is_audited() => rule,
        _ => return verdict(packet, maps, rule, class, pod),
    };
    maps.count_rule(audited.rule, packet.frame_len());
    query.set = pod.enforced;
    let verdict = verdict(packet, maps, maps.first_rule(&query), class, pod);
    if audited.denies() && verdict.is_ok() {
        packet.sample_audited(audited.rule, program);
    }
    verdict
}

/// The decision of a rule, or without any.
#[inline(always)]
fn verdict<P: Packet, M: Maps>(
    packet: &P,
    maps: &M,
    rule: PackedRule,
    class: u32,
    pod: PolicyPod,
) -> Result<(), Denial> {
    let Some(rule) = rule.rule() else {
        return if class == CLASS_UNKNOWN && pod.flags & POD_DROPS_UNKNOWN != 0 {
            Err(DropReason::IdentityUnknown.into())
        } else {
            Ok(())
        };
    };
    maps.count_rule(rule.rule, packet.frame_len());
    packet.set_rule(rule.rule);
    match rule.action {
        RULE_ALLOW | RULE_PASS => Ok(()),
        RULE_REJECT => Err(Denial::Reject),
        _ => Err(DropReason::Policy.into()),
    }
}

/// Class of the sender's identity. A number that only other clusters export is forged.
#[inline(always)]
fn identity_class<M: Maps>(maps: &M, half: u8, sender: &Sender) -> Result<u32, DropReason> {
    let identity = sender.identity;
    if identity == IDENTITY_UNKNOWN || sender.cluster == NO_CLUSTER {
        return Ok(CLASS_UNKNOWN);
    }
    let known = maps.identity(half_slot(identity, half.into()));
    if known.class == CLASS_UNKNOWN {
        return Ok(CLASS_UNKNOWN);
    }
    let exporter = ExporterKey {
        cluster: sender.cluster,
        set: known.exporters,
        half: half.into(),
    };
    if maps.is_exporter(&exporter) {
        return Ok(known.class);
    }
    if identity != IDENTITY_HOST {
        return Err(DropReason::IdentityForged);
    }
    Ok(CLASS_UNKNOWN)
}

/// Protocol and port as rules have them: type and code instead of a port for ICMP.
#[inline(always)]
pub(super) fn rule_port<P: Packet>(packet: &P, l4: &L4Header) -> (u8, [u8; 2]) {
    match l4.proto {
        ip::TCP | ip::UDP | ip::SCTP => (l4.proto, l4.dst_port.to_be_bytes()),
        ip::ICMP | ip::ICMPV6 if l4.kind != L4Kind::LaterFragment => {
            (l4.proto, packet.load::<2>(l4.at).unwrap_or([0xff; 2]))
        }
        _ => (PROTO_OTHER, [0; 2]),
    }
}
