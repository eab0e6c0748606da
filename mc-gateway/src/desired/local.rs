//! Our own cluster: Nodes and Gateways with every value checked.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::claims::Claims;
use crate::cidr::{CidrError, parse_address};
use crate::objects::{NodeInfo, Objects, Refusal};

/// A Node whose values are good.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) name: String,
    /// IPv4 addresses of type InternalIP.
    pub(super) addrs: Vec<Ipv4Addr>,
    pub(super) pod_cidrs: Vec<Ipv4Net>,
}

/// A Gateway of our own cluster on another Node.
#[derive(Clone, Debug)]
pub(super) struct Gateway {
    pub(super) object: String,
    /// Where our Nodes reach it.
    pub(super) addr: Ipv4Addr,
}

/// The Gateway that is this Node.
#[derive(Clone, Debug)]
pub(super) struct OwnGateway {
    pub(super) gateway_ip: Option<Ipv4Addr>,
    pub(super) internal_ip: Option<Ipv4Addr>,
    pub(super) service_cidr: Option<Ipv4Net>,
}

/// What is known of our own cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct LocalCluster {
    pub(super) own: Node,
    pub(super) own_gateway: Option<OwnGateway>,
    pub(super) other_nodes: Vec<Node>,
    /// Gateways on other Nodes.
    pub(super) gateways: Vec<Gateway>,
    /// Prefixes that are ours.
    pub(super) claims: Claims,
    /// Addresses no other cluster's prefix may contain, with whose they are.
    pub(super) addresses: Vec<(Ipv4Addr, String)>,
}

impl Node {
    pub(super) fn object(&self) -> String {
        format!("Node {}", self.name)
    }

    pub(super) fn addr(&self) -> Option<Ipv4Addr> {
        self.addrs.first().copied()
    }
}

impl LocalCluster {
    /// `nodes` are sorted by name and contain `own_name`.
    pub(super) fn read(
        objects: &Objects,
        nodes: &[&NodeInfo],
        own_name: &str,
        refusals: &mut Vec<Refusal>,
    ) -> Self {
        let mut cluster = Self::default();
        cluster.read_gateways(objects, own_name, refusals);
        // Our own Node first: whatever another Node claims, our Pods stay reachable.
        let own_first = nodes
            .iter()
            .filter(|node| node.name == own_name)
            .chain(nodes.iter().filter(|node| node.name != own_name));
        for node in own_first {
            let is_own = node.name == own_name;
            let node = cluster.read_node(node, refusals);
            if is_own {
                cluster.own = node;
            } else {
                cluster.other_nodes.push(node);
            }
        }
        cluster
    }

    fn read_node(&mut self, info: &NodeInfo, refusals: &mut Vec<Refusal>) -> Node {
        let object = format!("Node {}", info.name);
        let mut node = Node {
            name: info.name.clone(),
            ..Node::default()
        };
        let mut ipv6 = Vec::new();
        for (index, text) in info.internal_ips.iter().enumerate() {
            let field = format!("status.addresses[InternalIP][{index}]");
            match parse_address(text) {
                Ok(addr) => node.addrs.push(addr),
                // A dual-stack Node is fine; its IPv6 address is just not used.
                Err(CidrError::Ipv6) => ipv6.push(refusal(&object, &field, text, &CidrError::Ipv6)),
                Err(error) => refusals.push(refusal(&object, &field, text, &error)),
            }
        }
        if node.addrs.is_empty() {
            refusals.append(&mut ipv6);
            let field = "status.addresses[InternalIP]";
            refusals.push(refusal(&object, field, "", &CidrError::Missing));
        }
        for addr in &node.addrs {
            self.addresses.push((*addr, object.clone()));
        }
        for (index, text) in info.pod_cidrs.iter().enumerate() {
            let field = format!("spec.podCIDRs[{index}]");
            node.pod_cidrs
                .extend(self.claims.claim(&object, &field, text, refusals));
        }
        node
    }

    fn read_gateways(&mut self, objects: &Objects, own_name: &str, refusals: &mut Vec<Refusal>) {
        let mut gateways: Vec<_> = objects.gateways.iter().collect();
        gateways.sort_by(|a, b| a.name.cmp(&b.name));
        // All Gateways of a cluster state the same Service CIDR: one owner for all of them.
        let owner = "our own cluster (Gateway.serviceCIDR)";
        for info in gateways {
            let object = format!("Gateway {}", info.name);
            let mut address = |field: &str, text: &str| {
                parse_address(text)
                    .inspect_err(|error| refusals.push(refusal(&object, field, text, error)))
                    .ok()
            };
            let gateway_ip = address("gatewayIP", &info.gateway_ip);
            let internal_ip = address("internalIP", &info.internal_ip);
            let service_cidr = if info.service_cidr.is_empty() {
                None
            } else {
                let before = refusals.len();
                let claimed = self
                    .claims
                    .claim(owner, "serviceCIDR", &info.service_cidr, refusals);
                for refusal in refusals.iter_mut().skip(before) {
                    refusal.object.clone_from(&object);
                }
                claimed
            };
            self.addresses.extend(
                [gateway_ip, internal_ip]
                    .into_iter()
                    .flatten()
                    .map(|addr| (addr, object.clone())),
            );
            if info.name == own_name {
                self.own_gateway = Some(OwnGateway {
                    gateway_ip,
                    internal_ip,
                    service_cidr,
                });
            } else if let Some(addr) = internal_ip {
                self.gateways.push(Gateway { object, addr });
            }
        }
    }

    /// The address other Nodes of our cluster know us by.
    pub(super) fn node_ip(&self) -> Option<Ipv4Addr> {
        let internal = self.own_gateway.as_ref().and_then(|own| own.internal_ip);
        self.own.addr().or(internal)
    }

    pub(super) fn own_pod_cidrs(&self) -> Vec<Ipv4Net> {
        self.own.pod_cidrs.clone()
    }

    pub(super) fn service_cidr(&self) -> Option<Ipv4Net> {
        self.own_gateway.as_ref().and_then(|own| own.service_cidr)
    }

    /// Outer destinations that may be ours, each once.
    pub(super) fn local_addresses(&self) -> Vec<Ipv4Addr> {
        let gateway = self
            .own_gateway
            .iter()
            .flat_map(|own| [own.internal_ip, own.gateway_ip]);
        let all = [self.own.addr()].into_iter().chain(gateway).flatten();
        let mut unique = Vec::new();
        for addr in all.chain(self.own.addrs.iter().copied()) {
            if !unique.contains(&addr) {
                unique.push(addr);
            }
        }
        unique
    }
}

pub(super) fn refusal(object: &str, field: &str, value: &str, error: &CidrError) -> Refusal {
    Refusal {
        object: object.to_owned(),
        field: field.to_owned(),
        value: value.to_owned(),
        reason: error.to_string(),
    }
}
