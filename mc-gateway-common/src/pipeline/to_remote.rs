//! Egress of `mc0`: packets the node's routing has found to be for another cluster.

use super::{
    decision::Decision, fixed_tos, hop_limit, icmp_too_big, icmp_too_big::PacketTooBig, load_config, mss,
    select_nexthop, set_ethertype,
};
use crate::{
    abi::{
        ACTION_FORWARD, CLUSTER_LOCAL, CONFIG_BACKENDS, CONFIG_UDP_CHECKSUM, Config, NextHop, PREFIX_ALIAS,
        PREFIX_RETURN_ROUTE,
    },
    flow,
    maps::{ALIAS_DESTINATION, Maps},
    packet::{
        Address, Packet, ecn,
        encap::{ENCAP_LEN_V4, ENCAP_LEN_V6, Encap, OuterFamily},
        eth, ip, lco_checksum,
        tunnel::{Format, VNI_POLICY_OFF},
    },
    verdict::{DropReason, Outcome, Verdict},
};

/// No sum: more than any packet has.
const NO_SUM: u64 = u64::MAX;
/// Offset of what follows an IPv4 header without options.
const V4_PAYLOAD_AT: u32 = eth::END.wrapping_add(20);
/// Offset of what follows an IPv6 header.
const V6_PAYLOAD_AT: u32 = eth::END.wrapping_add(40);

/// Encapsulates a packet to another cluster: from a regular node to one of its own gateways, from a
/// gateway straight to a gateway of the other cluster.
///
/// Everything on `mc0` is ours, so nothing passes: what cannot be sent is dropped and counted.
#[inline(always)]
pub fn to_remote<P: Packet, T: Maps>(packet: &mut P, tables: &T) -> Verdict {
    match process(packet, tables) {
        Ok(verdict) => verdict,
        Err(reason) => Verdict::Drop(reason),
    }
}

#[inline(always)]
fn process<P: Packet, T: Maps>(packet: &mut P, tables: &T) -> Result<Verdict, DropReason> {
    let config = load_config(tables)?;
    let finding = classify(packet, tables);
    let (group, hash, syn) = match Decision::unpack(finding) {
        Decision::Forward { group, hash, syn } => (group, hash, syn),
        Decision::Drop(reason) => return Err(reason),
        _ => return Err(DropReason::NoRoute),
    };
    let hash = match hash {
        Some(hash) => hash,
        None => packet.hash_slow(packet.ethertype() == eth::IPV6, eth::END),
    };
    let next_hop = select_nexthop(tables, group, hash)?;
    if let Some(size) = icmp_too_big::exceeds(packet, eth::END, next_hop.mtu) {
        let too_big = PacketTooBig {
            at: eth::END,
            size,
            mtu: next_hop.mtu,
            ifindex: config.mc0_ifindex,
        };
        return Ok(too_big.reply(packet, tables));
    }
    if syn {
        mss::clamp_to_mtu(packet, tables, eth::END, next_hop.mtu)?;
    }
    // After everything that may have to be told to the Pod, which knows no Service address.
    if config.flags & CONFIG_BACKENDS != 0 {
        packet.snat_reply(tables)?;
    }
    if Decision::renames(finding) != 0 {
        packet.rewrite_alias(eth::END, false, Address::from(next_hop.addr).v4_u32())?;
    }
    let sum = outer_checksum(packet, config).unwrap_or(NO_SUM);
    encapsulate(packet, config, next_hop, hash, sum)?;
    tables.count_sent(next_hop.stats, packet.frame_len());
    // The next hop is not named here: a packet on mc0 has a route already, which bpf_redirect_neigh only
    // replaces where it looks one up. Kept, it leads back to mc0 when the packet has to wait for the
    // neighbour (neigh_update, net/core/neighbour.c, Linux 6.18).
    Ok(Verdict::Send {
        outcome: Outcome::Encap,
        ifindex: next_hop.ifindex,
    })
}

/// Reads the packet and finds out where it goes. A function of its own in a program, as is
/// [`encapsulate`]: together they would not fit the stack.
#[inline(never)]
fn classify<P: Packet, T: Maps>(packet: &P, tables: &T) -> u64 {
    match route(packet, tables) {
        Ok(finding) => finding,
        Err(reason) => Decision::Drop(reason).pack(),
    }
}

#[inline(always)]
fn route<P: Packet, T: Maps>(packet: &P, tables: &T) -> Result<u64, DropReason> {
    let inner_type = packet.ethertype();
    if !matches!(inner_type, eth::IPV4 | eth::IPV6) {
        return Err(DropReason::NotIp);
    }
    let (header, ports) = inner_header(packet, inner_type).ok_or(DropReason::InnerMalformed)?;
    if !header.fits(packet.frame_len().wrapping_sub(eth::END)) {
        return Err(DropReason::InnerMalformed);
    }
    let prefix = tables.prefix(header.dst).ok_or(DropReason::NoRoute)?;
    let back = prefix.cluster == CLUSTER_LOCAL && prefix.flags & PREFIX_RETURN_ROUTE == 0;
    if prefix.action != ACTION_FORWARD || back {
        return Err(DropReason::NoRoute);
    }
    let onward = Decision::Forward {
        group: prefix.group,
        hash: flow::hash_fast(&header, ports),
        syn: mss::can_be_syn(&header),
    };
    let rename = if prefix.flags & PREFIX_ALIAS == 0 {
        0
    } else {
        ALIAS_DESTINATION
    };
    Ok(onward.pack() | Decision::renaming(rename))
}

/// Puts the packet into its tunnel.
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
        format: Format::of(config),
        src: next_hop.local.into(),
        dst: next_hop.addr.into(),
        tos: ecn::outer(tos, fixed_tos(config)),
        ttl: hop_limit(config),
        hash,
        port: config.port,
        inner_sum: (sum != NO_SUM).then_some(sum),
        vni: VNI_POLICY_OFF,
        inner_src: config.mc0_mac,
        inner_type,
        inner_len,
    };
    let room = if outer.dst.is_v4() {
        OuterFamily::V4
    } else {
        OuterFamily::V6
    };
    packet.grow(room).ok_or(DropReason::EncapFailed)?;
    write_outer(packet, &outer, room).ok_or(DropReason::WriteFailed)?;
    if room.ethertype() != inner_type {
        set_ethertype(packet, room.ethertype())?;
    }
    Ok(())
}

/// Writes the outer headers into the room made for them.
#[inline(always)]
fn write_outer<P: Packet>(packet: &mut P, outer: &Encap, room: OuterFamily) -> Option<()> {
    match room {
        OuterFamily::V4 => packet.write_encap::<{ eth::END }, 7, ENCAP_LEN_V4>(outer.words_v4()),
        OuterFamily::V6 => packet.write_encap::<{ eth::END }, 9, ENCAP_LEN_V6>(outer.words_v6()),
    }
}

/// The inner packet's sum where the outer one shall have a checksum and can: not a super-packet, whose
/// segments get copies of one outer header.
#[inline(always)]
fn outer_checksum<P: Packet>(packet: &P, config: &Config) -> Option<u64> {
    if config.flags & CONFIG_UDP_CHECKSUM == 0 || packet.is_gso() {
        return None;
    }
    let len = packet.frame_len().wrapping_sub(eth::END);
    lco_checksum(packet, packet.ethertype(), eth::END, len)
}

/// The IP header and the four bytes behind it. IPv4 packets with options and packets without payload have
/// no ports here: their flows are told apart by addresses and protocol alone.
#[inline(always)]
fn inner_header<P: Packet>(packet: &P, ethertype: u16) -> Option<(ip::Header, u32)> {
    if ethertype == eth::IPV6 {
        let words = packet.load_words::<{ eth::END }, 5>()?;
        let ports = packet.load_u32::<V6_PAYLOAD_AT>().unwrap_or_default();
        return Some((ip::Header::v6_at(&words, eth::LEN), ports));
    }
    // Three words are more than the header: they end with it.
    let words = packet.load_words::<{ V4_PAYLOAD_AT - 24 }, 3>()?;
    let header = ip::Header::v4_at(&words, eth::LEN);
    if !header.is_plain() {
        return Some((header, 0));
    }
    Some((header, packet.load_u32::<V4_PAYLOAD_AT>().unwrap_or_default()))
}
