//! Service processing of an encapsulated packet.

use super::{
    super::{
        decision::{PackedDecision, ServiceStep},
        subprograms::Subprograms,
    },
    backend_mac::inner_src_mac_at,
    backend_route::BackendRoute,
    l4::{self, Side},
};
use crate::{
    abi::SourceMac,
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
    match decision.service_step() {
        Some(ServiceStep::SelectBackend) => forward_to_backend(packet, maps, v6, decision),
        Some(ServiceStep::Dnat) => {
            // No backend has the ID 0.
            let backend = received_backend(packet, maps, v6).unwrap_or(0);
            dnat(packet, maps, v6, decision, backend)
        }
        Some(ServiceStep::ClearNat) => {
            packet.clear_nat_entry(maps, OuterFamily::new(v6).inner_at());
            decision.without_service_step()
        }
        None => decision,
    }
}

/// Selects the backend of a packet from another cluster's gateway.
#[inline(always)]
fn forward_to_backend<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    v6: bool,
    decision: PackedDecision,
) -> PackedDecision {
    match packet.select_backend(maps, v6).unpack() {
        Err(reason) => PackedDecision::drop(reason),
        Ok(BackendRoute { backend: 0, .. }) => decision.without_service_step(),
        Ok(BackendRoute { backend, group: 0 }) => dnat(packet, maps, v6, decision, backend),
        Ok(route) => {
            // The group of a Node usually has one next hop: any hash selects it.
            let hash = Some(route.hash());
            PackedDecision::forward(route.group, hash, decision.may_open_connection())
                .with_alias_of(decision)
                .with_backend()
        }
    }
}

/// The backend ID in the inner source MAC address, without the secret of the peer that sent the packet.
#[inline(always)]
fn received_backend<P: Packet, M: Maps>(packet: &P, maps: &M, v6: bool) -> Option<u64> {
    let mac = packet.load(inner_src_mac_at(v6))?;
    let source = l4::address(packet, v6, eth::END, Side::Source)?;
    let peer = maps.peer(source.into())?;
    peer.backend(SourceMac::from_bits(eth::mac_to_u64(mac)))
}

#[inline(always)]
fn dnat<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    v6: bool,
    decision: PackedDecision,
    backend: u64,
) -> PackedDecision {
    match packet.dnat_request(maps, OuterFamily::new(v6).inner_at(), backend) {
        Ok(()) => decision.without_service_step(),
        Err(reason) => PackedDecision::drop(reason),
    }
}
