//! Address translation at the Pod's node in both directions.

use super::{
    super::subprograms::Subprograms,
    l4::{Side, address, is_v6},
    l4_header::L4Kind,
    map_insert::count_insert_failure,
    rewrite::{self, Endpoint},
};
use crate::{
    abi::{
        flow_entry::FlowEntry,
        service::{Backend, Fragment, Reply, ReplyKey},
    },
    maps::{Maps, SOURCE_BACKEND, SOURCE_OWN},
    packet::{
        Packet, eth, ip,
        offsets::{ipv4, ipv6},
    },
    verdict::{DropReason, Event},
};

/// Result of [`dnat_request`] for an admissible packet.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dnat {
    /// The packet is translated.
    Translated,
    /// The backend does not have the connection: the gateway must select again.
    Unknown,
}

/// Translates a packet to a Service into one to the backend of `backend` on this node, and stores the reverse
/// translation. The IP header is at `at`.
///
/// `backend` is a [`FlowEntry`]. A packet of an unconfirmed flow is translated only if the backend has the connection.
#[inline(always)]
pub fn dnat_request<P: Subprograms, M: Maps>(
    packet: &mut P,
    maps: &M,
    at: u32,
    backend: u64,
) -> Result<Dnat, DropReason> {
    let entry = FlowEntry::from_word(backend);
    let backend = maps
        .backend(entry.backend())
        .filter(|backend| backend.group == 0)
        .ok_or(DropReason::UnknownBackend)?;
    let v6 = is_v6(packet, at);
    let l4 = packet.parse_l4(v6, at).unpack();
    let dst = address(packet, v6, at, Side::Destination).ok_or(DropReason::InnerMalformed)?;
    if dst != backend.service {
        return Err(DropReason::ForeignBackend);
    }
    let to = Endpoint {
        addr: backend.pod,
        port: backend.pod_port,
    };
    let rewritten = match l4.kind {
        L4Kind::Unfragmented | L4Kind::FirstFragment => {
            if l4.dst_port != backend.service_port || l4.proto != backend.proto {
                return Err(DropReason::ForeignBackend);
            }
            let client = address(packet, v6, at, Side::Source).ok_or(DropReason::InnerMalformed)?;
            let key = ReplyKey {
                pod: backend.pod,
                client,
                pod_port: backend.pod_port,
                client_port: l4.src_port,
                proto: u32::from(backend.proto),
            };
            if entry.is_unconfirmed() && l4.open && maps.reply(&key) != Some(reply_of(backend)) {
                return Ok(Dnat::Unknown);
            }
            store_reply(maps, &key, backend);
            rewrite::rewrite_packet(packet, at, l4, Side::Destination, &to)
        }
        L4Kind::LaterFragment if l4.proto == backend.proto => {
            rewrite::rewrite_packet(packet, at, l4, Side::Destination, &to)
        }
        L4Kind::IcmpError => {
            let quote_at = l4.quote_at();
            let quote = packet.parse_l4(v6, quote_at).unpack();
            let about = address(packet, v6, quote_at, Side::Source).ok_or(DropReason::ForeignBackend)?;
            if !quote.has_ports()
                || quote.src_port != backend.service_port
                || quote.proto != backend.proto
                || about != backend.service
            {
                return Err(DropReason::ForeignBackend);
            }
            rewrite::rewrite_icmp_error(packet, at, l4, quote, Side::Destination, &to)
        }
        L4Kind::Truncated => return Err(DropReason::InnerMalformed),
        L4Kind::LaterFragment | L4Kind::Other | L4Kind::Sctp => return Err(DropReason::ForeignBackend),
    };
    rewritten.ok_or(DropReason::WriteFailed)?;
    maps.count(Event::ServiceTranslated);
    Ok(Dnat::Translated)
}

/// The Service address of a backend.
#[inline(always)]
const fn reply_of(backend: &Backend) -> Reply {
    Reply {
        addr: backend.service,
        port: backend.service_port,
        pad: 0,
    }
}

#[inline(always)]
fn store_reply<M: Maps>(maps: &M, key: &ReplyKey, backend: &Backend) {
    let reply = reply_of(backend);
    if let Some(known) = maps.reply(key) {
        if known == reply {
            return;
        }
        // A client uses two Service addresses of one Pod from one port: the later flow replaces the earlier.
        maps.count(Event::ReplyReplaced);
    }
    count_insert_failure(maps, maps.set_reply(key, &reply));
}

/// Removes the reverse translation of a flow when its client uses the Pod address from the same port. The IP header
/// is at `at`.
#[inline(always)]
pub fn clear_nat_entry<P: Subprograms, M: Maps>(packet: &P, maps: &M, at: u32) {
    let v6 = is_v6(packet, at);
    let l4 = packet.parse_l4(v6, at).unpack();
    if l4.has_ports()
        && let Some(key) = l4.reply_key(packet, at, false)
        && maps.reply(&key).is_some()
    {
        maps.forget_reply(&key);
    }
}

/// Translates the source of a reply from a Pod to the Service address of its flow. A packet of no such flow stays as it
/// is if its source, [`crate::maps::EgressRoute::source`], is an address of this node.
#[inline(always)]
pub fn snat_reply<P: Subprograms, M: Maps>(packet: &mut P, maps: &M, source: u32) -> Result<(), DropReason> {
    let own = source & SOURCE_OWN != 0;
    if own && source & SOURCE_BACKEND == 0 && !is_icmp(packet) {
        return Ok(());
    }
    if translate_reply(packet, maps)? {
        maps.count(Event::ReplyTranslated);
        return Ok(());
    }
    if own { Ok(()) } else { Err(DropReason::InnerSource) }
}

/// Whether the protocol in the IP header is ICMP: any router on the path to a Pod may send an error about a flow.
#[inline(always)]
fn is_icmp<P: Packet>(packet: &P) -> bool {
    let (proto_at, icmp) = if packet.ethertype() == eth::IPV6 {
        (ipv6::NEXT_HEADER, ip::ICMPV6)
    } else {
        (ipv4::PROTO, ip::ICMP)
    };
    packet
        .load::<1>(eth::END.wrapping_add(proto_at))
        .is_some_and(|[proto]| proto == icmp)
}

/// Whether the packet was part of a flow to a Service address, and is translated.
#[inline(always)]
fn translate_reply<P: Subprograms, M: Maps>(packet: &mut P, maps: &M) -> Result<bool, DropReason> {
    let at = eth::END;
    let v6 = packet.ethertype() == eth::IPV6;
    let l4 = packet.parse_l4(v6, at).unpack();
    let rewritten = match l4.kind {
        L4Kind::Unfragmented | L4Kind::FirstFragment => {
            let Some(to) = l4.reply_key(packet, at, true).and_then(|key| maps.reply(&key)) else {
                return Ok(false);
            };
            if l4.kind == L4Kind::FirstFragment
                && let Some(key) = l4.fragment_key(packet, at)
            {
                let fragment = Fragment {
                    backend: 0,
                    service: to.addr,
                };
                count_insert_failure(maps, maps.set_fragment(&key, &fragment));
            }
            rewrite::rewrite_packet(packet, at, l4, Side::Source, &to.into())
        }
        L4Kind::LaterFragment => {
            let Some(fragment) = l4.fragment_key(packet, at).and_then(|key| maps.fragment(&key)) else {
                return Ok(false);
            };
            let to = Endpoint {
                addr: fragment.service,
                port: 0,
            };
            rewrite::rewrite_packet(packet, at, l4, Side::Source, &to)
        }
        L4Kind::IcmpError => {
            // The quoted packet is the client's, as translated by this node.
            let quote_at = l4.quote_at();
            let quote = packet.parse_l4(v6, quote_at).unpack();
            if !quote.has_ports() {
                return Ok(false);
            }
            let Some(to) = quote
                .reply_key(packet, quote_at, false)
                .and_then(|key| maps.reply(&key))
            else {
                return Ok(false);
            };
            rewrite::rewrite_icmp_error(packet, at, l4, quote, Side::Source, &to.into())
        }
        // A packet too short for its headers belongs to no flow, and SCTP is not translated.
        L4Kind::Truncated | L4Kind::Other | L4Kind::Sctp => return Ok(false),
    };
    rewritten.ok_or(DropReason::WriteFailed)?;
    Ok(true)
}

impl From<Reply> for Endpoint {
    #[inline(always)]
    fn from(reply: Reply) -> Self {
        Self {
            addr: reply.addr,
            port: reply.port,
        }
    }
}
