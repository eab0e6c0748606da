//! Egress of `mc0`: packets the node's routing has found to be for another cluster.

use super::{config, next_member};
use crate::{
    abi::{ACTION_FORWARD, CLUSTER_LOCAL, CONFIG_DSCP_FIXED, CONFIG_UDP_CHECKSUM, Config},
    packet::{
        Aligned, Packet, ecn,
        encap::{Encap, HOP_LIMIT, Room},
        eth, inner_sum, ip,
        tunnel::{Format, VNI_POLICY_OFF},
    },
    select,
    tables::Tables,
    verdict::{DropReason, Path, Verdict},
};

/// Encapsulates a packet to another cluster: from a regular node to one of its own gateways, from a
/// gateway straight to a gateway of the other cluster.
///
/// Everything on `mc0` is ours, so nothing passes: what cannot be sent is dropped and counted.
#[inline(always)]
pub fn to_remote<P: Packet, T: Tables>(packet: &mut P, tables: &T) -> Verdict {
    match encap(packet, tables) {
        Ok(ifindex) => Verdict::Send {
            path: Path::Encap,
            ifindex,
        },
        Err(reason) => Verdict::Drop(reason),
    }
}

#[inline(always)]
fn encap<P: Packet, T: Tables>(packet: &mut P, tables: &T) -> Result<u32, DropReason> {
    let config = config(tables)?;
    let inner_type = packet.ethertype();
    if !matches!(inner_type, eth::IPV4 | eth::IPV6) {
        return Err(DropReason::NotIp);
    }
    let (header, ports) = inner_header(packet, inner_type).ok_or(DropReason::InnerMalformed)?;
    let inner_len = packet.frame_len().wrapping_sub(eth::END);
    if !header.fits(inner_len) {
        return Err(DropReason::InnerMalformed);
    }
    let prefix = tables.prefix(header.dst).ok_or(DropReason::NoRoute)?;
    if prefix.action != ACTION_FORWARD || prefix.cluster == CLUSTER_LOCAL {
        return Err(DropReason::NoRoute);
    }
    let hash = select::flow_hash(&header, ports);
    let member = next_member(tables, prefix, hash)?;
    let outer = Encap {
        format: Format::of(config),
        src: member.local,
        dst: member.addr,
        tos: ecn::outer(header.tos, fixed_tos(config)),
        ttl: if config.hop_limit == 0 {
            HOP_LIMIT
        } else {
            config.hop_limit
        },
        hash,
        port: config.port,
        inner_sum: outer_checksum(packet, config, &header, inner_len),
        vni: VNI_POLICY_OFF,
        inner_src: config.mc0_mac,
        inner_type,
        inner_len,
    };
    let ifindex = member.ifindex;
    if ip::is_v4(&member.addr) {
        packet.grow(Room::V4).ok_or(DropReason::Grow)?;
        packet
            .store(eth::END, &Aligned(outer.over_v4()).0)
            .ok_or(DropReason::Store)?;
    } else {
        packet.grow(Room::V6).ok_or(DropReason::Grow)?;
        packet
            .store(eth::END, &Aligned(outer.over_v6()).0)
            .ok_or(DropReason::Store)?;
    }
    if ip::is_v4(&member.addr) == header.v6 {
        let ethertype = if header.v6 { eth::IPV4 } else { eth::IPV6 };
        packet
            .store(eth::ETHERTYPE, &ethertype.to_be_bytes())
            .ok_or(DropReason::Store)?;
    }
    Ok(ifindex)
}

#[inline(always)]
fn fixed_tos(config: &Config) -> Option<u8> {
    (config.flags & CONFIG_DSCP_FIXED != 0).then_some(config.tos)
}

/// The inner packet's sum where the outer one shall have a checksum and can: not a super-packet, whose
/// segments get copies of one outer header.
#[inline(always)]
fn outer_checksum<P: Packet>(packet: &P, config: &Config, header: &ip::Header, len: u32) -> Option<u64> {
    if config.flags & CONFIG_UDP_CHECKSUM == 0 || packet.is_gso() {
        return None;
    }
    inner_sum(packet, header, eth::END, len)
}

/// The IP header and the four bytes behind it. IPv4 packets with options and packets without payload have
/// no ports here: their flows are told apart by addresses and protocol alone.
#[inline(always)]
fn inner_header<P: Packet>(packet: &P, ethertype: u16) -> Option<(ip::Header, [u8; 4])> {
    if ethertype == eth::IPV6 {
        let Some(bytes) = packet.load::<44>(eth::END) else {
            return Some((ip::Header::v6(&packet.load(eth::END)?), [0; 4]));
        };
        return Some((ip::Header::v6(bytes.first_chunk()?), *bytes.last_chunk()?));
    }
    let Some(bytes) = packet.load::<24>(eth::END) else {
        return Some((ip::Header::v4(&packet.load(eth::END)?), [0; 4]));
    };
    let header = ip::Header::v4(bytes.first_chunk()?);
    let ports = if header.is_plain() {
        *bytes.last_chunk()?
    } else {
        [0; 4]
    };
    Some((header, ports))
}
