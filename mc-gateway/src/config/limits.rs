//! Limits of the data path, validated.

use std::ops::RangeInclusive;

use mc_gateway_common::abi::rate_limit::PeerRates;

use super::{ConfigError, LimitArgs, config_error};

const RATE: RangeInclusive<u32> = 1..=10_000_000;

/// Limits of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rates of each peer on each CPU.
    pub peer_rates: PeerRates,
}

/// A rate in a flag.
fn parse_rate(field: &'static str, text: &str) -> Result<u32, ConfigError> {
    let rate = text.parse().ok().filter(|rate| RATE.contains(rate));
    rate.ok_or_else(|| config_error(field, text, "is not a number from 1 to 10000000"))
}

impl TryFrom<LimitArgs> for Limits {
    type Error = ConfigError;

    fn try_from(args: LimitArgs) -> Result<Self, ConfigError> {
        Ok(Self {
            peer_rates: PeerRates::per_second(
                parse_rate("--icmp-errors-per-peer", &args.icmp_errors_per_peer)?,
                parse_rate("--new-flows-per-peer", &args.new_flows_per_peer)?,
            ),
        })
    }
}
