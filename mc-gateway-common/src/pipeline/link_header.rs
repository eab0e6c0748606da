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
    let written = write_addresses(packet, eth::mac_to_u64(config.mc0_mac), sender);
    written.ok_or(DropReason::WriteFailed)
}

/// Swaps destination and source: the frame returns to its sender.
#[inline(always)]
pub(super) fn swap_addresses<P: Packet>(packet: &mut P) -> Option<()> {
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = packet.load::<12>(eth::DST)?;
    let dst = eth::mac_to_u64([d0, d1, d2, d3, d4, d5]);
    let src = eth::mac_to_u64([s0, s1, s2, s3, s4, s5]);
    write_addresses(packet, src, dst)
}

/// Writes destination and source, in the form of [`eth::mac_to_u64`].
#[inline(always)]
fn write_addresses<F: Frame>(packet: &mut F, dst: u64, src: u64) -> Option<()> {
    packet.write_linear::<{ eth::DST }, 2, 12>([dst | src << 48, src >> 16])
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
