//! A gateway's choice of the Pod.

use super::{
    count_insert_failure, encode_backend_mac, inner_at, inner_src_mac_at,
    l4::{L4Header, L4Kind, Side, address, is_v6},
};
use crate::{
    abi::service::{
        BACKEND_ID_BITS, BACKEND_READY, Backend, FlowKey, Fragment, MAGLEV_ENTRIES, MAGLEV_SLOTS,
        SERVICE_AFFINITY, Service, ServiceKey,
    },
    maps::Maps,
    nexthop_select,
    packet::{Address, Packet, checksum, eth, ip},
    verdict::{DropReason, Event},
};

/// Where a packet to a Service goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BackendRoute {
    /// Id of the backend; 0 where the stack shall have the packet.
    pub(super) backend: u64,
    /// Slot of the group of the backend's Node; 0 for this node.
    pub(super) group: u32,
}

impl BackendRoute {
    /// Groups a packed route has room for; the highest one stands for a refusal and is no slot of any map.
    const REFUSED: u64 = 0x00ff_ffff << BACKEND_ID_BITS;

    /// As one word: what a function of a program can return.
    #[inline(always)]
    const fn pack(self) -> u64 {
        self.backend | (self.group as u64) << BACKEND_ID_BITS
    }

    /// The reverse of [`Route::pack`], or why the packet is refused.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of a word")]
    pub(super) fn unpack(word: u64) -> Result<Self, DropReason> {
        if word & Self::REFUSED == Self::REFUSED {
            return Err(DropReason::from_number(word as u8));
        }
        Ok(Self {
            backend: word & !Self::REFUSED,
            group: (word >> BACKEND_ID_BITS) as u32,
        })
    }

    /// Hash that chooses among the next hops of the group.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "any part of an id will do")]
    pub(super) const fn flow_hash(self) -> u32 {
        self.backend as u32
    }
}

/// A backend and its id.
#[derive(Clone, Copy, Debug)]
struct Selected<'t> {
    id: u64,
    backend: &'t Backend,
}

/// Chooses where a packet to a Service goes that another cluster's gateway has sent, encapsulated in IPv6 or
/// in IPv4, and writes the choice into it if it goes on. Returns a packed [`Route`], or a refusal.
#[inline(always)]
pub fn select_backend<P: Packet, T: Maps>(packet: &mut P, tables: &T, v6: bool) -> u64 {
    match route(packet, tables, v6) {
        Ok(route) => route.pack(),
        Err(reason) => BackendRoute::REFUSED | reason as u64,
    }
}

#[inline(always)]
fn route<P: Packet, T: Maps>(packet: &mut P, tables: &T, v6: bool) -> Result<BackendRoute, DropReason> {
    let backend = lookup_backend(packet, tables, inner_at(v6))?;
    let Some(found) = tables.backend(backend) else {
        tables.count(Event::ServiceToStack);
        return Ok(BackendRoute::default());
    };
    let route = BackendRoute {
        backend,
        group: found.group,
    };
    if route.group != 0 {
        let [ttl] = packet
            .load::<1>(eth::END.wrapping_add(if v6 { 7 } else { 8 }))
            .unwrap_or([0]);
        if ttl <= 1 {
            return Err(DropReason::TtlExceeded);
        }
        write_backend_mac(packet, v6, backend).ok_or(DropReason::WriteFailed)?;
    }
    Ok(route)
}

/// Writes the name of a backend into the inner Ethernet header. The outer UDP checksum covers it.
#[inline(always)]
fn write_backend_mac<P: Packet>(packet: &mut P, v6: bool, backend: u64) -> Option<()> {
    let at = inner_src_mac_at(v6);
    let [o0, o1, o2, o3, o4, o5] = packet.load::<6>(at)?;
    let mac @ [m0, m1, m2, m3, m4, m5] = encode_backend_mac(backend);
    packet.store(at, &mac)?;
    // In front of it are the inner destination, the tunnel header and the checksum itself.
    let check_at = at.wrapping_sub(16);
    let check = packet.load::<2>(check_at)?;
    if check == [0, 0] {
        return Some(());
    }
    // It stands at an even offset from the UDP header, so its bytes keep their places in the sum.
    let difference = checksum::difference(&[o0, o1, o2, o3, o4, o5, 0, 0], &[m0, m1, m2, m3, m4, m5, 0, 0]);
    packet.store(
        check_at,
        &checksum::nonzero_for_udp(checksum::update(check, difference)),
    )
}

/// Id of the backend of the packet whose IP header is at `at`; 0 where it has none.
#[inline(always)]
fn lookup_backend<P: Packet, T: Maps>(packet: &P, tables: &T, at: u32) -> Result<u64, DropReason> {
    let v6 = is_v6(packet, at);
    let word = packet.parse_l4(v6, at);
    let transport = L4Header::unpack(word);
    match transport.kind {
        L4Kind::Unfragmented => Ok(packet.flow_backend_id(tables, at, word, false)),
        L4Kind::FirstFragment => {
            let backend = packet.flow_backend_id(tables, at, word, false);
            let key = transport
                .fragment_key(packet, at)
                .ok_or(DropReason::InnerMalformed)?;
            let fragment = Fragment {
                backend,
                service: key.dst,
            };
            count_insert_failure(tables, tables.set_fragment(&key, &fragment));
            Ok(backend)
        }
        L4Kind::LaterFragment => {
            let key = transport
                .fragment_key(packet, at)
                .ok_or(DropReason::InnerMalformed)?;
            Ok(tables.fragment(&key).map_or(0, |fragment| fragment.backend))
        }
        // About a packet the Service has sent: to the Pod that has really sent it.
        L4Kind::IcmpError => {
            let quote_at = transport.quote_at();
            let quote = packet.parse_l4(v6, quote_at);
            let (Some(about), Some(service)) = (
                address(packet, v6, quote_at, Side::Source),
                address(packet, v6, at, Side::Destination),
            ) else {
                return Ok(0);
            };
            if about != service || !L4Header::unpack(quote).has_ports() {
                return Ok(0);
            }
            Ok(packet.flow_backend_id(tables, quote_at, quote, true))
        }
        L4Kind::Other => Ok(0),
        L4Kind::Truncated => Err(DropReason::InnerMalformed),
    }
}

/// Id of the backend of a flow: `word` is what [`super::flow_at`] says of the packet whose IP header is at
/// `at`, which the Service has sent if `back`. 0 where it has none.
#[inline(always)]
pub fn flow_backend_id<P: Packet, T: Maps>(packet: &P, tables: &T, at: u32, word: u64, back: bool) -> u64 {
    let flow = L4Header::unpack(word);
    let Some(key) = flow.flow_key(packet, at, back) else {
        return 0;
    };
    backend_for_flow(tables, key, flow.syn && !back).map_or(0, |choice| choice.id)
}

#[inline(always)]
fn get_backend<T: Maps>(tables: &T, id: u64) -> Option<Selected<'_>> {
    let backend = tables.backend(id)?;
    Some(Selected { id, backend })
}

/// The backend of a flow: the one it has, as long as that exists, else one from the lookup table.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a protocol number is a byte")]
fn backend_for_flow<T: Maps>(tables: &T, mut key: FlowKey, opens: bool) -> Option<Selected<'_>> {
    let service_key = ServiceKey {
        addr: key.service,
        port: key.service_port,
        proto: key.proto as u8,
        pad: 0,
    };
    let service = tables.service(&service_key)?;
    // No backend has the number 0.
    let known = tables.flow(&key).unwrap_or(0);
    if !opens
        && let Some(choice) = get_backend(tables, known)
        // A connection ends where it began; a datagram need not.
        && (service_key.proto == ip::TCP || choice.backend.flags & BACKEND_READY != 0)
    {
        return Some(choice);
    }
    let choice = select_new(tables, service, &service_key, &mut key)?;
    if known != choice.id {
        count_insert_failure(tables, tables.set_flow(&key, choice.id));
        tables.count(if known == 0 {
            Event::ServiceFlow
        } else {
            Event::ServiceFlowMoved
        });
    }
    Some(choice)
}

/// The backend of a flow nothing is known of.
#[inline(always)]
fn select_new<'t, T: Maps>(
    tables: &'t T,
    service: &Service,
    service_key: &ServiceKey,
    key: &mut FlowKey,
) -> Option<Selected<'t>> {
    if service.flags & SERVICE_AFFINITY == 0 {
        let ports = (u32::from(key.client_port) << 16) | u32::from(key.service_port);
        return lookup_maglev(tables, service_key, hash(key, ports));
    }
    let port = key.client_port;
    key.client_port = 0;
    let choice = backend_for_client(tables, service_key, key);
    key.client_port = port;
    choice
}

/// The backend of a client of a Service with affinity.
#[inline(always)]
fn backend_for_client<'t, T: Maps>(
    tables: &'t T,
    service_key: &ServiceKey,
    client: &FlowKey,
) -> Option<Selected<'t>> {
    let known = tables.flow(client);
    if let Some(choice) = known.and_then(|id| get_backend(tables, id))
        && choice.backend.flags & BACKEND_READY != 0
    {
        return Some(choice);
    }
    let choice = lookup_maglev(tables, service_key, hash(client, 0))?;
    count_insert_failure(tables, tables.set_flow(client, choice.id));
    Some(choice)
}

/// Hash of a flow, the same at every gateway.
#[inline(always)]
fn hash(key: &FlowKey, ports: u32) -> u32 {
    let hash = nexthop_select::mix(Address::from(key.client).fold(), key.proto);
    let hash = nexthop_select::mix(Address::from(key.service).fold(), hash);
    nexthop_select::mix(ports, hash)
}

/// The lookup table's answer.
#[inline(always)]
fn lookup_maglev<'t, T: Maps>(tables: &'t T, key: &ServiceKey, hash: u32) -> Option<Selected<'t>> {
    let table = tables.maglev(key)?;
    // Scales the hash to the table's size instead of dividing by it.
    let at = u64::from(hash).wrapping_mul(MAGLEV_ENTRIES as u64) >> 32;
    let at = usize::try_from(at).ok()? & MAGLEV_SLOTS.wrapping_sub(1);
    let id = table.backends.get(at)?;
    get_backend(tables, *id)
}
