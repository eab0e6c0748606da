//! Egress of `mc0`: packets the node's routing has found to be for another cluster.

use super::{config, next_member};
use crate::{
    abi::{ACTION_FORWARD, CLUSTER_LOCAL},
    packet::{
        Aligned, Packet, eth, ip,
        tunnel::{Encap, VNI_POLICY_OFF},
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
    if packet.ethertype() != eth::IPV4 {
        return Err(DropReason::NotIp);
    }
    let (header, ports) = inner_header(packet).ok_or(DropReason::InnerMalformed)?;
    let inner_len = packet.frame_len().wrapping_sub(eth::END);
    if !header.fits(inner_len) {
        return Err(DropReason::InnerMalformed);
    }
    let prefix = tables.prefix(ip::mapped(header.dst)).ok_or(DropReason::NoRoute)?;
    if prefix.action != ACTION_FORWARD || prefix.cluster == CLUSTER_LOCAL {
        return Err(DropReason::NoRoute);
    }
    let hash = select::flow_hash(&header, ports);
    let member = next_member(tables, prefix, hash)?;
    let outer = Aligned(
        Encap {
            src: ip::unmapped(member.local),
            dst: ip::unmapped(member.addr),
            src_port: select::source_port(hash),
            dst_port: config.port,
            vni: VNI_POLICY_OFF,
            inner_src: config.mc0_mac,
            inner_len,
        }
        .header(),
    );
    let ifindex = member.ifindex;
    packet.grow().ok_or(DropReason::Grow)?;
    packet.store(eth::END, &outer.0).ok_or(DropReason::Store)?;
    Ok(ifindex)
}

/// The IPv4 header and the four bytes behind it. Packets with options or without payload have no ports
/// here: their flows are told apart by addresses and protocol alone.
#[inline(always)]
fn inner_header<P: Packet>(packet: &P) -> Option<(ip::V4, [u8; 4])> {
    if let Some(bytes) = packet.load::<24>(eth::END) {
        let header = ip::V4::read(bytes.first_chunk()?);
        let ports = if header.is_plain() {
            *bytes.last_chunk()?
        } else {
            [0; 4]
        };
        return Some((header, ports));
    }
    Some((ip::V4::read(&packet.load::<20>(eth::END)?), [0; 4]))
}
