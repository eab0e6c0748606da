//! Which clusters there are, and every address in them. Pure: nothing here touches the machine.

use std::{fmt, net::Ipv4Addr, str::FromStr};

use anyhow::{Context as _, Result, bail};

/// The host's address on the underlay, from which kubectl reaches every API server.
pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(172, 30, 0, 1);
/// Next hop of every default route. Nobody owns it: what leaves a cluster the wrong way ends here, not on
/// the machine's network, and yet the kernel has a route to look Service addresses up with.
pub(crate) const NOBODY: Ipv4Addr = Ipv4Addr::new(172, 30, 255, 254);
/// Prefix length of the underlay, one segment for all clusters.
pub(crate) const UNDERLAY_LENGTH: u8 = 16;
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

/// One node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    name: String,
    cluster_index: u8,
    /// Position from 1.
    index: u8,
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
                bail!("cluster name `{name}` is given twice");
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

    /// Its nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        let (name, cluster_index) = (self.name.clone(), self.index);
        (1..=self.nodes).map(move |index| Node {
            name: format!("{name}-n{index}"),
            cluster_index,
            index,
        })
    }

    /// Network namespace of the control plane.
    pub(crate) fn namespace(&self) -> String {
        format!("mc-{}", self.plane())
    }

    /// Name of the control plane, also of its port on the underlay.
    pub(crate) fn plane(&self) -> String {
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
    pub(crate) fn pod_cidr(&self) -> String {
        format!("10.{}.0.0/16", self.index.saturating_add(10))
    }

    /// All Service addresses of the cluster.
    pub(crate) fn service_cidr(&self) -> String {
        format!("{}/16", self.service_address(0))
    }

    /// Address of the cluster's DNS, the customary one.
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

    /// Its address on the underlay, the Node's InternalIP.
    pub(crate) fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.cluster_index, self.index)
    }

    /// The addresses of its Pods.
    pub(crate) fn pod_cidr(&self) -> String {
        format!("10.{}.{}.0/24", self.cluster_index.saturating_add(10), self.index)
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
        assert_eq!(
            (west.pod_cidr(), west.service_cidr()),
            ("10.13.0.0/16".into(), "10.30.0.0/16".into())
        );
        let node = west.nodes().nth(1).unwrap();
        assert_eq!((node.name(), node.namespace()), ("west-n2", "mc-west-n2".into()));
        assert_eq!(
            (node.address().to_string(), node.pod_cidr()),
            ("172.30.3.2".into(), "10.13.2.0/24".into())
        );
    }

    #[test]
    fn nothing_overlaps_in_the_largest_topology() {
        let text: Vec<_> = (1..=MAX_CLUSTERS).map(|n| format!("c{n}={MAX_NODES}")).collect();
        let topology: Topology = text.join(",").parse().unwrap();
        let ranges = topology
            .clusters()
            .iter()
            .flat_map(|c| [c.pod_cidr(), c.service_cidr()]);
        assert_eq!(ranges.collect::<HashSet<_>>().len(), 2 * MAX_CLUSTERS);
        let planes = topology.clusters().iter().map(Cluster::api_address);
        let addresses: HashSet<_> = planes
            .chain(topology.nodes().map(|n| n.address()))
            .chain([HOST, NOBODY])
            .collect();
        assert_eq!(addresses.len(), MAX_CLUSTERS * usize::from(MAX_NODES + 1) + 2);
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
            ("a=1,a=2", "twice"),
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
