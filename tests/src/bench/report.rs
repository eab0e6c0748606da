//! The report as JSON; `table` formats it for terminals, `plot` as diagrams.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    bed::Bed,
    programs,
    sample::{MetricKey, Samples, Summary, percentile},
    section::{Pace, Section},
    targets::{self, TargetResult},
};

/// Key of the duration of packet loss after a gateway failure.
pub const FAILOVER: MetricKey<'static> = MetricKey {
    subject: "failover",
    metric: "outage_ms",
};

/// Machine and settings of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MachineInfo {
    /// Kernel release.
    pub kernel: String,
    /// Model of the first CPU.
    pub cpu: String,
    /// CPUs.
    pub cpus: usize,
    /// Load average over the minute before the run; above 0.5 the machine was busy.
    pub load: f64,
    /// Versions of mc-gateway and of the tools that configure the system.
    pub versions: BTreeMap<String, String>,
    /// Selected sections.
    pub sections: Vec<Section>,
    /// Number of rounds.
    pub rounds: u32,
    /// Durations of single measurements.
    pub pace: Pace,
    /// MTU of the underlay.
    pub underlay_mtu: u32,
    /// MTU of the Pods.
    pub pod_mtu: u32,
    /// Beds on which the cases were compared.
    pub beds: Vec<Bed>,
}

/// A selected section or case without a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Name of the section or case.
    pub name: String,
    /// Reason.
    pub reason: String,
    /// The measurement failed, as opposed to being unavailable.
    pub failed: bool,
}

/// Duration of packet loss after a gateway failure, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failover {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Maximum.
    pub max: f64,
    /// Number of failures.
    pub trials: usize,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Machine and settings.
    pub machine_info: MachineInfo,
    /// Comparisons that targets are defined on: medians of the ratios of each round. Ratios without measurements
    /// are absent.
    pub ratios: BTreeMap<String, f64>,
    /// Comparisons on each bed, by bed and name: medians of the ratios of each round. Names are those of `ratios` and
    /// `more_ratios`, which concern the veth underlay and routed Pods.
    pub beds: BTreeMap<String, BTreeMap<String, f64>>,
    /// Further comparisons.
    pub more_ratios: BTreeMap<String, f64>,
    /// Median, minimum and maximum of every ratio over the rounds; those of `beds` have the bed's name and a dot in
    /// front.
    pub ratio_spread: BTreeMap<String, Summary>,
    /// Time per packet in each program and in an empty one: medians.
    pub nanoseconds: BTreeMap<String, f64>,
    /// Their spread.
    pub nanoseconds_spread: BTreeMap<String, Summary>,
    /// Duration of packet loss after a gateway failure.
    pub failover_ms: Option<Failover>,
    /// Targets with their figures.
    pub targets: Vec<TargetResult>,
    /// Selected sections and cases without a measurement.
    pub skipped: Vec<Skipped>,
    /// Duration of each section.
    pub duration_seconds: BTreeMap<String, f64>,
    /// Remarks on the figures.
    pub notes: Vec<String>,
    /// Median and spread by subject and metric.
    pub summaries: BTreeMap<String, BTreeMap<String, Summary>>,
    /// Every single measurement in chronological order.
    pub samples: Samples,
}

// === impl Report ===

impl Report {
    /// Computes the report from the samples.
    #[must_use]
    pub fn new(setup: MachineInfo, samples: Samples, missing: Vec<Skipped>, notes: Vec<String>) -> Self {
        let (ratios, more) = (targets::ratios(&samples), targets::more_ratios(&samples));
        let on_beds: Vec<(Bed, Vec<(String, Summary)>)> = Bed::ALL
            .into_iter()
            .map(|bed| (bed, targets::bed_ratios(&samples, bed)))
            .filter(|(_, ratios)| !ratios.is_empty())
            .collect();
        let medians = |of: &[(String, Summary)]| {
            of.iter()
                .map(|(name, summary)| (name.clone(), summary.median))
                .collect()
        };
        let nanoseconds_spread: BTreeMap<String, Summary> = programs::METRICS
            .into_iter()
            .filter_map(|figure| {
                let subject = programs::SUBJECT;
                Some((
                    figure.to_owned(),
                    samples.summary(MetricKey {
                        subject,
                        metric: figure,
                    })?,
                ))
            })
            .collect();
        let outages = |percent| percentile(samples.values(FAILOVER), percent);
        let failover_ms = outages(50)
            .zip(outages(99))
            .zip(outages(100))
            .map(|((p50, p99), max)| Failover {
                p50,
                p99,
                max,
                trials: samples.values(FAILOVER).count(),
            });
        let mut summaries: BTreeMap<String, BTreeMap<String, Summary>> = BTreeMap::new();
        for sample in samples.iter() {
            let of = MetricKey {
                subject: &sample.subject,
                metric: &sample.metric,
            };
            let figures = summaries.entry(sample.subject.clone()).or_default();
            if !figures.contains_key(&sample.metric)
                && let Some(summary) = samples.summary(of)
            {
                figures.insert(sample.metric.clone(), summary);
            }
        }
        let mut report = Self {
            machine_info: setup,
            ratios: medians(&ratios),
            beds: on_beds
                .iter()
                .map(|(bed, ratios)| (bed.name().to_owned(), medians(ratios)))
                .collect(),
            more_ratios: medians(&more),
            ratio_spread: on_beds
                .into_iter()
                .flat_map(|(bed, ratios)| {
                    ratios
                        .into_iter()
                        .map(move |(name, summary)| (format!("{}.{name}", bed.name()), summary))
                })
                .chain(ratios)
                .chain(more)
                .collect(),
            nanoseconds: nanoseconds_spread
                .iter()
                .map(|(name, summary)| (name.clone(), summary.median))
                .collect(),
            nanoseconds_spread,
            failover_ms,
            targets: Vec::new(),
            skipped: missing,
            duration_seconds: BTreeMap::new(),
            notes,
            summaries,
            samples,
        };
        report.targets = targets::evaluate(|name| report.metric(name));
        report
    }

    /// A figure by report key and entry, separated by a dot.
    fn metric(&self, name: &str) -> Option<f64> {
        match name.split_once('.')? {
            ("beds", key) => {
                let (bed, ratio) = key.split_once('.')?;
                self.beds.get(bed)?.get(ratio).copied()
            }
            ("ratios", key) => self.ratios.get(key).copied(),
            ("nanoseconds", key) => self.nanoseconds.get(key).copied(),
            ("failover_ms", "p99") => Some(self.failover_ms?.p99),
            ("failover_ms", "max") => Some(self.failover_ms?.max),
            _ => None,
        }
    }

    /// Median and spread of a metric.
    #[must_use]
    pub fn summary(&self, subject: &str, figure: &str) -> Option<Summary> {
        self.summaries.get(subject)?.get(figure).copied()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::{
        case::Case,
        end_to_end,
        sample::Sample,
        scaling::{self, Curve, Operation},
        transit,
    };

    pub(crate) fn setup() -> MachineInfo {
        MachineInfo {
            kernel: "6.18.0".to_owned(),
            cpu: "a CPU".to_owned(),
            cpus: 2,
            load: 0.1,
            versions: BTreeMap::new(),
            sections: Section::ALL.to_vec(),
            rounds: 2,
            pace: Pace {
                traffic: Duration::from_secs(1),
                ..Pace::QUICK
            },
            underlay_mtu: 1500,
            pod_mtu: 1450,
            beds: Bed::ALL.to_vec(),
        }
    }

    /// A report with every section; later subjects have larger values.
    pub(crate) fn full_report() -> Report {
        let mut samples = Samples::default();
        let mut push = |round, subject: &str, figure: &str, value: f64| {
            samples.push(Sample {
                round,
                subject: subject.to_owned(),
                metric: figure.to_owned(),
                value,
            });
        };
        for round in 1..=2 {
            for (number, case) in (1..).zip(Case::ALL) {
                for (streams, bed) in end_to_end::STREAMS
                    .into_iter()
                    .flat_map(|streams| Bed::ALL.map(|bed| (streams, bed)))
                {
                    if bed.has(case) {
                        push(
                            round,
                            &bed.subject(case),
                            &end_to_end::tcp_metric(streams),
                            1e9 * f64::from(number),
                        );
                    }
                }
                for bed in Bed::ALL.into_iter().filter(|bed| bed.has(case)) {
                    push(
                        round,
                        &bed.subject(case),
                        end_to_end::UDP64,
                        1e4 * f64::from(number),
                    );
                    push(round, &bed.subject(case), end_to_end::CPU_PER_GIGABYTE, 1.5);
                    push(round, &bed.subject(case), end_to_end::RETRANSMISSIONS, 0.0);
                    push(round, &bed.subject(case), end_to_end::UDP64_LOSS, 0.25);
                }
                for size in end_to_end::SIZES {
                    push(round, case.name(), &end_to_end::rr_metric(size, 50), 30.0);
                    push(round, case.name(), &end_to_end::rr_metric(size, 99), 60.0);
                }
            }
            for kind in transit::HopKind::ALL {
                push(round, kind.name(), transit::RATE, 2e6);
                push(round, kind.name(), transit::TIME, 500.0);
                push(round, kind.name(), transit::NET_TIME, 300.0);
            }
            for name in programs::METRICS {
                push(round, programs::SUBJECT, name, 200.0);
            }
            for (work, curve) in Operation::ALL
                .into_iter()
                .flat_map(|work| Curve::ALL.map(|curve| (work, curve)))
            {
                let subject = scaling::subject(work, curve);
                for point in curve.points() {
                    push(
                        round,
                        &subject,
                        &point.to_string(),
                        200.0 + f64::from(*point) / 1e4,
                    );
                }
            }
            push(round, "gateways", "1", 1.0);
            push(round, "gateways", "2", 1.95);
        }
        for trial in 1..=200 {
            push(trial, FAILOVER.subject, FAILOVER.metric, 300.0 + f64::from(trial));
        }
        let missing = vec![Skipped {
            name: "something".to_owned(),
            reason: "unavailable".to_owned(),
            failed: false,
        }];
        Report::new(setup(), samples, missing, vec!["a note".to_owned()])
    }

    #[test]
    fn json_has_the_documented_keys_and_is_read_back() {
        let report = full_report();
        let json = serde_json::to_string(&report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let keys = |section: &str| -> Vec<String> {
            let mut keys: Vec<String> = value[section].as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(
            keys("ratios"),
            [
                "scaling_clusters",
                "scaling_nexthops",
                "scaling_prefixes_many_flows",
                "scaling_prefixes_most_flows",
                "tcp_vs_kernel_vxlan",
                "tcp_vs_plain",
                "transit_vs_plain_forward",
                "two_gateways_vs_one",
                "udp64_vs_kernel_vxlan",
                "udp64_vs_plain",
                "xdp_transit_vs_plain_forward",
            ]
        );
        assert_eq!(
            keys("beds"),
            [
                "nics-bridge",
                "nics-routed",
                "veth-bridge",
                "veth-routed",
                "wire-like-bridge",
                "wire-like-checksums",
                "wire-like-routed"
            ]
        );
        assert!(value["ratio_spread"]["wire-like-routed.tcp_vs_plain"]["min"].is_number());
        assert_eq!(keys("nanoseconds"), ["decap", "empty", "encap", "transit"]);
        assert_eq!(keys("failover_ms"), ["max", "p50", "p99", "trials"]);
        assert!(value["ratio_spread"]["tcp_vs_plain"]["min"].is_number());
        let back: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (back.machine_info, back.skipped),
            (report.machine_info, report.skipped)
        );
    }

    #[test]
    fn every_target_has_a_figure() {
        let report = full_report();
        assert_eq!(report.targets.len(), targets::TARGETS.len());
        let p99 = report
            .targets
            .iter()
            .find(|target| target.metric == "failover_ms.p99");
        assert_eq!(
            p99.map(|target| (target.value, target.reached)),
            Some((498.0, true))
        );
    }

    #[test]
    fn an_empty_run_has_no_figures() {
        let report = Report::new(setup(), Samples::default(), Vec::new(), Vec::new());
        assert!(report.ratios.is_empty() && report.nanoseconds.is_empty() && report.targets.is_empty());
        assert_eq!(report.failover_ms, None);
    }
}
