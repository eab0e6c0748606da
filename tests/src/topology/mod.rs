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
mod fault;
mod manifests;
mod plan;
mod variant;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;

pub use self::{
    agents::{READY, UPDATED},
    cni::Masquerade,
    fault::Fault,
    manifests::{manifests, write_manifests},
    plan::{Cluster, Family, Format, Inner, Nets, Place},
    variant::Variant,
};
use crate::{
    netns::{Netns, Residue, remove_pins, residue},
    process::Process,
    traffic::Traffic,
};

/// Bytes the encapsulation adds to an inner IP packet over IPv4: Ethernet 14, IPv4 20, UDP 8, Geneve or
/// VXLAN 8.
pub const OVERHEAD: u32 = 50;

/// Bytes an outer IPv6 header is longer.
const V6_OVERHEAD: u32 = 20;

/// Name of the namespace that joins more than two nodes, where there are two gateways.
const LAN: &str = "lan";

/// Name of the bridge between the clusters in it.
const BETWEEN_BRIDGE: &str = "between";

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
    /// What Pods have addresses of.
    pub inner: Inner,
    /// Family of encapsulated packets.
    pub outer: Family,
    /// Their format.
    pub format: Format,
    /// Whether each cluster has a second gateway; the nodes are then joined by bridges.
    pub two_gateways: bool,
}

// === impl Options ===

impl Options {
    /// Ordinary values: IPv4, underlay MTU 1500, no bridge, no masquerading, programs found beside the
    /// running one.
    pub fn new(prefix: &str, agent: Option<PathBuf>) -> Result<Self> {
        Ok(Self {
            prefix: prefix.to_owned(),
            mtu: 1500,
            bridge: false,
            masquerade: Masquerade::Off,
            traffic: Traffic::program()?,
            agent,
            agent_flags: Vec::new(),
            inner: Inner::default(),
            outer: Family::default(),
            format: Format::default(),
            two_gateways: false,
        })
    }

    /// Bytes the encapsulation adds to an inner IP packet.
    #[must_use]
    pub const fn overhead(&self) -> u32 {
        match self.outer {
            Family::V4 => OVERHEAD,
            Family::V6 => OVERHEAD + V6_OVERHEAD,
        }
    }

    /// Gateways of a cluster.
    #[must_use]
    pub const fn gateways(&self) -> usize {
        if self.two_gateways { 2 } else { 1 }
    }

    /// Families of the addresses the nodes are known by, the one that is sent in first.
    fn outer_families(&self) -> Vec<Family> {
        let mut families = vec![self.outer];
        if self.inner == Inner::Dual {
            families.extend(
                [Family::V4, Family::V6]
                    .into_iter()
                    .filter(|family| *family != self.outer),
            );
        }
        families
    }

    /// Families of the addresses on the underlay: a CNI routes Pods of a family over that family.
    fn underlay_families(&self) -> Vec<Family> {
        let mut families = self.outer_families();
        families.extend(self.inner.families());
        families.sort_unstable();
        families.dedup();
        families
    }
}

/// The row of namespaces and what runs in it. Dropping it removes everything.
#[derive(Debug)]
pub struct Topology {
    // Fields drop in this order: agents end before their namespaces do.
    agents: BTreeMap<Place, Process>,
    hosts: BTreeMap<Place, Netns>,
    lan: Option<Netns>,
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
        if options.mtu <= options.overhead() {
            bail!(
                "underlay MTU {} leaves no room for {} bytes of headers",
                options.mtu,
                options.overhead()
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
        let mut hosts = BTreeMap::new();
        let second = Place::SECOND.into_iter().filter(|_| options.two_gateways);
        for place in Place::ALL.into_iter().chain(second) {
            hosts.insert(place, Netns::create(&place.in_lab(&options.prefix))?);
        }
        let lan = options
            .two_gateways
            .then(|| Netns::create(&format!("{}-{LAN}", options.prefix)))
            .transpose()?;
        let traffic = Traffic::new(&options.traffic, &directory);
        let topology = Self {
            agents: BTreeMap::new(),
            hosts,
            lan,
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

    /// The namespace at a place.
    ///
    /// # Panics
    /// At a second gateway where there is none: a mistake of the caller.
    #[must_use]
    #[expect(clippy::panic, reason = "a test asks for a place it did not make")]
    pub fn netns(&self, place: Place) -> &Netns {
        match self.hosts.get(&place) {
            Some(netns) => netns,
            None => panic!("there is no {} in this topology", place.name()),
        }
    }

    /// All places there are.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        self.hosts.keys().copied().collect()
    }

    /// Those with an agent.
    #[must_use]
    pub fn nodes(&self) -> Vec<Place> {
        self.places()
            .into_iter()
            .filter(|place| place.is_node())
            .collect()
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
        let v6 = self.options.underlay_families().contains(&Family::V6);
        for place in self.places() {
            let netns = self.netns(place);
            // The chatter of a family that is not used would only be noise in counters and captures.
            let off = if v6 { "0" } else { "1" };
            netns.sysctl(&[
                ("net.ipv6.conf.all.disable_ipv6", off),
                ("net.ipv6.conf.default.disable_ipv6", off),
                ("net.ipv6.conf.default.accept_dad", "0"),
                ("net.ipv6.conf.default.accept_ra", "0"),
            ])?;
            if place.is_node() {
                netns.sysctl(&[
                    ("net.ipv4.ip_forward", "1"),
                    ("net.ipv6.conf.all.forwarding", "1"),
                    ("net.ipv4.conf.all.rp_filter", "1"),
                    ("net.ipv4.conf.default.rp_filter", "1"),
                ])?;
            }
        }
        if let Some(lan) = &self.lan {
            for bridge in Cluster::ALL
                .map(Cluster::name)
                .into_iter()
                .chain([BETWEEN_BRIDGE])
            {
                lan.ip(&[
                    format!("link add {bridge} type bridge"),
                    format!("link set {bridge} mtu {} up", self.options.mtu),
                ])?;
            }
        }
        for cluster in Cluster::ALL {
            self.wire_cluster(cluster)?;
        }
        let [east, west] = Cluster::ALL.map(Cluster::gateway);
        self.join(east, west, plan::BETWEEN, BETWEEN_BRIDGE)?;
        if self.lan.is_some() {
            for place in Place::SECOND {
                self.plug(place, plan::BETWEEN, BETWEEN_BRIDGE)?;
            }
        }
        for cluster in Cluster::ALL {
            let gateways = [cluster.gateway(), cluster.second_gateway()];
            for (index, place) in gateways.into_iter().take(self.options.gateways()).enumerate() {
                self.address(place, plan::BETWEEN, |nets| nets.gateway.get(index).copied())?;
            }
        }
        Ok(())
    }

    /// Joins two nodes: directly, or where there are more than two by a bridge.
    fn join(&self, one: Place, other: Place, device: &str, bridge: &str) -> Result<()> {
        if self.lan.is_some() {
            self.plug(one, device, bridge)?;
            return self.plug(other, device, bridge);
        }
        self.netns(one).veth(device, self.netns(other), device)
    }

    /// Connects a node to a bridge.
    fn plug(&self, place: Place, device: &str, bridge: &str) -> Result<()> {
        let lan = self.lan.as_ref().context("there are no bridges")?;
        let port = format!("{device}-{}", place.name());
        self.netns(place).veth(device, lan, &port)?;
        lan.ip(&[format!(
            "link set {port} master {bridge} mtu {} up",
            self.options.mtu
        )])?;
        Ok(())
    }

    /// Gives a node its addresses on an underlay device.
    fn address(&self, place: Place, device: &str, net: impl Fn(&Nets) -> Option<IpNet>) -> Result<()> {
        let node = self.netns(place);
        node.ip(&[format!("link set {device} mtu {} up", self.options.mtu)])?;
        for family in self.options.underlay_families() {
            let nets = place.cluster().nets(family);
            node.address(device, net(&nets).context("an address of the plan")?)?;
        }
        Ok(())
    }

    fn wire_cluster(&self, cluster: Cluster) -> Result<()> {
        let [pod, node, _] = cluster.places().map(|place| self.netns(place));
        let mut pod_mtu = self.options.mtu - self.options.overhead();
        if self.options.inner.families().contains(&Family::V6) {
            // The kernel does no IPv6 below that (RFC 8200).
            pod_mtu = pod_mtu.max(1280);
        }

        pod.veth(plan::POD, node, plan::NODE_TO_POD)?;
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
        for family in self.options.inner.families() {
            let nets = cluster.nets(*family);
            pod.up(plan::POD, nets.pod, pod_mtu)?;
            node.up(node_side, nets.pod_gateway, pod_mtu)?;
            let any = match family {
                Family::V4 => "0.0.0.0/0",
                Family::V6 => "::/0",
            };
            pod.ip(&[format!("route add {any} via {}", nets.pod_gateway.addr())])?;
            if let Some(rules) = cni::masquerade_rules(cluster, *family, self.options.masquerade) {
                node.nft(&rules)?;
            }
        }

        self.join(cluster.node(), cluster.gateway(), plan::UNDERLAY, cluster.name())?;
        self.address(cluster.node(), plan::UNDERLAY, |nets| Some(nets.node))?;
        self.address(cluster.gateway(), plan::UNDERLAY, |nets| {
            nets.internal.first().copied()
        })?;
        if self.options.two_gateways {
            let second = cluster.second_gateway();
            self.plug(second, plan::UNDERLAY, cluster.name())?;
            self.address(second, plan::UNDERLAY, |nets| nets.internal.get(1).copied())?;
        }
        self.cluster_routes(cluster)
    }

    /// Routes between the nodes of one cluster: the CNI's work.
    fn cluster_routes(&self, cluster: Cluster) -> Result<()> {
        for family in self.options.inner.families() {
            let nets = cluster.nets(*family);
            let mut nodes = vec![
                (cluster.node(), nets.node_pods[0], nets.node),
                (cluster.gateway(), nets.node_pods[1], nets.internal[0]),
            ];
            if self.options.two_gateways {
                nodes.push((cluster.second_gateway(), nets.node_pods[2], nets.internal[1]));
            }
            for (place, _, _) in &nodes {
                for (_, pods, address) in nodes.iter().filter(|(other, _, _)| other != place) {
                    self.netns(*place)
                        .route(*pods, &format!("via {}", address.addr()))?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        if self.keep {
            for process in self.agents.values_mut() {
                process.leave();
            }
            for netns in self.hosts.values_mut().chain(&mut self.lan) {
                netns.keep();
            }
            return;
        }
        self.agents.clear();
        let pins: Vec<_> = self
            .places()
            .into_iter()
            .map(|place| remove_pins(&self.bpf_dir(place)))
            .collect();
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
