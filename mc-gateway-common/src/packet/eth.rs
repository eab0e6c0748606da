//! Ethernet: offsets and the address that marks multi-cluster traffic.

use core::mem::offset_of;

use network_types::eth::EthHdr;

/// Length of an Ethernet header without VLAN tags.
pub const LEN: usize = EthHdr::LEN;
/// [`LEN`] as an offset into a packet.
#[expect(clippy::cast_possible_truncation, reason = "14")]
pub const END: u32 = LEN as u32;
/// Offset of the destination address.
#[expect(clippy::cast_possible_truncation, reason = "0")]
pub const DST: u32 = offset_of!(EthHdr, dst_addr) as u32;
/// Offset of the ethertype.
#[expect(clippy::cast_possible_truncation, reason = "12")]
pub const ETHERTYPE: u32 = offset_of!(EthHdr, ether_type) as u32;

/// Ethertype of IPv4 (IANA).
pub const IPV4: u16 = 0x0800;

/// Ethertype of IPv6 (IANA).
pub const IPV6: u16 = 0x86dd;

/// A MAC address.
pub type Mac = [u8; 6];

/// Inner destination address of every multi-cluster frame. Antrea gateways use the same, and whatever
/// else arrives on a shared tunnel port does not.
pub const MULTICLUSTER_MAC: Mac = [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xf0];

/// A MAC address as a little-endian number.
#[inline(always)]
#[must_use]
pub const fn mac_to_u64(mac: Mac) -> u64 {
    let [m0, m1, m2, m3, m4, m5] = mac;
    u64::from_le_bytes([m0, m1, m2, m3, m4, m5, 0, 0])
}
