//! Sections of a run and the durations of their measurements.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A section of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Section {
    /// TCP with 1, 2 and 4 streams and rate of small datagrams over four hops, for every case.
    Throughput,
    /// Requests and responses of three sizes over four hops, for every case.
    Latency,
    /// A single hop: transit at a gateway compared with forwarding by the kernel.
    Transit,
    /// Time per packet in each program, compared with an empty program.
    Programs,
    /// Time per packet by size of the maps.
    Scaling,
    /// Distribution of flows over one and two destination gateways.
    Gateways,
    /// Duration of packet loss after a gateway failure.
    Failover,
}

// === impl Part ===

impl Section {
    /// All sections in the order of their execution.
    pub const ALL: [Self; 7] = [
        Self::Throughput,
        Self::Latency,
        Self::Transit,
        Self::Programs,
        Self::Scaling,
        Self::Gateways,
        Self::Failover,
    ];

    /// Name on the command line and in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Transit => "transit",
            Self::Programs => "programs",
            Self::Scaling => "scaling",
            Self::Gateways => "gateways",
            Self::Failover => "failover",
        }
    }
}

/// Durations of single measurements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// TCP with one stream, and small datagrams.
    pub traffic: Duration,
    /// TCP with several streams.
    pub streams: Duration,
    /// Number of requests of each size.
    pub requests: usize,
    /// A single hop, for each kind and each size of the maps.
    pub hop: Duration,
    /// Number of gateway failures.
    pub trials: u32,
}

// === impl Pace ===

impl Pace {
    /// Reliable figures: 7 rounds take at most 20 minutes, without failover.
    pub const FULL: Self = Self {
        traffic: Duration::from_millis(1500),
        streams: Duration::from_secs(1),
        requests: 5000,
        hop: Duration::from_millis(400),
        trials: 12,
    };
    /// Gateway failures in a run of all sections, enough for the maximum outage.
    pub const ALL_TRIALS: u32 = 200;

    /// A smoke test.
    pub const QUICK: Self = Self {
        traffic: Duration::from_millis(500),
        streams: Duration::from_millis(500),
        requests: 200,
        hop: Duration::from_millis(20),
        trials: 5,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_the_command_line_and_the_report() {
        for section in Section::ALL {
            assert_eq!(Section::from_str(section.name(), false), Ok(section));
            assert_eq!(
                serde_json::to_string(&section).unwrap(),
                format!("\"{}\"", section.name())
            );
        }
        assert_eq!(Section::value_variants(), Section::ALL);
    }
}
