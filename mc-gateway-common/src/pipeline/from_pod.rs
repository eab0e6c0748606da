//! Ingress of the Pods' devices on this node: network policies on packets as Pods send them.
//!
//! *Guarantees*: a packet of a Pod that rules for egress select leaves its device only if they allow it, or if it
//! belongs to a connection that they have allowed or that was opened to the Pod. Flows of a Pod with rules for ingress
//! are recorded, so that replies pass.

use super::{
    plain_packet::PlainPacket,
    policy::{Denial, check_seen, evaluate_peer, half, is_unselected, pod_rules, rule_port},
    policy_flow::{Opening, ip_version, is_neighbor_discovery, is_open, opening, record},
    subprograms::{MapSubprograms, Subprograms},
};
use crate::{
    abi::{
        policy::{DIRECTION_EGRESS, DIRECTION_INGRESS, ENFORCED_EGRESS},
        sample::FROM_POD,
    },
    packet::ip,
    verdict::Verdict,
};

/// Passes a packet of a Pod to the stack or to the bridge, or drops it.
#[inline(always)]
pub fn from_pod<P: Subprograms, M: MapSubprograms>(packet: &mut P, maps: &M) -> Verdict {
    match decide(packet, maps) {
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
fn decide<P: Subprograms, M: MapSubprograms>(packet: &P, maps: &M) -> Result<(), Denial> {
    let state = maps.policy_state();
    if state.enforced == 0 {
        return Ok(());
    }
    let Some(v6) = ip_version(packet)? else {
        return Ok(());
    };
    let half = half(state);
    let plain = PlainPacket::read(packet, v6);
    if let Some([src, _]) = plain.addresses(packet)
        && is_unselected(maps, half, src)
    {
        return Ok(());
    }
    let Some(Opening { l4, key }) = opening(packet, plain, v6, true)? else {
        return Ok(());
    };
    let rules = |direction| pod_rules(maps, half, key.pod, direction);
    let port = rule_port(packet, &l4);
    if is_neighbor_discovery(port) || l4.proto != ip::TCP && is_open(maps, &key) {
        return Ok(());
    }
    let enforces_egress = state.enforced & ENFORCED_EGRESS != 0;
    if enforces_egress && let Some(pod) = rules(DIRECTION_EGRESS) {
        evaluate_peer(packet, maps, half, key.client, pod, port, FROM_POD)?;
        record(maps, &l4, &key);
        return Ok(());
    }
    match rules(DIRECTION_INGRESS) {
        Some(pod) if !pod.is_unselected() => record(maps, &l4, &key),
        None if enforces_egress => check_seen(maps, key.pod)?,
        _ => {}
    }
    Ok(())
}
