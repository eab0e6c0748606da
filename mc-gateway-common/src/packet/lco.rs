//! Sum of an inner packet without reading its payload: local checksum offload
//! (Documentation/networking/checksum-offloads.rst, "LCO").
//!
//! A packet with a right checksum sums to something its headers tell. That makes an outer UDP checksum
//! affordable, also where the inner checksum is still to be written by a device: the sum will be right
//! then.

use super::{Packet, checksum, ip};

/// Sum of the IP packet of `len` bytes at `offset`, or `None` where headers do not tell it: fragments,
/// extension headers, unknown protocols, UDP without a checksum, padding behind the packet.
#[inline(never)]
pub fn lco_checksum<P: Packet>(packet: &P, ethertype: u16, offset: u32, len: u32) -> Option<u64> {
    let header = &ip::Header::load(packet, ethertype, offset)?;
    if header.is_fragment() || !header.is_plain() {
        return None;
    }
    let payload = len.wrapping_sub(header.len);
    let said = if header.v6 { payload } else { len };
    if u32::from(header.length) != said {
        return None;
    }
    // An IPv4 header sums to zero, and so does an ICMP message.
    match header.proto {
        ip::ICMP if !header.v6 => Some(0),
        ip::UDP => {
            let check = packet.load::<2>(offset.wrapping_add(header.len).wrapping_add(6))?;
            if check == [0, 0] {
                return None;
            }
            Some(with_pseudo_header(packet, header, offset, payload)?)
        }
        ip::TCP => Some(with_pseudo_header(packet, header, offset, payload)?),
        ip::ICMPV6 if header.v6 => Some(with_pseudo_header(packet, header, offset, payload)?),
        _ => None,
    }
}

/// Payload and pseudo header sum to zero together, so the payload sums to the pseudo header's complement.
#[inline(always)]
fn with_pseudo_header<P: Packet>(packet: &P, header: &ip::Header, offset: u32, payload: u32) -> Option<u64> {
    let [l0, l1, l2, l3] = payload.to_be_bytes();
    let pseudo = checksum::sum_words(header.src.words())
        .wrapping_add(checksum::sum_words(header.dst.words()))
        .wrapping_add(checksum::sum(&[l0, l1, l2, l3, 0, 0, 0, header.proto]));
    let outside = if header.v6 {
        checksum::sum(&packet.load::<40>(offset)?)
    } else {
        0
    };
    Some(outside.wrapping_add(u64::from(!checksum::fold(pseudo))))
}
