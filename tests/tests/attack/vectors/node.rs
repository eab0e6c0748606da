//! A compromised regular node, to its gateway.

use mc_gateway_common::verdict::DropReason::{InnerSource, NoRoute, UnknownPeer};
use mc_tests::topology::Cluster;

use super::inner_martians;
use crate::{
    bed::{LAN_HOST, North, Services, between_clusters},
    vector::{Expected, Generator},
};

pub(super) fn generate(generator: &mut Generator) {
    let (outer, inner) = (generator.bed.outer, generator.inner);
    let [east, west] = Cluster::ALL.map(|cluster| cluster.nets(inner));
    let north = North::new(inner);
    for (name, source) in [
        ("a Pod on the gateway", west.node_pods[1].nth(7)),
        ("a Pod on the other gateway", west.node_pods[2].nth(7)),
        (
            "the network address of the gateway's Pods",
            west.node_pods[1].addr(),
        ),
        ("no node's Pod", west.pods.nth(0xff_07)),
        ("the destination's cluster", east.pod.addr()),
        ("a Service of the destination's cluster", east.services.addr()),
        ("a third cluster", north.pod),
        ("a Service of a third cluster", north.services.addr()),
        ("the node's underlay address", west.node.addr()),
        ("the gateway", west.internal[0].addr()),
        ("a gateway of another cluster", east.gateway[0].addr()),
        ("a host of the underlay", between_clusters(inner, LAN_HOST).addr()),
    ] {
        let tunnel = generator.claiming(source);
        generator.drop(format!("inner source of {name}"), &tunnel, InnerSource);
    }
    let services = Services::new(inner);
    for (name, destination) in [
        ("its own Pod", west.pod.addr()),
        ("a Pod on the gateway", west.node_pods[1].nth(7)),
        ("a Pod on the other gateway", west.node_pods[2].nth(7)),
        ("no node's Pod", west.pods.nth(0xff_07)),
        ("a Service of its own cluster", services.exported),
        ("a private Service of its own cluster", services.private),
        ("the gateway", west.internal[0].addr()),
        ("a gateway of another cluster", east.gateway[0].addr()),
        ("a node of another cluster", east.node.addr()),
        ("a host of the underlay", between_clusters(inner, LAN_HOST).addr()),
    ] {
        let tunnel = generator.to(destination);
        generator.drop(format!("inner destination of {name}"), &tunnel, NoRoute);
    }
    // Between two other clusters.
    let tunnel = generator.between(east.pod.addr(), north.pod);
    generator.drop("transit from east to north", &tunnel, InnerSource);
    let tunnel = generator.between(east.pod.addr(), west.pod.addr());
    generator.drop("a packet of east to its own Pod", &tunnel, InnerSource);
    inner_martians(generator);
    let tunnel = generator.claiming(services.exported);
    generator.frame(
        "inner source of a Service of its cluster",
        tunnel.frame(),
        Expected::Gap,
    );
    // In the name of others.
    let nets = Cluster::West.nets(outer);
    for (name, source, reason) in [
        ("the gateway", nets.internal[0].addr(), UnknownPeer),
        (
            "the gateway on the other side",
            nets.gateway[0].addr(),
            UnknownPeer,
        ),
        ("no host", nets.node.nth(99), UnknownPeer),
        ("the other gateway", nets.internal[1].addr(), InnerSource),
        (
            "a gateway of another cluster",
            Cluster::East.nets(outer).gateway[0].addr(),
            InnerSource,
        ),
    ] {
        let mut tunnel = generator.genuine();
        tunnel.src = source;
        generator.drop(format!("outer source of {name}"), &tunnel, reason);
    }
}

/// The n-th address of a network.
pub(super) trait Nth {
    fn nth(&self, n: u16) -> std::net::IpAddr;
}

impl Nth for ipnet::IpNet {
    fn nth(&self, n: u16) -> std::net::IpAddr {
        match self {
            Self::V4(net) => std::net::Ipv4Addr::from(u32::from(net.network()) + u32::from(n)).into(),
            Self::V6(net) => std::net::Ipv6Addr::from(u128::from(net.network()) + u128::from(n)).into(),
        }
    }
}
