//! Sum of an inner packet from its headers alone: local checksum offload
//! (Documentation/networking/checksum-offloads.rst, "LCO").
//!
//! The headers of a packet with a valid checksum determine the sum of the whole packet. An outer UDP checksum
//! therefore costs no read of the payload, also if a device completes the inner checksum later.

use super::{
    access::Packet,
    checksum, ip,
    offsets::{ipv6, udp},
};

/// Sum of the IP packet of `len` bytes at `offset`. `None` for fragments, extension headers, unknown protocols,
/// UDP without a checksum, and padding behind the packet.
#[inline(never)]
pub fn lco_checksum<P: Packet>(packet: &P, ethertype: u16, offset: u32, len: u32) -> Option<u64> {
    let header = &ip::Header::load(packet, ethertype, offset)?;
    if header.is_fragment() || !header.is_plain() {
        return None;
    }
    let payload = len.wrapping_sub(header.len);
    let expected = if header.v6 { payload } else { len };
    if u32::from(header.length) != expected {
        return None;
    }
    // An IPv4 header sums to zero, and so does an ICMP message.
    match header.proto {
        ip::ICMP if !header.v6 => Some(0),
        ip::UDP => {
            let check = packet.load::<2>(offset.wrapping_add(header.len).wrapping_add(udp::CHECK))?;
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

/// Sum of the payload (the complement of the pseudo header's sum) and, for IPv6, of the header.
#[inline(always)]
fn with_pseudo_header<P: Packet>(packet: &P, header: &ip::Header, offset: u32, payload: u32) -> Option<u64> {
    let [l0, l1, l2, l3] = payload.to_be_bytes();
    let pseudo = checksum::sum_words(header.src.words())
        .wrapping_add(checksum::sum_words(header.dst.words()))
        .wrapping_add(checksum::sum(&[l0, l1, l2, l3, 0, 0, 0, header.proto]));
    let outside = if header.v6 {
        checksum::sum(&packet.load::<{ ipv6::LEN as usize }>(offset)?)
    } else {
        0
    };
    Some(outside.wrapping_add(u64::from(!checksum::fold(pseudo))))
}
