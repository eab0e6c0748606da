//! Lengths and field offsets of headers, from the layouts in `network-types`.

#![expect(clippy::cast_possible_truncation, reason = "offsets below 60")]

use core::mem::offset_of;

use network_types::{
    icmp::Icmpv4Hdr,
    ip::{Ipv4Hdr, Ipv6Hdr},
    tcp::TcpHdr,
    udp::UdpHdr,
};

macro_rules! header {
    ($module:ident, $header:ident: $($name:ident = $field:ident),*) => {
        pub(crate) mod $module {
            use super::{$header, offset_of};
            /// Length of the header without options.
            pub(crate) const LEN: u32 = $header::LEN as u32;
            $(pub(crate) const $name: u32 = offset_of!($header, $field) as u32;)*
        }
    };
}

header!(ipv4, Ipv4Hdr: TOS = tos, TOTAL_LEN = tot_len, ID = id, FRAGS = frags, TTL = ttl, PROTO = proto,
    CHECK = check, SRC = src_addr, DST = dst_addr);
header!(ipv6, Ipv6Hdr: PAYLOAD_LEN = payload_len, NEXT_HEADER = next_hdr, HOP_LIMIT = hop_limit, SRC = src_addr,
    DST = dst_addr);
header!(tcp, TcpHdr: WINDOW = window, CHECK = check);
header!(udp, UdpHdr: DST = dst, CHECK = check);
header!(icmp, Icmpv4Hdr: CHECK = check);

/// Offset of the data offset byte in a TCP header, followed by the flags and the window.
pub(crate) const TCP_DATA_OFFSET: u32 = tcp::WINDOW.wrapping_sub(2);
/// Offset of the flags in a TCP header.
pub(crate) const TCP_FLAGS: u32 = tcp::WINDOW.wrapping_sub(1);
