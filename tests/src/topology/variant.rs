//! The ways the two clusters can reach each other.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use anyhow::{Context as _, Result};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{
    Topology,
    plan::{Cluster, Family, Place},
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
    id: u8,
    family: Family,
    ends: [(Place, IpAddr); 2],
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
    /// The legs from east to west over one family.
    fn all(family: Family) -> [Self; 3] {
        let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(family));
        let [east_inside, east_outside] = [east.internal[0].addr(), east.gateway[0].addr()];
        let [west_inside, west_outside] = [west.internal[0].addr(), west.gateway[0].addr()];
        let leg = |id, ends| Self { id, family, ends };
        [
            leg(
                1,
                [
                    (Place::NodeEast, east.node.addr()),
                    (Place::GatewayEast, east_inside),
                ],
            ),
            leg(
                2,
                [
                    (Place::GatewayEast, east_outside),
                    (Place::GatewayWest, west_outside),
                ],
            ),
            leg(
                3,
                [
                    (Place::GatewayWest, west_inside),
                    (Place::NodeWest, west.node.addr()),
                ],
            ),
        ]
    }

    fn device(&self) -> String {
        format!("vx{}", self.id)
    }

    /// Address inside the leg of its eastern (1) or western (2) end, with its prefix length.
    fn address(&self, end: u8, inner: Family) -> (IpAddr, u8) {
        match inner {
            Family::V4 => (Ipv4Addr::new(172, 16, self.id, end).into(), 30),
            Family::V6 => {
                let [id, end] = [self.id, end].map(u16::from);
                (Ipv6Addr::new(0xfd16, id, 0, 0, 0, 0, 0, end).into(), 64)
            }
        }
    }

    /// How the device is made at an end.
    fn link(&self, local: IpAddr, remote: IpAddr) -> String {
        // Without a checksum, as over IPv4 and as mc-gateway does it.
        let checksum = match self.family {
            Family::V4 => "",
            Family::V6 => " udp6zerocsumtx udp6zerocsumrx",
        };
        format!(
            "link add {} type vxlan id {} dstport 4789 local {local} remote {remote}{checksum}",
            self.device(),
            self.id
        )
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
        let mtu = self.options.mtu - self.options.overhead();
        let legs = Leg::all(self.options.outer);
        for leg in &legs {
            let device = leg.device();
            let [(at_east, east), (at_west, west)] = leg.ends;
            for (end, place, local, remote) in [(1, at_east, east, west), (2, at_west, west, east)] {
                let netns = self.netns(place);
                netns.ip(&[leg.link(local, remote), format!("link set {device} mtu {mtu} up")])?;
                for inner in self.options.inner.families() {
                    let (address, bits) = leg.address(end, *inner);
                    netns.address(&device, IpNet::new(address, bits)?)?;
                }
            }
            // From an end, everything further on is behind the other end.
            for inner in self.options.inner.families() {
                let via = |end| format!("via {}", leg.address(end, *inner).0);
                let [eastwards, westwards] = Cluster::ALL.map(|cluster| cluster.nets(*inner).pods);
                self.netns(at_east).route(westwards, &via(2))?;
                self.netns(at_west).route(eastwards, &via(1))?;
            }
        }
        // A gateway reaches its own regular node through the tunnel, too.
        let [first, _, last] = &legs;
        for inner in self.options.inner.families() {
            for (cluster, leg, end) in [(Cluster::East, first, 1), (Cluster::West, last, 2)] {
                let [pods, ..] = cluster.nets(*inner).node_pods;
                self.netns(cluster.gateway())
                    .route(pods, &format!("via {}", leg.address(end, *inner).0))?;
            }
        }
        Ok(())
    }

    fn remove_kernel_vxlan(&self) -> Result<()> {
        for leg in Leg::all(self.options.outer) {
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
