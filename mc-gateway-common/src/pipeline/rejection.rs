//! The answer to a packet that a policy rejects and no reset can answer: an ICMP error in the name of the destination
//! (RFC 1812 section 5.2.7.1, RFC 4443 section 3.1).

use super::{link_header::swap_addresses, peer_limit::source_address, subprograms::Subprograms};
use crate::{
    maps::Maps,
    packet::{
        eth,
        icmp::{self, ErrorHeader},
    },
    rate_limit::sender_slot,
};

/// Turns the packet into the ICMP error to its sender, with the link addresses swapped. `None` if no error may answer
/// it, or if the limit of ICMP errors or that of the sender has no token to spare; the packet may be changed then and
/// must be dropped.
///
/// An error quotes the whole packet up to the largest error. The kernel does not trim a longer one that is still marked
/// as tunnelled (`bpf_skb_change_tail`, net/core/filter.c), which is the case between veth devices only. The checksum
/// of a GSO packet is not that of the segments on the wire: it gets no error.
///
/// An unfinished `CRC32c` of SCTP is quoted as it is. A device that completed it would make the sum of the ICMP
/// message wrong; but such a packet is from a Pod of this host, to which the error returns over veth devices, and
/// these complete none.
#[inline(always)]
pub fn report_rejection<P: Subprograms, M: Maps>(packet: &mut P, maps: &M) -> Option<()> {
    let at = eth::END;
    let v6 = packet.ethertype() == eth::IPV6;
    let [first] = packet.load::<1>(eth::DST)?;
    // RFC 1122 section 3.2.2: a multicast or broadcast of the link.
    if first & 1 != 0 || packet.is_gso() {
        return None;
    }
    let location = packet.locate_l4(v6, at);
    let slot = sender_slot(source_address(packet, at)?.fold());
    if !icmp::may_report(packet, v6, at, &location) || !maps.allow_rejection(slot) {
        return None;
    }
    let len = packet.frame_len().wrapping_sub(at);
    let most = icmp::max_quoted_len(v6);
    let quoted = if len > most { most } else { len };
    if quoted != len {
        packet.resize(at.wrapping_add(quoted))?;
    }
    let sum = packet.sum_bytes(at, quoted)?;
    let sum = packet.finalize_checksum(at, quoted, sum, location)?;
    packet.insert(icmp::headers_len(v6))?;
    packet.store_icmp_error(v6, at, ErrorHeader::rejected(v6), sum)?;
    swap_addresses(packet)
}
