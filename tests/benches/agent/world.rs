//! Objects of a large ClusterSet, as a gateway sees them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use mc_gateway::objects::{GatewayInfo, NodeInfo, NodeKeyInfo, Objects, RemoteCluster, RemoteGateway};
use mc_gateway::peer_secret::PeerSecrets;
use mc_gateway::service_objects::{
    EndpointInfo, ExportedService, ServiceInfo, ServicePort, SliceInfo, SlicePort,
};

use crate::policies;

/// Name of the Node whose agent is measured.
pub(crate) const OWN_NODE: &str = "n0";

/// Endpoints of a Service.
const ENDPOINTS: u32 = 20;

/// Sizes of a ClusterSet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) name: &'static str,
    /// Remote clusters.
    pub(crate) clusters: u32,
    /// Pod CIDRs of each remote cluster.
    pub(crate) prefixes: u32,
    /// Nodes of the local cluster, each with a Pod CIDR.
    pub(crate) nodes: u32,
    /// Exported Services with 20 endpoints each.
    pub(crate) services: u32,
    /// Network policies of the local cluster, and label identities.
    pub(crate) policies: u32,
}

const fn size(name: &'static str, clusters: u32, prefixes: u32, nodes: u32, services: u32) -> Size {
    Size {
        name,
        clusters,
        prefixes,
        nodes,
        services,
        policies: 0,
    }
}

/// All worlds.
pub(crate) const SIZES: [Size; 8] = [
    size("10", 2, 5, 3, 0),
    size("1k", 10, 100, 20, 20),
    size("10k", 50, 200, 100, 100),
    size("100k", 250, 400, 100, 0),
    size("100k-few-clusters", 5, 20_000, 100, 0),
    size("100k-services", 250, 400, 100, 1_000),
    size("10k-nodes", 20, 10, 10_000, 0),
    Size {
        policies: 1_000,
        ..size("1k-policies", 2, 5, 3, 0)
    },
];

/// A public key that belongs to `number`.
fn public_key(number: u32) -> String {
    let mut private = [7; 32];
    for (byte, of) in private.iter_mut().zip(number.to_be_bytes()) {
        *byte = of;
    }
    PeerSecrets::new(private).public_key().to_string()
}

/// The prefix with this number: each fifth is IPv6.
pub(crate) fn prefix(number: u32) -> String {
    if number.is_multiple_of(5) {
        let [a, b, c, d] = number.to_be_bytes().map(u16::from);
        let addr = Ipv6Addr::new(0xfd00, a << 8 | b, c << 8 | d, 0, 0, 0, 0, 0);
        return format!("{addr}/48");
    }
    format!("{}/24", Ipv4Addr::from_bits((20 << 24) + number * 256))
}

/// Address of a Node.
fn node_addr(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits((172 << 24 | 16 << 16) + number)
}

/// Address of an endpoint on a Node.
pub(crate) fn pod_addr(node: u32, number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits((10 << 24) + node * 256 + 2 + number)
}

fn remote(size: Size, number: u32) -> RemoteCluster {
    let gateways = (0..2).map(|n| RemoteGateway {
        ip: Ipv4Addr::from_bits((203 << 24) + 2 * number + n).to_string(),
        weight: 1,
        public_key: public_key(1_000_000 + 2 * number + n),
    });
    RemoteCluster {
        name: format!("cluster-{number}"),
        created: None,
        cluster_id: format!("cluster-{number}"),
        service_cidr: String::new(),
        pod_cidrs: (0..size.prefixes)
            .map(|n| prefix(number * size.prefixes + n))
            .collect(),
        gateways: gateways.collect(),
    }
}

fn service(size: Size, number: u32) -> ExportedService {
    let (namespace, name) = ("shop".to_owned(), format!("web-{number:05}"));
    let cluster_ip = Ipv4Addr::from_bits((11 << 24) + 1 + number);
    let endpoints = (0..ENDPOINTS).map(|n| {
        let node = (number * ENDPOINTS + n) % size.nodes;
        EndpointInfo {
            addresses: vec![pod_addr(node, number * ENDPOINTS / size.nodes % 250).to_string()],
            node: Some(format!("n{node}")),
            ready: true,
            serving: true,
            terminating: false,
        }
    });
    ExportedService {
        service: ServiceInfo {
            namespace: namespace.clone(),
            name: name.clone(),
            cluster_ips: vec![cluster_ip.to_string()],
            ports: vec![ServicePort {
                name: String::new(),
                port: 80,
                protocol: "TCP".to_owned(),
                node_port: None,
            }],
            ..ServiceInfo::default()
        },
        slices: vec![SliceInfo {
            namespace,
            name: format!("{name}-1"),
            service: name,
            ports: vec![SlicePort {
                name: String::new(),
                port: Some(8080),
                protocol: "TCP".to_owned(),
            }],
            endpoints: endpoints.collect(),
        }],
    }
}

/// The objects of a world.
pub(crate) fn objects(size: Size) -> Objects {
    let nodes = (0..size.nodes).map(|number| NodeInfo {
        name: format!("n{number}"),
        internal_ips: vec![node_addr(number).to_string()],
        external_ips: Vec::new(),
        pod_cidrs: vec![format!("{}/24", Ipv4Addr::from_bits((10 << 24) + number * 256))],
        host_addresses: Vec::new(),
    });
    let mut objects = Objects {
        nodes: nodes.collect(),
        gateways: vec![GatewayInfo {
            name: OWN_NODE.to_owned(),
            gateway_ip: "192.0.2.1".to_owned(),
            internal_ip: node_addr(0).to_string(),
            service_cidr: "11.0.0.0/16".to_owned(),
            weight: 1,
            ..GatewayInfo::default()
        }],
        remotes: (0..size.clusters)
            .map(|number| Arc::new(remote(size, number)))
            .collect(),
        services: Some((0..size.services).map(|number| service(size, number)).collect()),
        node_keys: (0..size.nodes)
            .map(|number| NodeKeyInfo {
                name: format!("n{number}"),
                owned: true,
                public_key: public_key(number),
            })
            .collect(),
        ..Objects::default()
    };
    policies::add(&mut objects, size.policies);
    objects
}

/// A change of one object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// None.
    Nothing,
    /// A remote cluster has a new prefix instead of one.
    Prefix,
    /// A remote gateway has another address.
    Gateway,
    /// An endpoint is no longer ready.
    Endpoint,
    /// The cluster has a new Node.
    Node,
    /// A rule of a policy for a Pod of this Node has another port.
    Policy,
}

pub(crate) const CHANGES: [Change; 6] = [
    Change::Nothing,
    Change::Prefix,
    Change::Gateway,
    Change::Endpoint,
    Change::Node,
    Change::Policy,
];

impl Change {
    /// Applies the change for the `n`th time; false if the world has no such object.
    pub(crate) fn apply(self, objects: &mut Objects, n: u32) -> Result<bool> {
        match self {
            Self::Nothing => {}
            Self::Prefix => {
                let remote = Arc::make_mut(objects.remotes.first_mut().context("a remote cluster")?);
                let text = remote.pod_cidrs.first_mut().context("a prefix")?;
                *text = prefix(400_001 + 5 * n);
            }
            Self::Gateway => {
                let remote = Arc::make_mut(objects.remotes.first_mut().context("a remote cluster")?);
                let gateway = remote.gateways.first_mut().context("a gateway")?;
                gateway.ip = Ipv4Addr::from_bits((204 << 24) + n).to_string();
            }
            Self::Endpoint => {
                let Some(service) = objects.services.iter_mut().flatten().next() else {
                    return Ok(false);
                };
                let slice = service.slices.first_mut().context("a slice")?;
                let ready = slice.endpoints.iter_mut().find(|endpoint| endpoint.ready);
                ready.context("a ready endpoint")?.ready = false;
            }
            Self::Node => {
                let number = 20_000 + n;
                objects.nodes.push(NodeInfo {
                    name: format!("n{number}"),
                    internal_ips: vec![node_addr(number).to_string()],
                    external_ips: Vec::new(),
                    pod_cidrs: vec![format!("{}/24", Ipv4Addr::from_bits((10 << 24) + number * 256))],
                    host_addresses: Vec::new(),
                });
                objects.node_keys.push(NodeKeyInfo {
                    name: format!("n{number}"),
                    owned: true,
                    public_key: public_key(number),
                });
            }
            Self::Policy => {
                let Some(policy) = objects.policies.policies.get_mut(7) else {
                    return Ok(false);
                };
                *policy = policies::policy(7, 9_000 + n);
            }
        }
        Ok(true)
    }
}

/// Address of this Node on the underlay.
pub(crate) fn own_addr() -> IpAddr {
    node_addr(0).into()
}
