//! Service processing of an encapsulated packet.

use super::{
    super::{
        decision::{PackedDecision, ServiceStep},
        subprograms::Subprograms,
    },
    backend_mac::inner_src_mac_at,
    backend_route::BackendRoute,
    l4::{self, Side},
    nat::Dnat,
};
use crate::{
    abi::{PEER_LOCAL_GATEWAY, PEER_LOCAL_NODE, SourceMac, flow_entry::FlowEntry},
    maps::Maps,
    packet::{OuterFamily, Packet, eth},
};

/// Executes the Service step of a decision and returns the remaining decision. The outer packet is IPv6 or IPv4.
#[inline(always)]
pub fn translate_service<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    v6: bool,
    decision: PackedDecision,
) -> PackedDecision {
    let route = match decision.service_step() {
        Some(ServiceStep::SelectBackend) => {
            let route = packet.select_backend(maps, v6);
            match route.unchecked() {
                Some(backend) => packet.select_again(maps, v6, backend, 0),
                None => route,
            }
        }
        Some(ServiceStep::Dnat) => match received(packet, maps, v6) {
            Received::Request(entry) => return dnat(packet, maps, v6, decision, entry),
            Received::Return { backend, group } => packet.select_again(maps, v6, backend, group),
        },
        Some(ServiceStep::ClearNat) => {
            packet.clear_nat_entry(maps, OuterFamily::new(v6).inner_at());
            return decision.without_service_step();
        }
        None => return decision,
    };
    match route.unpack() {
        Err(reason) => PackedDecision::drop(reason),
        Ok(BackendRoute { backend: 0, .. }) => decision.into_service_proxy(),
        Ok(BackendRoute { backend, group: 0 }) => {
            dnat(packet, maps, v6, decision, FlowEntry::confirmed(backend))
        }
        Ok(route) => {
            // The group of a Node usually has one next hop: any hash selects it.
            let hash = Some(route.hash());
            PackedDecision::forward(route.group, hash, decision.may_open_connection())
                .with_alias_of(decision)
                .with_backend()
        }
    }
}

/// A packet to a Service from a peer of this cluster.
#[derive(Clone, Copy, Debug)]
enum Received {
    /// From a gateway to a backend of this node.
    Request(FlowEntry),
    /// From the Node with the group `group`, whose backend does not have the connection.
    Return { backend: u64, group: u32 },
}

/// The backend ID in the inner source MAC address, without the secret of the peer that sent the packet. Without one it
/// is 0, the ID of no backend.
#[inline(always)]
fn received<P: Packet, M: Maps>(packet: &P, maps: &M, v6: bool) -> Received {
    received_backend(packet, maps, v6).unwrap_or(Received::Request(FlowEntry::confirmed(0)))
}

#[inline(always)]
fn received_backend<P: Packet, M: Maps>(packet: &P, maps: &M, v6: bool) -> Option<Received> {
    let mac = packet.load(inner_src_mac_at(v6))?;
    let source = l4::address(packet, v6, eth::END, Side::Source)?;
    let peer = maps.peer(source.into())?;
    let mac = SourceMac::from_bits(eth::mac_to_u64(mac));
    let backend = peer.backend(mac)?;
    if !mac.has_return_mark() {
        return Some(Received::Request(FlowEntry::confirmed(backend)));
    }
    // A gateway that is a Node as well sends both kinds: the place of the backend decides.
    let to_here = || maps.backend(backend).is_none_or(|backend| backend.group == 0);
    if peer.flags & PEER_LOCAL_NODE == 0 || peer.flags & PEER_LOCAL_GATEWAY != 0 && to_here() {
        return Some(Received::Request(FlowEntry::unconfirmed(backend, 0)));
    }
    // A Node without Pods has no group; 0 is this node.
    let group = if peer.group == 0 { u32::MAX } else { peer.group };
    Some(Received::Return { backend, group })
}

#[inline(always)]
fn dnat<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    v6: bool,
    decision: PackedDecision,
    entry: FlowEntry,
) -> PackedDecision {
    match packet.dnat_request(maps, OuterFamily::new(v6).inner_at(), entry.word()) {
        Ok(Dnat::Translated) => decision.without_service_step(),
        Ok(Dnat::Unknown) => match packet.return_to_gateway(maps, v6) {
            Ok(()) => PackedDecision::RETURNED,
            Err(reason) => PackedDecision::drop(reason),
        },
        Err(reason) => PackedDecision::drop(reason),
    }
}
