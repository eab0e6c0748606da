//! Time in a program as its tables grow. The traffic stays the same at every size.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use aya::sys::{Stats, enable_stats};
use mc_gateway_common::{
    abi::{PROGRAM_FROM_UNDERLAY, PROGRAM_TO_REMOTE},
    verdict::Path as PacketPath,
};

use super::{
    hop::{Hop, IN, IN_MAC},
    objects::{Gateway, MAX_HEADS},
    world::{self, Layout, Sizes},
};

/// What grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// Prefixes of one other cluster, side by side; 64 flows.
    Prefixes,
    /// The same, with 4,096 flows to as many of them as there are: what programs remember no longer helps.
    PrefixesManyFlows,
    /// The same, with prefixes that are scattered over the address space.
    PrefixesScattered,
    /// Other clusters, two prefixes each.
    Clusters,
    /// Gateways of one other cluster.
    Members,
}

/// What is done to the packets, and by which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A gateway passes on: `from_underlay`.
    Transit,
    /// A node encapsulates: `to_remote`.
    Encap,
}

// === impl Curve ===

impl Curve {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Prefixes,
        Self::PrefixesManyFlows,
        Self::PrefixesScattered,
        Self::Clusters,
        Self::Members,
    ];

    /// Name in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefixes => "prefixes",
            Self::PrefixesManyFlows => "prefixes-many-flows",
            Self::PrefixesScattered => "prefixes-scattered",
            Self::Clusters => "clusters",
            Self::Members => "members",
        }
    }

    /// What it is, in a few words.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Prefixes => "prefixes side by side, 64 flows",
            Self::PrefixesManyFlows => "the same, 4096 flows",
            Self::PrefixesScattered => "prefixes scattered, 4096 flows",
            Self::Clusters => "clusters",
            Self::Members => "gateways of a cluster",
        }
    }

    /// Sizes measured, ascending.
    #[must_use]
    pub const fn points(self) -> &'static [u32] {
        match self {
            Self::Prefixes | Self::PrefixesManyFlows | Self::PrefixesScattered => {
                &[10, 1_000, 10_000, 100_000]
            }
            Self::Clusters => &[1, 16, 64, 255],
            Self::Members => &[1, 2, 4, 8, 16],
        }
    }

    fn sizes(self, point: u32) -> Sizes {
        let (prefixes, clusters, members) = match self {
            Self::Prefixes | Self::PrefixesManyFlows | Self::PrefixesScattered => (point, 1, 1),
            Self::Clusters => (2 * point, point, 1),
            Self::Members => (2, 1, point),
        };
        Sizes {
            prefixes,
            clusters,
            members,
            layout: if self == Self::PrefixesScattered {
                Layout::Scattered
            } else {
                Layout::Dense
            },
        }
    }

    fn flows(self) -> u32 {
        match self {
            Self::PrefixesManyFlows | Self::PrefixesScattered => u32::try_from(MAX_HEADS).unwrap_or_default(),
            _ => 64,
        }
    }
}

// === impl Work ===

impl Work {
    /// All of it.
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
pub fn subject(work: Work, curve: Curve) -> String {
    format!("{}-{}", work.name(), curve.name())
}

/// The same programs with tables of each size of a curve.
#[derive(Debug)]
pub(super) struct Growth {
    curve: Curve,
    // Drop first: they are attached in the hop's namespace.
    gateways: Vec<(u32, Gateway)>,
    hop: Hop,
}

// === impl Growth ===

impl Growth {
    pub(super) fn create(prefix: &str, objects: &Path, curve: Curve) -> Result<Self> {
        let mut hop = Hop::create(prefix, objects)?;
        hop.close(0)?;
        let [outside, _] = hop.outside;
        let gateways = curve
            .points()
            .iter()
            .map(|point| {
                let tables = world::gateway(curve.sizes(*point), hop.inside, &[outside]);
                let gateway = Gateway::load(objects, &tables);
                Ok((
                    *point,
                    gateway.with_context(|| format!("{point} {}", curve.name()))?,
                ))
            })
            .collect::<Result<_>>()?;
        Ok(Self { curve, gateways, hop })
    }

    /// Nanoseconds per packet at each size, once.
    pub(super) fn measure(&mut self, work: Work, duration: Duration) -> Result<Vec<(u32, f64)>> {
        let _statistics = enable_stats(Stats::RunTime).context("no program statistics")?;
        let Self { curve, gateways, hop } = self;
        let mut figures = Vec::new();
        for (point, gateway) in gateways {
            let (sizes, flows) = (curve.sizes(*point), curve.flows());
            let frames = match work {
                Work::Transit => world::flows(flows, 0, sizes, hop.inside, IN_MAC),
                Work::Encap => world::plain_flows(flows, sizes, IN_MAC),
            };
            let frame = frames.first().map(Vec::as_slice).unwrap_or_default();
            hop.yardstick.prepare(&frames)?;
            gateway.attach(&hop.netns, work.program(), IN)?;
            let (before, passed) = (gateway.spent(work.program())?, gateway.packets(work.path())?);
            let sent = hop
                .yardstick
                .send(&hop.netns, hop.inside.ifindex, frame, duration)?;
            let after = gateway.spent(work.program())?;
            let passed = gateway.packets(work.path())? - passed;
            gateway.detach()?;
            ensure!(
                passed == sent.frames,
                "{point} {}: {passed} of {} frames took the {} path; drops: {:?}",
                curve.name(),
                sent.frames,
                work.path().name(),
                gateway.drops()?
            );
            let nanoseconds = after
                .nanoseconds_since(before)
                .context("the kernel has counted no run of the program")?;
            figures.push((*point, nanoseconds));
        }
        Ok(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_those_that_were_asked_for() {
        let ends = Curve::ALL.map(|curve| (curve.points().first().copied(), curve.points().last().copied()));
        assert_eq!(
            ends,
            [
                (Some(10), Some(100_000)),
                (Some(10), Some(100_000)),
                (Some(10), Some(100_000)),
                (Some(1), Some(255)),
                (Some(1), Some(16)),
            ]
        );
    }

    #[test]
    fn tables_of_every_size_have_room() {
        use mc_gateway_common::abi::{MAX_GROUPS, MAX_MEMBERS, MAX_PREFIXES};
        for curve in Curve::ALL {
            for point in curve.points() {
                let sizes = curve.sizes(*point);
                assert!(sizes.prefixes < MAX_PREFIXES, "{sizes:?}");
                assert!(sizes.clusters + 2 < MAX_GROUPS, "{sizes:?}");
                assert!(sizes.clusters * sizes.members + 2 < MAX_MEMBERS, "{sizes:?}");
            }
        }
    }
}
