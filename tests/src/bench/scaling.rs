//! Time per packet in a program by size of its maps, with the same traffic at every size.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use aya::sys::{Stats, enable_stats};
use mc_gateway_common::{
    abi::{PROGRAM_FROM_UNDERLAY, PROGRAM_TO_REMOTE},
    verdict::Outcome as PacketPath,
};

use super::{
    bpf_objects::{Entry, LoadedGateway},
    fixture::{self, Layout, Sizes},
    single_hop::{IN_DEVICE, IN_MAC, SingleHop},
};

/// Flows of the curves with many flows, a power of two.
const MANY_FLOWS: u32 = 4_096;
/// Flows of the curve with the most flows, a power of two.
const MOST_FLOWS: u32 = 131_072;

/// The varied size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// Adjacent prefixes of one other cluster, 64 flows.
    Prefixes,
    /// The same with 4,096 flows to as many prefixes.
    PrefixesManyFlows,
    /// The same with 131,072 flows to all prefixes, beyond the programs' caches.
    PrefixesMostFlows,
    /// The same with prefixes spread over the address space.
    PrefixesScattered,
    /// Other clusters, two prefixes each.
    Clusters,
    /// Gateways of one other cluster.
    NextHops,
}

/// The operation on the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Transit at a gateway: `from_underlay`.
    Transit,
    /// Encapsulation at a node: `to_remote`.
    Encap,
}

// === impl Curve ===

impl Curve {
    /// All curves.
    pub const ALL: [Self; 6] = [
        Self::Prefixes,
        Self::PrefixesManyFlows,
        Self::PrefixesMostFlows,
        Self::PrefixesScattered,
        Self::Clusters,
        Self::NextHops,
    ];

    /// Name in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefixes => "prefixes",
            Self::PrefixesManyFlows => "prefixes-many-flows",
            Self::PrefixesMostFlows => "prefixes-most-flows",
            Self::PrefixesScattered => "prefixes-scattered",
            Self::Clusters => "clusters",
            Self::NextHops => "nexthops",
        }
    }

    /// Short description.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Prefixes => "adjacent prefixes, 64 flows",
            Self::PrefixesManyFlows => "the same, 4096 flows",
            Self::PrefixesMostFlows => "the same, 131072 flows",
            Self::PrefixesScattered => "scattered prefixes, 4096 flows",
            Self::Clusters => "clusters",
            Self::NextHops => "gateways of a cluster",
        }
    }

    /// Measured sizes, ascending.
    #[must_use]
    pub const fn points(self) -> &'static [u32] {
        match self {
            Self::Prefixes | Self::PrefixesManyFlows | Self::PrefixesMostFlows | Self::PrefixesScattered => {
                &[10, 1_000, 10_000, 100_000]
            }
            Self::Clusters => &[1, 16, 64, 255],
            Self::NextHops => &[1, 2, 4, 8, 16],
        }
    }

    fn sizes(self, point: u32) -> Sizes {
        let (prefixes, clusters, next_hops) = match self {
            Self::Prefixes | Self::PrefixesManyFlows | Self::PrefixesMostFlows | Self::PrefixesScattered => {
                (point, 1, 1)
            }
            Self::Clusters => (2 * point, point, 1),
            Self::NextHops => (2, 1, point),
        };
        Sizes {
            prefixes,
            clusters,
            next_hops,
            layout: if self == Self::PrefixesScattered {
                Layout::Scattered
            } else {
                Layout::Dense
            },
        }
    }

    fn flows(self) -> u32 {
        match self {
            Self::PrefixesManyFlows | Self::PrefixesScattered => MANY_FLOWS,
            Self::PrefixesMostFlows => MOST_FLOWS,
            Self::Prefixes | Self::Clusters | Self::NextHops => 64,
        }
    }
}

// === impl Work ===

impl Operation {
    /// Both operations.
    pub const ALL: [Self; 2] = [Self::Transit, Self::Encap];

    /// Name in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Transit => "transit",
            Self::Encap => "encap",
        }
    }

    const fn program(self) -> &'static str {
        match self {
            Self::Transit => PROGRAM_FROM_UNDERLAY,
            Self::Encap => PROGRAM_TO_REMOTE,
        }
    }

    const fn path(self) -> PacketPath {
        match self {
            Self::Transit => PacketPath::Transit,
            Self::Encap => PacketPath::Encap,
        }
    }
}

/// Subject of a curve in the report.
#[must_use]
pub fn subject(work: Operation, curve: Curve) -> String {
    format!("{}-{}", work.name(), curve.name())
}

/// The programs with maps of each size of a curve.
#[derive(Debug)]
pub(super) struct Scaling {
    curve: Curve,
    // Dropped first: attached in the namespace of the hop.
    gateways: Vec<(u32, LoadedGateway)>,
    hop: SingleHop,
}

// === impl Growth ===

impl Scaling {
    pub(super) fn create(prefix: &str, objects: &Path, curve: Curve) -> Result<Self> {
        let mut hop = SingleHop::create(prefix, objects, Entry::Device)?;
        hop.attach_sink(0)?;
        let [outside, _] = hop.outside;
        let gateways = curve
            .points()
            .iter()
            .map(|point| {
                let tables = fixture::gateway(curve.sizes(*point), hop.inside, &[outside]);
                let gateway = LoadedGateway::load(objects, &tables);
                Ok((
                    *point,
                    gateway.with_context(|| format!("{point} {}", curve.name()))?,
                ))
            })
            .collect::<Result<_>>()?;
        Ok(Self { curve, gateways, hop })
    }

    /// Nanoseconds per packet at each size, once.
    pub(super) fn measure(&mut self, work: Operation, duration: Duration) -> Result<Vec<(u32, f64)>> {
        let _statistics = enable_stats(Stats::RunTime).context("cannot enable program statistics")?;
        let Self { curve, gateways, hop } = self;
        let mut figures = Vec::new();
        for (point, gateway) in gateways {
            let (sizes, flows) = (curve.sizes(*point), curve.flows());
            let frames = match work {
                Operation::Transit => fixture::flows(flows, 0, sizes, hop.inside, IN_MAC),
                Operation::Encap => fixture::plain_flows(flows, sizes, IN_MAC),
            };
            let frames = shuffled(frames);
            let frame = frames.first().map(Vec::as_slice).unwrap_or_default();
            hop.programs.set_frames(&frames)?;
            gateway.attach(&hop.netns, work.program(), IN_DEVICE)?;
            let (before, passed) = (gateway.cpu_time(work.program())?, gateway.packets(work.path())?);
            let sent = hop.programs.send(&hop.netns, hop.source, frame, duration)?;
            let after = gateway.cpu_time(work.program())?;
            let passed = gateway.packets(work.path())? - passed;
            gateway.detach()?;
            ensure!(
                passed == sent.frames,
                "{point} {}: {passed} of {} frames with outcome {}; drops: {:?}",
                curve.name(),
                sent.frames,
                work.path().name(),
                gateway.drops()?
            );
            let nanoseconds = after
                .nanoseconds_since(before)
                .context("the program did not run")?;
            figures.push((*point, nanoseconds));
        }
        Ok(figures)
    }
}

/// The elements in another order: packets in the order of the prefixes would find the next entry in the CPU's cache.
fn shuffled<T>(all: Vec<T>) -> Vec<T> {
    let mut keyed: Vec<(u32, T)> = (0_u32..)
        .map(|number| number.wrapping_mul(0x9e37_79b1))
        .zip(all)
        .collect();
    keyed.sort_unstable_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, element)| element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_span_the_promised_sizes() {
        let ends = Curve::ALL.map(|curve| (curve.points().first().copied(), curve.points().last().copied()));
        assert_eq!(
            ends,
            [
                (Some(10), Some(100_000)),
                (Some(10), Some(100_000)),
                (Some(10), Some(100_000)),
                (Some(10), Some(100_000)),
                (Some(1), Some(255)),
                (Some(1), Some(16)),
            ]
        );
    }

    #[test]
    fn every_size_fits_the_maps() {
        use mc_gateway_common::abi::{MAX_NEXT_HOP_GROUPS, MAX_NEXT_HOPS, MAX_PREFIXES};
        for curve in Curve::ALL {
            for point in curve.points() {
                let sizes = curve.sizes(*point);
                assert!(sizes.prefixes < MAX_PREFIXES, "{sizes:?}");
                assert!(sizes.clusters + 2 < MAX_NEXT_HOP_GROUPS, "{sizes:?}");
                assert!(sizes.clusters * sizes.next_hops + 2 < MAX_NEXT_HOPS, "{sizes:?}");
            }
        }
    }
}
