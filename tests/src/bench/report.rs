//! What the benchmark found, as JSON for programs. Pure; `table` shows it to people, `plot` draws it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    goals::{self, Outcome},
    part::{Pace, Part},
    programs,
    sample::{Of, Samples, Summary, percentile},
};

/// Subject and figure of the time packets were lost when a gateway was.
pub const FAILOVER: Of<'static> = Of {
    subject: "failover",
    figure: "outage_ms",
};

/// On what and how it was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Kernel release.
    pub kernel: String,
    /// Model of the first CPU.
    pub cpu: String,
    /// CPUs.
    pub cpus: usize,
    /// Processes that were ready to run when the run began, averaged over a minute: above 0.5 the figures are
    /// those of a busy machine.
    pub load: f64,
    /// Versions of what is measured and of the programs that set it up.
    pub versions: BTreeMap<String, String>,
    /// Parts that were asked for.
    pub parts: Vec<Part>,
    /// Rounds in which the cases alternate.
    pub rounds: u32,
    /// How long single measurements took.
    pub pace: Pace,
    /// MTU of the underlay.
    pub underlay_mtu: u32,
    /// MTU of the Pods.
    pub pod_mtu: u32,
    /// Whether Pods are attached to a bridge instead of directly.
    pub bridge: bool,
}

/// Something that was asked for and not measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Name of the part or of the case.
    pub name: String,
    /// Why.
    pub reason: String,
    /// Whether it was tried and went wrong, as opposed to not being possible yet.
    pub failed: bool,
}

/// How long packets were lost when a gateway was, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failover {
    /// Half of the trials took no longer.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
    /// How many gateways were lost.
    pub trials: usize,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// On what and how.
    pub setup: Setup,
    /// Comparisons goals are stated in: medians of the quotients of each round. One without measurements is
    /// absent.
    pub ratios: BTreeMap<String, f64>,
    /// Further comparisons.
    pub more_ratios: BTreeMap<String, f64>,
    /// Median, smallest and largest quotient of a single round, of every ratio.
    pub ratio_spread: BTreeMap<String, Summary>,
    /// Time per packet in each program, and in one that does nothing: medians.
    pub nanoseconds: BTreeMap<String, f64>,
    /// Their spread.
    pub nanoseconds_spread: BTreeMap<String, Summary>,
    /// How long packets were lost when a gateway was.
    pub failover_ms: Option<Failover>,
    /// Goals next to figures.
    pub goals: Vec<Outcome>,
    /// What was asked for and not measured.
    pub missing: Vec<Missing>,
    /// How long the parts took.
    pub took_seconds: BTreeMap<String, f64>,
    /// What one has to know to read the figures.
    pub notes: Vec<String>,
    /// Median and spread of every figure, by subject and figure.
    pub summaries: BTreeMap<String, BTreeMap<String, Summary>>,
    /// Every single measurement, in the order they were made.
    pub samples: Samples,
}

// === impl Report ===

impl Report {
    /// Draws the conclusions from the samples.
    #[must_use]
    pub fn new(setup: Setup, samples: Samples, missing: Vec<Missing>, notes: Vec<String>) -> Self {
        let (ratios, more) = (goals::ratios(&samples), goals::more_ratios(&samples));
        let medians = |of: &[(String, Summary)]| {
            of.iter()
                .map(|(name, summary)| (name.clone(), summary.median))
                .collect()
        };
        let nanoseconds_spread: BTreeMap<String, Summary> = programs::NAMES
            .into_iter()
            .filter_map(|figure| {
                let subject = programs::SUBJECT;
                Some((figure.to_owned(), samples.summary(Of { subject, figure })?))
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
            let of = Of {
                subject: &sample.subject,
                figure: &sample.figure,
            };
            let figures = summaries.entry(sample.subject.clone()).or_default();
            if !figures.contains_key(&sample.figure)
                && let Some(summary) = samples.summary(of)
            {
                figures.insert(sample.figure.clone(), summary);
            }
        }
        let mut report = Self {
            setup,
            ratios: medians(&ratios),
            more_ratios: medians(&more),
            ratio_spread: ratios.into_iter().chain(more).collect(),
            nanoseconds: nanoseconds_spread
                .iter()
                .map(|(name, summary)| (name.clone(), summary.median))
                .collect(),
            nanoseconds_spread,
            failover_ms,
            goals: Vec::new(),
            missing,
            took_seconds: BTreeMap::new(),
            notes,
            summaries,
            samples,
        };
        report.goals = goals::outcomes(|name| report.figure(name));
        report
    }

    /// A figure by section and key, with a dot between.
    fn figure(&self, name: &str) -> Option<f64> {
        match name.split_once('.')? {
            ("ratios", key) => self.ratios.get(key).copied(),
            ("nanoseconds", key) => self.nanoseconds.get(key).copied(),
            ("failover_ms", "p99") => Some(self.failover_ms?.p99),
            ("failover_ms", "max") => Some(self.failover_ms?.max),
            _ => None,
        }
    }

    /// Median and spread of a figure.
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
        growth::{self, Curve, Work},
        row,
        sample::Sample,
        transit,
    };

    pub(crate) fn setup() -> Setup {
        Setup {
            kernel: "6.18.0".to_owned(),
            cpu: "a CPU".to_owned(),
            cpus: 2,
            load: 0.1,
            versions: BTreeMap::new(),
            parts: Part::ALL.to_vec(),
            rounds: 2,
            pace: Pace {
                traffic: Duration::from_secs(1),
                ..Pace::QUICK
            },
            underlay_mtu: 1500,
            pod_mtu: 1450,
            bridge: false,
        }
    }

    /// A report with every part in it; larger numbers for later subjects.
    pub(crate) fn whole() -> Report {
        let mut samples = Samples::default();
        let mut push = |round, subject: &str, figure: &str, value: f64| {
            samples.push(Sample {
                round,
                subject: subject.to_owned(),
                figure: figure.to_owned(),
                value,
            });
        };
        for round in 1..=2 {
            for (number, case) in (1..).zip(Case::ALL) {
                for streams in row::STREAMS {
                    push(round, case.name(), &row::tcp(streams), 1e9 * f64::from(number));
                }
                push(round, case.name(), row::UDP64, 1e4 * f64::from(number));
                for size in row::SIZES {
                    push(round, case.name(), &row::rr(size, 50), 30.0);
                    push(round, case.name(), &row::rr(size, 99), 60.0);
                }
            }
            for kind in transit::Kind::ALL {
                push(round, kind.name(), transit::RATE, 2e6);
                push(round, kind.name(), transit::TIME, 500.0);
                push(round, kind.name(), transit::OWN, 300.0);
            }
            for name in programs::NAMES {
                push(round, programs::SUBJECT, name, 200.0);
            }
            for (work, curve) in Work::ALL
                .into_iter()
                .flat_map(|work| Curve::ALL.map(|curve| (work, curve)))
            {
                let subject = growth::subject(work, curve);
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
            push(trial, FAILOVER.subject, FAILOVER.figure, 300.0 + f64::from(trial));
        }
        let missing = vec![Missing {
            name: "something".to_owned(),
            reason: "nobody knows".to_owned(),
            failed: false,
        }];
        Report::new(setup(), samples, missing, vec!["a note".to_owned()])
    }

    #[test]
    fn json_has_the_documented_keys_and_comes_back() {
        let report = whole();
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
                "growth_clusters",
                "growth_members",
                "growth_prefixes",
                "tcp_vs_kernel_vxlan",
                "tcp_vs_plain",
                "transit_vs_plain_forward",
                "two_gateways_vs_one",
                "udp64_vs_kernel_vxlan",
                "udp64_vs_plain",
            ]
        );
        assert_eq!(keys("nanoseconds"), ["decap", "empty", "encap", "transit"]);
        assert_eq!(keys("failover_ms"), ["max", "p50", "p99", "trials"]);
        assert!(value["ratio_spread"]["tcp_vs_plain"]["min"].is_number());
        let back: Report = serde_json::from_str(&json).unwrap();
        assert_eq!((back.setup, back.missing), (report.setup, report.missing));
    }

    #[test]
    fn every_goal_stands_next_to_its_figure() {
        let report = whole();
        assert_eq!(report.goals.len(), goals::GOALS.len());
        let p99 = report.goals.iter().find(|goal| goal.figure == "failover_ms.p99");
        assert_eq!(p99.map(|goal| (goal.value, goal.reached)), Some((498.0, true)));
    }

    #[test]
    fn a_run_of_one_part_has_no_other_figures() {
        let report = Report::new(setup(), Samples::default(), Vec::new(), Vec::new());
        assert!(report.ratios.is_empty() && report.nanoseconds.is_empty() && report.goals.is_empty());
        assert_eq!(report.failover_ms, None);
    }
}
