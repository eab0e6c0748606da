//! The packets on which network policies decide: those that open a connection or a flow.
//!
//! A TCP connection is decided by its first segment. Other segments pass: they open no connection, and one that is open
//! stays open when rules change, as with Antrea. Datagrams of a flow pass for [`FLOW_LIFETIME`] after its last one.

use super::{
    service::l4_header::{L4Header, L4Kind},
    subprograms::Subprograms,
};
use crate::{
    abi::service::ReplyKey,
    maps::Maps,
    packet::{
        Frame, Packet, eth, ip,
        l4::is_extension,
        offsets::{TCP_FLAGS, ipv4, ipv6},
        tcp,
    },
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

/// The transport header of a packet on which rules decide; none of one that passes.
#[inline(always)]
pub(super) fn undecided<P: Subprograms>(packet: &P, v6: bool) -> Result<Option<L4Header>, DropReason> {
    if is_plain_open_segment(packet, v6) {
        return Ok(None);
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
        _ => Ok(Some(l4)),
    }
}

/// Whether a message is one of Neighbor Discovery (RFC 4861), without which no packet finds its link address.
#[inline(always)]
pub(super) fn is_neighbor_discovery((proto, [message, _]): (u8, [u8; 2])) -> bool {
    proto == ip::ICMPV6 && matches!(message, 133..=137)
}

/// Whether the frame is an unfragmented TCP segment that opens no connection, behind an IP header without options or
/// extensions: most packets, decided by words at constant offsets. The others are parsed.
#[inline(always)]
fn is_plain_open_segment<P: Frame>(packet: &P, v6: bool) -> bool {
    const PLAIN_V4: u8 = 0x45;
    // Offset and "more fragments" (RFC 791 section 3.1) in the first two bytes.
    const FRAGMENT: [u8; 2] = [0x3f, 0xff];
    let flags = if v6 {
        let next_header = packet.load_u32::<{ eth::END.wrapping_add(ipv6::NEXT_HEADER) }>();
        match next_header.map(u32::to_le_bytes) {
            Some([ip::TCP, ..]) => packet.load_u32::<{ last_of_word(ipv6::LEN) }>(),
            _ => None,
        }
    } else {
        let first = packet.load_u32::<{ eth::END }>().map(u32::to_le_bytes);
        let fragment = packet.load_u32::<{ eth::END.wrapping_add(ipv4::FRAGS) }>();
        match (first, fragment.map(u32::to_le_bytes)) {
            (Some([PLAIN_V4, ..]), Some([f0, f1, _, ip::TCP]))
                if f0 & FRAGMENT[0] == 0 && f1 & FRAGMENT[1] == 0 =>
            {
                packet.load_u32::<{ last_of_word(ipv4::LEN) }>()
            }
            _ => None,
        }
    };
    flags.is_some_and(|word| !tcp::opens_connection(word.to_le_bytes()[3]))
}

/// Offset of the word that ends with the flags of TCP, behind an IP header of `len` bytes.
const fn last_of_word(len: u32) -> u32 {
    eth::END.wrapping_add(len).wrapping_add(TCP_FLAGS).wrapping_sub(3)
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

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::packet::SlicePacket;

    /// A TCP segment behind an IP header of 20 or 40 bytes, of which some bytes are replaced.
    fn frame(v6: bool, flags: u8, changes: &[(usize, u8)]) -> SlicePacket {
        let mut bytes = vec![0; 12];
        bytes.extend(if v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        let mut header = if v6 { vec![0; 40] } else { vec![0; 20] };
        header[0] = if v6 { 0x60 } else { 0x45 };
        header[if v6 { 6 } else { 9 }] = ip::TCP;
        bytes.extend(header);
        let mut segment = [0; 20];
        (segment[12], segment[13]) = (0x50, flags);
        bytes.extend(segment);
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(14 + at) {
                *byte = *value;
            }
        }
        SlicePacket::new(bytes)
    }

    #[test]
    fn the_flags_of_a_plain_segment_decide() {
        for v6 in [false, true] {
            for flags in 0..=u8::MAX {
                let opens = flags & 0x12 == 0x02;
                assert_eq!(is_plain_open_segment(&frame(v6, flags, &[]), v6), !opens);
            }
        }
    }

    proptest! {
        #[test]
        fn a_plain_segment_is_one_that_the_parser_passes(
            v6: bool,
            flags: u8,
            changes in vec((0_usize..60, any::<u8>()), 0..4),
            length in 14_usize..80,
        ) {
            let mut bytes = frame(v6, flags, &changes).bytes().to_vec();
            bytes.truncate(length);
            let packet = SlicePacket::new(bytes);
            if is_plain_open_segment(&packet, v6) {
                let l4 = packet.parse_l4(v6, eth::END).unpack();
                prop_assert_eq!((l4.kind, l4.proto), (L4Kind::Unfragmented, ip::TCP));
                prop_assert_eq!(opens_connection(&packet, &l4), Ok(false));
            }
        }
    }
}
