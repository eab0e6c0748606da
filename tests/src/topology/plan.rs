//! Who stands where and has which address. Pure: nothing here touches the system.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// Device names inside the namespaces.
pub(super) const POD: &str = "eth0";
pub(super) const NODE_TO_POD: &str = "pod0";
pub(super) const BRIDGE: &str = "cni0";
pub(super) const UNDERLAY: &str = "eth0";
pub(super) const BETWEEN: &str = "eth1";

/// A place in the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The Pod of cluster east.
    PodEast,
    /// Its regular node.
    NodeEast,
    /// The gateway node of cluster east.
    GatewayEast,
    /// The gateway node of cluster west.
    GatewayWest,
    /// The regular node of cluster west.
    NodeWest,
    /// Its Pod.
    PodWest,
}

/// One of the two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cluster {
    /// The one the demo's client is in.
    East,
    /// The one the demo's server is in.
    West,
}

// === impl Place ===

impl Place {
    /// The row from east to west.
    pub const ALL: [Self; 6] = [
        Self::PodEast,
        Self::NodeEast,
        Self::GatewayEast,
        Self::GatewayWest,
        Self::NodeWest,
        Self::PodWest,
    ];
    /// Those with an agent.
    pub const NODES: [Self; 4] = [
        Self::NodeEast,
        Self::GatewayEast,
        Self::GatewayWest,
        Self::NodeWest,
    ];

    /// Short name, also the name of the Kubernetes Node.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PodEast => "pod-east",
            Self::NodeEast => "node-east",
            Self::GatewayEast => "gw-east",
            Self::GatewayWest => "gw-west",
            Self::NodeWest => "node-west",
            Self::PodWest => "pod-west",
        }
    }

    /// Name of the namespace and of the pin directory.
    #[must_use]
    pub fn in_lab(self, prefix: &str) -> String {
        format!("{prefix}-{}", self.name())
    }

    /// The cluster it belongs to.
    #[must_use]
    pub const fn cluster(self) -> Cluster {
        match self {
            Self::PodEast | Self::NodeEast | Self::GatewayEast => Cluster::East,
            Self::GatewayWest | Self::NodeWest | Self::PodWest => Cluster::West,
        }
    }

    /// Whether it is a node, as opposed to a Pod.
    #[must_use]
    pub const fn is_node(self) -> bool {
        !matches!(self, Self::PodEast | Self::PodWest)
    }

    /// Underlay devices of a node; none of a Pod.
    #[must_use]
    pub const fn underlay_devices(self) -> &'static [&'static str] {
        match self {
            Self::PodEast | Self::PodWest => &[],
            Self::NodeEast | Self::NodeWest => &[UNDERLAY],
            Self::GatewayEast | Self::GatewayWest => &[UNDERLAY, BETWEEN],
        }
    }
}

// === impl Cluster ===

impl Cluster {
    /// Both.
    pub const ALL: [Self; 2] = [Self::East, Self::West];

    /// Cluster ID.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::East => "east",
            Self::West => "west",
        }
    }

    /// The other cluster.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::East => Self::West,
            Self::West => Self::East,
        }
    }

    /// Pod, regular node and gateway.
    #[must_use]
    pub const fn places(self) -> [Place; 3] {
        match self {
            Self::East => [Place::PodEast, Place::NodeEast, Place::GatewayEast],
            Self::West => [Place::PodWest, Place::NodeWest, Place::GatewayWest],
        }
    }

    /// The regular node.
    #[must_use]
    pub const fn node(self) -> Place {
        match self {
            Self::East => Place::NodeEast,
            Self::West => Place::NodeWest,
        }
    }

    /// The gateway node.
    #[must_use]
    pub const fn gateway(self) -> Place {
        match self {
            Self::East => Place::GatewayEast,
            Self::West => Place::GatewayWest,
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::East => 1,
            Self::West => 2,
        }
    }

    /// All Pods of the cluster.
    #[must_use]
    pub fn pod_cidr(self) -> Ipv4Net {
        net([10, 10 + self.number(), 0, 0], 16)
    }

    /// All Services of the cluster.
    #[must_use]
    pub fn service_cidr(self) -> Ipv4Net {
        net([10, 100 + self.number(), 0, 0], 16)
    }

    /// Pods of the regular node.
    #[must_use]
    pub fn node_pod_cidr(self) -> Ipv4Net {
        self.pod_gateway_net().trunc()
    }

    /// Pods of the gateway node.
    #[must_use]
    pub fn gateway_pod_cidr(self) -> Ipv4Net {
        net([10, 10 + self.number(), 0, 0], 24)
    }

    /// The Pod's address in its network.
    #[must_use]
    pub fn pod_net(self) -> Ipv4Net {
        net([10, 10 + self.number(), 1, 2], 24)
    }

    /// The Pod's address.
    #[must_use]
    pub fn pod_ip(self) -> Ipv4Addr {
        self.pod_net().addr()
    }

    /// The node's address towards the Pod.
    #[must_use]
    pub fn pod_gateway_net(self) -> Ipv4Net {
        net([10, 10 + self.number(), 1, 1], 24)
    }

    /// The regular node's underlay address (its `InternalIP`) in the cluster's network.
    #[must_use]
    pub fn node_net(self) -> Ipv4Net {
        net([192, 168, 10 + self.number(), 2], 24)
    }

    /// The gateway's address in the cluster's network (its `InternalIP`).
    #[must_use]
    pub fn internal_net(self) -> Ipv4Net {
        net([192, 168, 10 + self.number(), 1], 24)
    }

    /// The gateway's address in the network between the clusters (its `gatewayIP`).
    #[must_use]
    pub fn gateway_net(self) -> Ipv4Net {
        net([192, 168, 100, self.number()], 24)
    }
}

/// A network whose prefix length is known to be valid.
fn net(address: [u8; 4], prefix: u8) -> Ipv4Net {
    // 32 is the largest valid length, and no literal above exceeds it.
    Ipv4Net::new_assert(Ipv4Addr::from(address), prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_networks_of_the_plan_overlap() {
        let all: Vec<Ipv4Net> = Cluster::ALL
            .into_iter()
            .flat_map(|cluster| {
                [
                    cluster.pod_cidr(),
                    cluster.service_cidr(),
                    cluster.node_net().trunc(),
                ]
            })
            .chain([Cluster::East.gateway_net().trunc()])
            .collect();
        for (at, one) in all.iter().enumerate() {
            for other in all.iter().skip(at + 1) {
                assert!(!one.contains(other) && !other.contains(one), "{one} {other}");
            }
        }
    }

    #[test]
    fn pods_are_in_their_node_and_nodes_in_their_cluster() {
        for cluster in Cluster::ALL {
            assert!(cluster.node_pod_cidr().contains(&cluster.pod_ip()));
            assert!(cluster.pod_cidr().contains(&cluster.node_pod_cidr()));
            assert!(cluster.pod_cidr().contains(&cluster.gateway_pod_cidr()));
            assert_ne!(cluster.node_pod_cidr(), cluster.gateway_pod_cidr());
        }
    }
}
