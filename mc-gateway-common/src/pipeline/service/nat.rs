//! The translation at the Pod's node, both ways.

use super::{
    count_insert_failure,
    l4::{L4Header, L4Kind, Side, address, is_v6},
    rewrite::{self, Endpoint},
};
use crate::{
    abi::{
        PREFIX_BACKENDS,
        service::{Backend, Fragment, Reply, ReplyKey},
    },
    maps::Maps,
    packet::{Packet, eth, ip},
    verdict::{DropReason, Event},
};

/// Translates a packet to a Service into one to its Pod on this node, the backend with the id `backend`,
/// and remembers the way back. The packet's IP header is at `at`.
#[inline(always)]
pub fn dnat_request<P: Packet, T: Maps>(
    packet: &mut P,
    tables: &T,
    at: u32,
    backend: u64,
) -> Result<(), DropReason> {
    let backend = tables
        .backend(backend)
        .filter(|backend| backend.group == 0)
        .ok_or(DropReason::UnknownBackend)?;
    let v6 = is_v6(packet, at);
    let transport = L4Header::unpack(packet.parse_l4(v6, at));
    let dst = address(packet, v6, at, Side::Destination).ok_or(DropReason::InnerMalformed)?;
    if dst != backend.service {
        return Err(DropReason::ForeignBackend);
    }
    let to = Endpoint {
        addr: backend.pod,
        port: backend.pod_port,
    };
    let done = match transport.kind {
        L4Kind::Unfragmented | L4Kind::FirstFragment => {
            if transport.dst_port != backend.service_port || transport.proto != backend.proto {
                return Err(DropReason::ForeignBackend);
            }
            let client = address(packet, v6, at, Side::Source).ok_or(DropReason::InnerMalformed)?;
            let key = ReplyKey {
                pod: backend.pod,
                client,
                pod_port: backend.pod_port,
                client_port: transport.src_port,
                proto: u32::from(backend.proto),
            };
            store_reply(tables, &key, backend);
            rewrite::rewrite_packet(packet, at, transport, Side::Destination, &to)
        }
        L4Kind::LaterFragment if transport.proto == backend.proto => {
            rewrite::rewrite_packet(packet, at, transport, Side::Destination, &to)
        }
        L4Kind::IcmpError => {
            let quote_at = transport.quote_at();
            let quote = L4Header::unpack(packet.parse_l4(v6, quote_at));
            let about = address(packet, v6, quote_at, Side::Source).ok_or(DropReason::ForeignBackend)?;
            if !quote.has_ports()
                || quote.src_port != backend.service_port
                || quote.proto != backend.proto
                || about != backend.service
            {
                return Err(DropReason::ForeignBackend);
            }
            rewrite::rewrite_icmp_error(packet, at, transport, quote, Side::Destination, &to)
        }
        L4Kind::Truncated => return Err(DropReason::InnerMalformed),
        L4Kind::LaterFragment | L4Kind::Other => return Err(DropReason::ForeignBackend),
    };
    done.ok_or(DropReason::WriteFailed)?;
    tables.count(Event::ServiceTranslated);
    Ok(())
}

#[inline(always)]
fn store_reply<T: Maps>(tables: &T, key: &ReplyKey, backend: &Backend) {
    let reply = Reply {
        addr: backend.service,
        port: backend.service_port,
        pad: 0,
    };
    if let Some(known) = tables.reply(key) {
        if known == reply {
            return;
        }
        // A client that used two Service addresses of one Pod from one port: the later flow counts.
        tables.count(Event::ReplyReplaced);
    }
    count_insert_failure(tables, tables.set_reply(key, &reply));
}

/// Forgets the Service a flow had come by when its client now talks to the Pod itself from the same port.
/// The packet's IP header is at `at`.
#[inline(always)]
pub fn clear_nat_entry<P: Packet, T: Maps>(packet: &P, tables: &T, at: u32) {
    let v6 = is_v6(packet, at);
    let transport = L4Header::unpack(packet.parse_l4(v6, at));
    if transport.has_ports()
        && let Some(key) = transport.reply_key(packet, at, false)
        && tables.reply(&key).is_some()
    {
        tables.forget_reply(&key);
    }
}

/// Gives a packet of a Pod the Service address its flow came by, if it came by one.
#[inline(always)]
pub fn snat_reply<P: Packet, T: Maps>(packet: &mut P, tables: &T) -> Result<(), DropReason> {
    let at = eth::END;
    let v6 = packet.ethertype() == eth::IPV6;
    if !may_need_snat(packet, tables, v6, at) {
        return Ok(());
    }
    let transport = L4Header::unpack(packet.parse_l4(v6, at));
    let done = match transport.kind {
        L4Kind::Unfragmented | L4Kind::FirstFragment => {
            let Some(to) = transport
                .reply_key(packet, at, true)
                .and_then(|key| tables.reply(&key))
            else {
                return Ok(());
            };
            if transport.kind == L4Kind::FirstFragment
                && let Some(key) = transport.fragment_key(packet, at)
            {
                let fragment = Fragment {
                    backend: 0,
                    service: to.addr,
                };
                count_insert_failure(tables, tables.set_fragment(&key, &fragment));
            }
            rewrite::rewrite_packet(packet, at, transport, Side::Source, &to.into())
        }
        L4Kind::LaterFragment => {
            let Some(fragment) = transport
                .fragment_key(packet, at)
                .and_then(|key| tables.fragment(&key))
            else {
                return Ok(());
            };
            let to = Endpoint {
                addr: fragment.service,
                port: 0,
            };
            rewrite::rewrite_packet(packet, at, transport, Side::Source, &to)
        }
        L4Kind::IcmpError => {
            // The client's packet as this node had translated it, about which the error is.
            let quote_at = transport.quote_at();
            let quote = L4Header::unpack(packet.parse_l4(v6, quote_at));
            if !quote.has_ports() {
                return Ok(());
            }
            let Some(to) = quote
                .reply_key(packet, quote_at, false)
                .and_then(|key| tables.reply(&key))
            else {
                return Ok(());
            };
            rewrite::rewrite_icmp_error(packet, at, transport, quote, Side::Source, &to.into())
        }
        // A packet too short for its own headers is nobody's reply.
        L4Kind::Truncated | L4Kind::Other => return Ok(()),
    };
    done.ok_or(DropReason::WriteFailed)?;
    tables.count(Event::ReplyTranslated);
    Ok(())
}

/// Whether a packet may belong to a flow that came by a Service address: a packet of a Pod behind one, or an
/// ICMP error, which any router on the way to the Pod can have sent.
#[inline(always)]
fn may_need_snat<P: Packet, T: Maps>(packet: &P, tables: &T, v6: bool, at: u32) -> bool {
    let Some(src) = address(packet, v6, at, Side::Source) else {
        return false;
    };
    if let Some(prefix) = tables.prefix(src.into())
        && prefix.flags & PREFIX_BACKENDS != 0
    {
        return true;
    }
    let (proto_at, icmp) = if v6 { (6, ip::ICMPV6) } else { (9, ip::ICMP) };
    packet
        .load::<1>(at.wrapping_add(proto_at))
        .is_some_and(|[proto]| proto == icmp)
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
