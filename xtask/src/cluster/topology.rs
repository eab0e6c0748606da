//! The clusters and all their addresses. Pure.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use anyhow::{Context as _, Result, bail};

/// The host's address on the underlay, from which kubectl reaches every API server.
pub(crate) const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);
/// Next hop of every default route, an unused address. Misrouted packets end here instead of on the host's network, and
/// the kernel has a route for Service addresses.
pub(crate) const BLACKHOLE_GATEWAY: Ipv4Addr = Ipv4Addr::new(172, 30, 255, 254);
/// The same for IPv6.
pub(crate) const BLACKHOLE_GATEWAY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x30, 0, 0xffff, 0, 0, 0, 0xfffe);
/// Prefix length of the underlay, one segment for all clusters.
pub(crate) const UNDERLAY_LENGTH: u8 = 16;
/// The same for IPv6.
pub(crate) const UNDERLAY_LENGTH_V6: u8 = 48;
/// Namespace of the bridge that connects everything.
pub(crate) const UNDERLAY_NAMESPACE: &str = "mc-underlay";

const MAX_CLUSTERS: usize = 9;
const MAX_NODES: u8 = 9;
/// Interface names have 15 characters; the longest of ours is `p-<cluster>-cp`.
const MAX_NAME: usize = 10;

/// All clusters of a test bed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    clusters: Vec<Cluster>,
}

/// One cluster: a control plane and its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    name: String,
    /// Position from 1; every address derives from it.
    index: u8,
    nodes: u8,
}

/// An IPv4 value and, in dual-stack clusters, an IPv6 value, in the order of preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DualStack<T, U = T> {
    /// In IPv4.
    pub(crate) v4: T,
    /// In IPv6.
    pub(crate) v6: Option<U>,
}

/// One node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    name: String,
    cluster_index: u8,
    /// Position from 1.
    index: u8,
    dual_stack: bool,
}

// === impl Topology ===

impl Topology {
    /// The clusters, in the order given.
    pub(crate) fn clusters(&self) -> &[Cluster] {
        &self.clusters
    }

    /// Every node of every cluster.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Node> {
        self.clusters.iter().flat_map(Cluster::nodes)
    }

    /// Every network namespace but the underlay's.
    pub(crate) fn namespaces(&self) -> Vec<String> {
        let planes = self.clusters.iter().map(Cluster::namespace);
        planes.chain(self.nodes().map(|node| node.namespace())).collect()
    }
}

impl Default for Topology {
    /// A dedicated leader whose node runs the leader controller, and two members of two nodes.
    fn default() -> Self {
        let cluster = |name: &str, index, nodes| Cluster {
            name: name.to_owned(),
            index,
            nodes,
        };
        Self {
            clusters: vec![
                cluster("leader", 1, 1),
                cluster("east", 2, 2),
                cluster("west", 3, 2),
            ],
        }
    }
}

impl FromStr for Topology {
    type Err = anyhow::Error;

    /// Parses `leader=1,east=2,west=2`: names and numbers of nodes.
    fn from_str(text: &str) -> Result<Self> {
        let mut clusters: Vec<Cluster> = Vec::new();
        for (index, item) in (1..).zip(text.split(',')) {
            let (name, nodes) = item
                .split_once('=')
                .with_context(|| format!("`{item}` is not NAME=NODES"))?;
            let letters = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            if name.is_empty() || name.len() > MAX_NAME || !letters {
                bail!("cluster name `{name}`: expected 1 to {MAX_NAME} lower-case letters and digits");
            }
            if clusters.iter().any(|cluster| cluster.name == name) {
                bail!("duplicate cluster name `{name}`");
            }
            let nodes = nodes
                .parse()
                .ok()
                .filter(|nodes| (1..=MAX_NODES).contains(nodes))
                .with_context(|| format!("cluster {name}: `{nodes}` nodes, expected 1 to {MAX_NODES}"))?;
            clusters.push(Cluster {
                name: name.to_owned(),
                index,
                nodes,
            });
            if clusters.len() > MAX_CLUSTERS {
                bail!("more than {MAX_CLUSTERS} clusters in `{text}`");
            }
        }
        Ok(Self { clusters })
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, cluster) in self.clusters.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            write!(f, "{comma}{}={}", cluster.name, cluster.nodes)?;
        }
        Ok(())
    }
}

// === impl Cluster ===

impl Cluster {
    /// Its name, also the name of its kubeconfig context.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the cluster is dual-stack, IPv4 first. The leader, which has no gateway, is IPv4 only: API servers of
    /// such clusters respond differently.
    fn dual_stack(&self) -> bool {
        self.index > 1
    }

    /// Its nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        let (name, cluster_index, dual_stack) = (self.name.clone(), self.index, self.dual_stack());
        (1..=self.nodes).map(move |index| Node {
            name: format!("{name}-n{index}"),
            cluster_index,
            index,
            dual_stack,
        })
    }

    /// Network namespace of the control plane.
    pub(crate) fn namespace(&self) -> String {
        format!("mc-{}", self.control_plane())
    }

    /// Name of the control plane, also of its port on the underlay.
    pub(crate) fn control_plane(&self) -> String {
        format!("{}-cp", self.name)
    }

    /// Address of the API server.
    pub(crate) fn api_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.index, 254)
    }

    /// URL of the API server.
    pub(crate) fn api_url(&self) -> String {
        format!("https://{}:6443", self.api_address())
    }

    /// All Pod addresses of the cluster.
    pub(crate) fn pod_cidrs(&self) -> DualStack<String> {
        DualStack {
            v4: format!("10.{}.0.0/16", self.index.saturating_add(10)),
            v6: self
                .dual_stack()
                .then(|| format!("fd00:10:{:x}::/48", self.index)),
        }
    }

    /// All Service addresses of the cluster.
    pub(crate) fn service_cidrs(&self) -> DualStack<String> {
        DualStack {
            v4: format!("{}/16", self.service_address(0)),
            v6: self
                .dual_stack()
                .then(|| format!("fd00:20:{:x}::/108", self.index)),
        }
    }

    /// Address of the cluster's DNS, by convention the tenth.
    pub(crate) fn dns(&self) -> Ipv4Addr {
        self.service_address(10)
    }

    /// The `last`-th Service address: 1 is the API server's.
    pub(crate) fn service_address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.index.saturating_mul(10), 0, last)
    }
}

// === impl Node ===

impl Node {
    /// Name of the Node object.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its network namespace.
    pub(crate) fn namespace(&self) -> String {
        format!("mc-{}", self.name)
    }

    /// Its addresses on the underlay, the Node's `InternalIP`s.
    pub(crate) fn addresses(&self) -> DualStack<Ipv4Addr, Ipv6Addr> {
        let (cluster, node) = (self.cluster_index, self.index);
        let v6 = Ipv6Addr::new(0xfd00, 0x30, 0, cluster.into(), 0, 0, 0, node.into());
        DualStack {
            v4: Ipv4Addr::new(172, 30, cluster, node),
            v6: self.dual_stack.then_some(v6),
        }
    }

    /// The addresses of its Pods.
    pub(crate) fn pod_cidrs(&self) -> DualStack<String> {
        let (cluster, node) = (self.cluster_index, self.index);
        DualStack {
            v4: format!("10.{}.{node}.0/24", cluster.saturating_add(10)),
            v6: self
                .dual_stack
                .then(|| format!("fd00:10:{cluster:x}:{node:x}::/64")),
        }
    }
}

// === impl Families ===

impl<T: fmt::Display, U: fmt::Display> DualStack<T, U> {
    /// As text, IPv4 first.
    pub(crate) fn to_strings(&self) -> Vec<String> {
        let v6 = self.v6.as_ref().map(ToString::to_string);
        std::iter::once(self.v4.to_string()).chain(v6).collect()
    }
}

impl<T: fmt::Display, U: fmt::Display> fmt::Display for DualStack<T, U> {
    /// The format of Kubernetes' flags.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_strings().join(","))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_default_is_a_leader_and_two_members() {
        let topology = Topology::default();
        assert_eq!(topology.to_string(), "leader=1,east=2,west=2");
        assert_eq!(topology, "leader=1,east=2,west=2".parse().unwrap());
        let west = &topology.clusters()[2];
        assert_eq!(west.api_url(), "https://172.30.3.254:6443");
        assert_eq!(west.pod_cidrs().to_string(), "10.13.0.0/16,fd00:10:3::/48");
        assert_eq!(west.service_cidrs().to_string(), "10.30.0.0/16,fd00:20:3::/108");
        let node = west.nodes().nth(1).unwrap();
        assert_eq!((node.name(), node.namespace()), ("west-n2", "mc-west-n2".into()));
        assert_eq!(node.addresses().to_strings(), ["172.30.3.2", "fd00:30:0:3::2"]);
        assert_eq!(
            node.pod_cidrs().to_strings(),
            ["10.13.2.0/24", "fd00:10:3:2::/64"]
        );
    }

    #[test]
    fn the_leader_has_ipv4_alone() {
        let topology = Topology::default();
        let leader = &topology.clusters()[0];
        assert_eq!(leader.pod_cidrs().to_strings(), ["10.11.0.0/16"]);
        assert_eq!(leader.service_cidrs().to_strings(), ["10.10.0.0/16"]);
        let node = leader.nodes().next().unwrap();
        assert_eq!(node.addresses().to_strings(), ["172.30.1.1"]);
        assert_eq!(node.pod_cidrs().to_strings(), ["10.11.1.0/24"]);
    }

    #[test]
    fn nothing_overlaps_in_the_largest_topology() {
        let text: Vec<_> = (1..=MAX_CLUSTERS).map(|n| format!("c{n}={MAX_NODES}")).collect();
        let topology: Topology = text.join(",").parse().unwrap();
        let clusters = topology.clusters().iter();
        let ranges =
            clusters.flat_map(|c| [c.pod_cidrs().to_strings(), c.service_cidrs().to_strings()].concat());
        // All but the leader have two of each.
        assert_eq!(ranges.collect::<HashSet<_>>().len(), 4 * MAX_CLUSTERS - 2);
        let planes = topology.clusters().iter().map(|c| c.api_address().to_string());
        let nodes: Vec<_> = topology
            .nodes()
            .flat_map(|n| n.addresses().to_strings())
            .collect();
        let others = [
            HOST_ADDRESS.to_string(),
            BLACKHOLE_GATEWAY.to_string(),
            BLACKHOLE_GATEWAY_V6.to_string(),
        ];
        let addresses: HashSet<_> = planes.chain(nodes).chain(others).collect();
        let nodes = usize::from(MAX_NODES);
        assert_eq!(
            addresses.len(),
            MAX_CLUSTERS + MAX_CLUSTERS * nodes + (MAX_CLUSTERS - 1) * nodes + 3
        );
        assert!(
            topology
                .namespaces()
                .iter()
                .all(|name| name.len() <= "mc-".len() + 13)
        );
    }

    #[test]
    fn bad_topologies_name_the_value() {
        for (text, part) in [
            ("east", "`east`"),
            ("East=1", "`East`"),
            ("a=1,a=2", "duplicate"),
            ("a=0", "`0` nodes"),
            ("a=x", "`x` nodes"),
            ("averylongname=1", "`averylongname`"),
            ("a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1,j=1", "more than 9"),
        ] {
            let error = text.parse::<Topology>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
