//! Ingress of an underlay device: encapsulated packets of other nodes and clusters.

use super::{config, next_member, probe::probe};
use crate::{
    abi::{
        ACTION_DELIVER, ACTION_FORWARD, ACTION_SERVICE, Addr, CLUSTER_LOCAL, Config, PEER_LOCAL_GATEWAY,
        PEER_LOCAL_NODE, PEER_REMOTE_GATEWAY, Peer, Prefix,
    },
    packet::{
        Packet, checksum, ecn, eth, ip,
        outer::{HEADERS_V4, HEADERS_V6, Headers},
        probe::ETHERTYPE,
        tunnel::{self, Format},
    },
    select,
    tables::Tables,
    verdict::{DropReason, Event, Path, Verdict},
};

/// Passes a packet on to the next node of its way, delivers it here, or leaves it alone.
///
/// Ours is what arrives for one of our addresses on the tunnel port with the multi-cluster MAC address
/// inside; anything else passes untouched. What is ours is never passed to the stack on an error.
#[inline(always)]
pub fn from_underlay<P: Packet, T: Tables>(packet: &mut P, tables: &T) -> Verdict {
    match packet.ethertype() {
        eth::IPV4 => arrived::<HEADERS_V4, P, T>(packet, tables),
        eth::IPV6 => arrived::<HEADERS_V6, P, T>(packet, tables),
        _ => Verdict::Pass,
    }
}

#[inline(always)]
fn arrived<const N: usize, P: Packet, T: Tables>(packet: &mut P, tables: &T) -> Verdict {
    // Without a configuration nobody can say what is ours.
    let Ok(config) = config(tables) else {
        return Verdict::Pass;
    };
    let Some(headers) = Headers::<N>::load(packet) else {
        return short::<N, P, T>(packet, tables, config);
    };
    let outer = &headers.outer;
    if outer.is_fragment() {
        return fragment::<N, P, T>(packet, outer, tables, config);
    }
    if outer.proto != ip::UDP
        || headers.udp_dst() != config.port
        || !outer.is_plain()
        || !is_local(config, &outer.dst)
    {
        return Verdict::Pass;
    }
    let tunnel = headers.tunnel(Format::of(config));
    if !tunnel.carries_ethernet() {
        return Verdict::Pass;
    }
    if tunnel.options_len() != 0 {
        return with_options::<N, P>(packet, tunnel);
    }
    if headers.inner_mac() != eth::MULTICLUSTER_MAC {
        return Verdict::Pass;
    }
    match accept(packet, tables, config, &headers, tunnel) {
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

#[inline(always)]
fn accept<const N: usize, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    config: &Config,
    headers: &Headers<N>,
    tunnel: tunnel::Header,
) -> Result<Verdict, DropReason> {
    let peer = tables.peer(headers.outer.src).ok_or(DropReason::UnknownPeer)?;
    if !headers.checksum_is_valid() {
        return Err(DropReason::OuterChecksum);
    }
    if !tunnel.is_plain() {
        return Err(DropReason::TunnelHeader);
    }
    if headers.inner_ethertype() == ETHERTYPE {
        return probe(packet, tables, config, headers);
    }
    if !matches!(headers.inner_ethertype(), eth::IPV4 | eth::IPV6) {
        return Err(DropReason::InnerProtocol);
    }
    let inner = headers.inner(packet).ok_or(DropReason::InnerMalformed)?;
    if !inner.fits(packet.frame_len().wrapping_sub(Headers::<N>::INNER_AT)) {
        return Err(DropReason::InnerMalformed);
    }
    let src = tables.prefix(inner.src).ok_or(DropReason::InnerSource)?;
    let dst = tables.prefix(inner.dst).ok_or(DropReason::NoRoute)?;
    admit(peer, src, dst)?;
    if dst.action == ACTION_FORWARD {
        pass_on(packet, tables, headers, &inner, dst)
    } else {
        deliver(packet, tables, config, headers, &inner)
    }
}

/// Sends the packet to the next node as it is: only the outer header changes.
#[inline(always)]
fn pass_on<const N: usize, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    headers: &Headers<N>,
    inner: &ip::Header,
    dst: &Prefix,
) -> Result<Verdict, DropReason> {
    if headers.outer.ttl <= 1 {
        return Err(DropReason::TtlExceeded);
    }
    // The sender has put the flow's hash into the source port, so nothing inside needs to be read again.
    let hash = select::mix(u32::from(headers.udp_src()), select::fold(&inner.dst));
    let member = next_member(tables, dst, hash)?;
    if ip::is_v4(&member.addr) == Headers::<N>::V6 {
        return Err(DropReason::OuterFamily);
    }
    let ifindex = member.ifindex;
    headers
        .pass_on(packet, &member.local, &member.addr)
        .ok_or(DropReason::Store)?;
    Ok(Verdict::Send {
        path: Path::Transit,
        ifindex,
    })
}

/// Whether a peer may send from `src` to `dst`: inner addresses are only believed as far as the outer
/// source explains them.
#[inline(always)]
fn admit(peer: &Peer, src: &Prefix, dst: &Prefix) -> Result<(), DropReason> {
    if peer.flags & PEER_REMOTE_GATEWAY != 0 {
        if peer.cluster == CLUSTER_LOCAL || src.cluster != peer.cluster {
            return Err(DropReason::InnerSource);
        }
        // One cluster's gateway is no relay between two others.
        let here = dst.cluster == CLUSTER_LOCAL
            && matches!(dst.action, ACTION_DELIVER | ACTION_FORWARD | ACTION_SERVICE);
        return if here { Ok(()) } else { Err(DropReason::NoRoute) };
    }
    if src.cluster == CLUSTER_LOCAL {
        let from_node = peer.flags & PEER_LOCAL_NODE != 0 && (peer.group == 0 || src.group == peer.group);
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

/// Takes the packet out of its tunnel and gives it to this node's stack.
#[inline(always)]
fn deliver<const N: usize, P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    config: &Config,
    headers: &Headers<N>,
    inner: &ip::Header,
) -> Result<Verdict, DropReason> {
    let tos = ecn::decapsulated(headers.outer.tos, inner.tos).ok_or(DropReason::Ecn)?;
    if tos != inner.tos {
        mark(packet, inner, Headers::<N>::INNER_AT, tos).ok_or(DropReason::Store)?;
        tables.count(Event::EcnMarked);
    }
    packet
        .shrink(Headers::<N>::ROOM, inner.v6)
        .ok_or(DropReason::Shrink)?;
    if inner.v6 != Headers::<N>::V6 {
        let ethertype = headers.inner_ethertype().to_be_bytes();
        packet
            .store(eth::ETHERTYPE, &ethertype)
            .ok_or(DropReason::Store)?;
    }
    // The kernel classifies the packet again on mc0: only its own address makes it PACKET_HOST.
    packet.store(eth::DST, &config.mc0_mac).ok_or(DropReason::Store)?;
    Ok(Verdict::Deliver {
        path: Path::Deliver,
        ifindex: config.mc0_ifindex,
    })
}

/// Writes DSCP and ECN of the inner header at `offset`.
#[inline(always)]
fn mark<P: Packet>(packet: &mut P, inner: &ip::Header, offset: u32, tos: u8) -> Option<()> {
    if inner.v6 {
        let [first, second] = packet.load::<2>(offset)?;
        return packet.store(
            offset,
            &[(first & 0xf0) | (tos >> 4), (tos << 4) | (second & 0x0f)],
        );
    }
    let check_at = offset.wrapping_add(10);
    let check = packet.load::<2>(check_at)?;
    let difference = checksum::difference(&[0, inner.tos, 0, 0], &[0, tos, 0, 0]);
    packet.store(offset.wrapping_add(1), &[tos])?;
    packet.store(check_at, &checksum::update(check, difference))
}

/// A frame too short to hold all headers: dropped where a peer announces one of ours, else passed.
#[inline(always)]
fn short<const N: usize, P: Packet, T: Tables>(packet: &P, tables: &T, config: &Config) -> Verdict {
    let Some(outer) = ip::Header::load(packet, packet.ethertype(), eth::END) else {
        return Verdict::Pass;
    };
    let announced = outer.proto == ip::UDP
        && outer.is_plain()
        && !outer.is_fragment()
        && is_local(config, &outer.dst)
        && announces(packet, eth::END.wrapping_add(outer.len), config.port);
    // A frame of another user of the port is only touched if it claims to be ours.
    let others = packet
        .load::<6>(Headers::<N>::INNER_ETH_AT)
        .is_some_and(|mac| mac != eth::MULTICLUSTER_MAC);
    if announced && !others && tables.peer(outer.src).is_some() {
        return Verdict::Drop(DropReason::Truncated);
    }
    Verdict::Pass
}

/// Whether the UDP header at `offset` is for `port`.
#[inline(always)]
fn announces<P: Packet>(packet: &P, offset: u32, port: u16) -> bool {
    packet.load::<2>(offset.wrapping_add(2)) == Some(port.to_be_bytes())
}

/// A fragment of an outer packet. Peers never fragment, so one with our port is broken or forged; later
/// fragments carry no port and go to the stack, which can never complete the packet without the first.
#[inline(always)]
fn fragment<const N: usize, P: Packet, T: Tables>(
    packet: &P,
    outer: &ip::Header,
    tables: &T,
    config: &Config,
) -> Verdict {
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
        && is_local(config, &outer.dst)
        && announces(packet, udp_at, config.port)
        && tables.peer(outer.src).is_some()
    {
        return Verdict::Drop(DropReason::OuterFragment);
    }
    Verdict::Pass
}

/// A tunnel header with options: ours are refused, other users' (a CNI on the same port) pass.
#[inline(always)]
fn with_options<const N: usize, P: Packet>(packet: &P, tunnel: tunnel::Header) -> Verdict {
    match packet.load::<6>(Headers::<N>::INNER_ETH_AT.wrapping_add(tunnel.options_len())) {
        Some(eth::MULTICLUSTER_MAC) => Verdict::Drop(DropReason::TunnelOptions),
        _ => Verdict::Pass,
    }
}

#[inline(always)]
fn is_local(config: &Config, address: &Addr) -> bool {
    let [a, b, c, d] = &config.local;
    a == address || b == address || c == address || d == address
}
