//! The test topology: a Pod, its regular node and its gateway in each of two clusters, `east` and `west`, as six
//! connected namespaces.
//!
//! ```text
//!  pod-east -- node-east -- gw-east ====== gw-west -- node-west -- pod-west
//! ```
//!
//! Without configuration packets are forwarded within each cluster only, as by a CNI. [`Topology::configure`]
//! connects the two clusters by one of several data paths ([`Variant`]), which can be replaced by another.

mod agents;
mod cni;
mod fault;
mod links;
mod manifests;
mod nic_pair;
mod plan;
mod secrets;
mod variant;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use ipnet::IpNet;
use mc_gateway_common::abi::SourceMac;

pub use self::{
    agents::{READY, UPDATED},
    cni::Masquerade,
    fault::Fault,
    links::Links,
    manifests::{gateway_info, manifests, write_manifests},
    nic_pair::{NIC_PAIRS, NicPair},
    plan::{Cluster, Family, Format, Inner, Nets, Place},
    secrets::{Secrets, public_key_of, source_mac_between, wait_within_period},
    variant::Variant,
};
use crate::{
    name_lock::NameLock,
    netns::{LeakReport, Netns, find_leaks, remove_pins},
    process::Process,
    traffic::Traffic,
};

/// Bytes that encapsulation over IPv4 adds to an inner IP packet: Ethernet 14, IPv4 20, UDP 8, Geneve or VXLAN 8.
pub const OVERHEAD: u32 = 50;

/// Additional bytes of an outer IPv6 header.
const V6_OVERHEAD: u32 = 20;

/// Name of the namespace with the bridges that connect the nodes of clusters with two gateways.
const LAN: &str = "lan";

/// File in the directory of a topology that outlives its process.
const KEPT: &str = "kept";

/// Name of the bridge between the clusters.
const INTER_GATEWAY_BRIDGE: &str = "gateways";

/// Options of a topology.
#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of every name: namespaces `<prefix>-<place>`, pins `/sys/fs/bpf/<prefix>-<place>`.
    pub prefix: String,
    /// MTU of the underlay; the Pods' MTU is smaller by [`OVERHEAD`] in every variant.
    pub mtu: u32,
    /// Attach Pods to a bridge, as bridge CNIs do, instead of directly.
    pub bridge: bool,
    /// Links between the nodes.
    pub links: Links,
    /// Masquerading by the CNI of the regular nodes.
    pub masquerade: Masquerade,
    /// Path of `mc-traffic`.
    pub traffic: PathBuf,
    /// Path of `mc-gateway`; required for [`Variant::McGateway`] only.
    pub agent: Option<PathBuf>,
    /// Additional flags of every agent.
    pub agent_flags: Vec<String>,
    /// Secrets between nodes.
    pub secrets: Secrets,
    /// Address families of the Pods.
    pub inner: Inner,
    /// Family of encapsulated packets.
    pub outer: Family,
    /// Format of encapsulated packets.
    pub format: Format,
    /// Give each cluster a second gateway; the nodes are then connected by bridges.
    pub two_gateways: bool,
}

// === impl Options ===

impl Options {
    /// Defaults: IPv4, underlay MTU 1500, no bridge, no masquerading, `mc-traffic` beside the running program.
    pub fn new(prefix: &str, agent: Option<PathBuf>) -> Result<Self> {
        Ok(Self {
            prefix: prefix.to_owned(),
            mtu: 1500,
            bridge: false,
            links: Links::default(),
            masquerade: Masquerade::Off,
            traffic: Traffic::program()?,
            agent,
            agent_flags: Vec::new(),
            secrets: Secrets::default(),
            inner: Inner::default(),
            outer: Family::default(),
            format: Format::default(),
            two_gateways: false,
        })
    }

    /// Gateways with the XDP program on their underlay devices, and links that suit it.
    #[must_use]
    pub fn with_xdp(mut self) -> Self {
        self.links = self.links.for_xdp();
        self.agent_flags
            .extend(["--xdp-transit", "always"].map(str::to_owned));
        self
    }

    /// Bytes that the encapsulation adds to an inner IP packet.
    #[must_use]
    pub const fn overhead(&self) -> u32 {
        match self.outer {
            Family::V4 => OVERHEAD,
            Family::V6 => OVERHEAD + V6_OVERHEAD,
        }
    }

    /// Number of gateways per cluster.
    #[must_use]
    pub const fn gateways(&self) -> usize {
        if self.two_gateways { 2 } else { 1 }
    }

    /// Address families in the manifests of nodes, the outer family first.
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

    /// Address families of the underlay: a CNI routes Pods of a family over that family.
    fn underlay_families(&self) -> Vec<Family> {
        let mut families = self.outer_families();
        families.extend(self.inner.families());
        families.sort_unstable();
        families.dedup();
        families
    }
}

/// The namespaces and the agents running in them; dropping it removes everything.
#[derive(Debug)]
pub struct Topology {
    // Drop order: agents before their namespaces.
    agents: BTreeMap<Place, Process>,
    hosts: BTreeMap<Place, Netns>,
    lan: Option<Netns>,
    options: Options,
    directory: PathBuf,
    traffic: Traffic,
    variant: Option<Variant>,
    keep: bool,
    /// Released after the namespaces are removed: fields are dropped in their order.
    _names: NameLock,
}

// === impl Topology ===

impl Topology {
    /// Creates the namespaces, after leftovers of a killed run are removed. Namespaces of a living process, and kept
    /// ones ([`Self::keep`]), with the same prefix are an error.
    pub fn create(options: Options) -> Result<Self> {
        if options.mtu <= options.overhead() {
            bail!(
                "underlay MTU {} is too small for {} bytes of headers",
                options.mtu,
                options.overhead()
            );
        }
        if options.links == Links::Nics && options.two_gateways {
            bail!(
                "pairs of network devices ({NIC_PAIRS}) connect two nodes each, and two gateways need bridges"
            );
        }
        let directory = work_dir(&options.prefix);
        if directory.join(KEPT).exists() {
            bail!(
                "prefix `{}` is in use: an earlier run kept its namespaces",
                options.prefix
            );
        }
        let names = NameLock::take(&options.prefix)?;
        fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let mut hosts = BTreeMap::new();
        let second = Place::SECOND_GATEWAYS
            .into_iter()
            .filter(|_| options.two_gateways);
        for place in Place::ALL.into_iter().chain(second) {
            hosts.insert(place, Netns::create(&place.scoped_name(&options.prefix))?);
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
            _names: names,
        };
        topology.create_links().context("cannot set up the namespaces")?;
        Ok(topology)
    }

    /// Removes everything with this prefix, files included.
    pub fn remove(prefix: &str) -> Result<LeakReport> {
        let left = find_leaks(prefix)?;
        left.remove()?;
        remove_directory(&work_dir(prefix))?;
        Ok(left)
    }

    /// The namespace at a place.
    ///
    /// # Panics
    /// At a place that the topology does not have: a mistake of the caller.
    #[must_use]
    #[expect(clippy::panic, reason = "a test uses a place it did not create")]
    pub fn netns(&self, place: Place) -> &Netns {
        match self.hosts.get(&place) {
            Some(netns) => netns,
            None => panic!("no {} in this topology", place.name()),
        }
    }

    /// All places of the topology.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        self.hosts.keys().copied().collect()
    }

    /// The places with an agent.
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

    /// The options of this topology.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Sets the additional flags of agents started later.
    pub fn set_agent_flags(&mut self, flags: &[&str]) {
        self.options.agent_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Sets the program of agents started later, for upgrades and roll-backs, and its secrets.
    pub fn set_agent(&mut self, program: PathBuf, secrets: Secrets) {
        self.options.agent = Some(program);
        self.options.secrets = secrets;
    }

    /// Inner source MAC address of packets from one node to another, with their present secret.
    #[must_use]
    pub fn source_mac(&self, from: Place, to: Place) -> SourceMac {
        source_mac_between(from.name(), to.name(), 0)
    }

    /// Directory for logs, manifests and captures; removed with the topology.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Pin directory of the agent at a place.
    #[must_use]
    pub fn bpf_dir(&self, place: Place) -> PathBuf {
        Path::new("/sys/fs/bpf").join(place.scoped_name(&self.options.prefix))
    }

    /// Keeps everything, running agents included, after this value is dropped.
    pub fn keep(&mut self) -> Result<()> {
        let marker = self.directory.join(KEPT);
        fs::write(&marker, "").with_context(|| format!("cannot write {}", marker.display()))?;
        self.keep = true;
        Ok(())
    }

    /// Creates devices, addresses and the routes within each cluster.
    fn create_links(&self) -> Result<()> {
        let v6 = self.options.underlay_families().contains(&Family::V6);
        for place in self.places() {
            let netns = self.netns(place);
            // Packets of an unused family would be noise in counters and captures.
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
            // `br_netfilter` drops malformed IP packets, which a switch forwards.
            let off = "for f in /proc/sys/net/bridge/bridge-nf-call-*; do [ ! -e $f ] || echo 0 > $f; done";
            lan.run("sh", ["-ec", off])?;
            for bridge in Cluster::ALL
                .map(Cluster::name)
                .into_iter()
                .chain([INTER_GATEWAY_BRIDGE])
            {
                lan.ip(&[
                    format!("link add {bridge} type bridge"),
                    format!("link set {bridge} mtu {} up", self.options.mtu),
                ])?;
            }
        }
        for cluster in Cluster::ALL {
            self.create_cluster_links(cluster)?;
        }
        let [east, west] = Cluster::ALL.map(Cluster::gateway);
        self.connect(east, west, plan::INTER_GATEWAY, INTER_GATEWAY_BRIDGE)?;
        if self.lan.is_some() {
            for place in Place::SECOND_GATEWAYS {
                self.connect_to_bridge(place, plan::INTER_GATEWAY, INTER_GATEWAY_BRIDGE)?;
            }
        }
        for cluster in Cluster::ALL {
            let gateways = [cluster.gateway(), cluster.second_gateway()];
            for (index, place) in gateways.into_iter().take(self.options.gateways()).enumerate() {
                self.add_underlay_address(place, plan::INTER_GATEWAY, |nets| {
                    nets.gateway.get(index).copied()
                })?;
            }
        }
        Ok(())
    }

    /// Connects two nodes directly, or by a bridge in a topology with more than two.
    fn connect(&self, one: Place, other: Place, device: &str, bridge: &str) -> Result<()> {
        if self.lan.is_some() {
            self.connect_to_bridge(one, device, bridge)?;
            return self.connect_to_bridge(other, device, bridge);
        }
        self.options
            .links
            .connect(self.netns(one), self.netns(other), device)
    }

    /// Connects a node to a bridge.
    fn connect_to_bridge(&self, place: Place, device: &str, bridge: &str) -> Result<()> {
        let lan = self.lan.as_ref().context("topology has no bridges")?;
        let port = format!("{device}-{}", place.name());
        self.netns(place).veth(device, lan, &port)?;
        self.options.links.set_offloads(self.netns(place), device)?;
        self.options.links.set_offloads(lan, &port)?;
        lan.ip(&[format!(
            "link set {port} master {bridge} mtu {} up",
            self.options.mtu
        )])?;
        Ok(())
    }

    /// Connects a namespace outside of the topology to the network of a cluster, or without one to the network between
    /// the clusters. Only a topology with two gateways has these bridges. The port of the bridge has the name of the
    /// device, which no other host may have.
    pub fn connect_host(&self, host: &Netns, device: &str, cluster: Option<Cluster>) -> Result<()> {
        let lan = self.lan.as_ref().context("topology has no bridges")?;
        let bridge = cluster.map_or(INTER_GATEWAY_BRIDGE, Cluster::name);
        let mtu = self.options.mtu;
        host.veth(device, lan, device)?;
        lan.ip(&[format!("link set {device} master {bridge} mtu {mtu} up")])?;
        host.ip(&[format!("link set {device} mtu {mtu} up")])?;
        Ok(())
    }

    /// Adds a node's addresses to an underlay device.
    fn add_underlay_address(
        &self,
        place: Place,
        device: &str,
        net: impl Fn(&Nets) -> Option<IpNet>,
    ) -> Result<()> {
        let node = self.netns(place);
        node.ip(&[format!("link set {device} mtu {} up", self.options.mtu)])?;
        for family in self.options.underlay_families() {
            let nets = place.cluster().nets(family);
            node.add_address(device, net(&nets).context("no address in the plan")?)?;
        }
        Ok(())
    }

    fn create_cluster_links(&self, cluster: Cluster) -> Result<()> {
        let [pod, node, _] = cluster.places().map(|place| self.netns(place));
        let mut pod_mtu = self.options.mtu - self.options.overhead();
        if self.options.inner.families().contains(&Family::V6) {
            // The minimum for IPv6 (RFC 8200).
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
            pod.configure_device(plan::POD, nets.pod, pod_mtu)?;
            node.configure_device(node_side, nets.pod_gateway, pod_mtu)?;
            let any = match family {
                Family::V4 => "0.0.0.0/0",
                Family::V6 => "::/0",
            };
            pod.ip(&[format!("route add {any} via {}", nets.pod_gateway.addr())])?;
            if let Some(rules) = cni::masquerade_rules(cluster, *family, self.options.masquerade) {
                node.nft(&rules)?;
            }
        }

        self.connect(cluster.node(), cluster.gateway(), plan::UNDERLAY, cluster.name())?;
        self.add_underlay_address(cluster.node(), plan::UNDERLAY, |nets| Some(nets.node))?;
        self.add_underlay_address(cluster.gateway(), plan::UNDERLAY, |nets| {
            nets.internal.first().copied()
        })?;
        if self.options.two_gateways {
            let second = cluster.second_gateway();
            self.connect_to_bridge(second, plan::UNDERLAY, cluster.name())?;
            self.add_underlay_address(second, plan::UNDERLAY, |nets| nets.internal.get(1).copied())?;
        }
        self.add_cni_routes(cluster)
    }

    /// Adds the routes between the nodes of one cluster, as a CNI does.
    fn add_cni_routes(&self, cluster: Cluster) -> Result<()> {
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
                process.detach();
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

/// Directory of a topology's files; fixed, so that another process can remove it.
fn work_dir(prefix: &str) -> PathBuf {
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
