//! Ingress of an underlay device: encapsulated packets from other nodes and clusters.

use super::{
    admission::is_authentic,
    config::load_config,
    decision::{Decision, DeliveryInfo, PackedDecision, ServiceStep},
    delivery::{deliver, propagate_ecn},
    icmp_too_big::{self, PacketTooBig},
    kernel_decap,
    link_header::address_to_next_hop,
    mss,
    probe::process_probe,
    subprograms::{MapSubprograms, Subprograms},
};
use crate::{
    abi::{ACTION_FORWARD, ACTION_SERVICE, Config, NextHop, PEER_REMOTE_GATEWAY},
    maps::{Admission, AdmissionKey, Maps},
    nexthop_select::{self, select_nexthop},
    packet::{
        Address, Frame, Packet, eth, ip,
        offsets::udp,
        outer::{self, HEADERS_V4, HEADERS_V6, Headers},
        probe::ETHERTYPE,
        tunnel::{self, Format, VNI_KERNEL_DECAP},
    },
    verdict::{DropReason, Outcome, Verdict},
};

/// Forwards a multi-cluster packet to the next hop, delivers it on this node, or drops it. Other packets pass
/// untouched.
///
/// A multi-cluster packet has a local underlay address as destination, the tunnel port, and the multi-cluster MAC
/// address inside. After an error it is dropped, never passed to the stack.
///
/// A frame of a VLAN passes: the kernel removes its tag and hands it to the VLAN device, whose program processes it.
#[inline(always)]
pub fn from_underlay<P: Subprograms, M: MapSubprograms>(packet: &mut P, maps: &M) -> Verdict {
    match packet.ethertype() {
        eth::IPV4 => from_underlay_v4(packet, maps),
        eth::IPV6 => from_underlay_v6(packet, maps),
        _ => Verdict::Pass,
    }
}

/// [`from_underlay`] for a packet whose ethertype is IPv4's.
#[inline(always)]
pub fn from_underlay_v4<P: Subprograms, M: MapSubprograms>(packet: &mut P, maps: &M) -> Verdict {
    process::<HEADERS_V4, P, M>(packet, maps)
}

/// [`from_underlay`] for a packet whose ethertype is IPv6's.
#[inline(always)]
pub fn from_underlay_v6<P: Subprograms, M: MapSubprograms>(packet: &mut P, maps: &M) -> Verdict {
    process::<HEADERS_V6, P, M>(packet, maps)
}

/// Processes a packet with one outer IP version: classification first, then changes. The stages are not inlined,
/// because together they exceed the BPF stack.
#[inline(always)]
fn process<const N: usize, P: Subprograms, M: MapSubprograms>(packet: &mut P, maps: &M) -> Verdict {
    // With the tag, delivery to `mc0` would fail: no VLAN device is there.
    if packet.vlan_id() != 0 {
        return Verdict::Pass;
    }
    // Without a configuration, multi-cluster traffic is not recognisable.
    let Ok(config) = load_config(maps) else {
        return Verdict::Pass;
    };
    let mut decision = classify::<N, P, M>(packet, maps, config);
    // Antrea gateways have IPv4 underlay addresses only.
    if !Headers::<N>::V6 && decision.has_alias() {
        decision = packet.rewrite_ingress_alias(maps, decision, false);
    }
    if decision.is_service() {
        decision = packet.translate_service(maps, Headers::<N>::V6, decision);
    }
    let result = match decision.unpack() {
        Decision::Pass => return Verdict::Pass,
        Decision::Drop(reason) => return Verdict::Drop(reason),
        Decision::Probe => handle_probe::<N, P, M>(packet, maps, config),
        Decision::Returned => {
            return Verdict::Send {
                outcome: Outcome::Transit,
                ifindex: packet.ifindex(),
                addressed: false,
            };
        }
        Decision::Forward { group, hash, syn } => select_nexthop(maps, group, hash.unwrap_or(0))
            .ok_or(DropReason::NoNextHop)
            .and_then(|next_hop| forward::<N, P, M>(packet, maps, next_hop, syn, decision)),
        Decision::Deliver(DeliveryInfo {
            v6,
            outer_tos,
            inner_tos,
            return_group,
            policy,
        }) => propagate_ecn::<N, P, M>(packet, maps, v6, outer_tos, inner_tos)
            .and_then(|()| mss::clamp_to_return_path(packet, maps, Headers::<N>::INNER_AT, return_group))
            .and_then(|()| deliver::<N, P, M>(packet, maps, config, (v6, policy))),
        // No second Service translation.
        Decision::Service(..) => Err(DropReason::NoRoute),
    };
    match result {
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

/// Classifies the packet without changing it.
#[inline(never)]
fn classify<const N: usize, P: Packet, M: MapSubprograms>(
    packet: &P,
    maps: &M,
    config: &Config,
) -> PackedDecision {
    let Some(headers) = Headers::<N>::load(packet) else {
        return classify_truncated::<N, P, M>(packet, maps, config);
    };
    let outer = &headers.outer;
    if outer.is_fragment() {
        return classify_fragment::<N, P, M>(packet, maps, config);
    }
    if !is_to_tunnel(&headers, config) {
        return PackedDecision::PASS;
    }
    let tunnel = headers.tunnel(Format::from_config(config));
    if !tunnel.carries_ethernet() {
        return PackedDecision::PASS;
    }
    if tunnel.options_len() != 0 {
        return classify_with_options::<N, P>(packet, tunnel);
    }
    if !headers.is_multicluster() {
        return classify_foreign::<N, P, M>(packet, maps);
    }
    match classify_multicluster(packet, maps, &headers, tunnel) {
        Ok(decision) => decision,
        Err(reason) => PackedDecision::drop(reason),
    }
}

/// Whether an unfragmented packet is addressed to the tunnel port of this node.
#[inline(always)]
pub(super) fn is_to_tunnel<const N: usize>(headers: &Headers<N>, config: &Config) -> bool {
    let outer = &headers.outer;
    outer.proto == ip::UDP
        && headers.udp_dst() == config.port
        && outer.is_plain()
        && is_local::<N>(config, outer.dst)
}

/// The addresses that the admission of a packet depends on.
#[inline(always)]
pub(super) fn admission_key<const N: usize>(headers: &Headers<N>, inner: &ip::Header) -> AdmissionKey {
    AdmissionKey {
        source_mac: headers.source_mac_and_ethertype(),
        peer: headers.outer.src,
        src: inner.src,
        dst: inner.dst,
    }
}

#[inline(always)]
fn classify_multicluster<const N: usize, P: Packet, M: MapSubprograms>(
    packet: &P,
    maps: &M,
    headers: &Headers<N>,
    tunnel: tunnel::Header,
) -> Result<PackedDecision, DropReason> {
    // An IPv4-mapped source would be a peer with that IPv4 address.
    if Headers::<N>::V6 && headers.outer.src.is_v4() {
        return Err(DropReason::UnknownPeer);
    }
    let inner = match validate_inner(packet, headers, tunnel) {
        Ok(inner) => inner,
        Err(reason) => return classify_invalid(maps, headers, reason),
    };
    let admission = maps.admission(&admission_key(headers, &inner)).unpack()?;
    maps.count_received(admission.traffic, packet.frame_len());
    if admission.action != ACTION_FORWARD {
        let info = DeliveryInfo {
            v6: inner.v6,
            outer_tos: headers.outer.tos,
            inner_tos: inner.tos,
            return_group: if mss::can_be_syn(&inner) {
                admission.return_group
            } else {
                0
            },
            policy: admission.policy,
        };
        return Ok(PackedDecision::deliver(info, service_step(&admission)).with_alias(admission.alias));
    }
    if headers.outer.ttl <= 1 {
        return Err(DropReason::TtlExceeded);
    }
    let hash = forward_hash(headers, &inner);
    let syn = mss::can_be_syn(&inner);
    Ok(PackedDecision::forward(admission.group, Some(hash), syn).with_alias(admission.alias))
}

/// Hash of the flow of a packet to be forwarded. The source port is the sender's hash of the flow: the inner packet
/// needs no second read.
#[inline(always)]
pub(super) fn forward_hash<const N: usize>(headers: &Headers<N>, inner: &ip::Header) -> u32 {
    nexthop_select::mix(u32::from(headers.udp_src()), inner.dst.fold())
}

/// The IP header of an inner packet that is fit to be forwarded or delivered; admission is a later check.
#[inline(always)]
pub(super) fn validate_inner<const N: usize, F: Frame>(
    packet: &F,
    headers: &Headers<N>,
    tunnel: tunnel::Header,
) -> Result<ip::Header, DropReason> {
    if !headers.checksum_is_valid() {
        return Err(DropReason::OuterChecksum);
    }
    if !tunnel.is_plain() {
        return Err(DropReason::TunnelHeader);
    }
    if !matches!(headers.inner_ethertype(), eth::IPV4 | eth::IPV6) {
        return Err(DropReason::InnerProtocol);
    }
    let inner = headers.inner(packet).ok_or(DropReason::InnerMalformed)?;
    let available = packet.frame_len().wrapping_sub(Headers::<N>::INNER_AT);
    if !inner.fits(available) {
        return Err(DropReason::InnerMalformed);
    }
    // Only a packet from the wire has padding. UDP GRO appends further tunnel packets, which no check would see.
    if !inner.fills(available) && packet.is_gso() {
        return Err(DropReason::Aggregated);
    }
    Ok(inner)
}

/// Decision for a packet that fails [`validate_inner`]: a probe, or a drop. From an unknown peer the reason is
/// [`DropReason::UnknownPeer`].
#[inline(always)]
fn classify_invalid<const N: usize, M: Maps>(
    maps: &M,
    headers: &Headers<N>,
    reason: DropReason,
) -> Result<PackedDecision, DropReason> {
    let peer = maps.peer(headers.outer.src).ok_or(DropReason::UnknownPeer)?;
    if reason == DropReason::InnerProtocol && headers.inner_ethertype() == ETHERTYPE {
        if !is_authentic(peer, headers.source_mac()) {
            return Err(DropReason::PeerSecret);
        }
        return Ok(PackedDecision::PROBE);
    }
    Err(reason)
}

/// Service processing before a packet to a prefix of this cluster is delivered.
#[inline(always)]
const fn service_step(admission: &Admission) -> Option<ServiceStep> {
    if admission.action != ACTION_SERVICE {
        return if admission.has_backends {
            Some(ServiceStep::ClearNat)
        } else {
            None
        };
    }
    // Only the first gateway selects a backend: a second selection could loop.
    if admission.peer_flags & PEER_REMOTE_GATEWAY == 0 {
        Some(ServiceStep::Dnat)
    } else {
        Some(ServiceStep::SelectBackend)
    }
}

#[inline(never)]
fn handle_probe<const N: usize, P: Subprograms, M: MapSubprograms>(
    packet: &mut P,
    maps: &M,
    config: &Config,
) -> Result<Verdict, DropReason> {
    let headers = Headers::<N>::load(packet).ok_or(DropReason::Truncated)?;
    process_probe(packet, maps, config, &headers)
}

/// Forwards the packet, or replies with an ICMP error if it exceeds the MTU of the next hop.
#[inline(always)]
fn forward<const N: usize, P: Subprograms, M: MapSubprograms>(
    packet: &mut P,
    maps: &M,
    next_hop: &NextHop,
    syn: bool,
    decision: PackedDecision,
) -> Result<Verdict, DropReason> {
    let at = Headers::<N>::INNER_AT;
    if Address::from(next_hop.addr).is_v4() == Headers::<N>::V6 {
        return Err(DropReason::OuterFamily);
    }
    if let Some(size) = icmp_too_big::exceeds(packet, at, next_hop.mtu) {
        // The error quotes the packet as the sender has sent it.
        if !Headers::<N>::V6 && decision.has_alias() {
            let undone = packet.rewrite_ingress_alias(maps, decision, true);
            if let Decision::Drop(reason) = undone.unpack() {
                return Err(reason);
            }
        }
        let too_big = PacketTooBig {
            at,
            size,
            mtu: next_hop.mtu,
            ifindex: packet.ifindex(),
        };
        return Ok(too_big.reply(packet, maps));
    }
    if syn {
        mss::clamp_to_mtu(packet, maps, at, next_hop.mtu)?;
    }
    packet.set_neighbor(&next_hop.neighbor);
    // Not the subprogram: its call takes a tenth of the time of a packet.
    outer::rewrite_outer::<N, P>(packet, next_hop, decision.backend_mask()).ok_or(DropReason::WriteFailed)?;
    let addressed = address_to_next_hop(packet, maps, next_hop)?;
    maps.count_sent(next_hop.stats, packet.frame_len());
    Ok(Verdict::Send {
        outcome: Outcome::Transit,
        ifindex: next_hop.ifindex,
        addressed,
    })
}

/// [`outer::rewrite_outer`] for an outer packet that is IPv6 or IPv4.
#[inline(always)]
pub fn rewrite_outer<P: Packet>(
    packet: &mut P,
    next_hop: &NextHop,
    v6: bool,
    backend_mask: u64,
) -> Option<()> {
    if v6 {
        outer::rewrite_outer::<HEADERS_V6, P>(packet, next_hop, backend_mask)
    } else {
        outer::rewrite_outer::<HEADERS_V4, P>(packet, next_hop, backend_mask)
    }
}

/// Decision for a frame too short for all headers: a drop if it is a multi-cluster packet of a peer.
#[inline(never)]
fn classify_truncated<const N: usize, P: Packet, M: MapSubprograms>(
    packet: &P,
    maps: &M,
    config: &Config,
) -> PackedDecision {
    let Some(outer) = ip::Header::load(packet, packet.ethertype(), eth::END) else {
        return PackedDecision::PASS;
    };
    let to_tunnel = outer.proto == ip::UDP
        && outer.is_plain()
        && !outer.is_fragment()
        && is_local::<N>(config, outer.dst)
        && has_tunnel_port(packet, eth::END.wrapping_add(outer.len), config.port);
    // Frames of other users of the tunnel port pass.
    let foreign = packet
        .load::<6>(Headers::<N>::INNER_ETH_AT)
        .is_some_and(|mac| mac != eth::MULTICLUSTER_MAC);
    if to_tunnel && !foreign && maps.peer(outer.src).is_some() {
        return PackedDecision::drop(DropReason::Truncated);
    }
    PackedDecision::PASS
}

/// Whether the UDP header at `offset` has the destination port `port`.
#[inline(always)]
fn has_tunnel_port<P: Packet>(packet: &P, offset: u32, port: u16) -> bool {
    packet.load::<2>(offset.wrapping_add(udp::DST)) == Some(port.to_be_bytes())
}

/// Decision for a fragment of an outer packet. Peers send with DF set: a first fragment with the tunnel port is
/// dropped. Later fragments carry no port and pass; the stack cannot reassemble the packet without the first.
#[inline(never)]
fn classify_fragment<const N: usize, P: Packet, M: MapSubprograms>(
    packet: &P,
    maps: &M,
    config: &Config,
) -> PackedDecision {
    let Some(outer) = ip::Header::load(packet, packet.ethertype(), eth::END) else {
        return PackedDecision::PASS;
    };
    let udp_at = eth::END.wrapping_add(outer.len);
    let (first, udp_at) = if Headers::<N>::V6 {
        // RFC 8200 section 4.5: next header, reserved, offset and flags, identification.
        let [proto, _, offset, flags, ..] = packet.load::<8>(udp_at).unwrap_or_default();
        let first = proto == ip::UDP && offset == 0 && flags & 0xf8 == 0;
        (first, udp_at.wrapping_add(8))
    } else {
        (outer.proto == ip::UDP && outer.fragment_offset() == 0, udp_at)
    };
    if first
        && outer.is_plain()
        && is_local::<N>(config, outer.dst)
        && has_tunnel_port(packet, udp_at, config.port)
        && maps.peer(outer.src).is_some()
    {
        return PackedDecision::drop(DropReason::OuterFragment);
    }
    PackedDecision::PASS
}

/// Decision for a packet of another user of the tunnel port, such as a CNI: with the VNI of the agent's tunnel devices
/// it would reach them. The configuration is loaded again: the stack of the caller has no room for it.
#[inline(never)]
fn classify_foreign<const N: usize, P: Packet, M: Maps>(packet: &P, maps: &M) -> PackedDecision {
    const VNI: u32 = VNI_KERNEL_DECAP << 8;
    let last = packet.load::<4>(Headers::<N>::INNER_ETH_AT.wrapping_sub(4));
    let is_ours = last.is_some_and(|word| u32::from_be_bytes(word) & 0xffff_ff00 == VNI);
    if is_ours && load_config(maps).is_ok_and(kernel_decap::is_configured) {
        return PackedDecision::drop(DropReason::NotAdmitted);
    }
    PackedDecision::PASS
}

/// Decision for a tunnel header with options: multi-cluster packets are dropped, those of other users of the port
/// (such as a CNI) pass.
#[inline(never)]
fn classify_with_options<const N: usize, P: Packet>(packet: &P, tunnel: tunnel::Header) -> PackedDecision {
    match packet.load::<6>(Headers::<N>::INNER_ETH_AT.wrapping_add(tunnel.options_len())) {
        Some(eth::MULTICLUSTER_MAC) => PackedDecision::drop(DropReason::TunnelOptions),
        _ => PackedDecision::PASS,
    }
}

/// Whether an outer destination is an underlay address of this node.
///
/// No IPv6 address in `::/64` is: the unspecified address is an unused entry, and an IPv4-mapped one an IPv4 address.
#[inline(always)]
fn is_local<const N: usize>(config: &Config, address: Address) -> bool {
    let [high, _] = address.words();
    if Headers::<N>::V6 && high == 0 {
        return false;
    }
    let [a, b, c, d] = config.local.map(Address::from);
    a == address || b == address || c == address || d == address
}
