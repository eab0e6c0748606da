//! Ingress of `mc0`: packets from other clusters to Pods of this node, after decapsulation and the translation of
//! Service addresses. Network policies decide on them.
//!
//! *Guarantees*: a packet to a Pod that a policy selects reaches the stack only if the rules allow it, or if it belongs
//! to a connection that they have allowed or that the Pod has opened. What cannot be decided is dropped.
//!
//! A TCP connection is decided by its first segment. Other segments pass: they open no connection, and one that is open
//! stays open when rules change, as with Antrea. Datagrams of a flow pass for [`FLOW_LIFETIME`] after its last one.

use super::{
    policy::{Sender, evaluate, rule_port},
    service::l4_header::{L4Header, L4Kind},
    subprograms::{MapSubprograms, Subprograms},
};
use crate::{
    abi::{Addr, CLUSTER_LOCAL, DeliveredMac, PREFIX_POLICY, policy::PolicyPodKey, service::ReplyKey},
    maps::Maps,
    packet::{Address, Packet, eth, ip, l4::is_extension, offsets::TCP_FLAGS},
    verdict::{DropReason, Verdict},
};

/// Nanoseconds after its last packet at which a flow without TCP ends (RFC 4787 section 4.3: two minutes or more).
pub const FLOW_LIFETIME: u64 = 180_000_000_000;
/// Nanoseconds after which the time of a flow is written again.
const REFRESH: u64 = 1_000_000_000;

/// Passes a packet to the stack, or drops it.
#[inline(always)]
pub fn from_remote<P: Subprograms, M: MapSubprograms>(packet: &P, maps: &M) -> Verdict {
    let Some(mac) = packet.load::<6>(eth::SRC) else {
        return Verdict::Drop(DropReason::InnerMalformed);
    };
    let delivered = DeliveredMac::from_mac(mac);
    if !delivered.evaluated {
        return Verdict::Pass;
    }
    match decide(packet, maps, delivered.identity) {
        Ok(()) => Verdict::Pass,
        Err(reason) => Verdict::Drop(reason),
    }
}

#[inline(always)]
fn decide<P: Subprograms, M: MapSubprograms>(packet: &P, maps: &M, identity: u32) -> Result<(), DropReason> {
    let state = maps.policy_state();
    if state.enforced == 0 {
        return Ok(());
    }
    let v6 = match packet.ethertype() {
        eth::IPV4 => false,
        eth::IPV6 => true,
        _ => return Err(DropReason::InnerProtocol),
    };
    let l4 = packet.parse_l4(v6, eth::END).unpack();
    match l4.kind {
        // Without the first fragment, which is decided by its ports, the stack assembles no packet. An error about a
        // connection that does not exist has no effect.
        L4Kind::LaterFragment | L4Kind::IcmpError => return Ok(()),
        L4Kind::Truncated => return Err(DropReason::InnerMalformed),
        // The stack may find a transport header behind it, which a rule concerns.
        L4Kind::Other if v6 && is_extension(l4.proto) => return Err(DropReason::InnerMalformed),
        L4Kind::Unfragmented if l4.proto == ip::TCP && !opens_connection(packet, &l4)? => return Ok(()),
        _ => {}
    }
    let key = flow_key(packet, &l4, false).ok_or(DropReason::InnerMalformed)?;
    let half = u8::from(state.half & 1 != 0);
    let Some(pod) = maps.policy_pod(&PolicyPodKey {
        addr: key.pod,
        half: half.into(),
    }) else {
        return unselected(maps, key.pod);
    };
    if l4.proto != ip::TCP && is_open(maps, &key) {
        return Ok(());
    }
    let sender = Sender {
        addr: key.client,
        cluster: maps.cluster_of(Address::from(key.client)),
        identity,
    };
    evaluate(maps, half, &sender, pod, rule_port(packet, &l4))?;
    if l4.proto != ip::TCP {
        maps.set_policy_flow(&key, maps.now());
    }
    Ok(())
}

/// Decision for a destination that no policy selects. One that the agent has not seen is in a range of Pods or
/// Services, and a policy may select it: the service proxy of this node would translate a Service address here.
#[inline(always)]
fn unselected<M: Maps>(maps: &M, addr: Addr) -> Result<(), DropReason> {
    match maps.prefix(addr.into(), CLUSTER_LOCAL) {
        Some(prefix) if prefix.flags & PREFIX_POLICY != 0 => Err(DropReason::PolicyPod),
        _ => Ok(()),
    }
}

/// Whether an unfragmented TCP segment has SYN and not ACK (RFC 9293 section 3.5).
#[inline(always)]
fn opens_connection<P: Packet>(packet: &P, l4: &L4Header) -> Result<bool, DropReason> {
    let flags = packet.load::<1>(l4.at.wrapping_add(TCP_FLAGS));
    flags.map(|_| l4.syn).ok_or(DropReason::InnerMalformed)
}

/// Whether a packet of the flow has passed lately.
#[inline(always)]
fn is_open<M: Maps>(maps: &M, key: &ReplyKey) -> bool {
    let now = maps.now();
    let Some(last) = maps.policy_flow(key) else {
        return false;
    };
    let age = now.saturating_sub(last);
    if age > FLOW_LIFETIME {
        return false;
    }
    if age > REFRESH {
        maps.set_policy_flow(key, now);
    }
    true
}

/// Records the flow of a packet that a Pod with policies sends to another cluster, so that its replies pass.
#[inline(always)]
pub fn track_flow<P: Subprograms, M: Maps>(packet: &P, maps: &M) {
    let v6 = packet.ethertype() == eth::IPV6;
    let l4 = packet.parse_l4(v6, eth::END).unpack();
    if l4.proto == ip::TCP
        || matches!(
            l4.kind,
            L4Kind::LaterFragment | L4Kind::IcmpError | L4Kind::Truncated
        )
    {
        return;
    }
    if let Some(key) = flow_key(packet, &l4, true)
        && !is_open(maps, &key)
    {
        maps.set_policy_flow(&key, maps.now());
    }
}

/// Key of the flow of a packet to a Pod, or from one if `reverse`. Echo messages (RFC 792, RFC 4443) have their
/// identifier as port of the Pod, and requests of Pod and client are two flows.
#[inline(always)]
fn flow_key<P: Packet>(packet: &P, l4: &L4Header, reverse: bool) -> Option<ReplyKey> {
    const REQUEST: u16 = 1;
    let mut key = l4.reply_key(packet, eth::END, reverse)?;
    if l4.kind == L4Kind::Other && matches!(l4.proto, ip::ICMP | ip::ICMPV6) {
        let [message, _, _, _, i0, i1] = packet.load::<6>(l4.at)?;
        let request = match (l4.v6, message) {
            (false, 8) | (true, 128) => true,
            (false, 0) | (true, 129) => false,
            _ => return Some(key),
        };
        key.pod_port = u16::from_be_bytes([i0, i1]);
        key.client_port = if request == reverse { 0 } else { REQUEST };
    }
    Some(key)
}
