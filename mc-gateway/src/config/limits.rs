//! Limits of the data path, validated.

use std::ops::RangeInclusive;

use mc_gateway_common::abi::rate_limit::PeerRates;
use mc_gateway_common::abi::service;

use super::{ConfigError, LimitArgs, config_error};

const FLOW_TABLE_SIZE: RangeInclusive<u32> = 1 << 12..=1 << 22;
const RATE: RangeInclusive<u32> = 1..=10_000_000;

/// Limits of the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of the flow tables.
    pub flow_table_size: FlowTableSize,
    /// Rates of each peer on each CPU.
    pub peer_rates: PeerRates,
}

/// Capacity of `mc_flows` and of `mc_replies`. `mc_fragments` has a sixteenth, as many as by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTableSize(pub u32);

impl Default for FlowTableSize {
    fn default() -> Self {
        Self(service::MAX_FLOWS)
    }
}

impl FlowTableSize {
    /// Capacity of a flow table by name.
    #[must_use]
    pub fn capacity(self, table: &str) -> u32 {
        const FRAGMENTS_SHARE: u32 = service::MAX_FLOWS / service::MAX_FRAGMENTS;
        if table == service::FRAGMENTS {
            self.0 / FRAGMENTS_SHARE
        } else {
            self.0
        }
    }
}

/// A rate in a flag.
fn parse_rate(field: &'static str, text: &str) -> Result<u32, ConfigError> {
    let rate = text.parse().ok().filter(|rate| RATE.contains(rate));
    rate.ok_or_else(|| config_error(field, text, "is not a number from 1 to 10000000"))
}

impl TryFrom<LimitArgs> for Limits {
    type Error = ConfigError;

    fn try_from(args: LimitArgs) -> Result<Self, ConfigError> {
        let size = args.flow_table_size.parse().ok();
        let size = size.filter(|size: &u32| size.is_power_of_two() && FLOW_TABLE_SIZE.contains(size));
        let Some(size) = size else {
            return Err(config_error(
                "--flow-table-size",
                args.flow_table_size,
                "is not a power of two from 4096 to 4194304",
            ));
        };
        Ok(Self {
            flow_table_size: FlowTableSize(size),
            peer_rates: PeerRates::per_second(
                parse_rate("--icmp-errors-per-peer", &args.icmp_errors_per_peer)?,
                parse_rate("--new-flows-per-peer", &args.new_flows_per_peer)?,
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_have_a_sixteenth() {
        let default = FlowTableSize::default();
        assert_eq!(default.capacity(service::FLOWS), service::MAX_FLOWS);
        assert_eq!(default.capacity(service::REPLIES), service::MAX_REPLIES);
        assert_eq!(default.capacity(service::FRAGMENTS), service::MAX_FRAGMENTS);
        assert_eq!(FlowTableSize(1 << 20).capacity(service::FRAGMENTS), 1 << 16);
    }
}
