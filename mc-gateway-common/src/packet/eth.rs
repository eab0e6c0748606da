//! Ethernet: offsets, ethertypes and the multi-cluster MAC address.

use core::mem::offset_of;

use network_types::eth::{EthHdr, EtherType};

/// Length of an Ethernet header without VLAN tags.
pub const LEN: usize = EthHdr::LEN;
/// Offset behind the Ethernet header.
#[expect(clippy::cast_possible_truncation, reason = "14")]
pub const END: u32 = LEN as u32;
/// Offset of the destination address.
#[expect(clippy::cast_possible_truncation, reason = "0")]
pub const DST: u32 = offset_of!(EthHdr, dst_addr) as u32;
/// Offset of the source address.
#[expect(clippy::cast_possible_truncation, reason = "6")]
pub const SRC: u32 = offset_of!(EthHdr, src_addr) as u32;
/// Offset of the ethertype.
#[expect(clippy::cast_possible_truncation, reason = "12")]
pub const ETHERTYPE: u32 = offset_of!(EthHdr, ether_type) as u32;

/// Ethertype of IPv4, host order.
pub const IPV4: u16 = u16::from_be(EtherType::Ipv4 as u16);

/// Ethertype of IPv6, host order.
pub const IPV6: u16 = u16::from_be(EtherType::Ipv6 as u16);

/// Ethertype of a VLAN tag (IEEE 802.1Q), host order.
pub const VLAN: u16 = u16::from_be(EtherType::Ieee8021q as u16);

/// Ethertype of a service VLAN tag (IEEE 802.1ad), host order.
pub const SERVICE_VLAN: u16 = u16::from_be(EtherType::Ieee8021ad as u16);

/// A MAC address.
pub type Mac = [u8; 6];

/// Inner destination address of every multi-cluster frame, the same as Antrea's. Distinguishes multi-cluster
/// frames from other traffic on a shared tunnel port.
pub const MULTICLUSTER_MAC: Mac = [0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xf0];

/// A MAC address as a little-endian number.
#[inline(always)]
#[must_use]
pub const fn mac_to_u64(mac: Mac) -> u64 {
    let [m0, m1, m2, m3, m4, m5] = mac;
    u64::from_le_bytes([m0, m1, m2, m3, m4, m5, 0, 0])
}
