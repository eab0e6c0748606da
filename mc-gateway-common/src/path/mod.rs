//! One function per program: a packet and the tables in, a [`crate::verdict::Verdict`] out.

mod finding;
mod from_underlay;
pub mod mss;
mod probe;
pub mod service;
mod to_remote;
pub mod too_big;

pub use from_underlay::{admission, from_underlay, from_underlay_v4, from_underlay_v6};
pub use to_remote::to_remote;

use crate::{
    abi::{ABI_VERSION, CONFIG_DSCP_FIXED, Config, Member},
    packet::encap::HOP_LIMIT,
    select,
    tables::Tables,
    verdict::DropReason,
};

/// The configuration, if this program understands what the agent wrote.
#[inline(always)]
fn config<T: Tables>(tables: &T) -> Result<&Config, DropReason> {
    tables
        .config()
        .filter(|config| config.abi == ABI_VERSION)
        .ok_or(DropReason::NotConfigured)
}

/// The member a packet to a prefix of `group` is sent to.
#[inline(always)]
fn next_member<T: Tables>(tables: &T, group: u32, hash: u32) -> Result<&Member, DropReason> {
    select::choose(tables, group, hash).ok_or(DropReason::NoMember)
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
