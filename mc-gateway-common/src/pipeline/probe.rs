//! Probes on their way through `from_underlay`: a peer's is sent back, the answer to one of ours is taken.
//!
//! *Guarantees*: a probe never reaches the stack; an answer is never answered; an answer changes only what
//! is known of the next hop that gave it, and only if this node has asked that.

use super::hop_limit;
use crate::{
    abi::{Config, NextHop, liveness::ProbeReply},
    liveness::{self, ReceivedReply},
    maps::Maps,
    packet::{
        Address, L4ChecksumDelta, Packet, checksum,
        outer::Headers,
        probe::{HEAD, Kind, Probe},
    },
    verdict::{DropReason, Outcome, Verdict},
};

/// Answers the probe of a peer, or takes a peer's answer.
#[inline(always)]
pub(super) fn process_probe<const N: usize, P: Packet, T: Maps>(
    packet: &mut P,
    tables: &T,
    config: &Config,
    headers: &Headers<N>,
) -> Result<Verdict, DropReason> {
    let probe = Probe::load(packet, Headers::<N>::INNER_AT).ok_or(DropReason::ProbeMalformed)?;
    if packet.is_gso() {
        return Err(DropReason::ProbeMalformed);
    }
    let Some(reply) = probe.kind.reply() else {
        record_reply(tables, config, headers, &probe, outer_len(packet))?;
        return Ok(Verdict::Consume {
            outcome: Outcome::ProbeReply,
        });
    };
    reflect(packet, config, headers, probe.kind, reply).ok_or(DropReason::WriteFailed)?;
    Ok(Verdict::Send {
        outcome: Outcome::Reflect,
        ifindex: packet.ifindex(),
    })
}

/// Length of the outer IP packet.
#[inline(always)]
fn outer_len<P: Packet>(packet: &P) -> u32 {
    packet.frame_len().wrapping_sub(crate::packet::eth::END)
}

/// Turns a request into its reply where it stands: the UDP ports stay, so that the reply is for the tunnel
/// port, too, and so does the multi-cluster MAC address, by which its receiver knows it.
#[inline(always)]
fn reflect<const N: usize, P: Packet>(
    packet: &mut P,
    config: &Config,
    headers: &Headers<N>,
    request: Kind,
    reply: Kind,
) -> Option<()> {
    headers.reflect(packet, hop_limit(config))?;
    let source_at = Headers::<N>::INNER_AT.wrapping_sub(8);
    packet.store(source_at, &config.mc0_mac)?;
    packet.store::<HEAD>(Headers::<N>::INNER_AT, &reply.head())?;
    let old = changed_bytes(headers.inner_src_mac(), request);
    let new = changed_bytes(config.mc0_mac, reply);
    let difference = L4ChecksumDelta {
        sum: checksum::difference(&old, &new),
        pseudo: false,
        udp: true,
    };
    packet.update_l4_checksum(Headers::<N>::UDP_CHECK_AT, difference)
}

/// The bytes that differ between a request and its reply; both parts are at even offsets.
#[inline(always)]
const fn changed_bytes(mac: [u8; 6], kind: Kind) -> [u8; 8] {
    let ([m0, m1, m2, m3, m4, m5], [version, kind]) = (mac, kind.head());
    [m0, m1, m2, m3, m4, m5, version, kind]
}

/// Notes what an answer says about the next hop it comes from.
#[inline(always)]
fn record_reply<const N: usize, T: Maps>(
    tables: &T,
    config: &Config,
    headers: &Headers<N>,
    probe: &Probe,
    len: u32,
) -> Result<(), DropReason> {
    let next_hop = tables.nexthop(probe.slot).ok_or(DropReason::ProbeNextHop)?;
    if !is_sender(next_hop, headers, probe.id) {
        return Err(DropReason::ProbeNextHop);
    }
    let sent = tables.sent(probe.slot).ok_or(DropReason::ProbeNextHop)?;
    let seen = tables.seen(probe.slot).ok_or(DropReason::ProbeNextHop)?;
    if sent.id != probe.id || seen.id != probe.id {
        return Err(DropReason::ProbeUnsent);
    }
    let now = tables.now();
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
        let answer = ReceivedReply {
            sequence: probe.sequence,
            rtt: u32::try_from(rtt).unwrap_or(u32::MAX),
            now,
        };
        let seen = liveness::accept_reply(sent, seen, answer, config.detect, config.hold_down_ms)?;
        tables.count_rtt(probe.slot, answer.rtt);
        seen
    };
    tables.set_seen(probe.slot, seen);
    Ok(())
}

/// Whether the next hop is the one with this id, and the packet comes from it to where it was asked from.
#[inline(always)]
fn is_sender<const N: usize>(next_hop: &NextHop, headers: &Headers<N>, id: u32) -> bool {
    next_hop.ifindex != 0
        && next_hop.id == id
        && Address::from(next_hop.addr) == headers.outer.src
        && Address::from(next_hop.local) == headers.outer.dst
}
