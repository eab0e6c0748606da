//! Address plan of the topology.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Device names inside the namespaces.
pub(super) const POD: &str = "eth0";
pub(super) const NODE_TO_POD: &str = "pod0";
pub(super) const BRIDGE: &str = "cni0";
pub(super) const UNDERLAY: &str = "eth0";
pub(super) const INTER_GATEWAY: &str = "eth1";

/// An address family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

/// Address families of Pods and Services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inner {
    /// IPv4 only.
    #[default]
    V4,
    /// IPv6 only.
    V6,
    /// Both, also on the underlay.
    Dual,
}

/// Format of encapsulated packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The agent's default.
    #[default]
    Geneve,
    /// `--format vxlan`.
    Vxlan,
}

/// The networks of a cluster in one family; networks of a device include the device's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nets {
    /// All Pods.
    pub pods: IpNet,
    /// All Services.
    pub services: IpNet,
    /// Pods of the regular node, of the gateway and of the second gateway.
    pub node_pods: [IpNet; 3],
    /// The Pod's address.
    pub pod: IpNet,
    /// The regular node's address on the Pod's link.
    pub pod_gateway: IpNet,
    /// The regular node's underlay address (`InternalIP`).
    pub node: IpNet,
    /// Addresses of the gateways in the cluster's network (`InternalIP`).
    pub internal: [IpNet; 2],
    /// Addresses of the gateways in the network between the clusters (`gatewayIP`).
    pub gateway: [IpNet; 2],
}

// === impl Inner ===

impl Inner {
    /// The families; tests use the first one by default.
    #[must_use]
    pub const fn families(self) -> &'static [Family] {
        match self {
            Self::V4 => &[Family::V4],
            Self::V6 => &[Family::V6],
            Self::Dual => &[Family::V4, Family::V6],
        }
    }
}

/// A position in the topology.
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
    /// Another gateway of cluster east, where there are two.
    SecondGatewayEast,
    /// Another gateway of cluster west, where there are two.
    SecondGatewayWest,
}

/// One of the two clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cluster {
    /// The client's cluster in the demo.
    East,
    /// The server's cluster in the demo.
    West,
}

// === impl Place ===

impl Place {
    /// The path from east to west.
    pub const ALL: [Self; 6] = [
        Self::PodEast,
        Self::NodeEast,
        Self::GatewayEast,
        Self::GatewayWest,
        Self::NodeWest,
        Self::PodWest,
    ];
    /// The nodes on that path, each with an agent.
    pub const NODES: [Self; 4] = [
        Self::NodeEast,
        Self::GatewayEast,
        Self::GatewayWest,
        Self::NodeWest,
    ];
    /// Second gateways, which are not on that path.
    pub const SECOND_GATEWAYS: [Self; 2] = [Self::SecondGatewayEast, Self::SecondGatewayWest];

    /// Name of the place and of its Kubernetes Node.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PodEast => "pod-east",
            Self::NodeEast => "node-east",
            Self::GatewayEast => "gw-east",
            Self::GatewayWest => "gw-west",
            Self::NodeWest => "node-west",
            Self::PodWest => "pod-west",
            Self::SecondGatewayEast => "gw2-east",
            Self::SecondGatewayWest => "gw2-west",
        }
    }

    /// Name of the namespace and of the pin directory.
    #[must_use]
    pub fn scoped_name(self, prefix: &str) -> String {
        format!("{prefix}-{}", self.name())
    }

    /// Cluster of the place.
    #[must_use]
    pub const fn cluster(self) -> Cluster {
        match self {
            Self::PodEast | Self::NodeEast | Self::GatewayEast | Self::SecondGatewayEast => Cluster::East,
            Self::GatewayWest | Self::NodeWest | Self::PodWest | Self::SecondGatewayWest => Cluster::West,
        }
    }

    /// Whether the place is a node rather than a Pod.
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
            Self::GatewayEast | Self::GatewayWest | Self::SecondGatewayEast | Self::SecondGatewayWest => {
                &[UNDERLAY, INTER_GATEWAY]
            }
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

    /// The second gateway node of a topology with two gateways.
    #[must_use]
    pub const fn second_gateway(self) -> Place {
        match self {
            Self::East => Place::SecondGatewayEast,
            Self::West => Place::SecondGatewayWest,
        }
    }

    /// The networks of the cluster in one family.
    #[must_use]
    pub fn nets(self, family: Family) -> Nets {
        let n = self.number();
        match family {
            Family::V4 => Nets {
                pods: self.pod_cidr().into(),
                services: self.service_cidr().into(),
                node_pods: [
                    self.node_pod_cidr(),
                    self.gateway_pod_cidr(),
                    net([10, 10 + n, 2, 0], 24),
                ]
                .map(IpNet::V4),
                pod: self.pod_net().into(),
                pod_gateway: self.pod_gateway_net().into(),
                node: self.node_net().into(),
                internal: [self.internal_net(), net([192, 168, 10 + n, 3], 24)].map(IpNet::V4),
                gateway: [self.gateway_net(), net([192, 168, 100, 10 + n], 24)].map(IpNet::V4),
            },
            Family::V6 => {
                let pods = 0x10 + u16::from(n);
                let underlay = 0xc010 + u16::from(n);
                Nets {
                    pods: net6([pods, 0, 0], 48),
                    services: net6([0x9610 + u16::from(n), 0, 0], 108),
                    node_pods: [1, 0, 2].map(|node| net6([pods, node, 0], 64)),
                    pod: net6([pods, 1, 2], 64),
                    pod_gateway: net6([pods, 1, 1], 64),
                    node: net6([underlay, 0, 2], 64),
                    internal: [1, 3].map(|host| net6([underlay, 0, host], 64)),
                    gateway: [0, 10].map(|host| net6([0xc100, 0, host + u16::from(n)], 64)),
                }
            }
        }
    }

    /// The Pod's address in one family.
    #[must_use]
    pub fn pod_addr(self, family: Family) -> IpAddr {
        self.nets(family).pod.addr()
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

    /// The node's address on the Pod's link.
    #[must_use]
    pub fn pod_gateway_net(self) -> Ipv4Net {
        net([10, 10 + self.number(), 1, 1], 24)
    }

    /// The regular node's address in the cluster's network (`InternalIP`).
    #[must_use]
    pub fn node_net(self) -> Ipv4Net {
        net([192, 168, 10 + self.number(), 2], 24)
    }

    /// The gateway's address in the cluster's network (`InternalIP`).
    #[must_use]
    pub fn internal_net(self) -> Ipv4Net {
        net([192, 168, 10 + self.number(), 1], 24)
    }

    /// The gateway's address in the network between the clusters (`gatewayIP`).
    #[must_use]
    pub fn gateway_net(self) -> Ipv4Net {
        net([192, 168, 100, self.number()], 24)
    }
}

/// A network with a valid prefix length.
fn net(address: [u8; 4], prefix: u8) -> Ipv4Net {
    // No literal above exceeds 32, the largest valid length.
    Ipv4Net::new_assert(Ipv4Addr::from(address), prefix)
}

/// `fd00:<first>:0:<second>::<host>`.
fn net6([first, second, host]: [u16; 3], prefix: u8) -> IpNet {
    let address = Ipv6Addr::new(0xfd00, first, 0, second, 0, 0, 0, host);
    Ipv6Net::new_assert(address, prefix).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_do_not_overlap() {
        let nets = [Family::V4, Family::V6].map(|family| Cluster::ALL.map(|cluster| cluster.nets(family)));
        let all: Vec<IpNet> = nets
            .iter()
            .flat_map(|[east, west]| [east, west].map(|nets| [nets.pods, nets.services, nets.node.trunc()]))
            .flatten()
            .chain(nets.map(|[east, _]| east.gateway[0].trunc()))
            .collect();
        for (at, one) in all.iter().enumerate() {
            for other in all.iter().skip(at + 1) {
                assert!(!one.contains(other) && !other.contains(one), "{one} {other}");
            }
        }
    }

    #[test]
    fn pod_networks_are_nested_in_node_and_cluster_networks() {
        for cluster in Cluster::ALL {
            assert!(cluster.node_pod_cidr().contains(&cluster.pod_ip()));
            assert!(cluster.pod_cidr().contains(&cluster.node_pod_cidr()));
            assert!(cluster.pod_cidr().contains(&cluster.gateway_pod_cidr()));
            assert_ne!(cluster.node_pod_cidr(), cluster.gateway_pod_cidr());
            for nets in [Family::V4, Family::V6].map(|family| cluster.nets(family)) {
                assert!(
                    nets.node_pods.iter().all(|pods| nets.pods.contains(pods)),
                    "{nets:?}"
                );
                assert!(nets.node_pods[0].contains(&nets.pod.addr()), "{nets:?}");
                let [first, second] = nets.internal;
                assert!(nets.node.trunc() == first.trunc() && first != second, "{nets:?}");
            }
        }
    }
}
