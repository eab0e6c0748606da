//! Data paths between the two clusters.

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

/// A data path between the two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
    /// Routes on all four nodes, no encapsulation: the baseline.
    Plain,
    /// A kernel VXLAN device at both ends of each of the three legs: each node decapsulates, routes and encapsulates
    /// again.
    KernelVxlan,
    /// An `mc-gateway` agent on each of the four nodes.
    McGateway,
}

/// A VXLAN leg with the places and underlay addresses of its ends.
struct Leg {
    id: u8,
    family: Family,
    ends: [(Place, IpAddr); 2],
}

// === impl Variant ===

impl Variant {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::KernelVxlan, Self::McGateway];

    /// Display name.
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
    /// The legs from east to west in one family.
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

    /// Inner address and prefix length of the eastern (1) or western (2) end.
    fn address(&self, end: u8, inner: Family) -> (IpAddr, u8) {
        match inner {
            Family::V4 => (Ipv4Addr::new(172, 16, self.id, end).into(), 30),
            Family::V6 => {
                let [id, end] = [self.id, end].map(u16::from);
                (Ipv6Addr::new(0xfd16, id, 0, 0, 0, 0, 0, end).into(), 64)
            }
        }
    }

    /// The `ip` line that creates the device at an end.
    fn link(&self, local: IpAddr, remote: IpAddr) -> String {
        // No outer UDP checksum, as mc-gateway sends none; the kernel computes one by default.
        let checksum = match self.family {
            Family::V4 => "noudpcsum",
            Family::V6 => "udp6zerocsumtx udp6zerocsumrx",
        };
        format!(
            "link add {} type vxlan id {} dstport 4789 local {local} remote {remote} {checksum}",
            self.device(),
            self.id
        )
    }
}

impl Topology {
    /// Connects the clusters by a data path, after removal of the previous one.
    pub fn configure(&mut self, variant: Variant) -> Result<()> {
        self.reset()?;
        // Set first, so that a partial configuration is reset too.
        self.variant = Some(variant);
        match variant {
            Variant::Plain => self.plain(),
            Variant::KernelVxlan => self.kernel_vxlan(),
            Variant::McGateway => self.start_agents(),
        }
        .with_context(|| format!("cannot set up {variant}"))
    }

    /// Removes the data path between the clusters.
    pub fn reset(&mut self) -> Result<()> {
        let Some(variant) = self.variant.take() else {
            return Ok(());
        };
        match variant {
            Variant::Plain => self.remove_plain(),
            Variant::KernelVxlan => self.remove_kernel_vxlan(),
            Variant::McGateway => self.remove_agents(),
        }
        .with_context(|| format!("cannot remove {variant}"))
    }

    /// The configured data path.
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
                    netns.add_address(&device, IpNet::new(address, bits)?)?;
                }
            }
            // Each end routes everything beyond the leg to the other end.
            for inner in self.options.inner.families() {
                let via = |end| format!("via {}", leg.address(end, *inner).0);
                let [eastwards, westwards] = Cluster::ALL.map(|cluster| cluster.nets(*inner).pods);
                self.netns(at_east).route(westwards, &via(2))?;
                self.netns(at_west).route(eastwards, &via(1))?;
            }
        }
        // A gateway also reaches its own regular node through the tunnel.
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
                // The kernel removes its routes with the device.
                self.netns(place).ip(&[format!("link del {}", leg.device())])?;
            }
        }
        Cluster::ALL
            .into_iter()
            .try_for_each(|cluster| self.add_cni_routes(cluster))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vxlan_devices_send_no_outer_udp_checksum() {
        for (family, word) in [
            (Family::V4, " noudpcsum"),
            (Family::V6, " udp6zerocsumtx udp6zerocsumrx"),
        ] {
            for leg in Leg::all(family) {
                let [(_, local), (_, remote)] = leg.ends;
                let link = leg.link(local, remote);
                assert!(link.ends_with(word), "{link}");
            }
        }
    }
}
