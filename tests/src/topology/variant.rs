//! The ways the two clusters can reach each other.

use std::{fmt, net::Ipv4Addr};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{
    OVERHEAD, Topology,
    plan::{Cluster, Place},
};

/// A way the two clusters reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Routes on all four nodes, nothing encapsulated: the yardstick.
    Plain,
    /// A VXLAN device of the kernel at both ends of each of the three legs: each node decapsulates, routes
    /// and encapsulates again.
    KernelVxlan,
    /// An `mc-gateway` agent on each of the four nodes.
    McGateway,
}

/// One VXLAN leg: its devices and their addresses.
struct Leg {
    id: u32,
    ends: [(Place, Ipv4Addr); 2],
}

// === impl Variant ===

impl Variant {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::KernelVxlan, Self::McGateway];

    /// Name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain routing",
            Self::KernelVxlan => "kernel VXLAN",
            Self::McGateway => "mc-gateway",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Leg ===

impl Leg {
    /// The legs from east to west.
    fn all() -> [Self; 3] {
        let [east, west] = Cluster::ALL;
        [
            Self {
                id: 1,
                ends: [
                    (Place::NodeEast, east.node_net().addr()),
                    (Place::GatewayEast, east.internal_net().addr()),
                ],
            },
            Self {
                id: 2,
                ends: [
                    (Place::GatewayEast, east.gateway_net().addr()),
                    (Place::GatewayWest, west.gateway_net().addr()),
                ],
            },
            Self {
                id: 3,
                ends: [
                    (Place::GatewayWest, west.internal_net().addr()),
                    (Place::NodeWest, west.node_net().addr()),
                ],
            },
        ]
    }

    fn device(&self) -> String {
        format!("vx{}", self.id)
    }

    /// Address inside the leg of its eastern (1) or western (2) end.
    fn address(&self, end: u8) -> String {
        format!("172.16.{}.{end}", self.id)
    }
}

impl Topology {
    /// Makes the clusters reach each other in one way; what was set up for another is removed before.
    pub fn configure(&mut self, variant: Variant) -> Result<()> {
        self.reset()?;
        // Set first: a half configured variant is reset like a whole one.
        self.variant = Some(variant);
        match variant {
            Variant::Plain => self.plain(),
            Variant::KernelVxlan => self.kernel_vxlan(),
            Variant::McGateway => self.start_agents(),
        }
        .with_context(|| format!("cannot set up {variant}"))
    }

    /// Removes what makes the clusters reach each other.
    pub fn reset(&mut self) -> Result<()> {
        let Some(variant) = self.variant.take() else {
            return Ok(());
        };
        match variant {
            Variant::Plain => self.remove_plain(),
            Variant::KernelVxlan => self.remove_kernel_vxlan(),
            Variant::McGateway => self.remove_agents(),
        }
        .with_context(|| format!("cannot take down {variant}"))
    }

    /// The variant that is set up.
    #[must_use]
    pub fn variant(&self) -> Option<Variant> {
        self.variant
    }

    fn plain(&self) -> Result<()> {
        for cluster in Cluster::ALL {
            for family in self.options.inner.families() {
                let (own, other) = (cluster.nets(*family), cluster.other().nets(*family));
                let via = |to: [IpNet; 2]| format!("via {}", to[0].addr());
                self.netns(cluster.node()).route(other.pods, &via(own.internal))?;
                self.netns(cluster.gateway())
                    .route(other.pods, &via(other.gateway))?;
            }
        }
        Ok(())
    }

    fn remove_plain(&self) -> Result<()> {
        for cluster in Cluster::ALL {
            for family in self.options.inner.families() {
                let line = [format!("route del {}", cluster.other().nets(*family).pods)];
                self.netns(cluster.node()).ip(&line)?;
                self.netns(cluster.gateway()).ip(&line)?;
            }
        }
        Ok(())
    }

    fn kernel_vxlan(&self) -> Result<()> {
        let mtu = self.options.mtu - OVERHEAD;
        let legs = Leg::all();
        for leg in &legs {
            let device = leg.device();
            let [(_, east), (_, west)] = leg.ends;
            for (end, local, remote) in [(1, east, west), (2, west, east)] {
                let place = leg
                    .ends
                    .iter()
                    .find(|(_, address)| *address == local)
                    .map(|(place, _)| *place);
                let netns = self.netns(place.context("a leg has two ends")?);
                netns.ip(&[
                    format!(
                        "link add {device} type vxlan id {} dstport 4789 local {local} remote {remote}",
                        leg.id
                    ),
                    format!("addr add {}/30 dev {device}", leg.address(end)),
                    format!("link set {device} mtu {mtu} up"),
                ])?;
            }
            // From an end, everything further on is behind the other end.
            let [(at_east, _), (at_west, _)] = leg.ends;
            let westwards = Cluster::West.pod_cidr();
            let eastwards = Cluster::East.pod_cidr();
            self.netns(at_east)
                .route(westwards, &format!("via {}", leg.address(2)))?;
            self.netns(at_west)
                .route(eastwards, &format!("via {}", leg.address(1)))?;
        }
        // A gateway reaches its own regular node through the tunnel, too.
        let [first, _, last] = &legs;
        self.netns(Place::GatewayEast).route(
            Cluster::East.node_pod_cidr(),
            &format!("via {}", first.address(1)),
        )?;
        self.netns(Place::GatewayWest)
            .route(Cluster::West.node_pod_cidr(), &format!("via {}", last.address(2)))
    }

    fn remove_kernel_vxlan(&self) -> Result<()> {
        for leg in Leg::all() {
            for (place, _) in leg.ends {
                // Its routes go with the device.
                self.netns(place).ip(&[format!("link del {}", leg.device())])?;
            }
        }
        Cluster::ALL
            .into_iter()
            .try_for_each(|cluster| self.cluster_routes(cluster))
    }
}
