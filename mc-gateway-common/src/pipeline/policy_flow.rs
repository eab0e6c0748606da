//! The packets on which network policies decide: those that open a connection or a flow.
//!
//! A TCP connection is decided by its first segment. Other segments pass: they open no connection, and one that is open
//! stays open when rules change, as with Antrea. Datagrams of a flow pass for [`FLOW_LIFETIME`] after its last one.

use super::{
    plain_packet::PlainPacket,
    service::l4_header::{L4Header, L4Kind},
    subprograms::Subprograms,
};
use crate::{
    abi::service::ReplyKey,
    maps::Maps,
    packet::{Frame, Packet, eth, ip, l4::is_extension, offsets::TCP_FLAGS},
    verdict::DropReason,
};

/// Nanoseconds after its last packet at which a flow without TCP ends (RFC 4787 section 4.3: two minutes or more).
pub const FLOW_LIFETIME: u64 = 180_000_000_000;
/// Nanoseconds after which the time of a flow is written again.
const REFRESH: u64 = 1_000_000_000;

/// Whether a packet on the device of a Pod is IPv6 or IPv4; none of ARP and others, which rules do not concern. Its
/// VLAN tag is beside the packet. A second one is dropped: a receiver removes tags of VLAN 0 (IEEE 802.1Q, priority),
/// and would find an IP packet behind them (`__netif_receive_skb_core`, net/core/dev.c).
#[inline(always)]
pub(super) fn ip_version<P: Frame>(packet: &P) -> Result<Option<bool>, DropReason> {
    match packet.ethertype() {
        eth::IPV4 => Ok(Some(false)),
        eth::IPV6 => Ok(Some(true)),
        eth::VLAN | eth::SERVICE_VLAN => Err(DropReason::InnerProtocol),
        _ => Ok(None),
    }
}

/// A packet on which rules decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opening {
    /// Its transport header.
    pub(super) l4: L4Header,
    /// Key of its flow.
    pub(super) key: ReplyKey,
}

/// The packet to a Pod, or from one if `reverse`, if rules decide on it; none of one that passes.
#[inline(always)]
pub(super) fn opening<P: Subprograms>(
    packet: &P,
    plain: PlainPacket,
    v6: bool,
    reverse: bool,
) -> Result<Option<Opening>, DropReason> {
    if plain.is_open_segment() {
        return Ok(None);
    }
    if let Some((l4, addresses)) = plain.header(packet) {
        let key = l4.reply_key_of(addresses, reverse);
        return Ok(Some(Opening { l4, key }));
    }
    let l4 = packet.parse_l4(v6, eth::END).unpack();
    match l4.kind {
        // Without the first fragment, which is decided by its ports, the stack assembles no packet. An error about a
        // connection that does not exist has no effect.
        L4Kind::LaterFragment | L4Kind::IcmpError => Ok(None),
        L4Kind::Truncated => Err(DropReason::InnerMalformed),
        // The stack may find a transport header behind it, which a rule concerns.
        L4Kind::Other if v6 && is_extension(l4.proto) => Err(DropReason::InnerMalformed),
        L4Kind::Unfragmented if l4.proto == ip::TCP && !opens_connection(packet, &l4)? => Ok(None),
        _ => {
            let key = flow_key(packet, &l4, reverse).ok_or(DropReason::InnerMalformed)?;
            Ok(Some(Opening { l4, key }))
        }
    }
}

/// Whether a message is one of Neighbor Discovery (RFC 4861), without which no packet finds its link address.
#[inline(always)]
pub(super) fn is_neighbor_discovery((proto, [message, _]): (u8, [u8; 2])) -> bool {
    proto == ip::ICMPV6 && matches!(message, 133..=137)
}

/// Whether an unfragmented TCP segment has SYN and not ACK (RFC 9293 section 3.5).
#[inline(always)]
fn opens_connection<P: Packet>(packet: &P, l4: &L4Header) -> Result<bool, DropReason> {
    let flags = packet.load::<1>(l4.at.wrapping_add(TCP_FLAGS));
    flags.map(|_| l4.syn).ok_or(DropReason::InnerMalformed)
}

/// Whether a packet of the flow has passed lately.
#[inline(always)]
pub(super) fn is_open<M: Maps>(maps: &M, key: &ReplyKey) -> bool {
    let now = maps.recent_time();
    let Some(last) = maps.policy_flow(key) else {
        return false;
    };
    let age = now.saturating_sub(last);
    if age > FLOW_LIFETIME {
        return false;
    }
    if age > REFRESH {
        maps.set_policy_flow(key, now);
    }
    true
}

/// Records the flow of a packet that passes, unless it is of TCP, whose first segment alone is decided.
#[inline(always)]
pub(super) fn record<M: Maps>(maps: &M, l4: &L4Header, key: &ReplyKey) {
    if l4.proto != ip::TCP {
        maps.set_policy_flow(key, maps.recent_time());
    }
}

/// Records the flow of a packet that a Pod with policies sends to another cluster, so that its replies pass.
#[inline(always)]
pub fn track_flow<P: Subprograms, M: Maps>(packet: &P, maps: &M) {
    let v6 = packet.ethertype() == eth::IPV6;
    let l4 = packet.parse_l4(v6, eth::END).unpack();
    if l4.proto == ip::TCP
        || matches!(
            l4.kind,
            L4Kind::LaterFragment | L4Kind::IcmpError | L4Kind::Truncated
        )
    {
        return;
    }
    if let Some(key) = flow_key(packet, &l4, true)
        && !is_open(maps, &key)
    {
        maps.set_policy_flow(&key, maps.recent_time());
    }
}

/// Key of the flow of a packet to a Pod, or from one if `reverse`. Echo messages (RFC 792, RFC 4443) have their
/// identifier as port of the Pod, and requests of Pod and client are two flows.
#[inline(always)]
pub(super) fn flow_key<P: Packet>(packet: &P, l4: &L4Header, reverse: bool) -> Option<ReplyKey> {
    const REQUEST: u16 = 1;
    let mut key = l4.reply_key(packet, eth::END, reverse)?;
    if l4.kind == L4Kind::Other && matches!(l4.proto, ip::ICMP | ip::ICMPV6) {
        let [message, _, _, _, i0, i1] = packet.load::<6>(l4.at)?;
        let request = match (l4.v6, message) {
            (false, 8) | (true, 128) => true,
            (false, 0) | (true, 129) => false,
            _ => return Some(key),
        };
        key.pod_port = u16::from_be_bytes([i0, i1]);
        key.client_port = if request == reverse { 0 } else { REQUEST };
    }
    Some(key)
}
