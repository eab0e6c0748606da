//! Backend selection at a gateway.

use super::{
    super::subprograms::Subprograms,
    backend_mac::inner_src_mac_at,
    backend_route::{BackendRoute, PackedRoute},
    l4::{Side, address, is_v6},
    l4_header::{L4Kind, PackedL4Header},
    map_insert::count_insert_failure,
    outer_ttl::outer_ttl,
};
use crate::{
    abi::{
        CONFIG_ALL_SERVICES, CONFIG_IDENTITY_LOST, SourceMac,
        affinity::AffinityEntry,
        flow_entry::FlowEntry,
        service::{
            BACKEND_ID_BITS, BACKEND_READY, Backend, FLOW_OF_STACK, FlowKey, Fragment, MAGLEV_ENTRIES,
            MAGLEV_SLOTS, SERVICE_AFFINITY, SERVICE_IDENTITY_LOST, SERVICE_PAST, SERVICE_STACK,
            SERVICE_TIMEOUT_SHIFT, Service, ServiceKey,
        },
    },
    maps::{Maps, rate_limit::PeerLimit},
    nexthop_select,
    packet::{Address, OuterFamily, Packet, UDP_CHECK_TO_INNER, checksum, eth, ip},
    verdict::{DropReason, Event},
};

/// Distance from the outer UDP checksum to the inner source MAC address.
const CHECK_TO_MAC: u32 = UDP_CHECK_TO_INNER.wrapping_sub(eth::END).wrapping_add(eth::SRC);

/// [`flow_backend_id`] of a port that is not exported: greater than any ID, and without other bits of an entry.
const NOT_EXPORTED: u64 = 2 << BACKEND_ID_BITS;
/// [`flow_backend_id`] of a new flow beyond the limit of its peer, as [`NOT_EXPORTED`].
const LIMITED: u64 = 4 << BACKEND_ID_BITS;
/// [`flow_backend_id`] of a flow that is left to the service proxy, which would hide its sender from policies, as
/// [`NOT_EXPORTED`].
const IDENTITY_LOST: u64 = 6 << BACKEND_ID_BITS;

/// [`flow_backend_id`] of a flow whose backend [`super::select_again`] selects, and stores.
const UNSELECTED: u64 = FlowEntry::unconfirmed(0, 0).word();

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
    let entry = lookup_backend(packet, maps, OuterFamily::new(v6).inner_at())?;
    let Some(backend) = maps.backend(entry.backend()) else {
        if entry.is_unconfirmed() {
            return Ok(BackendRoute {
                backend: entry.backend(),
                group: BackendRoute::UNCHECKED,
            });
        }
        maps.count(Event::ServiceToStack);
        return Ok(BackendRoute::default());
    };
    let mut route = route_to(packet, v6, entry, backend)?;
    if route.group == 0 {
        route.group = BackendRoute::unchecked_if(entry.mark());
    }
    Ok(route)
}

/// The route to the backend of `entry`, which is written into a packet to another node.
#[inline(always)]
pub(super) fn route_to<P: Packet>(
    packet: &mut P,
    v6: bool,
    entry: FlowEntry,
    backend: &Backend,
) -> Result<BackendRoute, DropReason> {
    let route = BackendRoute {
        backend: entry.backend(),
        group: backend.group,
    };
    if route.group != 0 {
        if outer_ttl(packet, v6) <= 1 {
            return Err(DropReason::TtlExceeded);
        }
        let mac = SourceMac::UNKEYED
            .with_backend(route.backend)
            .with_return_mark(entry.mark());
        write_backend_mac(packet, v6, mac).ok_or(DropReason::WriteFailed)?;
    }
    Ok(route)
}

/// Writes the MAC address of a backend without a secret into the inner Ethernet header, and updates the outer UDP
/// checksum over it. The secret is that of the next hop, which is not yet known.
#[inline(always)]
fn write_backend_mac<P: Packet>(packet: &mut P, v6: bool, mac: SourceMac) -> Option<()> {
    let at = inner_src_mac_at(v6);
    let [o0, o1, o2, o3, o4, o5] = packet.load::<6>(at)?;
    let mac @ [m0, m1, m2, m3, m4, m5] = mac.bytes();
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

/// The backend of the packet with the IP header at `at`; no backend if this node's stack serves it. Only the flow of an
/// unfragmented segment or datagram is unconfirmed: a Node returns no other packet.
#[inline(always)]
fn lookup_backend<P: Subprograms, M: Maps>(packet: &P, maps: &M, at: u32) -> Result<FlowEntry, DropReason> {
    let v6 = is_v6(packet, at);
    let header = packet.parse_l4(v6, at);
    let l4 = header.unpack();
    match l4.kind {
        L4Kind::Unfragmented | L4Kind::Sctp => exported(
            packet.flow_backend_id(maps, at, header, false),
            header.opens_bit(),
        ),
        L4Kind::FirstFragment => {
            let backend = exported(
                packet.flow_backend_id(maps, at, header, false),
                header.opens_bit(),
            )?
            .backend();
            let key = l4.fragment_key(packet, at).ok_or(DropReason::InnerMalformed)?;
            if !packet.take_peer_token(maps, PeerLimit::Fragments) {
                return Err(DropReason::FlowLimited);
            }
            let fragment = Fragment {
                backend,
                service: key.dst,
            };
            count_insert_failure(maps, maps.set_fragment(&key, &fragment));
            Ok(FlowEntry::confirmed(backend))
        }
        // Without an entry the stack gets it: it reassembles no packet whose first fragment it does not get.
        L4Kind::LaterFragment => {
            let key = l4.fragment_key(packet, at).ok_or(DropReason::InnerMalformed)?;
            let backend = maps.fragment(&key).map_or(0, |fragment| fragment.backend);
            Ok(FlowEntry::confirmed(backend))
        }
        // The quoted packet is from the Service: the error is for the backend of that flow.
        L4Kind::IcmpError => {
            let quote_at = l4.quote_at();
            let quote = packet.parse_l4(v6, quote_at);
            let about = address(packet, v6, quote_at, Side::Source).ok_or(DropReason::InnerMalformed)?;
            let service = address(packet, v6, at, Side::Destination).ok_or(DropReason::InnerMalformed)?;
            if about != service || !quote.unpack().has_ports() {
                return exported(port_not_exported(maps), 0);
            }
            let entry = exported(packet.flow_backend_id(maps, quote_at, quote, true), 0)?;
            Ok(FlowEntry::confirmed(entry.backend()))
        }
        // A Service has no other protocols.
        L4Kind::Other => exported(port_not_exported(maps), 0),
        L4Kind::Truncated => Err(DropReason::InnerMalformed),
    }
}

/// A result of [`flow_backend_id`]; `opens` is 1 if the packet may open a flow, else 0.
#[inline(always)]
const fn exported(entry: u64, opens: u64) -> Result<FlowEntry, DropReason> {
    match entry {
        NOT_EXPORTED => Err(DropReason::NotExported),
        LIMITED => Err(DropReason::FlowLimited),
        IDENTITY_LOST if opens != 0 => Err(DropReason::IdentityLost),
        IDENTITY_LOST => Ok(FlowEntry::from_word(0)),
        _ => Ok(FlowEntry::from_word(entry)),
    }
}

/// [`flow_backend_id`] of a port that is not exported.
#[inline(always)]
fn port_not_exported<M: Maps>(maps: &M) -> u64 {
    match maps.config() {
        Some(config) if config.flags & CONFIG_ALL_SERVICES != 0 => {
            // Without a branch, as in [`FlowState`].
            IDENTITY_LOST.wrapping_mul(u64::from((config.flags / CONFIG_IDENTITY_LOST) & 1))
        }
        _ => NOT_EXPORTED,
    }
}

/// The [`FlowEntry`] of a flow; 0 if this node's stack serves it, or the number of no entry if its port is not exported
/// or the flow is one too many. The IP header of the packet is at `at`; a packet from the Service is `reverse`.
#[inline(always)]
pub fn flow_backend_id<P: Subprograms, M: Maps>(
    packet: &P,
    maps: &M,
    at: u32,
    header: PackedL4Header,
    reverse: bool,
) -> u64 {
    let l4 = header.unpack();
    let Some(key) = l4.flow_key(packet, at, reverse) else {
        return NOT_EXPORTED;
    };
    let service_key = service_key(&key);
    let Some(service) = maps.service(&service_key) else {
        return port_not_exported(maps);
    };
    let flow = FlowState::new(header, *service, reverse);
    let word = backend_for_flow(packet, maps, key, (&service_key, service), flow);
    if word == 0 && flow.0 & HIDDEN != 0 {
        return IDENTITY_LOST;
    }
    word
}

/// [`FlowState`]: the packet opens a TCP connection.
const SYN: u64 = 1;
/// [`FlowState`]: the service proxy would hide the sender from policies.
const HIDDEN: u64 = 1 << 1;
/// [`FlowState`]: the packet is of a TCP connection that another gateway may have opened while a past table was the
/// present one: the entry of a new flow is unconfirmed, with the backend of the present table.
const CONNECTION: u64 = 1 << 2;
/// [`FlowState`]: the same for datagrams. A new flow of them looks the same, and any Pod accepts it, so the present
/// table is the last choice.
const DATAGRAMS: u64 = 1 << 3;

/// Properties of the flow of a packet in one word: the verifier would follow both values of a flag through the rest of
/// a program, and the stack has no room for several words.
#[derive(Clone, Copy)]
struct FlowState(u64);

impl FlowState {
    #[inline(always)]
    fn new(header: PackedL4Header, service: Service, reverse: bool) -> Self {
        const { assert!(SERVICE_AFFINITY == 1) }
        let open = header.open_bit() & u64::from(service.flags / SERVICE_PAST);
        let lost = u64::from(service.flags / SERVICE_IDENTITY_LOST);
        // Affinity selects the backend of a new flow, and a Node returns no ICMP error. Where the service proxy would
        // hide the sender from policies, no flow without an entry passes.
        let stays = u64::from(service.flags) | lost | u64::from(reverse);
        let datagram = header.datagram_bit();
        Self(
            header.syn_bit() & u64::from(!reverse)
                | (lost & 1) << HIDDEN.trailing_zeros()
                | (open & !datagram) << CONNECTION.trailing_zeros()
                | (open & datagram & !stays) << DATAGRAMS.trailing_zeros(),
        )
    }
}

#[inline(always)]
fn get_backend<M: Maps>(maps: &M, id: u64) -> Option<Selected<'_>> {
    let backend = maps.backend(id)?;
    Some(Selected { id, backend })
}

/// The port of the Service of a flow.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a protocol number is a byte")]
pub(super) const fn service_key(key: &FlowKey) -> ServiceKey {
    ServiceKey {
        addr: key.service,
        port: key.service_port,
        proto: key.proto as u8,
        generation: 0,
    }
}

/// The entry of a flow: the stored one while its backend exists, else one from the Maglev table, else 0 for the stack.
/// A TCP connection stays where it was opened, also when its port is left to the service proxy or taken from it.
///
/// For a flow that may have been opened elsewhere, the new entry is unconfirmed.
#[inline(always)]
fn backend_for_flow<P: Subprograms, M: Maps>(
    packet: &P,
    maps: &M,
    mut key: FlowKey,
    (service_key, service): (&ServiceKey, &Service),
    flow: FlowState,
) -> u64 {
    // No backend has the ID 0.
    let known = FlowEntry::from_word(maps.flow(&key).unwrap_or(0));
    // A new one, in one comparison.
    if known.word() < flow.0 >> DATAGRAMS.trailing_zeros() {
        return if packet.take_peer_token(maps, PeerLimit::Flows) {
            UNSELECTED
        } else {
            LIMITED
        };
    }
    let is_new = known.word() == 0;
    if flow.0 & SYN == 0 && known.backend() == FLOW_OF_STACK {
        return 0;
    }
    if flow.0 & SYN == 0
        && let Some(selected) = get_backend(maps, known.backend())
        // A TCP connection keeps its backend; UDP flows move off a backend that is not ready if another one is.
        && (service_key.proto == ip::TCP
            || selected.backend.flags & BACKEND_READY != 0
            || service.backends == 0)
    {
        return known.word();
    }
    let Some((selected, client_entry)) = select_new(maps, service, service_key, &mut key) else {
        if flow.0 & CONNECTION != 0 {
            return if !is_new || packet.take_peer_token(maps, PeerLimit::Flows) {
                UNSELECTED
            } else {
                0
            };
        }
        if flow.0 & (SYN | HIDDEN) == SYN && known.backend() != FLOW_OF_STACK {
            if is_new && !packet.take_peer_token(maps, PeerLimit::Flows) {
                return LIMITED;
            }
            count_insert_failure(maps, maps.set_flow(&key, FLOW_OF_STACK));
        }
        return 0;
    };
    if is_new && !packet.take_peer_token(maps, PeerLimit::Flows) {
        // A TCP connection opened at another gateway, or whose entry was evicted, follows the lookup table.
        let established = flow.0 & SYN == 0 && service_key.proto == ip::TCP;
        return if established { selected.id } else { LIMITED };
    }
    if client_entry != 0 {
        let port = key.client_port;
        key.client_port = 0;
        count_insert_failure(maps, maps.set_flow(&key, client_entry));
        key.client_port = port;
    }
    let entry = FlowEntry::selected(selected.id, flow.0 >> CONNECTION.trailing_zeros() & 1);
    if entry != known {
        count_insert_failure(maps, maps.set_flow(&key, entry.word()));
        if is_new {
            maps.count(Event::ServiceFlow);
        } else if entry.backend() != known.backend() {
            maps.count(Event::ServiceFlowMoved);
        }
    }
    entry.word()
}

/// The backend of a new flow, and the entry of its client to store, or 0.
#[inline(always)]
fn select_new<'t, M: Maps>(
    maps: &'t M,
    service: &Service,
    service_key: &ServiceKey,
    key: &mut FlowKey,
) -> Option<(Selected<'t>, u64)> {
    if service.flags & SERVICE_STACK != 0 {
        return None;
    }
    if service.flags & SERVICE_AFFINITY == 0 {
        let hash = hash(key, service.ports_of_hash(key));
        return Some((lookup_maglev(maps, service_key, hash)?, 0));
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
pub(super) fn hash(key: &FlowKey, ports: u32) -> u32 {
    let hash = nexthop_select::mix(Address::from(key.client).fold(), key.proto);
    let hash = nexthop_select::mix(Address::from(key.service).fold(), hash);
    nexthop_select::mix(ports, hash)
}

/// Backend for a hash from the Maglev table.
#[inline(always)]
fn lookup_maglev<'t, M: Maps>(maps: &'t M, key: &ServiceKey, hash: u32) -> Option<Selected<'t>> {
    get_backend(maps, table_backend(maps, key, hash)?)
}

/// ID for a hash in a table.
#[inline(always)]
pub(super) fn table_backend<M: Maps>(maps: &M, key: &ServiceKey, hash: u32) -> Option<u64> {
    let table = maps.maglev(key)?;
    // Scales the hash to the table's size instead of dividing by it.
    let at = u64::from(hash).wrapping_mul(MAGLEV_ENTRIES as u64) >> 32;
    let at = usize::try_from(at).ok()? & MAGLEV_SLOTS.wrapping_sub(1);
    table.backends.get(at).copied()
}

impl Service {
    /// The part of the hash of a flow beside its addresses: with affinity all flows of a client have the same one.
    #[inline(always)]
    pub(super) const fn ports_of_hash(self, key: &FlowKey) -> u32 {
        // All ones without affinity.
        let mask = (self.flags & SERVICE_AFFINITY).wrapping_sub(1);
        ((key.client_port as u32) << 16 | key.service_port as u32) & mask
    }
}
