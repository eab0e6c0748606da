//! Writes to the Ethernet header of the frame.

use crate::{
    abi::{Config, NextHop},
    maps::Maps,
    packet::{Frame, Packet, eth},
    verdict::DropReason,
};

/// Sets the destination to the address of `mc0` and the source to `sender`, a [`crate::abi::DeliveredMac`]. The kernel
/// classifies the packet again on `mc0`, and only the device's own address makes it `PACKET_HOST`.
#[inline(always)]
pub(super) fn address_to_mc0<P: Packet>(
    packet: &mut P,
    config: &Config,
    sender: u64,
) -> Result<(), DropReason> {
    let dst = eth::mac_to_u64(config.mc0_mac);
    let written = packet.write_linear::<{ eth::DST }, 2, 12>([dst | sender << 48, sender >> 16]);
    written.ok_or(DropReason::WriteFailed)
}

/// Writes the link addresses of a frame to a next hop if they are known and current; returns whether they are.
#[inline(always)]
pub(super) fn address_to_next_hop<F: Frame, M: Maps>(
    packet: &mut F,
    maps: &M,
    next_hop: &NextHop,
) -> Result<bool, DropReason> {
    if !has_link(maps, next_hop) {
        return Ok(false);
    }
    let written = write_link(packet, next_hop);
    written.map(|()| true).ok_or(DropReason::WriteFailed)
}

/// Writes the link addresses of a frame to a next hop.
#[inline(always)]
pub(super) fn write_link<F: Frame>(packet: &mut F, next_hop: &NextHop) -> Option<()> {
    packet.write_linear::<{ eth::DST }, 2, 12>(next_hop.link.words())
}

/// Whether the link addresses of a next hop are known and current.
#[inline(always)]
pub(super) fn has_link<M: Maps>(maps: &M, next_hop: &NextHop) -> bool {
    next_hop.link.is_known() && maps.links_are_current()
}

/// Writes the ethertype.
#[inline(always)]
pub(super) fn set_ethertype<P: Packet>(packet: &mut P, ethertype: u16) -> Result<(), DropReason> {
    let written = packet.write_linear::<{ eth::ETHERTYPE }, 1, 2>([u64::from(ethertype.swap_bytes())]);
    written.ok_or(DropReason::WriteFailed)
}
