//! Six namespaces in a row, as the main job's packets cross them: a Pod, its regular node and its gateway
//! in each of two clusters, `east` and `west`.
//!
//! ```text
//!  pod-east -- node-east -- gw-east ====== gw-west -- node-west -- pod-west
//! ```
//!
//! The row alone forwards within each cluster only, as a CNI has it. [`Topology::configure`] makes the two
//! clusters reach each other in one of several ways ([`Variant`]) and can change its mind.

mod agents;
mod cni;
mod manifests;
mod plan;
mod variant;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

pub use self::{
    agents::{READY, UPDATED},
    cni::Masquerade,
    manifests::{manifests, write_manifests},
    plan::{Cluster, Place},
    variant::Variant,
};
use crate::{
    netns::{Netns, Residue, remove_pins, residue},
    process::Process,
    traffic::Traffic,
};

/// Bytes the encapsulation adds to an inner IPv4 packet: Ethernet 14, IPv4 20, UDP 8, Geneve 8.
pub const OVERHEAD: u32 = 50;

/// What a topology is made of.
#[derive(Clone, Debug)]
pub struct Options {
    /// Start of every name: namespaces `<prefix>-<place>`, pins `/sys/fs/bpf/<prefix>-<place>`.
    pub prefix: String,
    /// MTU of the underlay; that of the Pods is [`OVERHEAD`] smaller, in every variant.
    pub mtu: u32,
    /// Whether a node attaches its Pod to a bridge, as bridge CNIs do, instead of directly.
    pub bridge: bool,
    /// What the CNI of the regular nodes masquerades.
    pub masquerade: Masquerade,
    /// The program `mc-traffic`.
    pub traffic: PathBuf,
    /// The program `mc-gateway`; needed for [`Variant::McGateway`] only.
    pub agent: Option<PathBuf>,
    /// Flags of every agent besides those the topology gives it.
    pub agent_flags: Vec<String>,
}

// === impl Options ===

impl Options {
    /// Ordinary values: underlay MTU 1500, no bridge, no masquerading, programs found beside the running one.
    pub fn new(prefix: &str, agent: Option<PathBuf>) -> Result<Self> {
        Ok(Self {
            prefix: prefix.to_owned(),
            mtu: 1500,
            bridge: false,
            masquerade: Masquerade::Off,
            traffic: Traffic::program()?,
            agent,
            agent_flags: Vec::new(),
        })
    }
}

/// The namespaces, in the order of the row.
#[derive(Debug)]
struct Hosts {
    pod_east: Netns,
    node_east: Netns,
    gateway_east: Netns,
    gateway_west: Netns,
    node_west: Netns,
    pod_west: Netns,
}

/// The row of namespaces and what runs in it. Dropping it removes everything.
#[derive(Debug)]
pub struct Topology {
    // Fields drop in this order: agents end before their namespaces do.
    agents: BTreeMap<Place, Process>,
    hosts: Hosts,
    options: Options,
    directory: PathBuf,
    traffic: Traffic,
    variant: Option<Variant>,
    keep: bool,
}

// === impl Topology ===

impl Topology {
    /// Creates the row. Leftovers of the same prefix are an error that says how to remove them.
    pub fn create(options: Options) -> Result<Self> {
        if options.mtu <= OVERHEAD {
            bail!(
                "underlay MTU {} leaves no room for {OVERHEAD} bytes of headers",
                options.mtu
            );
        }
        let left = residue(&options.prefix)?;
        if !left.is_empty() {
            bail!(
                "`{}` exists already: {left:?}; is another run going on?",
                options.prefix
            );
        }
        let directory = directory(&options.prefix);
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let host = |place: Place| Netns::create(&place.in_lab(&options.prefix));
        let hosts = Hosts {
            pod_east: host(Place::PodEast)?,
            node_east: host(Place::NodeEast)?,
            gateway_east: host(Place::GatewayEast)?,
            gateway_west: host(Place::GatewayWest)?,
            node_west: host(Place::NodeWest)?,
            pod_west: host(Place::PodWest)?,
        };
        let traffic = Traffic::new(&options.traffic, &directory);
        let topology = Self {
            agents: BTreeMap::new(),
            hosts,
            options,
            directory,
            traffic,
            variant: None,
            keep: false,
        };
        topology.wire().context("cannot set up the namespaces")?;
        Ok(topology)
    }

    /// Everything with this prefix, whoever left it, its files included.
    pub fn remove(prefix: &str) -> Result<Residue> {
        let left = residue(prefix)?;
        left.remove()?;
        remove_directory(&directory(prefix))?;
        Ok(left)
    }

    /// The namespace at a place of the row.
    #[must_use]
    pub fn netns(&self, place: Place) -> &Netns {
        match place {
            Place::PodEast => &self.hosts.pod_east,
            Place::NodeEast => &self.hosts.node_east,
            Place::GatewayEast => &self.hosts.gateway_east,
            Place::GatewayWest => &self.hosts.gateway_west,
            Place::NodeWest => &self.hosts.node_west,
            Place::PodWest => &self.hosts.pod_west,
        }
    }

    /// The traffic programs.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// What the row was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Flags of every agent started from now on.
    pub fn set_agent_flags(&mut self, flags: &[&str]) {
        self.options.agent_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// The program of every agent started from now on: how an upgrade, or a roll-back, begins.
    pub fn set_agent(&mut self, program: PathBuf) {
        self.options.agent = Some(program);
    }

    /// Directory for logs, manifests and captures; removed with the topology.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the agent at a place pins its maps and links.
    #[must_use]
    pub fn bpf_dir(&self, place: Place) -> PathBuf {
        Path::new("/sys/fs/bpf").join(place.in_lab(&self.options.prefix))
    }

    /// Leaves everything in place, running agents included, when this value is dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Devices, addresses, and the routes within each cluster.
    fn wire(&self) -> Result<()> {
        for place in Place::ALL {
            let netns = self.netns(place);
            // One family is used; the other one's chatter would only be noise in counters and captures.
            netns.sysctl(&[
                ("net.ipv6.conf.all.disable_ipv6", "1"),
                ("net.ipv6.conf.default.disable_ipv6", "1"),
            ])?;
            if place.is_node() {
                netns.sysctl(&[
                    ("net.ipv4.ip_forward", "1"),
                    ("net.ipv4.conf.all.rp_filter", "1"),
                    ("net.ipv4.conf.default.rp_filter", "1"),
                ])?;
            }
        }
        for cluster in Cluster::ALL {
            self.wire_cluster(cluster)?;
        }
        let (east, west) = (&self.hosts.gateway_east, &self.hosts.gateway_west);
        east.veth(plan::BETWEEN, west, plan::BETWEEN)?;
        east.up(plan::BETWEEN, Cluster::East.gateway_net(), self.options.mtu)?;
        west.up(plan::BETWEEN, Cluster::West.gateway_net(), self.options.mtu)
    }

    fn wire_cluster(&self, cluster: Cluster) -> Result<()> {
        let [pod, node, gateway] = cluster.places().map(|place| self.netns(place));
        let pod_mtu = self.options.mtu - OVERHEAD;

        pod.veth(plan::POD, node, plan::NODE_TO_POD)?;
        pod.up(plan::POD, cluster.pod_net(), pod_mtu)?;
        let node_side = if self.options.bridge {
            node.ip(&[
                format!("link add {} type bridge", plan::BRIDGE),
                format!(
                    "link set {} master {} mtu {pod_mtu} up",
                    plan::NODE_TO_POD,
                    plan::BRIDGE
                ),
            ])?;
            plan::BRIDGE
        } else {
            plan::NODE_TO_POD
        };
        node.up(node_side, cluster.pod_gateway_net(), pod_mtu)?;
        pod.ip(&[format!(
            "route add default via {}",
            cluster.pod_gateway_net().addr()
        )])?;

        node.veth(plan::UNDERLAY, gateway, plan::UNDERLAY)?;
        node.up(plan::UNDERLAY, cluster.node_net(), self.options.mtu)?;
        gateway.up(plan::UNDERLAY, cluster.internal_net(), self.options.mtu)?;
        self.cluster_routes(cluster)?;
        if let Some(rules) = cni::masquerade_rules(cluster, self.options.masquerade) {
            node.nft(&rules)?;
        }
        Ok(())
    }

    /// Routes between the nodes of one cluster: the CNI's work.
    fn cluster_routes(&self, cluster: Cluster) -> Result<()> {
        let [_, node, gateway] = cluster.places().map(|place| self.netns(place));
        gateway.route(
            cluster.node_pod_cidr(),
            &format!("via {}", cluster.node_net().addr()),
        )?;
        node.route(
            cluster.gateway_pod_cidr(),
            &format!("via {}", cluster.internal_net().addr()),
        )
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        if self.keep {
            for process in self.agents.values_mut() {
                process.leave();
            }
            let hosts = &mut self.hosts;
            for netns in [
                &mut hosts.pod_east,
                &mut hosts.node_east,
                &mut hosts.gateway_east,
                &mut hosts.gateway_west,
                &mut hosts.node_west,
                &mut hosts.pod_west,
            ] {
                netns.keep();
            }
            return;
        }
        self.agents.clear();
        let pins = Place::ALL.map(|place| remove_pins(&self.bpf_dir(place)));
        for result in pins.into_iter().chain([remove_directory(&self.directory)]) {
            if let Err(error) = result {
                eprintln!("{error:#}");
            }
        }
    }
}

/// Where a topology keeps its files: fixed, so that another process can remove them.
fn directory(prefix: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{prefix}-lab"))
}

fn remove_directory(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}
