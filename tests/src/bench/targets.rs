//! Performance targets and the ratios they are defined on.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    bed::Bed,
    case::Case,
    end_to_end, gateways,
    sample::{MetricKey, Samples, Summary},
    scaling::{self, Curve, Operation},
    transit::{self, HopKind},
};

/// Limit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Lower limit.
    AtLeast(f64),
    /// Upper limit.
    AtMost(f64),
}

/// A figure and its target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetResult {
    /// Key and entry of the report, separated by a dot.
    pub metric: String,
    /// The measured value.
    pub value: f64,
    /// The target.
    pub limit: Limit,
    /// Whether the value is within the limit.
    pub reached: bool,
}

/// All targets, by key and entry of the report.
pub const TARGETS: [(&str, Limit); 28] = [
    ("beds.wire-like-routed.tcp_vs_plain", Limit::AtLeast(0.95)),
    ("beds.wire-like-routed.tcp_vs_kernel_vxlan", Limit::AtLeast(1.25)),
    ("beds.wire-like-routed.udp64_vs_plain", Limit::AtLeast(0.9)),
    ("beds.wire-like-routed.udp64_vs_kernel_vxlan", Limit::AtLeast(2.2)),
    ("beds.wire-like-bridge.tcp_vs_plain", Limit::AtLeast(0.9)),
    ("beds.wire-like-bridge.tcp_vs_kernel_vxlan", Limit::AtLeast(1.1)),
    ("beds.wire-like-bridge.udp64_vs_plain", Limit::AtLeast(0.9)),
    ("beds.wire-like-bridge.udp64_vs_kernel_vxlan", Limit::AtLeast(2.2)),
    ("ratios.tcp_vs_plain", Limit::AtLeast(0.97)),
    ("ratios.tcp_vs_kernel_vxlan", Limit::AtLeast(1.3)),
    ("ratios.udp64_vs_plain", Limit::AtLeast(0.9)),
    ("ratios.udp64_vs_kernel_vxlan", Limit::AtLeast(2.2)),
    ("beds.veth-bridge.tcp_vs_plain", Limit::AtLeast(0.8)),
    ("beds.veth-bridge.tcp_vs_kernel_vxlan", Limit::AtLeast(1.1)),
    ("beds.veth-bridge.udp64_vs_plain", Limit::AtLeast(0.9)),
    ("beds.veth-bridge.udp64_vs_kernel_vxlan", Limit::AtLeast(2.2)),
    ("ratios.transit_vs_plain_forward", Limit::AtLeast(1.3)),
    ("ratios.xdp_transit_vs_plain_forward", Limit::AtLeast(2.0)),
    ("ratios.two_gateways_vs_one", Limit::AtLeast(1.8)),
    ("ratios.scaling_prefixes_many_flows", Limit::AtMost(1.3)),
    ("ratios.scaling_prefixes_most_flows", Limit::AtMost(2.0)),
    ("ratios.scaling_clusters", Limit::AtMost(1.3)),
    ("ratios.scaling_nexthops", Limit::AtMost(1.3)),
    ("nanoseconds.encap", Limit::AtMost(400.0)),
    ("nanoseconds.transit", Limit::AtMost(130.0)),
    ("nanoseconds.decap", Limit::AtMost(200.0)),
    ("failover_ms.p99", Limit::AtMost(500.0)),
    ("failover_ms.max", Limit::AtMost(1000.0)),
];

// === impl Limit ===

impl Limit {
    /// Whether a value is within the limit.
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

/// Evaluates the targets of all available figures.
#[must_use]
pub fn evaluate(figure: impl Fn(&str) -> Option<f64>) -> Vec<TargetResult> {
    TARGETS
        .into_iter()
        .filter_map(|(name, limit)| {
            let value = figure(name)?;
            Some(TargetResult {
                metric: name.to_owned(),
                value,
                limit,
                reached: limit.allows(value),
            })
        })
        .collect()
}

/// A ratio: name, numerator and denominator, each by subject and metric.
type Comparison = (String, (String, String), (String, String));

fn case_ratio(name: &str, figure: &str, of: Case, by: Case) -> Comparison {
    let side = |case: Case| (case.name().to_owned(), figure.to_owned());
    (name.to_owned(), side(of), side(by))
}

/// The ratios that targets are defined on.
#[must_use]
pub fn ratios(samples: &Samples) -> Vec<(String, Summary)> {
    use Case::{KernelVxlan, McGateway, Plain};
    let tcp = end_to_end::tcp_metric(1);
    let mut all = vec![
        case_ratio("tcp_vs_plain", &tcp, McGateway, Plain),
        case_ratio("tcp_vs_kernel_vxlan", &tcp, McGateway, KernelVxlan),
        case_ratio("udp64_vs_plain", end_to_end::UDP64, McGateway, Plain),
        case_ratio("udp64_vs_kernel_vxlan", end_to_end::UDP64, McGateway, KernelVxlan),
    ];
    let side = |subject: &str, figure: &str| (subject.to_owned(), figure.to_owned());
    all.push((
        // The rate is the inverse of the time.
        "transit_vs_plain_forward".to_owned(),
        side(HopKind::Forward.name(), transit::NET_TIME),
        side(HopKind::Transit.name(), transit::NET_TIME),
    ));
    all.push((
        "xdp_transit_vs_plain_forward".to_owned(),
        side(HopKind::DriverForward.name(), transit::NET_TIME),
        side(HopKind::XdpTransit.name(), transit::NET_TIME),
    ));
    all.push((
        "two_gateways_vs_one".to_owned(),
        side(gateways::SUBJECT, "2"),
        side(gateways::SUBJECT, "1"),
    ));
    all.extend(SCALING_CURVES.map(|curve| scaling_ratio(Operation::Transit, curve)));
    measured_ratios(samples, &all)
}

/// The ratios of a bed.
#[must_use]
pub fn bed_ratios(samples: &Samples, bed: Bed) -> Vec<(String, Summary)> {
    use Case::{KernelVxlan, McGateway, McGatewayVxlan, Plain};
    let metrics = [
        ("tcp", end_to_end::tcp_metric(1)),
        ("tcp4", end_to_end::tcp_metric(4)),
        ("udp64", end_to_end::UDP64.to_owned()),
        ("cpu", end_to_end::CPU_PER_GIGABYTE.to_owned()),
    ];
    let mut all = Vec::new();
    for (metric, figure) in metrics {
        for (name, of, by) in [
            ("vs_plain", McGateway, Plain),
            ("vs_kernel_vxlan", McGateway, KernelVxlan),
            ("vxlan_vs_plain", McGatewayVxlan, Plain),
            ("vxlan_vs_kernel_vxlan", McGatewayVxlan, KernelVxlan),
        ] {
            let side = |case: Case| (bed.subject(case), figure.clone());
            all.push((format!("{metric}_{name}"), side(of), side(by)));
        }
    }
    measured_ratios(samples, &all)
}

/// Further ratios. For times, less is better.
#[must_use]
pub fn more_ratios(samples: &Samples) -> Vec<(String, Summary)> {
    use Case::{
        KernelVxlan, KernelVxlanIpv6, McGateway, McGatewayIpv6, McGatewayVxlan, MetadataVxlan, Plain,
        PlainIpv6, PlainServices,
    };
    let (tcp, rr) = (end_to_end::tcp_metric(1), end_to_end::rr_metric(64, 50));
    let mut all = Vec::new();
    for streams in end_to_end::STREAMS.into_iter().skip(1) {
        all.push(case_ratio(
            &format!("tcp{streams}_vs_plain"),
            &end_to_end::tcp_metric(streams),
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
        all.push(case_ratio(&format!("tcp_{name}"), &tcp, of, by));
        all.push(case_ratio(&format!("udp64_{name}"), end_to_end::UDP64, of, by));
    }
    all.push(case_ratio("rr64_time_vs_plain", &rr, McGateway, Plain));
    all.push(case_ratio(
        "rr64_time_vs_kernel_vxlan",
        &rr,
        McGateway,
        KernelVxlan,
    ));
    let hop = |kind: HopKind, figure: &str| (kind.name().to_owned(), figure.to_owned());
    // The first includes source and sink; the second is the ratio of a hop without any work.
    all.push((
        "transit_rate_vs_plain_forward".to_owned(),
        hop(HopKind::Transit, transit::RATE),
        hop(HopKind::Forward, transit::RATE),
    ));
    all.push((
        "wire_vs_plain_forward".to_owned(),
        hop(HopKind::Forward, transit::NET_TIME),
        hop(HopKind::Wire, transit::NET_TIME),
    ));
    all.extend(SCALING_CURVES.map(|curve| scaling_ratio(Operation::Encap, curve)));
    for work in Operation::ALL {
        all.push(scaling_ratio(work, Curve::Prefixes));
        all.push(scaling_ratio(work, Curve::PrefixesScattered));
    }
    measured_ratios(samples, &all)
}

/// The curves with a target.
const SCALING_CURVES: [Curve; 4] = [
    Curve::PrefixesManyFlows,
    Curve::PrefixesMostFlows,
    Curve::Clusters,
    Curve::NextHops,
];

/// Ratio of the times at the largest and the smallest size.
fn scaling_ratio(work: Operation, curve: Curve) -> Comparison {
    let subject = scaling::subject(work, curve);
    let at = |point: Option<&u32>| {
        let figure = point.map_or_else(String::new, u32::to_string);
        (subject.clone(), figure)
    };
    let of = if work == Operation::Transit { "" } else { "encap_" };
    let name = format!("scaling_{of}{}", curve.name().replace('-', "_"));
    (name, at(curve.points().last()), at(curve.points().first()))
}

fn measured_ratios(samples: &Samples, comparisons: &[Comparison]) -> Vec<(String, Summary)> {
    comparisons
        .iter()
        .filter_map(|(name, of, by)| {
            let quotient = samples.ratio(
                MetricKey {
                    subject: &of.0,
                    metric: &of.1,
                },
                MetricKey {
                    subject: &by.0,
                    metric: &by.1,
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
                metric: (*figure).to_owned(),
                value: *value,
            });
        }
        samples
    }

    #[test]
    fn limits_are_inclusive() {
        assert!(Limit::AtLeast(0.95).allows(0.95) && !Limit::AtLeast(0.95).allows(0.94));
        assert!(Limit::AtMost(1.3).allows(1.3) && !Limit::AtMost(1.3).allows(1.31));
    }

    #[test]
    fn every_ratio_of_a_target_is_computed() {
        let mut values = Vec::new();
        for (case, bed) in Case::ALL
            .into_iter()
            .flat_map(|case| Bed::ALL.map(|bed| (case, bed)))
        {
            values.push((bed.subject(case), end_to_end::tcp_metric(1), 1.0));
            values.push((bed.subject(case), end_to_end::UDP64.to_owned(), 1.0));
        }
        for kind in HopKind::ALL {
            values.push((kind.name().to_owned(), transit::NET_TIME.to_owned(), 1.0));
        }
        for curve in Curve::ALL {
            for point in curve.points() {
                values.push((
                    scaling::subject(Operation::Transit, curve),
                    point.to_string(),
                    1.0,
                ));
            }
        }
        for gateways in ["1", "2"] {
            values.push((gateways::SUBJECT.to_owned(), gateways.to_owned(), 1.0));
        }
        let values: Vec<(&str, &str, f64)> = values
            .iter()
            .map(|(subject, figure, value)| (subject.as_str(), figure.as_str(), *value))
            .collect();
        let samples = with(&values);
        for (bed, name) in TARGETS
            .iter()
            .filter_map(|(name, _)| name.strip_prefix("beds.")?.split_once('.'))
        {
            let bed = Bed::ALL.into_iter().find(|known| known.name() == bed);
            let ratios = bed_ratios(&samples, bed.unwrap());
            assert!(
                ratios.iter().any(|(ratio, _)| ratio == name),
                "{name}: {ratios:?}"
            );
        }
        let ratios = ratios(&samples);
        let wanted = TARGETS
            .iter()
            .filter_map(|(name, _)| name.strip_prefix("ratios."));
        for name in wanted {
            assert!(
                ratios.iter().any(|(ratio, _)| ratio == name),
                "{name}: {ratios:?}"
            );
        }
        assert_eq!(ratios.len(), 11);
    }

    #[test]
    fn a_scaling_ratio_is_the_largest_size_by_the_smallest() {
        let samples = with(&[
            ("transit-prefixes-many-flows", "10", 200.0),
            ("transit-prefixes-many-flows", "100000", 300.0),
        ]);
        let ratios = ratios(&samples);
        assert_eq!(ratios.len(), 1, "{ratios:?}");
        assert_eq!(ratios[0].0, "scaling_prefixes_many_flows");
        assert!((ratios[0].1.median - 1.5).abs() < 1e-9);
    }

    #[test]
    fn a_target_without_a_figure_is_omitted() {
        let outcomes = evaluate(|name| (name == "nanoseconds.encap").then_some(401.0));
        assert_eq!(outcomes.len(), 1);
        assert!(!outcomes[0].reached);
    }
}
