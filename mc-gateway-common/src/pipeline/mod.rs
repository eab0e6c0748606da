//! One function per program: a packet and the tables in, a [`crate::verdict::Verdict`] out.

mod decision;
mod from_underlay;
pub mod icmp_too_big;
pub mod mss;
mod probe;
pub mod service;
mod to_remote;

pub use from_underlay::{admission, from_underlay, from_underlay_v4, from_underlay_v6};
pub use to_remote::to_remote;

use crate::{
    abi::{ABI_VERSION, CONFIG_DSCP_FIXED, Config, NextHop},
    maps::Maps,
    nexthop_select,
    packet::{Packet, encap::HOP_LIMIT, eth},
    verdict::DropReason,
};

/// The configuration, if this program understands what the agent wrote.
#[inline(always)]
fn load_config<T: Maps>(tables: &T) -> Result<&Config, DropReason> {
    tables
        .config()
        .filter(|config| config.abi == ABI_VERSION)
        .ok_or(DropReason::NotConfigured)
}

/// The next hop a packet to a prefix of `group` is sent to.
#[inline(always)]
fn select_nexthop<T: Maps>(tables: &T, group: u32, hash: u32) -> Result<&NextHop, DropReason> {
    nexthop_select::select_nexthop(tables, group, hash).ok_or(DropReason::NoNextHop)
}

/// Addresses the packet to `mc0`, where the kernel classifies it again: only the device's own address makes
/// it `PACKET_HOST`.
#[inline(always)]
fn address_to_mc0<P: Packet>(packet: &mut P, config: &Config) -> Result<(), DropReason> {
    let written = packet.write_linear::<{ eth::DST }, 1, 6>([eth::mac_to_u64(config.mc0_mac)]);
    written.ok_or(DropReason::WriteFailed)
}

/// Writes the ethertype.
#[inline(always)]
fn set_ethertype<P: Packet>(packet: &mut P, ethertype: u16) -> Result<(), DropReason> {
    let written = packet.write_linear::<{ eth::ETHERTYPE }, 1, 2>([u64::from(ethertype.swap_bytes())]);
    written.ok_or(DropReason::WriteFailed)
}

/// TTL or hop limit of outer packets.
#[inline(always)]
const fn hop_limit(config: &Config) -> u8 {
    if config.hop_limit == 0 {
        HOP_LIMIT
    } else {
        config.hop_limit
    }
}

/// DSCP of outer packets where it is not the inner packet's.
#[inline(always)]
fn fixed_tos(config: &Config) -> Option<u8> {
    (config.flags & CONFIG_DSCP_FIXED != 0).then_some(config.tos)
}
