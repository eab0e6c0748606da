//! Backend selection at a gateway.

use super::{
    super::subprograms::Subprograms,
    backend_mac::inner_src_mac_at,
    backend_route::{BackendRoute, PackedRoute},
    l4::{Side, address, is_v6},
    l4_header::{L4Kind, PackedL4Header},
    map_insert::count_insert_failure,
};
use crate::{
    abi::{
        CONFIG_ALL_SERVICES, SourceMac,
        affinity::AffinityEntry,
        service::{
            BACKEND_ID_BITS, BACKEND_READY, Backend, FLOW_OF_STACK, FlowKey, Fragment, MAGLEV_ENTRIES,
            MAGLEV_SLOTS, SERVICE_AFFINITY, SERVICE_STACK, SERVICE_TIMEOUT_SHIFT, Service, ServiceKey,
        },
    },
    maps::{Maps, rate_limit::PeerLimit},
    nexthop_select,
    packet::{
        Address, OuterFamily, Packet, UDP_CHECK_TO_INNER, checksum, eth, ip,
        offsets::{ipv4, ipv6},
    },
    verdict::{DropReason, Event},
};

/// Distance from the outer UDP checksum to the inner source MAC address.
const CHECK_TO_MAC: u32 = UDP_CHECK_TO_INNER.wrapping_sub(eth::END).wrapping_add(eth::SRC);

/// [`flow_backend_id`] of a port that is not exported: greater than any ID.
const NOT_EXPORTED: u64 = 2 << BACKEND_ID_BITS;
/// [`flow_backend_id`] of a new flow beyond the limit of its peer: greater than any ID.
const LIMITED: u64 = 3 << BACKEND_ID_BITS;

/// A backend and its ID.
#[derive(Clone, Copy, Debug)]
struct Selected<'t> {
    id: u64,
    backend: &'t Backend,
}

/// Selects the backend of a packet to a Service from another cluster's gateway, encapsulated in IPv6 or IPv4, and
/// writes it into the packet if the backend is on another node.
#[inline(always)]
pub fn select_backend<P: Subprograms, M: Maps>(packet: &mut P, maps: &M, v6: bool) -> PackedRoute {
    match route(packet, maps, v6) {
        Ok(route) => PackedRoute::new(route),
        Err(reason) => PackedRoute::rejected(reason),
    }
}

#[inline(always)]
fn route<P: Subprograms, M: Maps>(packet: &mut P, maps: &M, v6: bool) -> Result<BackendRoute, DropReason> {
    let backend = lookup_backend(packet, maps, OuterFamily::new(v6).inner_at())?;
    let Some(entry) = maps.backend(backend) else {
        maps.count(Event::ServiceToStack);
        return Ok(BackendRoute::default());
    };
    let route = BackendRoute {
        backend,
        group: entry.group,
    };
    if route.group != 0 {
        let [ttl] = packet
            .load::<1>(eth::END.wrapping_add(if v6 { ipv6::HOP_LIMIT } else { ipv4::TTL }))
            .unwrap_or([0]);
        if ttl <= 1 {
            return Err(DropReason::TtlExceeded);
        }
        write_backend_mac(packet, v6, backend).ok_or(DropReason::WriteFailed)?;
    }
    Ok(route)
}

/// Writes the MAC address of a backend without a secret into the inner Ethernet header, and updates the outer UDP
/// checksum over it. The secret is that of the next hop, which is not yet known.
#[inline(always)]
fn write_backend_mac<P: Packet>(packet: &mut P, v6: bool, backend: u64) -> Option<()> {
    let at = inner_src_mac_at(v6);
    let [o0, o1, o2, o3, o4, o5] = packet.load::<6>(at)?;
    let mac @ [m0, m1, m2, m3, m4, m5] = SourceMac::UNKEYED.with_backend(backend).bytes();
    packet.store(at, &mac)?;
    let check_at = at.wrapping_sub(CHECK_TO_MAC);
    let check = packet.load::<2>(check_at)?;
    if check == [0, 0] {
        return Some(());
    }
    // The offset from the UDP header is even, so the bytes keep their places in the sum.
    let difference = checksum::difference(&[o0, o1, o2, o3, o4, o5, 0, 0], &[m0, m1, m2, m3, m4, m5, 0, 0]);
    packet.store(
        check_at,
        &checksum::nonzero_for_udp(checksum::update(check, difference)),
    )
}

/// ID of the backend of the packet with the IP header at `at`; 0 if this node's stack serves it.
#[inline(always)]
fn lookup_backend<P: Subprograms, M: Maps>(packet: &P, maps: &M, at: u32) -> Result<u64, DropReason> {
    let v6 = is_v6(packet, at);
    let header = packet.parse_l4(v6, at);
    let l4 = header.unpack();
    match l4.kind {
        L4Kind::Unfragmented | L4Kind::Sctp => exported(packet.flow_backend_id(maps, at, header, false)),
        L4Kind::FirstFragment => {
            let backend = exported(packet.flow_backend_id(maps, at, header, false))?;
            let key = l4.fragment_key(packet, at).ok_or(DropReason::InnerMalformed)?;
            if !packet.take_peer_token(maps, PeerLimit::Fragments) {
                return Err(DropReason::FlowLimited);
            }
            let fragment = Fragment {
                backend,
                service: key.dst,
            };
            count_insert_failure(maps, maps.set_fragment(&key, &fragment));
            Ok(backend)
        }
        // Without an entry the stack gets it: it reassembles no packet whose first fragment it does not get.
        L4Kind::LaterFragment => {
            let key = l4.fragment_key(packet, at).ok_or(DropReason::InnerMalformed)?;
            Ok(maps.fragment(&key).map_or(0, |fragment| fragment.backend))
        }
        // The quoted packet is from the Service: the error is for the backend of that flow.
        L4Kind::IcmpError => {
            let quote_at = l4.quote_at();
            let quote = packet.parse_l4(v6, quote_at);
            let about = address(packet, v6, quote_at, Side::Source).ok_or(DropReason::InnerMalformed)?;
            let service = address(packet, v6, at, Side::Destination).ok_or(DropReason::InnerMalformed)?;
            if about != service || !quote.unpack().has_ports() {
                return exported(port_not_exported(maps));
            }
            exported(packet.flow_backend_id(maps, quote_at, quote, true))
        }
        // A Service has no other protocols.
        L4Kind::Other => exported(port_not_exported(maps)),
        L4Kind::Truncated => Err(DropReason::InnerMalformed),
    }
}

/// A result of [`flow_backend_id`].
#[inline(always)]
const fn exported(backend: u64) -> Result<u64, DropReason> {
    match backend {
        NOT_EXPORTED => Err(DropReason::NotExported),
        LIMITED => Err(DropReason::FlowLimited),
        _ => Ok(backend),
    }
}

/// [`flow_backend_id`] of a port that is not exported.
#[inline(always)]
fn port_not_exported<M: Maps>(maps: &M) -> u64 {
    match maps.config() {
        Some(config) if config.flags & CONFIG_ALL_SERVICES != 0 => 0,
        _ => NOT_EXPORTED,
    }
}

/// ID of the backend of a flow; 0 if this node's stack serves it, or a larger number than any ID if its port is not
/// exported or the flow is one too many. The IP header of the packet is at `at`; a packet from the Service is
/// `reverse`.
#[inline(always)]
pub fn flow_backend_id<P: Subprograms, M: Maps>(
    packet: &P,
    maps: &M,
    at: u32,
    l4: PackedL4Header,
    reverse: bool,
) -> u64 {
    let l4 = l4.unpack();
    let Some(key) = l4.flow_key(packet, at, reverse) else {
        return NOT_EXPORTED;
    };
    let service_key = service_key(&key);
    let Some(service) = maps.service(&service_key) else {
        return port_not_exported(maps);
    };
    backend_for_flow(packet, maps, key, &service_key, service, l4.syn && !reverse)
}

#[inline(always)]
fn get_backend<M: Maps>(maps: &M, id: u64) -> Option<Selected<'_>> {
    let backend = maps.backend(id)?;
    Some(Selected { id, backend })
}

/// The port of the Service of a flow.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a protocol number is a byte")]
const fn service_key(key: &FlowKey) -> ServiceKey {
    ServiceKey {
        addr: key.service,
        port: key.service_port,
        proto: key.proto as u8,
        pad: 0,
    }
}

/// The backend of a flow: the stored one while it exists, else one from the Maglev table, else 0 for the stack. A TCP
/// connection stays where it was opened, also when its port is left to the service proxy or taken from it.
#[inline(always)]
fn backend_for_flow<P: Subprograms, M: Maps>(
    packet: &P,
    maps: &M,
    mut key: FlowKey,
    service_key: &ServiceKey,
    service: &Service,
    syn: bool,
) -> u64 {
    // No backend has the ID 0.
    let known = maps.flow(&key).unwrap_or(0);
    if !syn && known == FLOW_OF_STACK {
        return 0;
    }
    if !syn
        && let Some(selected) = get_backend(maps, known)
        // A TCP connection keeps its backend; UDP flows move off a backend that is not ready if another one is.
        && (service_key.proto == ip::TCP
            || selected.backend.flags & BACKEND_READY != 0
            || service.backends == 0)
    {
        return selected.id;
    }
    let selected = if service.flags & SERVICE_STACK == 0 {
        select_new(maps, service, service_key, &mut key)
    } else {
        None
    };
    let Some((selected, client_entry)) = selected else {
        if syn && known != FLOW_OF_STACK {
            if known == 0 && !packet.take_peer_token(maps, PeerLimit::Flows) {
                return LIMITED;
            }
            count_insert_failure(maps, maps.set_flow(&key, FLOW_OF_STACK));
        }
        return 0;
    };
    if known == 0 && !packet.take_peer_token(maps, PeerLimit::Flows) {
        // A TCP connection opened at another gateway, or whose entry was evicted, follows the lookup table.
        let established = !syn && service_key.proto == ip::TCP;
        return if established { selected.id } else { LIMITED };
    }
    if client_entry != 0 {
        let port = key.client_port;
        key.client_port = 0;
        count_insert_failure(maps, maps.set_flow(&key, client_entry));
        key.client_port = port;
    }
    if known != selected.id {
        count_insert_failure(maps, maps.set_flow(&key, selected.id));
        maps.count(if known == 0 {
            Event::ServiceFlow
        } else {
            Event::ServiceFlowMoved
        });
    }
    selected.id
}

/// The backend of a new flow, and the entry of its client to store, or 0.
#[inline(always)]
fn select_new<'t, M: Maps>(
    maps: &'t M,
    service: &Service,
    service_key: &ServiceKey,
    key: &mut FlowKey,
) -> Option<(Selected<'t>, u64)> {
    if service.flags & SERVICE_AFFINITY == 0 {
        let ports = (u32::from(key.client_port) << 16) | u32::from(key.service_port);
        return Some((lookup_maglev(maps, service_key, hash(key, ports))?, 0));
    }
    let port = key.client_port;
    key.client_port = 0;
    let selected = backend_for_client(maps, service, service_key, key);
    key.client_port = port;
    selected
}

/// The backend of a new flow of a client of a Service with affinity, and the client's entry with the time of that flow;
/// 0 if the entry stays.
#[inline(always)]
fn backend_for_client<'t, M: Maps>(
    maps: &'t M,
    service: &Service,
    service_key: &ServiceKey,
    client: &FlowKey,
) -> Option<(Selected<'t>, u64)> {
    let timeout = u64::from(service.flags >> SERVICE_TIMEOUT_SHIFT);
    let now = if timeout == 0 {
        0
    } else {
        AffinityEntry::seconds(maps.now())
    };
    // No backend has the ID 0.
    let known = AffinityEntry::from_word(maps.flow(client).unwrap_or(0));
    let current = if timeout != 0 && known.is_expired(now, timeout) {
        None
    } else {
        get_backend(maps, known.backend()).filter(|selected| selected.backend.flags & BACKEND_READY != 0)
    };
    let selected = match current {
        Some(selected) => selected,
        None => lookup_maglev(maps, service_key, hash(client, 0))?,
    };
    let entry = AffinityEntry::new(selected.id, now);
    let changed = if entry == known { 0 } else { entry.word() };
    Some((selected, changed))
}

/// Hash of a flow, the same at every gateway.
#[inline(always)]
fn hash(key: &FlowKey, ports: u32) -> u32 {
    let hash = nexthop_select::mix(Address::from(key.client).fold(), key.proto);
    let hash = nexthop_select::mix(Address::from(key.service).fold(), hash);
    nexthop_select::mix(ports, hash)
}

/// Backend for a hash from the Maglev table.
#[inline(always)]
fn lookup_maglev<'t, M: Maps>(maps: &'t M, key: &ServiceKey, hash: u32) -> Option<Selected<'t>> {
    let table = maps.maglev(key)?;
    // Scales the hash to the table's size instead of dividing by it.
    let at = u64::from(hash).wrapping_mul(MAGLEV_ENTRIES as u64) >> 32;
    let at = usize::try_from(at).ok()? & MAGLEV_SLOTS.wrapping_sub(1);
    let id = table.backends.get(at)?;
    get_backend(maps, *id)
}
