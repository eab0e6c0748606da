//! Probes in `from_underlay`: requests of peers are reflected, replies to this node's requests recorded.
//!
//! *Guarantees*: a probe never reaches the stack; a reply gets no reply; a reply only changes the record of the
//! next hop that sent it, and only after a request of this node.

use super::{config::hop_limit, kernel_decap};
use crate::{
    abi::{Config, NextHop, SourceMac, liveness::ProbeReply},
    liveness::{self, ReceivedReply},
    maps::Maps,
    packet::{
        Address, L4ChecksumDelta, Packet, checksum, eth,
        outer::Headers,
        probe::{HEAD, Kind, Probe},
    },
    verdict::{DropReason, Outcome, Verdict},
};

/// Reflects a request, or records a reply.
#[inline(always)]
pub(super) fn process_probe<const N: usize, P: Packet, M: Maps>(
    packet: &mut P,
    maps: &M,
    config: &Config,
    headers: &Headers<N>,
) -> Result<Verdict, DropReason> {
    let probe = Probe::load(packet, Headers::<N>::INNER_AT).ok_or(DropReason::ProbeMalformed)?;
    if packet.is_gso() {
        return Err(DropReason::ProbeMalformed);
    }
    let Some(reply) = probe.kind.reply() else {
        record_reply(maps, config, headers, &probe, outer_len(packet))?;
        let outcome = Outcome::ProbeReply;
        let is_test = matches!(probe.kind, Kind::Reply)
            && kernel_decap::make_test::<N, P, M>(packet, maps, config).ok_or(DropReason::WriteFailed)?;
        return Ok(if is_test {
            Verdict::KernelDecap { outcome }
        } else {
            Verdict::Consume { outcome }
        });
    };
    let peer = maps.peer(headers.outer.src).ok_or(DropReason::UnknownPeer)?;
    let mac = SourceMac::from_bits(peer.reply_mac);
    reflect(packet, config, headers, (probe.kind, reply), mac).ok_or(DropReason::WriteFailed)?;
    Ok(Verdict::Send {
        outcome: Outcome::Reflect,
        ifindex: packet.ifindex(),
        addressed: false,
    })
}

/// Length of the outer IP packet.
#[inline(always)]
fn outer_len<P: Packet>(packet: &P) -> u32 {
    packet.frame_len().wrapping_sub(eth::END)
}

/// Turns a request into its reply in place. The UDP ports stay, so that the reply has the tunnel port as
/// destination, and so does the multi-cluster MAC address, which identifies it.
#[inline(always)]
fn reflect<const N: usize, P: Packet>(
    packet: &mut P,
    config: &Config,
    headers: &Headers<N>,
    (request, reply): (Kind, Kind),
    mac: SourceMac,
) -> Option<()> {
    headers.reflect(packet, hop_limit(config))?;
    let source_at = Headers::<N>::INNER_ETH_AT.wrapping_add(eth::SRC);
    // Without a checksum, which stays so, these bytes change the sum of the packet.
    if packet.load::<2>(Headers::<N>::UDP_CHECK_AT)? == [0, 0] {
        packet.store(source_at, &mac.bytes())?;
        return packet.store::<HEAD>(Headers::<N>::INNER_AT, &reply.head());
    }
    packet.store_summed(source_at, &mac.bytes())?;
    packet.store_summed::<HEAD>(Headers::<N>::INNER_AT, &reply.head())?;
    let old = changed_bytes(headers.source_mac().bytes(), request);
    let new = changed_bytes(mac.bytes(), reply);
    let delta = L4ChecksumDelta {
        sum: checksum::difference(&old, &new),
        pseudo: false,
        udp: true,
    };
    packet.update_l4_checksum(Headers::<N>::UDP_CHECK_AT, delta)
}

/// The bytes that change between a request and its reply; both parts are at even offsets.
#[inline(always)]
const fn changed_bytes(mac: [u8; 6], kind: Kind) -> [u8; 8] {
    let ([m0, m1, m2, m3, m4, m5], [version, kind]) = (mac, kind.head());
    [m0, m1, m2, m3, m4, m5, version, kind]
}

/// Records a reply for the next hop that sent it.
#[inline(always)]
fn record_reply<const N: usize, M: Maps>(
    maps: &M,
    config: &Config,
    headers: &Headers<N>,
    probe: &Probe,
    len: u32,
) -> Result<(), DropReason> {
    let next_hop = maps.next_hop(probe.slot).ok_or(DropReason::ProbeNextHop)?;
    if !is_sender(next_hop, headers, probe.id) {
        return Err(DropReason::ProbeNextHop);
    }
    let sent = maps.sent(probe.slot).ok_or(DropReason::ProbeNextHop)?;
    let seen = maps.seen(probe.slot).ok_or(DropReason::ProbeNextHop)?;
    if sent.id != probe.id || seen.id != probe.id {
        return Err(DropReason::ProbeUnsent);
    }
    let now = maps.now();
    let rtt = now.checked_sub(probe.sent_at).ok_or(DropReason::ProbeMalformed)?;
    let seen = if matches!(probe.kind, Kind::SizeReply) {
        if u32::from(probe.size) != len {
            return Err(DropReason::ProbeMalformed);
        }
        ProbeReply {
            size: len,
            size_sequence: probe.sequence,
            ..seen
        }
    } else {
        let reply = ReceivedReply {
            sequence: probe.sequence,
            rtt: u32::try_from(rtt).unwrap_or(u32::MAX),
            now,
        };
        let seen = liveness::accept_reply(sent, seen, reply, config.detect, config.hold_down_ms)?;
        maps.count_rtt(probe.slot, reply.rtt);
        seen
    };
    maps.set_seen(probe.slot, seen);
    Ok(())
}

/// Whether the next hop has this ID, and the reply is from its address to the address of the request.
#[inline(always)]
fn is_sender<const N: usize>(next_hop: &NextHop, headers: &Headers<N>, id: u32) -> bool {
    next_hop.ifindex != 0
        && next_hop.id == id
        && Address::from(next_hop.addr) == headers.outer.src
        && Address::from(next_hop.local) == headers.outer.dst
}
