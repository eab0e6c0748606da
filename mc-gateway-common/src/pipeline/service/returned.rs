//! Packets of connections that the selected backend does not have: its Node returns them to the gateway, which selects
//! again.
//!
//! *Guarantees*: a Node returns a packet only if its gateway permits that, and only to that gateway. A gateway accepts
//! a returned packet only of an unconfirmed flow that it has sent to that backend of this Node, and sends one packet
//! for it.

use core::ops::Range;

use super::{
    super::subprograms::Subprograms,
    backend_mac::inner_src_mac_at,
    backend_route::{BackendRoute, PackedRoute},
    backend_select::{route_to, service_key},
    l4::{Side, address, is_v6},
    l4_header::L4Kind,
    map_insert::count_insert_failure,
    next_choice::is_known,
    outer_ttl::outer_ttl,
};
use crate::{
    abi::{
        NextHop, SourceMac,
        flow_entry::FlowEntry,
        service::{FlowKey, PAST_TABLES},
    },
    maps::Maps,
    packet::{OuterFamily, eth, ip},
    verdict::{DropReason, Event},
};

/// Returns a packet, encapsulated in IPv6 or IPv4, to the gateway that sent it, with the same backend.
#[inline(always)]
pub fn return_to_gateway<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    v6: bool,
) -> Result<(), DropReason> {
    if outer_ttl(packet, v6) <= 1 {
        return Err(DropReason::TtlExceeded);
    }
    let gateway = address(packet, v6, eth::END, Side::Source).ok_or(DropReason::WriteFailed)?;
    let local = address(packet, v6, eth::END, Side::Destination).ok_or(DropReason::WriteFailed)?;
    let mac = packet.load(inner_src_mac_at(v6)).ok_or(DropReason::WriteFailed)?;
    let peer = maps.peer(gateway.into()).ok_or(DropReason::UnknownPeer)?;
    let mac = SourceMac::from_bits(eth::mac_to_u64(mac));
    let backend = peer.backend(mac).ok_or(DropReason::UnknownBackend)?;
    let source_mac = SourceMac::from_bits(peer.reply_mac)
        .with_backend(backend)
        .may_return();
    let to = NextHop {
        source_mac: source_mac.to_bits(),
        addr: gateway,
        local,
        ..NextHop::default()
    };
    packet.rewrite_outer(&to, v6, 0).ok_or(DropReason::WriteFailed)?;
    maps.count(Event::ServiceReturned);
    maps.count_sent(peer.stats, packet.frame_len());
    Ok(())
}

/// Selects the next backend of a packet whose present one, `backend`, does not have the connection: the Node with the
/// group `group` has returned the packet. With the group 0 `backend` is on this node, or does not exist, and is not
/// compared with the connections of this node yet. The packet is encapsulated in IPv6 or IPv4.
#[inline(always)]
pub fn select_again<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    v6: bool,
    backend: u64,
    group: u32,
) -> PackedRoute {
    match route(packet, maps, v6, backend, group) {
        Ok(route) => PackedRoute::new(route),
        Err(reason) => PackedRoute::rejected(reason),
    }
}

#[inline(always)]
fn route<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    v6: bool,
    backend: u64,
    group: u32,
) -> Result<BackendRoute, DropReason> {
    let at = OuterFamily::new(v6).inner_at();
    let is_returned = group != 0;
    let refusing = maps.backend(backend);
    if is_returned && refusing.ok_or(DropReason::UnknownBackend)?.group != group {
        return Err(DropReason::ForeignBackend);
    }
    let l4 = packet.parse_l4(is_v6(packet, at), at).unpack();
    if l4.kind == L4Kind::Truncated {
        return Err(DropReason::InnerMalformed);
    }
    if !l4.open {
        return Err(DropReason::UnexpectedReturn);
    }
    let key = l4.flow_key(packet, at, false).ok_or(DropReason::InnerMalformed)?;
    let service_key = service_key(&key);
    if let Some(refusing) = refusing
        && (refusing.service, refusing.service_port, refusing.proto)
            != (service_key.addr, service_key.port, service_key.proto)
    {
        return Err(DropReason::ForeignBackend);
    }
    let service = maps.service(&service_key).ok_or(DropReason::NotExported)?;
    let known = FlowEntry::from_word(maps.flow(&key).unwrap_or(0));
    if is_returned && !known.is_unconfirmed() {
        return Err(DropReason::UnexpectedReturn);
    }
    let ports = service.ports_of_hash(&key);
    // The first choice of a TCP connection is the present table; a new flow of datagrams would take a detour then.
    let first = u32::from(l4.proto == ip::UDP);
    let mut entry = known;
    if is_returned && known.backend() != backend {
        // The entry is the result of an earlier packet, and this one was on its way: the backend is an earlier choice.
        if !is_choice::<P, M>(maps, &key, ports, first..known.table(), backend) {
            return Err(DropReason::UnexpectedReturn);
        }
    } else {
        let next = if !is_returned && refusing.is_some_and(|own| is_known(maps, &key, own)) {
            // With session affinity, the first choice may be in no table.
            FlowEntry::confirmed(backend)
        } else {
            let table = known.table().wrapping_add(u32::from(is_returned)).max(first);
            P::next_choice(maps, &key, ports, table)
        };
        // Without any other backend the flow stays.
        entry = if next.backend() == 0 {
            FlowEntry::confirmed(backend)
        } else {
            next
        };
        if entry.backend() != 0 {
            count_insert_failure(maps, maps.set_flow(&key, entry.word()));
        }
        if entry.backend() != backend {
            maps.count(if known.word() == 0 {
                Event::ServiceFlow
            } else {
                Event::ServiceFlowMoved
            });
        }
    }
    let Some(next) = maps.backend(entry.backend()) else {
        if is_returned {
            return Err(DropReason::UnknownBackend);
        }
        maps.count(Event::ServiceToStack);
        return Ok(BackendRoute::default());
    };
    route_to(packet, v6, entry, next)
}

/// Whether one of these tables has the backend for the flow.
#[inline(always)]
fn is_choice<P: Subprograms, M: Maps>(
    maps: &M,
    key: &FlowKey,
    ports: u32,
    tables: Range<u32>,
    backend: u64,
) -> bool {
    for number in 0..=PAST_TABLES {
        if tables.contains(&u32::from(number)) && P::choice(maps, key, ports, number).backend() == backend {
            return true;
        }
    }
    false
}
