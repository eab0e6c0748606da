//! The node's configuration as the pipelines use it.

use crate::{
    abi::{ABI_VERSION, CONFIG_DSCP_FIXED, Config},
    maps::Maps,
    packet::encap::HOP_LIMIT,
    verdict::DropReason,
};

/// The configuration, if its ABI version is the program's.
#[inline(always)]
pub(super) fn load_config<M: Maps>(maps: &M) -> Result<&Config, DropReason> {
    maps.config()
        .filter(|config| config.abi == ABI_VERSION)
        .ok_or(DropReason::NotConfigured)
}

/// TTL or hop limit of outer packets.
#[inline(always)]
pub(super) const fn hop_limit(config: &Config) -> u8 {
    if config.hop_limit == 0 {
        HOP_LIMIT
    } else {
        config.hop_limit
    }
}

/// Configured DSCP of outer packets; `None` for the inner packet's.
#[inline(always)]
pub(super) fn fixed_tos(config: &Config) -> Option<u8> {
    (config.flags & CONFIG_DSCP_FIXED != 0).then_some(config.tos)
}
