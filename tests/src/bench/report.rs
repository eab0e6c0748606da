//! What the benchmark found, as JSON for programs and as a table for people. Pure.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

use serde::{Deserialize, Serialize};

use crate::topology::Variant;

/// One variant, measured once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Counts from 1.
    pub round: u32,
    /// What was measured.
    pub variant: Variant,
    /// TCP, one connection, payload received.
    pub tcp_bits_per_second: f64,
    /// UDP with 64 bytes of payload, received.
    pub udp64_packets_per_second: f64,
    /// Such datagrams sent.
    pub udp64_sent: u64,
    /// Such datagrams received.
    pub udp64_received: u64,
    /// TCP request and response of one byte, median.
    pub latency_p50_us: f64,
    /// The same, 99th percentile.
    pub latency_p99_us: f64,
}

/// On what and how it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Kernel release.
    pub kernel: String,
    /// CPUs.
    pub cpus: usize,
    /// Rounds.
    pub rounds: u32,
    /// Seconds of each throughput and each packet rate measurement.
    pub seconds: f64,
    /// Requests of each latency measurement.
    pub requests: usize,
    /// MTU of the underlay.
    pub underlay_mtu: u32,
    /// Whether Pods are attached to a bridge instead of directly.
    pub bridge: bool,
    /// MTU of the Pods.
    pub pod_mtu: u32,
}

/// Median and spread of one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Median.
    pub median: f64,
    /// Smallest.
    pub min: f64,
    /// Largest.
    pub max: f64,
}

/// All figures of one variant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summaries {
    /// See [`Measurement::tcp_bits_per_second`].
    pub tcp_bits_per_second: Summary,
    /// See [`Measurement::udp64_packets_per_second`].
    pub udp64_packets_per_second: Summary,
    /// See [`Measurement::latency_p50_us`].
    pub latency_p50_us: Summary,
    /// See [`Measurement::latency_p99_us`].
    pub latency_p99_us: Summary,
}

/// mc-gateway against another variant: for each round the quotient of its two figures, of these the
/// median. Comparing within a round cancels what the machine does over time. More is better, except for
/// latency. A comparison without measurements is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratios {
    /// TCP throughput against plain routing.
    pub tcp_vs_plain: Option<f64>,
    /// TCP throughput against kernel VXLAN on every leg.
    pub tcp_vs_kernel_vxlan: Option<f64>,
    /// Small datagrams per second against plain routing.
    pub udp64_vs_plain: Option<f64>,
    /// Small datagrams per second against kernel VXLAN on every leg.
    pub udp64_vs_kernel_vxlan: Option<f64>,
    /// Median round-trip time against plain routing (less is better).
    pub latency_vs_plain: Option<f64>,
    /// Median round-trip time against kernel VXLAN on every leg (less is better).
    pub latency_vs_kernel_vxlan: Option<f64>,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// On what and how.
    pub setup: Setup,
    /// mc-gateway against the others.
    pub ratios: Ratios,
    /// Smallest and largest quotient of a single round, by the name of the ratio.
    pub ratio_spread: BTreeMap<String, Summary>,
    /// Median and spread of each variant.
    pub variants: BTreeMap<Variant, Summaries>,
    /// Every single measurement, in the order they were made.
    pub measurements: Vec<Measurement>,
}

// === impl Summary ===

impl Summary {
    /// Sums up figures; of none, everything is 0.
    #[must_use]
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            at(middle)
        } else {
            f64::midpoint(at(middle.saturating_sub(1)), at(middle))
        };
        Self {
            median,
            min: at(0),
            max: at(sorted.len().saturating_sub(1)),
        }
    }
}

// === impl Report ===

impl Report {
    /// Draws the conclusions from the measurements.
    #[must_use]
    pub fn new(setup: Setup, measurements: Vec<Measurement>) -> Self {
        let of = |variant: Variant, figure: fn(&Measurement) -> f64| {
            Summary::of(
                measurements
                    .iter()
                    .filter(|one| one.variant == variant)
                    .map(figure),
            )
        };
        let variants = Variant::ALL
            .into_iter()
            .filter(|variant| measurements.iter().any(|one| one.variant == *variant))
            .map(|variant| {
                let summaries = Summaries {
                    tcp_bits_per_second: of(variant, |one| one.tcp_bits_per_second),
                    udp64_packets_per_second: of(variant, |one| one.udp64_packets_per_second),
                    latency_p50_us: of(variant, |one| one.latency_p50_us),
                    latency_p99_us: of(variant, |one| one.latency_p99_us),
                };
                (variant, summaries)
            })
            .collect();
        let mut ratio_spread = BTreeMap::new();
        let mut ratio = |name: &str, against: Variant, figure: fn(&Measurement) -> f64| {
            let quotients = quotients(&measurements, against, figure);
            if quotients.is_empty() {
                return None;
            }
            let summary = Summary::of(quotients);
            ratio_spread.insert(name.to_owned(), summary);
            Some(summary.median)
        };
        let tcp = |one: &Measurement| one.tcp_bits_per_second;
        let udp64 = |one: &Measurement| one.udp64_packets_per_second;
        let latency = |one: &Measurement| one.latency_p50_us;
        let ratios = Ratios {
            tcp_vs_plain: ratio("tcp_vs_plain", Variant::Plain, tcp),
            tcp_vs_kernel_vxlan: ratio("tcp_vs_kernel_vxlan", Variant::KernelVxlan, tcp),
            udp64_vs_plain: ratio("udp64_vs_plain", Variant::Plain, udp64),
            udp64_vs_kernel_vxlan: ratio("udp64_vs_kernel_vxlan", Variant::KernelVxlan, udp64),
            latency_vs_plain: ratio("latency_vs_plain", Variant::Plain, latency),
            latency_vs_kernel_vxlan: ratio("latency_vs_kernel_vxlan", Variant::KernelVxlan, latency),
        };
        Self {
            setup,
            ratios,
            ratio_spread,
            variants,
            measurements,
        }
    }
}

/// mc-gateway's figure by the other variant's, for each round that has both.
fn quotients(
    measurements: &[Measurement],
    against: Variant,
    figure: impl Fn(&Measurement) -> f64,
) -> Vec<f64> {
    let in_round = |round: u32, variant: Variant| {
        measurements
            .iter()
            .find(|one| one.round == round && one.variant == variant)
            .map(&figure)
    };
    measurements
        .iter()
        .filter(|one| one.variant == Variant::McGateway)
        .filter_map(|one| Some(figure(one) / in_round(one.round, against)?))
        .filter(|quotient| quotient.is_finite())
        .collect()
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let setup = &self.setup;
        writeln!(
            f,
            "Pod - regular node - gateway - gateway - regular node - Pod; kernel {}, {} CPUs;\n\
             underlay MTU {}, Pod MTU {}; median (smallest .. largest) of {} rounds\n",
            setup.kernel, setup.cpus, setup.underlay_mtu, setup.pod_mtu, setup.rounds
        )?;
        writeln!(
            f,
            "{:<15} {:<24} {:<26} {:<22} request p99 us",
            "", "TCP Gb/s", "UDP 64 bytes kpps", "request p50 us"
        )?;
        for (variant, summaries) in &self.variants {
            let cell = |summary: Summary, unit: f64| {
                let Summary { median, min, max } = summary;
                format!("{:.2} ({:.2} .. {:.2})", median / unit, min / unit, max / unit)
            };
            writeln!(
                f,
                "{:<15} {:<24} {:<26} {:<22} {}",
                variant.name(),
                cell(summaries.tcp_bits_per_second, 1e9),
                cell(summaries.udp64_packets_per_second, 1e3),
                cell(summaries.latency_p50_us, 1.0),
                cell(summaries.latency_p99_us, 1.0),
            )?;
        }
        if self.ratio_spread.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\nmc-gateway in relation to the others, compared round by round:"
        )?;
        for (name, Summary { median, min, max }) in &self.ratio_spread {
            writeln!(f, "  {name:<24} {median:.2}  ({min:.2} .. {max:.2})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(round: u32, variant: Variant, tcp: f64, udp64: f64) -> Measurement {
        Measurement {
            round,
            variant,
            tcp_bits_per_second: tcp,
            udp64_packets_per_second: udp64,
            udp64_sent: 0,
            udp64_received: 0,
            latency_p50_us: 10.0,
            latency_p99_us: 20.0,
        }
    }

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(
            Summary::of([3.0, 1.0, 2.0]),
            Summary {
                median: 2.0,
                min: 1.0,
                max: 3.0
            }
        );
        assert!((Summary::of([4.0, 1.0, 2.0, 3.0]).median - 2.5).abs() < 1e-9);
        assert_eq!(Summary::of([]), Summary::default());
    }

    #[test]
    fn ratios_compare_within_a_round() {
        // The machine is twice as fast in the second round: the ratios must not notice.
        let report = Report::new(
            Setup::default(),
            vec![
                measurement(1, Variant::Plain, 10.0, 100.0),
                measurement(1, Variant::KernelVxlan, 5.0, 40.0),
                measurement(1, Variant::McGateway, 8.0, 80.0),
                measurement(2, Variant::McGateway, 16.0, 160.0),
                measurement(2, Variant::Plain, 20.0, 200.0),
                measurement(2, Variant::KernelVxlan, 10.0, 80.0),
            ],
        );
        let close = |ratio: Option<f64>, expected: f64| (ratio.unwrap() - expected).abs() < 1e-9;
        assert!(close(report.ratios.tcp_vs_plain, 0.8));
        assert!(close(report.ratios.tcp_vs_kernel_vxlan, 1.6));
        assert!(close(report.ratios.udp64_vs_plain, 0.8));
        assert!(close(report.ratios.udp64_vs_kernel_vxlan, 2.0));
        assert!(close(report.ratios.latency_vs_plain, 1.0));
    }

    #[test]
    fn ratio_without_measurements_is_absent() {
        let report = Report::new(
            Setup::default(),
            vec![measurement(1, Variant::Plain, 10.0, 100.0)],
        );
        assert_eq!(report.ratios, Ratios::default());
        assert!(report.to_string().contains("plain routing"));
    }

    #[test]
    fn json_has_the_documented_names_and_comes_back() {
        let report = Report::new(
            Setup::default(),
            vec![
                measurement(1, Variant::Plain, 10.0, 100.0),
                measurement(1, Variant::McGateway, 8.0, 80.0),
            ],
        );
        let json = serde_json::to_string(&report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!((value["ratios"]["tcp_vs_plain"].as_f64().unwrap() - 0.8).abs() < 1e-9);
        assert!(value["variants"]["mc-gateway"]["tcp_bits_per_second"]["median"].is_number());
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }
}
