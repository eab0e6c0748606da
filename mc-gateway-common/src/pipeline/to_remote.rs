//! Egress of `mc0`: packets that the node's routing sends to another cluster.

use super::{
    config::{fixed_tos, hop_limit, load_config},
    decision::{Decision, PackedDecision},
    icmp_too_big::{self, PacketTooBig},
    link_header::{address_to_next_hop, set_ethertype},
    mss,
    subprograms::{MapSubprograms, Subprograms},
};
use crate::{
    abi::{CONFIG_BACKENDS, CONFIG_UDP_CHECKSUM, Config, NextHop, SourceMac},
    flow,
    maps::{EgressKey, SOURCE_BACKEND, SOURCE_OWN, SOURCE_POLICY},
    nexthop_select::select_nexthop,
    packet::{
        Address, Packet, ecn,
        encap::{ENCAP_LEN_V4, ENCAP_LEN_V6, Encap, OuterFamily},
        eth, icmp, ip, lco_checksum,
        tunnel::Format,
    },
    verdict::{DropReason, Outcome, Verdict},
};

/// No sum of the inner packet: greater than any sum.
const NO_SUM: u64 = u64::MAX;
/// Offset behind an IPv4 header without options.
#[expect(clippy::cast_possible_truncation, reason = "20")]
const V4_PAYLOAD_AT: u32 = eth::END.wrapping_add(ip::V4_LEN as u32);
/// Offset behind an IPv6 header.
#[expect(clippy::cast_possible_truncation, reason = "40")]
const V6_PAYLOAD_AT: u32 = eth::END.wrapping_add(ip::V6_LEN as u32);

/// Encapsulates a packet to another cluster: from a regular node to a gateway of its own cluster, from a gateway
/// directly to a gateway of the other cluster.
///
/// All traffic on `mc0` is multi-cluster traffic: a packet that cannot be sent is dropped and counted, as is a packet
/// whose source is no address of this node ([`super::may_send`]).
#[inline(always)]
pub fn to_remote<P: Subprograms, M: MapSubprograms>(packet: &mut P, maps: &M) -> Verdict {
    match process(packet, maps) {
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

#[inline(always)]
fn process<P: Subprograms, M: MapSubprograms>(packet: &mut P, maps: &M) -> Result<Verdict, DropReason> {
    let config = load_config(maps)?;
    let decision = classify(packet, maps, config);
    let (group, hash, syn) = match decision.unpack() {
        Decision::Forward { group, hash, syn } => (group, hash, syn),
        Decision::Drop(reason) => return Err(reason),
        _ => return Err(DropReason::NoRoute),
    };
    let hash = match hash {
        Some(hash) => hash,
        None => packet.hash_slow(packet.ethertype() == eth::IPV6, eth::END),
    };
    let next_hop = select_nexthop(maps, group, hash).ok_or(DropReason::NoNextHop)?;
    if let Some(size) = icmp_too_big::exceeds(packet, eth::END, next_hop.mtu) {
        let too_big = PacketTooBig {
            at: eth::END,
            size,
            mtu: next_hop.mtu,
            ifindex: config.mc0_ifindex,
        };
        return Ok(too_big.reply(packet, maps));
    }
    if syn {
        mss::clamp_to_mtu(packet, maps, eth::END, next_hop.mtu)?;
    }
    // After every possible ICMP error to the Pod, which does not know the Service address.
    if config.flags & CONFIG_BACKENDS != 0 {
        packet.snat_reply(maps, decision.source())?;
    }
    if decision.has_alias() {
        packet.rewrite_alias(eth::END, false, Address::from(next_hop.addr).v4_u32())?;
    }
    if decision.source() & SOURCE_POLICY != 0 {
        packet.track_flow(maps);
    }
    let sum = outer_checksum(packet, config).unwrap_or(NO_SUM);
    encapsulate(packet, config, next_hop, hash, sum)?;
    let addressed = address_to_next_hop(packet, maps, next_hop)?;
    maps.count_sent(next_hop.stats, packet.frame_len());
    // Without link addresses the neighbour of the next hop is not set: bpf_redirect_neigh only replaces the packet's
    // route, which leads back to mc0, if it looks up a route itself. A packet queued for neighbour resolution would
    // return to mc0 otherwise (neigh_update, net/core/neighbour.c, Linux 6.18).
    Ok(Verdict::Send {
        outcome: Outcome::Encap,
        ifindex: next_hop.ifindex,
        addressed,
    })
}

/// Reads the packet, checks its source and looks up its next hop group. Not inlined, like [`encapsulate`]: together
/// they exceed the BPF stack.
#[inline(never)]
fn classify<P: Subprograms, M: MapSubprograms>(packet: &P, maps: &M, config: &Config) -> PackedDecision {
    match route(packet, maps, config) {
        Ok(decision) => decision,
        Err(reason) => PackedDecision::drop(reason),
    }
}

#[inline(always)]
fn route<P: Subprograms, M: MapSubprograms>(
    packet: &P,
    maps: &M,
    config: &Config,
) -> Result<PackedDecision, DropReason> {
    let inner_type = packet.ethertype();
    if !matches!(inner_type, eth::IPV4 | eth::IPV6) {
        return Err(DropReason::NotIp);
    }
    let (header, ports) = inner_header(packet, inner_type).ok_or(DropReason::InnerMalformed)?;
    if !header.fits(packet.frame_len().wrapping_sub(eth::END)) {
        return Err(DropReason::InnerMalformed);
    }
    let key = EgressKey {
        src: header.src,
        dst: header.dst,
    };
    let addresses = flow::hash_addresses(&header);
    let hash = flow::hash_fast(&header, addresses, ports);
    let route = maps.egress_route(&key, addresses).unpack()?;
    if route.source & SOURCE_OWN == 0 && !may_be_translated(packet, config, route.source) {
        return Err(DropReason::InnerSource);
    }
    packet.set_identity(route.identity);
    Ok(
        PackedDecision::forward(route.group, hash, mss::can_be_syn(&header))
            .with_alias(route.alias)
            .with_source(route.source),
    )
}

/// Whether the translation of replies may replace a source that is no address of this node: that of a backend outside
/// of its prefixes, or of an ICMP error, which any router on the path to a Pod sends from its own address.
#[inline(always)]
fn may_be_translated<P: Subprograms>(packet: &P, config: &Config, source: u32) -> bool {
    let v6 = packet.ethertype() == eth::IPV6;
    config.flags & CONFIG_BACKENDS != 0
        && (source & SOURCE_BACKEND != 0 || icmp::is_error(packet, v6, &packet.locate_l4(v6, eth::END)))
}

/// Encapsulates the packet.
#[inline(never)]
fn encapsulate<P: Packet>(
    packet: &mut P,
    config: &Config,
    next_hop: &NextHop,
    hash: u32,
    sum: u64,
) -> Result<(), DropReason> {
    let inner_type = packet.ethertype();
    let [first, second, ..] = packet
        .load_u32::<{ eth::END }>()
        .ok_or(DropReason::InnerMalformed)?
        .to_le_bytes();
    let tos = if inner_type == eth::IPV6 {
        first << 4 | second >> 4
    } else {
        second
    };
    let inner_len = packet.frame_len().wrapping_sub(eth::END);
    let outer = Encap {
        format: Format::from_config(config),
        src: next_hop.local.into(),
        dst: next_hop.addr.into(),
        tos: ecn::outer(tos, fixed_tos(config)),
        ttl: hop_limit(config),
        hash,
        port: config.port,
        inner_sum: (sum != NO_SUM).then_some(sum),
        vni: packet.identity(),
        inner_src: SourceMac::from_bits(next_hop.source_mac),
        inner_type,
        inner_len,
    };
    let family = OuterFamily::new(!outer.dst.is_v4());
    packet.grow(family).ok_or(DropReason::EncapFailed)?;
    write_outer(packet, &outer, family).ok_or(DropReason::WriteFailed)?;
    if family.ethertype() != inner_type {
        set_ethertype(packet, family.ethertype())?;
    }
    Ok(())
}

/// Writes the outer headers into the inserted space.
#[inline(always)]
fn write_outer<P: Packet>(packet: &mut P, outer: &Encap, family: OuterFamily) -> Option<()> {
    match family {
        OuterFamily::V4 => packet.write_encap::<{ eth::END }, 7, ENCAP_LEN_V4>(outer.words_v4()),
        OuterFamily::V6 => packet.write_encap::<{ eth::END }, 9, ENCAP_LEN_V6>(outer.words_v6()),
    }
}

/// Sum of the inner packet for the outer UDP checksum; `None` without one. A GSO packet has none, because all
/// segments get copies of one outer header.
#[inline(always)]
fn outer_checksum<P: Packet>(packet: &P, config: &Config) -> Option<u64> {
    if config.flags & CONFIG_UDP_CHECKSUM == 0 || packet.is_gso() {
        return None;
    }
    let len = packet.frame_len().wrapping_sub(eth::END);
    lco_checksum(packet, packet.ethertype(), eth::END, len)
}

/// The IP header and the four bytes behind it. Zero instead of the bytes for IPv4 packets with options and for
/// packets without payload: their flows differ by addresses and protocol alone.
#[inline(always)]
fn inner_header<P: Packet>(packet: &P, ethertype: u16) -> Option<(ip::Header, u32)> {
    if ethertype == eth::IPV6 {
        let words = packet.load_words::<{ eth::END }, 5>()?;
        let ports = packet.load_u32::<V6_PAYLOAD_AT>().unwrap_or_default();
        return Some((ip::Header::v6_at(&words, eth::LEN), ports));
    }
    // Three words, more than the header, end with the header.
    let words = packet.load_words::<{ V4_PAYLOAD_AT - 24 }, 3>()?;
    let header = ip::Header::v4_at(&words, eth::LEN);
    if !header.is_plain() {
        return Some((header, 0));
    }
    Some((header, packet.load_u32::<V4_PAYLOAD_AT>().unwrap_or_default()))
}
