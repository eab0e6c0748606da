//! The parts of a run, each of which can be run alone, and how long each takes its time.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// TCP with 1, 2 and 4 streams and small datagrams per second over four hops, every variant in turn.
    Throughput,
    /// Request and response of three sizes over four hops, every variant in turn.
    Latency,
    /// One hop alone: transit at a gateway against plain forwarding by the kernel.
    Transit,
    /// Time in each program under small datagrams, next to a program that does nothing.
    Programs,
    /// Time in a program as its tables grow.
    Growth,
    /// Flows over one and over two destination gateways.
    Gateways,
    /// How long packets are lost when a gateway is.
    Failover,
}

// === impl Part ===

impl Part {
    /// All of them, in the order they run.
    pub const ALL: [Self; 7] = [
        Self::Throughput,
        Self::Latency,
        Self::Transit,
        Self::Programs,
        Self::Growth,
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
            Self::Growth => "growth",
            Self::Gateways => "gateways",
            Self::Failover => "failover",
        }
    }
}

/// How long single measurements take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// TCP with one stream, and small datagrams.
    pub traffic: Duration,
    /// TCP with more streams.
    pub streams: Duration,
    /// Requests of each size.
    pub requests: usize,
    /// Frames through one hop, for each of its kinds and each size of a table.
    pub hop: Duration,
    /// Gateways lost.
    pub trials: u32,
}

// === impl Pace ===

impl Pace {
    /// For figures one can rely on: with 7 rounds everything takes at most 20 minutes, failover aside.
    pub const FULL: Self = Self {
        traffic: Duration::from_millis(1500),
        streams: Duration::from_secs(1),
        requests: 5000,
        hop: Duration::from_millis(400),
        trials: 12,
    };
    /// Gateways lost in a run of all parts, which states the outage nobody should exceed.
    pub const ALL_TRIALS: u32 = 200;

    /// For a look at whether everything works.
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
    fn names_are_those_of_the_command_line_and_of_the_report() {
        for part in Part::ALL {
            assert_eq!(Part::from_str(part.name(), false), Ok(part));
            assert_eq!(
                serde_json::to_string(&part).unwrap(),
                format!("\"{}\"", part.name())
            );
        }
        assert_eq!(Part::value_variants(), Part::ALL);
    }
}
