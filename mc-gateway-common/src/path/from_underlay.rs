//! Ingress of an underlay device: encapsulated packets of other nodes and clusters.

use super::{config, next_member};
use crate::{
    abi::{
        ACTION_DELIVER, ACTION_FORWARD, Addr, CLUSTER_LOCAL, Config, PEER_LOCAL_GATEWAY, PEER_LOCAL_NODE,
        PEER_REMOTE_GATEWAY, Peer, Prefix,
    },
    packet::{
        Aligned, Packet, checksum, eth, ip,
        tunnel::{self, HEADERS, Headers, INNER_ETH, ROOM_U32, UDP_CHECK},
    },
    select,
    tables::Tables,
    verdict::{DropReason, Path, Verdict},
};

/// Passes a packet on to the next node of its way, delivers it here, or leaves it alone.
///
/// Ours is what arrives for one of our addresses on the tunnel port with the multi-cluster MAC address
/// inside; anything else passes untouched. What is ours is never passed to the stack on an error.
#[inline(always)]
pub fn from_underlay<P: Packet, T: Tables>(packet: &mut P, tables: &T) -> Verdict {
    if packet.ethertype() != eth::IPV4 {
        return Verdict::Pass;
    }
    // Without a configuration nobody can say what is ours.
    let Ok(config) = config(tables) else {
        return Verdict::Pass;
    };
    let Some(bytes) = packet.load::<HEADERS>(eth::END) else {
        return short(packet, tables, config);
    };
    let headers = Headers::new(&bytes);
    let outer = ip::V4::read(&headers.outer_bytes());
    if outer.proto != ip::UDP || !outer.is_plain() || !is_local(config, outer.dst) {
        return Verdict::Pass;
    }
    if outer.is_fragment() {
        return fragment(&outer, headers.udp_dst(), tables, config);
    }
    if headers.udp_dst() != config.port || !headers.carries_ethernet() {
        return Verdict::Pass;
    }
    if headers.options_len() != 0 {
        return with_options(packet, &headers);
    }
    if headers.inner_mac() != eth::MULTICLUSTER_MAC {
        return Verdict::Pass;
    }
    match forward(packet, tables, config, &headers, &outer) {
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

#[inline(always)]
fn forward<P: Packet, T: Tables>(
    packet: &mut P,
    tables: &T,
    config: &Config,
    headers: &Headers<'_>,
    outer: &ip::V4,
) -> Result<Verdict, DropReason> {
    let peer = tables
        .peer(ip::mapped(outer.src))
        .ok_or(DropReason::UnknownPeer)?;
    let outer_bytes = headers.outer_bytes();
    if checksum::sum_header(&outer_bytes) != 0xffff {
        return Err(DropReason::OuterChecksum);
    }
    if !headers.is_plain() {
        return Err(DropReason::TunnelHeader);
    }
    if headers.inner_ethertype() != eth::IPV4 {
        return Err(DropReason::InnerProtocol);
    }
    let inner = headers.inner();
    if !inner.fits(packet.frame_len().wrapping_sub(eth::END).wrapping_sub(ROOM_U32)) {
        return Err(DropReason::InnerMalformed);
    }
    let src = tables
        .prefix(ip::mapped(inner.src))
        .ok_or(DropReason::InnerSource)?;
    let dst = tables.prefix(ip::mapped(inner.dst)).ok_or(DropReason::NoRoute)?;
    admit(peer, src, dst)?;
    if dst.action == ACTION_DELIVER {
        return deliver(packet, config);
    }
    if outer.ttl <= 1 {
        return Err(DropReason::TtlExceeded);
    }
    // The sender has put the flow's hash into the source port, so nothing inside needs to be read again.
    let hash = select::mix(u32::from(headers.udp_src()), u32::from_be_bytes(inner.dst));
    let member = next_member(tables, dst, hash)?;
    let (from, to) = (ip::unmapped(member.local), ip::unmapped(member.addr));
    let ifindex = member.ifindex;
    packet
        .store(
            eth::END,
            &Aligned(tunnel::transit_header(&outer_bytes, from, to)).0,
        )
        .ok_or(DropReason::Store)?;
    let check = headers.udp_check();
    if check != [0, 0] {
        let check = checksum::update_addresses(check, join(outer.src, outer.dst), join(from, to));
        packet.store(UDP_CHECK, &check).ok_or(DropReason::Store)?;
    }
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
        let here = dst.cluster == CLUSTER_LOCAL && matches!(dst.action, ACTION_DELIVER | ACTION_FORWARD);
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
    let mine = dst.cluster == CLUSTER_LOCAL && dst.action == ACTION_DELIVER;
    if mine { Ok(()) } else { Err(DropReason::NoRoute) }
}

#[inline(always)]
fn deliver<P: Packet>(packet: &mut P, config: &Config) -> Result<Verdict, DropReason> {
    packet.shrink().ok_or(DropReason::Shrink)?;
    // The kernel classifies the packet again on mc0: only its own address makes it PACKET_HOST.
    packet.store(eth::DST, &config.mc0_mac).ok_or(DropReason::Store)?;
    Ok(Verdict::Deliver {
        path: Path::Deliver,
        ifindex: config.mc0_ifindex,
    })
}

/// A frame too short to hold all headers: dropped where a peer announces one of ours, else passed.
#[inline(always)]
fn short<P: Packet, T: Tables>(packet: &P, tables: &T, config: &Config) -> Verdict {
    let Some(bytes) = packet.load::<24>(eth::END) else {
        return Verdict::Pass;
    };
    let (Some(header), Some([_, _, p0, p1])) = (bytes.first_chunk(), bytes.last_chunk()) else {
        return Verdict::Pass;
    };
    let outer = ip::V4::read(header);
    let announced = outer.proto == ip::UDP
        && outer.is_plain()
        && !outer.is_fragment()
        && u16::from_be_bytes([*p0, *p1]) == config.port
        && is_local(config, outer.dst);
    // A frame of another user of the port is only touched if it claims to be ours.
    let others = packet
        .load::<6>(INNER_ETH)
        .is_some_and(|mac| mac != eth::MULTICLUSTER_MAC);
    if announced && !others && tables.peer(ip::mapped(outer.src)).is_some() {
        return Verdict::Drop(DropReason::Truncated);
    }
    Verdict::Pass
}

/// A fragment of an outer packet. Peers set DF, so one with our port is broken or forged; later
/// fragments carry no port and go to the stack, which can never complete the packet without the first.
#[inline(always)]
fn fragment<T: Tables>(outer: &ip::V4, port: u16, tables: &T, config: &Config) -> Verdict {
    let first = outer.fragment_offset() == 0;
    if first && port == config.port && tables.peer(ip::mapped(outer.src)).is_some() {
        return Verdict::Drop(DropReason::OuterFragment);
    }
    Verdict::Pass
}

/// A tunnel header with options: ours are refused, other users' (a CNI on the same port) pass.
#[inline(always)]
fn with_options<P: Packet>(packet: &P, headers: &Headers<'_>) -> Verdict {
    match packet.load::<6>(INNER_ETH.wrapping_add(headers.options_len())) {
        Some(eth::MULTICLUSTER_MAC) => Verdict::Drop(DropReason::TunnelOptions),
        _ => Verdict::Pass,
    }
}

#[inline(always)]
fn is_local(config: &Config, address: [u8; 4]) -> bool {
    let address: Addr = ip::mapped(address);
    let [a, b, c, d] = &config.local;
    *a == address || *b == address || *c == address || *d == address
}

#[inline(always)]
fn join(a: [u8; 4], b: [u8; 4]) -> [u8; 8] {
    let ([a0, a1, a2, a3], [b0, b1, b2, b3]) = (a, b);
    [a0, a1, a2, a3, b0, b1, b2, b3]
}
