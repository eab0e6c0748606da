//! Egress of the Pods' devices on this node: network policies on packets that did not come through `mc0`.
//!
//! *Guarantees*: a packet from the own cluster, or from outside of the `ClusterSet`, reaches a Pod that a policy
//! selects only if the rules allow it, or if it belongs to a connection that they have allowed or that the Pod has
//! opened. Packets of the Node itself pass: the kubelet probes its Pods, as with Antrea.

use super::{
    plain_packet::PlainPacket,
    policy::{Denial, check_seen, evaluate_peer, half, is_unselected, pod_rules, rule_port},
    policy_flow::{Opening, ip_version, is_neighbor_discovery, is_open, opening, record},
    subprograms::{MapSubprograms, Subprograms},
};
use crate::{
    abi::{
        policy::{DIRECTION_INGRESS, ENFORCED_INGRESS},
        sample::TO_POD,
    },
    packet::ip,
    verdict::Verdict,
};

/// Passes a packet to the Pod, or drops it.
#[inline(always)]
pub fn to_pod<P: Subprograms, M: MapSubprograms>(packet: &mut P, maps: &M) -> Verdict {
    match decide(packet, maps) {
        Ok(()) => Verdict::Pass,
        Err(denial) => match denial.answer(packet, maps) {
            Ok(outcome) => Verdict::Deliver {
                outcome,
                ifindex: packet.ifindex(),
            },
            Err(reason) => Verdict::Drop(reason),
        },
    }
}

#[inline(always)]
fn decide<P: Subprograms, M: MapSubprograms>(packet: &P, maps: &M) -> Result<(), Denial> {
    let state = maps.policy_state();
    if state.enforced & ENFORCED_INGRESS == 0 {
        return Ok(());
    }
    // `from_remote` has decided on packets that came through `mc0`.
    let received_on = packet.ingress_ifindex();
    if received_on == 0
        || maps
            .config()
            .is_some_and(|config| config.mc0_ifindex == received_on)
    {
        return Ok(());
    }
    let Some(v6) = ip_version(packet)? else {
        return Ok(());
    };
    let half = half(state);
    let plain = PlainPacket::read(packet, v6);
    if let Some([_, dst]) = plain.addresses(packet)
        && is_unselected(maps, half, dst)
    {
        return Ok(());
    }
    let Some(Opening { l4, key }) = opening(packet, plain, v6, false)? else {
        return Ok(());
    };
    let Some(pod) = pod_rules(maps, half, key.pod, DIRECTION_INGRESS) else {
        return Ok(check_seen(maps, key.pod)?);
    };
    if pod.is_unselected() {
        return Ok(());
    }
    let port = rule_port(packet, &l4);
    if is_neighbor_discovery(port) || l4.proto != ip::TCP && is_open(maps, &key) {
        return Ok(());
    }
    evaluate_peer(packet, maps, half, key.client, pod, port, TO_POD)?;
    record(maps, &l4, &key);
    Ok(())
}
