//! Writes to the Ethernet header of the frame.

use crate::{
    abi::Config,
    packet::{Packet, eth},
    verdict::DropReason,
};

/// Sets the destination to the address of `mc0`. The kernel classifies the packet again on `mc0`, and only the
/// device's own address makes it `PACKET_HOST`.
#[inline(always)]
pub(super) fn address_to_mc0<P: Packet>(packet: &mut P, config: &Config) -> Result<(), DropReason> {
    let written = packet.write_linear::<{ eth::DST }, 1, 6>([eth::mac_to_u64(config.mc0_mac)]);
    written.ok_or(DropReason::WriteFailed)
}

/// Writes the ethertype.
#[inline(always)]
pub(super) fn set_ethertype<P: Packet>(packet: &mut P, ethertype: u16) -> Result<(), DropReason> {
    let written = packet.write_linear::<{ eth::ETHERTYPE }, 1, 2>([u64::from(ethertype.swap_bytes())]);
    written.ok_or(DropReason::WriteFailed)
}
