//! Ingress of an underlay device: encapsulated packets of other nodes and clusters.

use super::{
    address_to_mc0,
    decision::{Decision, DeliveryInfo, ServiceStep},
    icmp_too_big,
    icmp_too_big::PacketTooBig,
    load_config, mss,
    probe::process_probe,
    select_nexthop, set_ethertype,
};
use crate::{
    abi::{
        ACTION_DELIVER, ACTION_FORWARD, ACTION_REPLY, ACTION_SERVICE, CLUSTER_LOCAL, Config, NextHop,
        PEER_ANTREA, PEER_LOCAL_GATEWAY, PEER_LOCAL_NODE, PEER_REMOTE_GATEWAY, PREFIX_ALIAS, PREFIX_BACKENDS,
        PREFIX_HOST_SNAT, Peer, Prefix,
    },
    maps::{ALIAS_DESTINATION, ALIAS_SOURCE, Admission, AdmissionKey, Maps},
    nexthop_select,
    packet::{
        Address, Packet, checksum, ecn, eth, ip,
        outer::{self, HEADERS_V4, HEADERS_V6, Headers},
        probe::ETHERTYPE,
        tunnel::{self, Format},
    },
    verdict::{DropReason, Event, Outcome, Verdict},
};

/// Passes a packet on to the next node of its way, delivers it here, or leaves it alone.
///
/// Ours is what arrives for one of our addresses on the tunnel port with the multi-cluster MAC address
/// inside; anything else passes untouched. What is ours is never passed to the stack on an error.
#[inline(always)]
pub fn from_underlay<P: Packet, T: Maps>(packet: &mut P, tables: &T) -> Verdict {
    match packet.ethertype() {
        eth::IPV4 => from_underlay_v4(packet, tables),
        eth::IPV6 => from_underlay_v6(packet, tables),
        _ => Verdict::Pass,
    }
}

/// [`from_underlay`] for a packet whose ethertype is IPv4's.
#[inline(always)]
pub fn from_underlay_v4<P: Packet, T: Maps>(packet: &mut P, tables: &T) -> Verdict {
    process::<HEADERS_V4, P, T>(packet, tables)
}

/// [`from_underlay`] for a packet whose ethertype is IPv6's.
#[inline(always)]
pub fn from_underlay_v6<P: Packet, T: Maps>(packet: &mut P, tables: &T) -> Verdict {
    process::<HEADERS_V6, P, T>(packet, tables)
}

/// An arrival over one outer IP version: first everything is read, then something is done. Each step is a
/// function of its own in a program, because together they would not fit the stack.
#[inline(always)]
fn process<const N: usize, P: Packet, T: Maps>(packet: &mut P, tables: &T) -> Verdict {
    // Without a configuration nobody can say what is ours.
    let Ok(config) = load_config(tables) else {
        return Verdict::Pass;
    };
    let mut finding = classify::<N, P, T>(packet, tables, config);
    // Antrea gateways are known by IPv4 addresses only.
    if !Headers::<N>::V6 && Decision::renames(finding) != 0 {
        finding = packet.rewrite_ingress_alias(tables, finding, false);
    }
    if Decision::is_service(finding) {
        finding = packet.translate_service(tables, Headers::<N>::V6, finding);
    }
    let done = match Decision::unpack(finding) {
        Decision::Pass => return Verdict::Pass,
        Decision::Drop(reason) => return Verdict::Drop(reason),
        Decision::Probe => handle_probe::<N, P, T>(packet, tables, config),
        Decision::Forward { group, hash, syn } => select_nexthop(tables, group, hash.unwrap_or(0))
            .and_then(|next_hop| forward::<N, P, T>(packet, tables, next_hop, syn, finding)),
        Decision::Deliver(DeliveryInfo {
            v6,
            outer_tos,
            inner_tos,
            return_group: back,
        }) => propagate_ecn::<N, P, T>(packet, tables, v6, outer_tos, inner_tos)
            .and_then(|()| mss::clamp_to_return_path(packet, tables, Headers::<N>::INNER_AT, back))
            .and_then(|()| deliver::<N, P>(packet, config, v6)),
        // There is no Service behind a Service.
        Decision::Service(..) => Err(DropReason::NoRoute),
    };
    match done {
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

/// Reads the packet and decides; changes nothing. Returns a packed [`Finding`], packed where it is found:
/// one that is carried about in memory has padding that the verifier does not like to be copied.
#[inline(never)]
fn classify<const N: usize, P: Packet, T: Maps>(packet: &P, tables: &T, config: &Config) -> u64 {
    const NOT_OURS: u64 = Decision::Pass.pack();
    let Some(headers) = Headers::<N>::load(packet) else {
        return classify_truncated::<N, P, T>(packet, tables, config);
    };
    let outer = &headers.outer;
    if outer.is_fragment() {
        return classify_fragment::<N, P, T>(packet, tables, config);
    }
    if outer.proto != ip::UDP
        || headers.udp_dst() != config.port
        || !outer.is_plain()
        || !is_local(config, outer.dst)
    {
        return NOT_OURS;
    }
    let tunnel = headers.tunnel(Format::of(config));
    if !tunnel.carries_ethernet() {
        return NOT_OURS;
    }
    if tunnel.options_len() != 0 {
        return classify_with_options::<N, P>(packet, tunnel);
    }
    if !headers.is_multicluster() {
        return NOT_OURS;
    }
    match classify_multicluster(packet, tables, &headers, tunnel) {
        Ok(finding) => finding,
        Err(reason) => Decision::Drop(reason).pack(),
    }
}

#[inline(always)]
fn classify_multicluster<const N: usize, P: Packet, T: Maps>(
    packet: &P,
    tables: &T,
    headers: &Headers<N>,
    tunnel: tunnel::Header,
) -> Result<u64, DropReason> {
    let inner = match validate_inner(packet, headers, tunnel) {
        Ok(inner) => inner,
        Err(reason) => return classify_invalid(tables, headers, reason),
    };
    let way = AdmissionKey {
        peer: headers.outer.src,
        src: inner.src,
        dst: inner.dst,
    };
    let admission = Admission::unpack(tables.admission(&way))?;
    tables.count_received(admission.traffic, packet.frame_len());
    if admission.action != ACTION_FORWARD {
        let arrival = DeliveryInfo {
            v6: inner.v6,
            outer_tos: headers.outer.tos,
            inner_tos: inner.tos,
            return_group: if mss::can_be_syn(&inner) {
                admission.return_group
            } else {
                0
            },
        };
        return Ok(arrival.pack(service_step(&admission)) | Decision::renaming(admission.alias));
    }
    if headers.outer.ttl <= 1 {
        return Err(DropReason::TtlExceeded);
    }
    let onward = Decision::Forward {
        group: admission.group,
        // The sender has put the flow's hash into the source port, so nothing inside needs to be read again.
        hash: Some(nexthop_select::mix(
            u32::from(headers.udp_src()),
            inner.dst.fold(),
        )),
        syn: mss::can_be_syn(&inner),
    };
    Ok(onward.pack() | Decision::renaming(admission.alias))
}

/// The header of an inner packet that can be passed on or delivered, if somebody may send it.
#[inline(always)]
fn validate_inner<const N: usize, P: Packet>(
    packet: &P,
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
    if !inner.fits(packet.frame_len().wrapping_sub(Headers::<N>::INNER_AT)) {
        return Err(DropReason::InnerMalformed);
    }
    Ok(inner)
}

/// What is not [`sound`] is a probe, or refused; from a stranger it is refused for that.
#[inline(always)]
fn classify_invalid<const N: usize, T: Maps>(
    tables: &T,
    headers: &Headers<N>,
    reason: DropReason,
) -> Result<u64, DropReason> {
    tables.peer(headers.outer.src).ok_or(DropReason::UnknownPeer)?;
    if reason == DropReason::InnerProtocol && headers.inner_ethertype() == ETHERTYPE {
        return Ok(Decision::Probe.pack());
    }
    Err(reason)
}

/// What the tables say of packets that come this way: a packed [`Admission`].
#[inline(always)]
pub fn admission<T: Maps>(tables: &T, way: &AdmissionKey) -> u64 {
    match evaluate_admission(tables, way) {
        Ok(admission) => admission.pack(),
        Err(reason) => Admission::refusal(reason),
    }
}

#[inline(always)]
fn evaluate_admission<T: Maps>(tables: &T, way: &AdmissionKey) -> Result<Admission, DropReason> {
    let peer = tables.peer(way.peer).ok_or(DropReason::UnknownPeer)?;
    // An Antrea gateway sends for its clients, which are judged as what stands for them.
    let for_clients = peer.flags & PEER_ANTREA != 0 && way.src == way.peer && way.peer.is_v4();
    let src = if for_clients { peer.alias() } else { way.src };
    let src = tables.prefix(src).ok_or(DropReason::InnerSource)?;
    let dst = tables.prefix(way.dst).ok_or(DropReason::NoRoute)?;
    admit(peer, &src, &dst)?;
    Ok(Admission {
        action: if dst.flags & PREFIX_HOST_SNAT == 0 {
            dst.action
        } else {
            ACTION_DELIVER
        },
        alias: if for_clients {
            ALIAS_SOURCE
        } else if dst.flags & PREFIX_ALIAS != 0 {
            ALIAS_DESTINATION
        } else {
            0
        },
        group: dst.group,
        return_group: if src.action == ACTION_FORWARD {
            src.group
        } else {
            0
        },
        peer_flags: peer.flags,
        has_backends: dst.flags & PREFIX_BACKENDS != 0,
        traffic: peer.stats,
    })
}

/// What Services ask for before a packet to a prefix of our cluster is delivered.
#[inline(always)]
const fn service_step(admission: &Admission) -> Option<ServiceStep> {
    if admission.action != ACTION_SERVICE {
        return if admission.has_backends {
            Some(ServiceStep::ClearNat)
        } else {
            None
        };
    }
    // A second choice could send a packet in circles.
    if admission.peer_flags & PEER_REMOTE_GATEWAY == 0 {
        Some(ServiceStep::Dnat)
    } else {
        Some(ServiceStep::SelectBackend)
    }
}

/// Whether a peer may send from `src` to `dst`: the inner source must belong to the outer one.
#[inline(always)]
fn admit(peer: &Peer, src: &Prefix, dst: &Prefix) -> Result<(), DropReason> {
    if peer.flags & PEER_REMOTE_GATEWAY != 0 {
        if peer.cluster == CLUSTER_LOCAL || src.cluster != peer.cluster {
            return Err(DropReason::InnerSource);
        }
        // One cluster's gateway is no relay between two others.
        let here = dst.cluster == CLUSTER_LOCAL
            && match dst.action {
                ACTION_DELIVER | ACTION_FORWARD | ACTION_SERVICE => true,
                ACTION_REPLY => peer.flags & PEER_ANTREA != 0,
                _ => false,
            };
        return if here { Ok(()) } else { Err(DropReason::NoRoute) };
    }
    if src.cluster == CLUSTER_LOCAL {
        // Nodes answer for Pods of their own and for the Services these are behind.
        let own = peer.group == 0 || src.group == peer.group || src.action == ACTION_SERVICE;
        let from_node = peer.flags & PEER_LOCAL_NODE != 0 && own && src.action != ACTION_REPLY;
        if !from_node {
            return Err(DropReason::InnerSource);
        }
        let away = dst.cluster != CLUSTER_LOCAL && dst.action == ACTION_FORWARD;
        return if away { Ok(()) } else { Err(DropReason::NoRoute) };
    }
    if peer.flags & PEER_LOCAL_GATEWAY == 0 {
        return Err(DropReason::InnerSource);
    }
    // A gateway passes packets of other clusters only to their destination node: no loops.
    let mine = dst.cluster == CLUSTER_LOCAL && matches!(dst.action, ACTION_DELIVER | ACTION_SERVICE);
    if mine { Ok(()) } else { Err(DropReason::NoRoute) }
}

#[inline(never)]
fn handle_probe<const N: usize, P: Packet, T: Maps>(
    packet: &mut P,
    tables: &T,
    config: &Config,
) -> Result<Verdict, DropReason> {
    let headers = Headers::<N>::load(packet).ok_or(DropReason::Truncated)?;
    process_probe(packet, tables, config, &headers)
}

/// Passes the packet on, or tells its sender that it is too big for the next leg.
#[inline(always)]
fn forward<const N: usize, P: Packet, T: Maps>(
    packet: &mut P,
    tables: &T,
    next_hop: &NextHop,
    syn: bool,
    finding: u64,
) -> Result<Verdict, DropReason> {
    let at = Headers::<N>::INNER_AT;
    if Address::from(next_hop.addr).is_v4() == Headers::<N>::V6 {
        return Err(DropReason::OuterFamily);
    }
    if let Some(size) = icmp_too_big::exceeds(packet, at, next_hop.mtu) {
        // The sender is to find its packet in the answer as it has sent it.
        if !Headers::<N>::V6 && Decision::renames(finding) != 0 {
            let undone = packet.rewrite_ingress_alias(tables, finding, true);
            if let Decision::Drop(reason) = Decision::unpack(undone) {
                return Err(reason);
            }
        }
        let too_big = PacketTooBig {
            at,
            size,
            mtu: next_hop.mtu,
            ifindex: packet.ifindex(),
        };
        return Ok(too_big.reply(packet, tables));
    }
    if syn {
        mss::clamp_to_mtu(packet, tables, at, next_hop.mtu)?;
    }
    packet.set_neighbor(&next_hop.neighbor);
    let verdict = if Headers::<N>::V6 {
        rewrite_outer_v6(packet, next_hop)
    } else {
        rewrite_outer::<N, P>(packet, next_hop)
    }?;
    tables.count_sent(next_hop.stats, packet.frame_len());
    Ok(verdict)
}

/// [`pass_on`], which over IPv6 needs more of the stack than its caller has left.
#[inline(never)]
fn rewrite_outer_v6<P: Packet>(packet: &mut P, next_hop: &NextHop) -> Result<Verdict, DropReason> {
    rewrite_outer::<HEADERS_V6, P>(packet, next_hop)
}

/// Sends the packet to the next node as it is: only the outer header changes.
#[inline(always)]
fn rewrite_outer<const N: usize, P: Packet>(
    packet: &mut P,
    next_hop: &NextHop,
) -> Result<Verdict, DropReason> {
    outer::rewrite_outer::<N, P>(packet, next_hop.local.into(), next_hop.addr.into())
        .ok_or(DropReason::WriteFailed)?;
    Ok(Verdict::Send {
        outcome: Outcome::Transit,
        ifindex: next_hop.ifindex,
    })
}

/// Passes congestion met on the way on to the inner packet.
#[inline(always)]
fn propagate_ecn<const N: usize, P: Packet, T: Maps>(
    packet: &mut P,
    tables: &T,
    v6: bool,
    outer: u8,
    inner: u8,
) -> Result<(), DropReason> {
    let tos = ecn::decapsulated(outer, inner).ok_or(DropReason::Ecn)?;
    if tos != inner {
        set_inner_tos(packet, Headers::<N>::INNER_AT, v6, inner, tos).ok_or(DropReason::WriteFailed)?;
        tables.count(Event::EcnMarked);
    }
    Ok(())
}

/// Takes the packet out of its tunnel and gives it to this node's stack.
#[inline(never)]
fn deliver<const N: usize, P: Packet>(
    packet: &mut P,
    config: &Config,
    v6: bool,
) -> Result<Verdict, DropReason> {
    packet
        .shrink(Headers::<N>::FAMILY, v6)
        .ok_or(DropReason::DecapFailed)?;
    if v6 != Headers::<N>::V6 {
        let ethertype = if v6 { eth::IPV6 } else { eth::IPV4 };
        set_ethertype(packet, ethertype)?;
    }
    address_to_mc0(packet, config)?;
    Ok(Verdict::Deliver {
        outcome: Outcome::Deliver,
        ifindex: config.mc0_ifindex,
    })
}

/// Writes DSCP and ECN of the inner header at `offset`.
#[inline(never)]
fn set_inner_tos<P: Packet>(packet: &mut P, offset: u32, v6: bool, old: u8, tos: u8) -> Option<()> {
    if v6 {
        let [first, second] = packet.load::<2>(offset)?;
        return packet.store(
            offset,
            &[(first & 0xf0) | (tos >> 4), (tos << 4) | (second & 0x0f)],
        );
    }
    let check_at = offset.wrapping_add(10);
    let check = packet.load::<2>(check_at)?;
    let difference = checksum::difference(&[0, old, 0, 0], &[0, tos, 0, 0]);
    packet.store(offset.wrapping_add(1), &[tos])?;
    packet.store(check_at, &checksum::update(check, difference))
}

/// A frame too short to hold all headers: dropped where a peer announces one of ours, else passed.
#[inline(never)]
fn classify_truncated<const N: usize, P: Packet, T: Maps>(packet: &P, tables: &T, config: &Config) -> u64 {
    let Some(outer) = ip::Header::load(packet, packet.ethertype(), eth::END) else {
        return Decision::Pass.pack();
    };
    let announced = outer.proto == ip::UDP
        && outer.is_plain()
        && !outer.is_fragment()
        && is_local(config, outer.dst)
        && has_tunnel_port(packet, eth::END.wrapping_add(outer.len), config.port);
    // A frame of another user of the port is only touched if it claims to be ours.
    let others = packet
        .load::<6>(Headers::<N>::INNER_ETH_AT)
        .is_some_and(|mac| mac != eth::MULTICLUSTER_MAC);
    if announced && !others && tables.peer(outer.src).is_some() {
        return Decision::Drop(DropReason::Truncated).pack();
    }
    Decision::Pass.pack()
}

/// Whether the UDP header at `offset` is for `port`.
#[inline(always)]
fn has_tunnel_port<P: Packet>(packet: &P, offset: u32, port: u16) -> bool {
    packet.load::<2>(offset.wrapping_add(2)) == Some(port.to_be_bytes())
}

/// A fragment of an outer packet. Peers never fragment, so one with our port is broken or forged; later
/// fragments carry no port and go to the stack, which can never complete the packet without the first.
#[inline(never)]
fn classify_fragment<const N: usize, P: Packet, T: Maps>(packet: &P, tables: &T, config: &Config) -> u64 {
    let Some(outer) = ip::Header::load(packet, packet.ethertype(), eth::END) else {
        return Decision::Pass.pack();
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
        && is_local(config, outer.dst)
        && has_tunnel_port(packet, udp_at, config.port)
        && tables.peer(outer.src).is_some()
    {
        return Decision::Drop(DropReason::OuterFragment).pack();
    }
    Decision::Pass.pack()
}

/// A tunnel header with options: ours are refused, other users' (a CNI on the same port) pass.
#[inline(never)]
fn classify_with_options<const N: usize, P: Packet>(packet: &P, tunnel: tunnel::Header) -> u64 {
    match packet.load::<6>(Headers::<N>::INNER_ETH_AT.wrapping_add(tunnel.options_len())) {
        Some(eth::MULTICLUSTER_MAC) => Decision::Drop(DropReason::TunnelOptions).pack(),
        _ => Decision::Pass.pack(),
    }
}

#[inline(always)]
fn is_local(config: &Config, address: Address) -> bool {
    let [a, b, c, d] = config.local.map(Address::from);
    a == address || b == address || c == address || d == address
}
