//! The Services of cluster west as manifests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use mc_tests::topology::{Cluster, Family};

use crate::{
    connection::{Protocol, Spec, Target},
    server,
};

/// Ports of the Service by TCP and UDP.
const TCP_PORT: u16 = 80;
const UDP_PORT: u16 = 53;
/// Backends of the Service from the start.
const BACKENDS: u16 = 4;
/// The first backend that joins later, and their number.
pub(crate) const SPARE: u16 = BACKENDS;
pub(crate) const SPARES: u16 = 4;
/// A Node of cluster west that has objects and no machine.
pub(crate) const ABSENT_NODE: &str = "node-absent";

/// An endpoint of the Service.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    pub(crate) backend: u16,
    pub(crate) ready: bool,
    /// On [`ABSENT_NODE`].
    pub(crate) absent: bool,
}

/// The Service with its endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    pub(crate) name: &'static str,
    /// Last number of its addresses.
    pub(crate) address: u16,
    pub(crate) endpoints: Vec<Endpoint>,
    /// `internalTrafficPolicy: Local`.
    pub(crate) local: bool,
    /// Another port.
    pub(crate) metrics_port: bool,
    pub(crate) exported: bool,
}

// === impl Service ===

impl Service {
    /// The Service of the connections, with all its backends.
    pub(crate) fn web() -> Self {
        Self {
            name: "web",
            address: 0x10,
            endpoints: (0..BACKENDS).map(Endpoint::of_node).collect(),
            local: false,
            metrics_port: false,
            exported: true,
        }
    }

    /// A Service without connections.
    pub(crate) fn other() -> Self {
        Self {
            name: "other",
            address: 0x11,
            ..Self::web()
        }
    }

    /// Its address in a family.
    pub(crate) fn addr(&self, family: Family) -> IpAddr {
        nth(Cluster::West.nets(family).services.network(), self.address)
    }

    /// Its objects.
    pub(crate) fn manifest(&self) -> String {
        let Self { name, .. } = self;
        let addresses = [Family::V4, Family::V6].map(|family| self.addr(family).to_string());
        let mut ports = vec![("http", "TCP", TCP_PORT), ("dns", "UDP", UDP_PORT)];
        if self.metrics_port {
            ports.push(("metrics", "TCP", 9090));
        }
        let service_ports: Vec<_> = ports
            .iter()
            .map(|(name, protocol, port)| format!("{{name: {name}, protocol: {protocol}, port: {port}}}"))
            .collect();
        let slice_ports: Vec<_> = ports
            .iter()
            .map(|(name, protocol, _)| {
                format!("{{name: {name}, protocol: {protocol}, port: {}}}", server::PORT)
            })
            .collect();
        let policy = if self.local { "Local" } else { "Cluster" };
        let mut documents = vec![format!(
            "\
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec:
  clusterIP: {}
  clusterIPs: [\"{}\"]
  internalTrafficPolicy: {policy}
  ports: [{}]
",
            addresses[0],
            addresses.join("\", \""),
            service_ports.join(", "),
        )];
        for (family, kind) in [(Family::V4, "IPv4"), (Family::V6, "IPv6")] {
            let endpoints: Vec<_> = self.endpoints.iter().map(|one| one.yaml(family)).collect();
            documents.push(format!(
                "\
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-{}, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: {kind}
ports: [{}]
endpoints: [{}]
",
                kind.to_lowercase(),
                slice_ports.join(", "),
                endpoints.join(", "),
            ));
        }
        if self.exported {
            documents.push(format!(
                "\
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceExport
metadata: {{name: {name}, namespace: shop}}
"
            ));
        }
        documents.join("---\n")
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// A ready one on the regular node.
    pub(crate) fn of_node(backend: u16) -> Self {
        Self {
            backend,
            ready: true,
            absent: false,
        }
    }

    /// A ready one on [`ABSENT_NODE`].
    pub(crate) fn of_absent_node() -> Self {
        Self {
            backend: 0,
            ready: true,
            absent: true,
        }
    }

    fn yaml(&self, family: Family) -> String {
        let (address, node) = if self.absent {
            let net = absent_pod_cidr(family);
            (
                nth(
                    net.parse()
                        .map_or(IpAddr::from([0; 4]), |net: ipnet::IpNet| net.addr()),
                    5,
                ),
                ABSENT_NODE,
            )
        } else {
            (backend_addr(self.backend, family), "node-west")
        };
        let ready = self.ready;
        format!("{{addresses: [\"{address}\"], nodeName: {node}, conditions: {{ready: {ready}}}}}")
    }
}

/// Pod CIDR of [`ABSENT_NODE`].
fn absent_pod_cidr(family: Family) -> &'static str {
    match family {
        Family::V4 => "10.12.9.0/24",
        Family::V6 => "fd00:12:0:9::/64",
    }
}

/// The object of [`ABSENT_NODE`].
pub(crate) fn absent_node() -> String {
    format!(
        "\
apiVersion: v1
kind: Node
metadata: {{name: {ABSENT_NODE}}}
spec: {{podCIDRs: [{}, \"{}\"]}}
status: {{addresses: [{{type: InternalIP, address: 192.168.12.9}}]}}
",
        absent_pod_cidr(Family::V4),
        absent_pod_cidr(Family::V6),
    )
}

/// Address of a backend: a Pod of its own for other clusters.
pub(crate) fn backend_addr(backend: u16, family: Family) -> IpAddr {
    let net = Cluster::West.nets(family).node_pods[0];
    nth(net.network(), 0x11 + backend)
}

/// The address with a number in a network, which ends with zeros.
fn nth(net: IpAddr, number: u16) -> IpAddr {
    match net {
        IpAddr::V4(net) => Ipv4Addr::from_bits(net.to_bits() + u32::from(number)).into(),
        IpAddr::V6(net) => Ipv6Addr::from_bits(net.to_bits() + u128::from(number)).into(),
    }
}

/// Destination of a connection.
pub(crate) fn destination(spec: Spec) -> SocketAddr {
    match (spec.target, spec.protocol) {
        (Target::Pod, _) => (backend_addr(0, spec.family), server::PORT).into(),
        (Target::Service, Protocol::Tcp) => (Service::web().addr(spec.family), TCP_PORT).into(),
        (Target::Service, Protocol::Udp) => (Service::web().addr(spec.family), UDP_PORT).into(),
    }
}
