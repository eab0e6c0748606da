//! Collect-metadata VXLAN: one device per node for all tunnels, selected by routes (`ip route … encap ip`, Linux 4.3).
//! Each node decapsulates, routes and encapsulates again.
//!
//! A BPF program that sets the tunnel key could replace the routes; the tunnel, which causes the cost, is the same.

use std::net::Ipv4Addr;

use anyhow::Result;
use ipnet::Ipv4Net;

use crate::topology::{Cluster, OVERHEAD, Place, Topology};

const DEVICE: &str = "be-vx";
/// The next node of a tunnel as a permanent neighbour: neighbour discovery does not work over a tunnel that is selected
/// by route. Each node has its own MAC address, since a VXLAN device drops frames from its own.
struct TunnelNextHop {
    neighbour: Ipv4Addr,
    mac: String,
    /// Underlay address of the tunnel's end.
    outer: Ipv4Addr,
}

impl TunnelNextHop {
    fn new(place: Place, outer: Ipv4Addr) -> Self {
        let number = Place::NODES.iter().zip(1..).find(|(node, _)| **node == place);
        let number: u8 = number.map_or(0, |(_, number)| number);
        Self {
            neighbour: Ipv4Addr::new(172, 31, 0, number),
            mac: format!("02:be:00:00:01:{number:02x}"),
            outer,
        }
    }
}

/// `ip` commands that configure a node.
fn ip_commands(place: Place, mtu: u32) -> Vec<String> {
    let cluster = place.cluster();
    let other = cluster.other();
    let own = TunnelNextHop::new(place, Ipv4Addr::UNSPECIFIED);
    let mut lines = vec![
        format!(
            "link add {DEVICE} address {} type vxlan external nolearning dstport 4789",
            own.mac
        ),
        format!("link set {DEVICE} mtu {mtu} up"),
    ];
    let mut tunnel = |to: Ipv4Net, next: &TunnelNextHop| {
        let TunnelNextHop {
            neighbour,
            mac,
            outer,
        } = next;
        lines.push(format!(
            "neigh replace {neighbour} lladdr {mac} dev {DEVICE} nud permanent"
        ));
        lines.push(format!(
            "route replace {to} encap ip id 7 dst {outer} ttl 64 via {neighbour} dev {DEVICE} onlink"
        ));
    };
    if place == cluster.gateway() {
        tunnel(
            other.pod_cidr(),
            &TunnelNextHop::new(other.gateway(), other.gateway_net().addr()),
        );
        tunnel(
            cluster.node_pod_cidr(),
            &TunnelNextHop::new(cluster.node(), cluster.node_net().addr()),
        );
    } else {
        tunnel(
            other.pod_cidr(),
            &TunnelNextHop::new(cluster.gateway(), cluster.internal_net().addr()),
        );
    }
    lines
}

/// Connects the clusters; no other data path may be configured.
pub(super) fn set_up(topology: &Topology) -> Result<()> {
    let mtu = topology.options().mtu - OVERHEAD;
    Place::NODES.into_iter().try_for_each(|place| {
        topology.netns(place).ip(&ip_commands(place, mtu))?;
        Ok(())
    })
}

/// Removes the tunnels and restores the CNI's route.
pub(super) fn take_down(topology: &Topology) -> Result<()> {
    for place in Place::NODES {
        // The kernel removes its routes with the device.
        topology.netns(place).ip(&[format!("link del {DEVICE}")])?;
    }
    Cluster::ALL.into_iter().try_for_each(|cluster| {
        topology.netns(cluster.gateway()).route(
            cluster.node_pod_cidr(),
            &format!("via {}", cluster.node_net().addr()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_a_route_in_both_directions() {
        let routes = |place| {
            let lines = ip_commands(place, 1450).split_off(2);
            lines.join("\n")
        };
        let node = routes(Place::NodeEast);
        assert!(
            node.contains("10.12.0.0/16 encap ip id 7 dst 192.168.11.1 "),
            "{node}"
        );
        let gateway = routes(Place::GatewayEast);
        assert!(
            gateway.contains("10.12.0.0/16 encap ip id 7 dst 192.168.100.2 "),
            "{gateway}"
        );
        assert!(
            gateway.contains("10.11.1.0/24 encap ip id 7 dst 192.168.11.2 "),
            "{gateway}"
        );
    }
}
