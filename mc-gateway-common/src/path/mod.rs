//! One function per program: a packet and the tables in, a [`crate::verdict::Verdict`] out.

mod from_underlay;
mod probe;
mod to_remote;

pub use from_underlay::from_underlay;
pub use to_remote::to_remote;

use crate::{
    abi::{ABI_VERSION, Config, Member, Prefix},
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

/// The member a packet to `prefix` is sent to.
#[inline(always)]
fn next_member<'t, T: Tables>(tables: &'t T, prefix: &Prefix, hash: u32) -> Result<&'t Member, DropReason> {
    select::choose(tables, prefix.group, hash).ok_or(DropReason::NoMember)
}
