//! Transit of frequent packets on a gateway, before the kernel allocates a socket buffer (XDP).
//!
//! *Guarantees*: a packet is forwarded exactly as [`super::from_underlay()`] forwards it, or left to it unchanged and
//! uncounted. Every packet that needs a look-up, an answer, a lower MSS or a drop is left.

use super::{
    config::load_config,
    from_underlay::{admission_key, forward_hash, is_to_tunnel, validate_inner},
    link_header::{has_link, write_link},
    mss,
};
use crate::{
    abi::ACTION_FORWARD,
    maps::CachedMaps,
    nexthop_select::cached_nexthop,
    packet::{
        Address, Frame, eth,
        outer::{self, HEADERS_V4, HEADERS_V6, Headers},
        tunnel::Format,
    },
    verdict::{DropReason, Outcome, Verdict},
};

/// Forwards a packet whose admission and next hop are cached, or passes it unchanged. `may_send` returns whether it may
/// leave by the device with an index.
#[inline(always)]
pub fn transit<F: Frame, M: CachedMaps>(
    packet: &mut F,
    maps: &M,
    may_send: impl FnOnce(u32) -> bool,
) -> Verdict {
    let found = match packet.ethertype() {
        eth::IPV4 => forward::<HEADERS_V4, F, M>(packet, maps, may_send),
        eth::IPV6 => forward::<HEADERS_V6, F, M>(packet, maps, may_send),
        _ => None,
    };
    found.unwrap_or(Verdict::Pass)
}

/// [`transit`] over one outer IP version; `None` leaves the packet to [`super::from_underlay()`].
#[inline(always)]
fn forward<const N: usize, F: Frame, M: CachedMaps>(
    packet: &mut F,
    maps: &M,
    may_send: impl FnOnce(u32) -> bool,
) -> Option<Verdict> {
    let config = load_config(maps).ok()?;
    let headers = Headers::<N>::load(packet)?;
    let outer = headers.outer;
    let tunnel = headers.tunnel(Format::from_config(config));
    if outer.is_fragment() || !is_to_tunnel(&headers, config) {
        return None;
    }
    if !tunnel.carries_ethernet() || tunnel.options_len() != 0 || !headers.is_multicluster() {
        return None;
    }
    if outer.ttl <= 1 || Headers::<N>::V6 && outer.src.is_v4() {
        return None;
    }
    let inner = validate_inner(packet, &headers, tunnel).ok()?;
    if mss::can_be_syn(&inner) {
        return None;
    }
    let admission = maps.cached_admission(&admission_key(&headers, &inner))?;
    let admission = admission.unpack().ok()?;
    if admission.action != ACTION_FORWARD || admission.alias != 0 {
        return None;
    }
    let next_hop = cached_nexthop(maps, admission.group, forward_hash(&headers, &inner))?;
    let size = packet.frame_len().wrapping_sub(Headers::<N>::INNER_AT);
    if Address::from(next_hop.addr).is_v4() == Headers::<N>::V6 || next_hop.mtu != 0 && size > next_hop.mtu {
        return None;
    }
    if !has_link(maps, next_hop) || !may_send(next_hop.ifindex) {
        return None;
    }
    let len = packet.frame_len();
    // No backend ID: `from_underlay` writes one into packets to Services, which it forwards itself.
    let written =
        outer::rewrite_outer::<N, F>(packet, next_hop, 0).and_then(|()| write_link(packet, next_hop));
    if written.is_none() {
        return Some(Verdict::Drop(DropReason::WriteFailed));
    }
    maps.count_received(admission.traffic, len);
    maps.count_sent(next_hop.stats, len);
    Some(Verdict::Send {
        outcome: Outcome::Transit,
        ifindex: next_hop.ifindex,
        addressed: true,
    })
}
