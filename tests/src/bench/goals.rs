//! What is to be reached, and the comparisons it is stated in. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    case::Case,
    gateways,
    growth::{self, Curve, Work},
    row,
    sample::{Of, Samples, Summary},
    transit::{self, Kind},
};

/// A limit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The figure should not be smaller.
    AtLeast(f64),
    /// The figure should not be larger.
    AtMost(f64),
}

/// A figure next to what it should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Section and key of the report, with a dot between.
    pub figure: String,
    /// The figure.
    pub value: f64,
    /// What it should be.
    pub limit: Limit,
    /// Whether it is.
    pub reached: bool,
}

/// Every goal, by section and key of the report.
pub const GOALS: [(&str, Limit); 14] = [
    ("ratios.tcp_vs_plain", Limit::AtLeast(0.95)),
    ("ratios.tcp_vs_kernel_vxlan", Limit::AtLeast(1.25)),
    ("ratios.udp64_vs_plain", Limit::AtLeast(0.9)),
    ("ratios.udp64_vs_kernel_vxlan", Limit::AtLeast(2.2)),
    ("ratios.transit_vs_plain_forward", Limit::AtLeast(1.2)),
    ("ratios.two_gateways_vs_one", Limit::AtLeast(1.8)),
    ("ratios.growth_prefixes", Limit::AtMost(1.3)),
    ("ratios.growth_clusters", Limit::AtMost(1.3)),
    ("ratios.growth_members", Limit::AtMost(1.3)),
    ("nanoseconds.encap", Limit::AtMost(400.0)),
    ("nanoseconds.transit", Limit::AtMost(240.0)),
    ("nanoseconds.decap", Limit::AtMost(240.0)),
    ("failover_ms.p99", Limit::AtMost(500.0)),
    ("failover_ms.max", Limit::AtMost(1000.0)),
];

// === impl Limit ===

impl Limit {
    /// Whether a figure is within it.
    #[must_use]
    pub fn allows(self, value: f64) -> bool {
        match self {
            Self::AtLeast(limit) => value >= limit,
            Self::AtMost(limit) => value <= limit,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(limit) => write!(f, "≥ {limit}"),
            Self::AtMost(limit) => write!(f, "≤ {limit}"),
        }
    }
}

/// The goals for the figures that are there.
#[must_use]
pub fn outcomes(figure: impl Fn(&str) -> Option<f64>) -> Vec<Outcome> {
    GOALS
        .into_iter()
        .filter_map(|(name, limit)| {
            let value = figure(name)?;
            Some(Outcome {
                figure: name.to_owned(),
                value,
                limit,
                reached: limit.allows(value),
            })
        })
        .collect()
}

/// One comparison: its name, and the two figures it divides.
type Comparison = (String, (String, String), (String, String));

fn cases(name: &str, figure: &str, of: Case, by: Case) -> Comparison {
    let side = |case: Case| (case.name().to_owned(), figure.to_owned());
    (name.to_owned(), side(of), side(by))
}

/// The comparisons goals are stated in.
#[must_use]
pub fn ratios(samples: &Samples) -> Vec<(String, Summary)> {
    use Case::{KernelVxlan, McGateway, Plain};
    let tcp = row::tcp(1);
    let mut all = vec![
        cases("tcp_vs_plain", &tcp, McGateway, Plain),
        cases("tcp_vs_kernel_vxlan", &tcp, McGateway, KernelVxlan),
        cases("udp64_vs_plain", row::UDP64, McGateway, Plain),
        cases("udp64_vs_kernel_vxlan", row::UDP64, McGateway, KernelVxlan),
    ];
    let side = |subject: &str, figure: &str| (subject.to_owned(), figure.to_owned());
    all.push((
        // Frames per second are 1 by time.
        "transit_vs_plain_forward".to_owned(),
        side(Kind::Forward.name(), transit::OWN),
        side(Kind::Transit.name(), transit::OWN),
    ));
    all.push((
        "two_gateways_vs_one".to_owned(),
        side(gateways::SUBJECT, "2"),
        side(gateways::SUBJECT, "1"),
    ));
    all.extend(GROWING.map(|curve| growth(Work::Transit, curve)));
    measured(samples, &all)
}

/// Further comparisons worth a look. Where figures are times, less is better.
#[must_use]
pub fn more_ratios(samples: &Samples) -> Vec<(String, Summary)> {
    use Case::{
        KernelVxlan, KernelVxlanIpv6, McGateway, McGatewayIpv6, McGatewayVxlan, MetadataVxlan, Plain,
        PlainIpv6, PlainServices,
    };
    let (tcp, rr) = (row::tcp(1), row::rr(64, 50));
    let mut all = Vec::new();
    for streams in row::STREAMS.into_iter().skip(1) {
        all.push(cases(
            &format!("tcp{streams}_vs_plain"),
            &row::tcp(streams),
            McGateway,
            Plain,
        ));
    }
    for (name, of, by) in [
        ("vs_plain_services", McGateway, PlainServices),
        ("vs_metadata_vxlan", McGateway, MetadataVxlan),
        ("vxlan_vs_plain", McGatewayVxlan, Plain),
        ("vxlan_vs_kernel_vxlan", McGatewayVxlan, KernelVxlan),
        ("ipv6_vs_plain_ipv6", McGatewayIpv6, PlainIpv6),
        ("ipv6_vs_kernel_vxlan_ipv6", McGatewayIpv6, KernelVxlanIpv6),
    ] {
        all.push(cases(&format!("tcp_{name}"), &tcp, of, by));
        all.push(cases(&format!("udp64_{name}"), row::UDP64, of, by));
    }
    all.push(cases("rr64_time_vs_plain", &rr, McGateway, Plain));
    all.push(cases("rr64_time_vs_kernel_vxlan", &rr, McGateway, KernelVxlan));
    let hop = |kind: Kind, figure: &str| (kind.name().to_owned(), figure.to_owned());
    // With source and sink in both; and what would be reached by a hop that does nothing but send on.
    all.push((
        "transit_rate_vs_plain_forward".to_owned(),
        hop(Kind::Transit, transit::RATE),
        hop(Kind::Forward, transit::RATE),
    ));
    all.push((
        "wire_vs_plain_forward".to_owned(),
        hop(Kind::Forward, transit::OWN),
        hop(Kind::Wire, transit::OWN),
    ));
    all.extend(GROWING.map(|curve| growth(Work::Encap, curve)));
    for work in Work::ALL {
        for curve in [Curve::PrefixesManyFlows, Curve::PrefixesScattered] {
            all.push(growth(work, curve));
        }
    }
    measured(samples, &all)
}

/// The curves goals are stated for.
const GROWING: [Curve; 3] = [Curve::Prefixes, Curve::Clusters, Curve::Members];

/// Time at the largest size by that at the smallest.
fn growth(work: Work, curve: Curve) -> Comparison {
    let subject = growth::subject(work, curve);
    let at = |point: Option<&u32>| {
        let figure = point.map_or_else(String::new, u32::to_string);
        (subject.clone(), figure)
    };
    let of = if work == Work::Transit { "" } else { "encap_" };
    let name = format!("growth_{of}{}", curve.name().replace('-', "_"));
    (name, at(curve.points().last()), at(curve.points().first()))
}

fn measured(samples: &Samples, comparisons: &[Comparison]) -> Vec<(String, Summary)> {
    comparisons
        .iter()
        .filter_map(|(name, of, by)| {
            let quotient = samples.quotient(
                Of {
                    subject: &of.0,
                    figure: &of.1,
                },
                Of {
                    subject: &by.0,
                    figure: &by.1,
                },
            )?;
            Some((name.clone(), quotient))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample::Sample;

    fn with(values: &[(&str, &str, f64)]) -> Samples {
        let mut samples = Samples::default();
        for (subject, figure, value) in values {
            samples.push(Sample {
                round: 1,
                subject: (*subject).to_owned(),
                figure: (*figure).to_owned(),
                value: *value,
            });
        }
        samples
    }

    #[test]
    fn limits_include_their_bound() {
        assert!(Limit::AtLeast(0.95).allows(0.95) && !Limit::AtLeast(0.95).allows(0.94));
        assert!(Limit::AtMost(1.3).allows(1.3) && !Limit::AtMost(1.3).allows(1.31));
    }

    #[test]
    fn every_ratio_of_a_goal_is_computed() {
        let mut values = Vec::new();
        for case in Case::ALL {
            values.push((case.name().to_owned(), row::tcp(1), 1.0));
            values.push((case.name().to_owned(), row::UDP64.to_owned(), 1.0));
        }
        for kind in Kind::ALL {
            values.push((kind.name().to_owned(), transit::OWN.to_owned(), 1.0));
        }
        for curve in Curve::ALL {
            for point in curve.points() {
                values.push((growth::subject(Work::Transit, curve), point.to_string(), 1.0));
            }
        }
        for gateways in ["1", "2"] {
            values.push((gateways::SUBJECT.to_owned(), gateways.to_owned(), 1.0));
        }
        let values: Vec<(&str, &str, f64)> = values
            .iter()
            .map(|(subject, figure, value)| (subject.as_str(), figure.as_str(), *value))
            .collect();
        let ratios = ratios(&with(&values));
        let wanted = GOALS.iter().filter_map(|(name, _)| name.strip_prefix("ratios."));
        for name in wanted {
            assert!(
                ratios.iter().any(|(ratio, _)| ratio == name),
                "{name}: {ratios:?}"
            );
        }
        assert_eq!(ratios.len(), 9);
    }

    #[test]
    fn growth_is_the_largest_size_by_the_smallest() {
        let samples = with(&[
            ("transit-prefixes", "10", 200.0),
            ("transit-prefixes", "100000", 300.0),
        ]);
        let ratios = ratios(&samples);
        assert_eq!(ratios.len(), 1, "{ratios:?}");
        assert_eq!(ratios[0].0, "growth_prefixes");
        assert!((ratios[0].1.median - 1.5).abs() < 1e-9);
    }

    #[test]
    fn a_goal_without_a_figure_is_left_out() {
        let outcomes = outcomes(|name| (name == "nanoseconds.encap").then_some(401.0));
        assert_eq!(outcomes.len(), 1);
        assert!(!outcomes[0].reached);
    }
}
