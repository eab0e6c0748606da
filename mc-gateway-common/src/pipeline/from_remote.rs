//! Ingress of `mc0`: packets from other clusters to Pods of this node, after decapsulation and the translation of
//! Service addresses. Network policies decide on them.
//!
//! *Guarantees*: a packet to a Pod that a policy selects reaches the stack only if the rules allow it, or if it belongs
//! to a connection that they have allowed or that the Pod has opened. What cannot be decided is dropped.

use super::{
    plain_packet::PlainPacket,
    policy::{Denial, Sender, check_seen, evaluate, half, pod_rules, rule_port},
    policy_flow::{Opening, is_open, opening, record},
    subprograms::{MapSubprograms, Subprograms},
};
use crate::{
    abi::{
        DeliveredMac,
        policy::{DIRECTION_INGRESS, ENFORCED_INGRESS},
        sample::FROM_REMOTE,
    },
    packet::{Address, eth, ip},
    verdict::{DropReason, Verdict},
};

/// Passes a packet to the stack, or drops it.
#[inline(always)]
pub fn from_remote<P: Subprograms, M: MapSubprograms>(packet: &mut P, maps: &M) -> Verdict {
    let Some(mac) = packet.load::<6>(eth::SRC) else {
        return Verdict::Drop(DropReason::InnerMalformed);
    };
    let delivered = DeliveredMac::from_mac(mac);
    if !delivered.evaluated {
        return Verdict::Pass;
    }
    match decide(packet, maps, delivered.identity) {
        Ok(()) => Verdict::Pass,
        Err(denial) => match denial.answer(packet, maps) {
            Ok(outcome) => Verdict::Send {
                outcome,
                ifindex: packet.ifindex(),
                addressed: true,
            },
            Err(reason) => Verdict::Drop(reason),
        },
    }
}

#[inline(always)]
fn decide<P: Subprograms, M: MapSubprograms>(packet: &P, maps: &M, identity: u32) -> Result<(), Denial> {
    let state = maps.policy_state();
    if state.enforced & ENFORCED_INGRESS == 0 {
        return Ok(());
    }
    let v6 = match packet.ethertype() {
        eth::IPV4 => false,
        eth::IPV6 => true,
        _ => return Err(DropReason::InnerProtocol.into()),
    };
    let plain = PlainPacket::read(packet, v6);
    let Some(Opening { l4, key }) = opening(packet, plain, v6, false)? else {
        return Ok(());
    };
    // An open flow needs no look-up of its Pod: the agent removes the flows of a Pod that has ended.
    if l4.proto != ip::TCP && is_open(maps, &key) {
        return Ok(());
    }
    let half = half(state);
    let Some(pod) = pod_rules(maps, half, key.pod, DIRECTION_INGRESS) else {
        return Ok(check_seen(maps, key.pod)?);
    };
    if pod.is_unselected() {
        return Ok(());
    }
    let sender = Sender {
        addr: key.client,
        cluster: maps.cluster_of(Address::from(key.client)),
        identity,
    };
    evaluate(
        packet,
        maps,
        half,
        &sender,
        pod,
        rule_port(packet, &l4),
        FROM_REMOTE,
    )?;
    record(maps, &l4, &key);
    Ok(())
}
