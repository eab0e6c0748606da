//! The demo: a walkthrough of cross-cluster traffic between Pods, without Kubernetes.

mod diagram;
mod maps;
mod printer;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use mc_gateway_common::verdict::Outcome as PacketPath;

use self::printer::Printer;
use crate::{
    capture::{Capture, Direction},
    counters::Counters,
    decode::Frame,
    topology::{Cluster, Family, Inner, Masquerade, Options, Place, Topology, Variant, manifests},
    traffic::StreamReport,
    wait::wait_for,
};

/// Name prefix of everything the demo creates.
pub const PREFIX: &str = "mcdemo";
/// Port of the demo's web server.
const WEB_PORT: u16 = 8080;
/// Duration of a throughput measurement.
const MEASURE_DURATION: Duration = Duration::from_secs(2);
/// Rate and duration of the stream under which an agent is killed.
const RATE: u32 = 10_000;
const STREAM_DURATION: Duration = Duration::from_secs(6);
/// Packets that must be forwarded while no agent runs.
const PACKETS_WITHOUT_AGENT: u64 = 10_000;
/// Timeout for these packets.
const PASS_TIMEOUT: Duration = Duration::from_secs(5);

/// Settings of the demo.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name prefix of everything that is created.
    pub prefix: String,
    /// Path of `mc-gateway`.
    pub agent: PathBuf,
    /// Keep everything running at the end.
    pub keep: bool,
    /// Use IPv6 addresses for Pods and nodes.
    pub ipv6: bool,
}

/// Runs the demo. Everything is removed at the end, also after a failure, unless `keep` is set.
pub fn run(settings: &Settings) -> Result<()> {
    let start = Instant::now();
    let mut voice = Printer::default();
    let mut options = Options::new(&settings.prefix, Some(settings.agent.clone()))?;
    options.masquerade = Masquerade::LeavingBoth;
    if settings.ipv6 {
        options.inner = Inner::V6;
        options.outer = Family::V6;
    }

    voice.title("mc-gateway: a Pod in one cluster reaches a Pod in another, through eBPF gateways");
    voice.text(&[
        "Six network namespaces of this machine stand for two clusters of two nodes each. Kubernetes is absent;",
        "agents, eBPF programs and packets are real.",
    ]);
    let mut topology = Topology::create(options)?;
    voice.step("Two clusters, each with a Pod on a regular node and a gateway node");
    voice.verbatim(&diagram::diagram(family(&topology)));

    let plain = measure_plain_routing(&mut topology)?;
    start_agents(&mut voice, &mut topology)?;
    let frame = check_connectivity(&mut voice, &topology)?;
    voice.step("One packet on the network between the gateways");
    voice.verbatim(&frame.to_string());
    voice.text(&[
        "The gateways only rewrite the outer headers. The Pod's packet stays encapsulated from its node to",
        "the other Pod's node.",
    ]);
    show_maps(&mut voice, &topology)?;
    throughput(&mut voice, &topology, &plain)?;
    restart_under_traffic(&mut voice, &mut topology)?;

    if settings.keep {
        topology.keep()?;
        voice.step("Kept for exploration");
        voice.verbatim(&diagram::next_commands(&topology));
    } else {
        voice.step("Cleanup");
        topology.reset()?;
        let prefix = topology.options().prefix.clone();
        drop(topology);
        let left = crate::netns::find_leaks(&prefix)?;
        ensure!(left.is_empty(), "leftovers: {left:?}");
        voice.text(&["All namespaces, devices, routes, rules and pinned maps are removed."]);
    }
    voice.title(&format!("Done in {:.0} s.", start.elapsed().as_secs_f64()));
    Ok(())
}

/// The baseline, measured before any agent runs.
fn measure_plain_routing(topology: &mut Topology) -> Result<StreamReport> {
    topology.configure(Variant::Plain)?;
    let report = stream(topology).context("plain routing")?;
    topology.reset()?;
    // From here on the CNI masquerades everything that leaves the cluster, the default of CNIs.
    topology.set_masquerade(Masquerade::LeavingCluster)?;
    Ok(report)
}

fn stream(topology: &Topology) -> Result<StreamReport> {
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    topology
        .traffic()
        .stream(from, to, pod(topology, Cluster::West), MEASURE_DURATION)
}

/// Family of all addresses.
fn family(topology: &Topology) -> Family {
    topology.options().outer
}

/// Address of a cluster's Pod.
fn pod(topology: &Topology, cluster: Cluster) -> IpAddr {
    cluster.pod_addr(family(topology))
}

/// Excludes neighbor and listener discovery; ARP is no IP packet.
fn is_packet(frame: &Frame) -> bool {
    frame.ip.as_ref().is_some_and(|ip| !ip.is_link_discovery())
}

fn start_agents(voice: &mut Printer, topology: &mut Topology) -> Result<()> {
    voice.step("An mc-gateway agent on each of the four nodes");
    let start = Instant::now();
    topology.configure(Variant::McGateway)?;
    voice.text(&[
        &format!(
            "All four were ready after {:.1} s. Their configuration is the same",
            start.elapsed().as_secs_f64()
        ),
        "YAML as in a Kubernetes cluster. In cluster east, for example:",
    ]);
    let shown: Vec<String> = manifests(Cluster::East, topology.options())
        .into_iter()
        .filter(|(name, _)| name != "nodes.yaml")
        .map(|(_, content)| content)
        .collect();
    voice.verbatim(&shown.join("---\n"));
    Ok(())
}

/// Ping and TCP between the Pods with a capture between the gateways; returns one captured frame.
fn check_connectivity(voice: &mut Printer, topology: &Topology) -> Result<Frame> {
    let traffic = topology.traffic();
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let (client, server) = (pod(topology, Cluster::East), pod(topology, Cluster::West));
    let file = topology.directory().join("between.pcap");
    let between = topology.netns(Place::GatewayWest);
    let device = diagram::inter_gateway_device();
    let capture = Capture::start(traffic, between, device, Direction::Both, None, &file)?;

    voice.step(&format!("Pod {client} in east connects to Pod {server} in west"));
    let ping = traffic.ping(from, server, 3)?;
    ensure!(
        ping.received == ping.sent,
        "{} of {} pings answered",
        ping.received,
        ping.sent
    );
    voice.result(
        &format!("ping {server}"),
        &format!(
            "{} of {} answered, fastest in {:.0} us",
            ping.received, ping.sent, ping.min_us
        ),
    );
    let web = traffic.echo_server(to, "web-in-west", WEB_PORT)?;
    let url = format!("http://{}/", SocketAddr::new(server, WEB_PORT));
    let body = traffic.get(from, &url)?;
    drop(web);
    voice.result(&format!("GET {url}"), &format!("`{body}`"));
    ensure!(
        body == format!("web-in-west {client}"),
        "the server saw another client: `{body}`"
    );
    let masqueraded = topology.masqueraded(Place::NodeEast)?;
    ensure!(
        masqueraded == 0,
        "{masqueraded} connections masqueraded by the CNI"
    );
    voice.text(&[
        "The server sees the client Pod's own address: it was not translated on the path, although the",
        "nodes' CNI masquerades packets that leave the cluster (its rule counted 0 connections).",
    ]);

    let frames: Vec<Frame> = capture
        .finish()?
        .iter()
        .filter_map(|bytes| Frame::decode(bytes))
        .collect();
    // Neighbour discovery (ARP, ICMPv6) belongs to the underlay; probes are excluded too.
    let packets: Vec<&Frame> = frames
        .iter()
        .filter(|frame| is_packet(frame) && !frame.is_probe())
        .collect();
    let bare = packets.iter().filter(|frame| frame.inner().is_none()).count();
    ensure!(
        bare == 0,
        "{bare} of {} packets between the gateways not encapsulated",
        packets.len()
    );
    voice.text(&[&format!(
        "{} packets were captured between the gateways (probes excluded), all of them encapsulated.",
        packets.len()
    )]);
    match packets
        .iter()
        .find(|frame| frame.inner().is_some_and(|inner| inner.from == client))
    {
        Some(frame) => Ok((*frame).clone()),
        None => bail!(
            "no packet of {client} captured between the gateways ({} others)",
            packets.len()
        ),
    }
}

/// Maps and counters.
fn show_maps(voice: &mut Printer, topology: &Topology) -> Result<()> {
    let place = Place::GatewayEast;
    let directory = topology.bpf_dir(place);
    voice.step(&format!(
        "State of the gateway of east: its eBPF maps in {}",
        directory.display()
    ));
    voice.text(&[match family(topology) {
        Family::V4 => "Addresses are 16 bytes, IPv4 in the last four. Every map can be dumped at any time.",
        Family::V6 => "Every map can be dumped at any time.",
    }]);
    for (map, meaning) in [
        (
            "mc_prefixes",
            "Location of each prefix (action 1: deliver on this node, 2: forward to a next-hop group):",
        ),
        (
            "mc_peers",
            "Accepted outer sources (flags 1: gateway of another cluster, 4: node of this cluster):",
        ),
    ] {
        let pin = directory.join(mc_gateway_common::abi::MAPS_DIR).join(map);
        voice.text(&[meaning, &format!("$ bpftool map dump pinned {}", pin.display())]);
        voice.verbatim(&maps::dump(&pin)?);
    }
    voice.step("Packet counters of each node");
    let mut table = format!(
        "{:<12}{:>14}{:>14}{:>14}{:>10}\n",
        "node", "encapsulated", "forwarded", "delivered", "dropped"
    );
    for place in Place::NODES {
        let counters = Counters::read(&topology.bpf_dir(place))?;
        let [encap, transit, deliver] =
            [PacketPath::Encap, PacketPath::Transit, PacketPath::Deliver].map(|path| counters.packets(path));
        let dropped: u64 = counters.drops.values().sum();
        table.push_str(&format_row(place.name(), [encap, transit, deliver, dropped]));
        ensure!(
            dropped == 0,
            "{} dropped packets: {:?}",
            place.name(),
            counters.drops
        );
    }
    voice.verbatim(&table);
    Ok(())
}

fn format_row(name: &str, [encap, transit, deliver, dropped]: [u64; 4]) -> String {
    format!("{name:<12}{encap:>14}{transit:>14}{deliver:>14}{dropped:>10}\n")
}

fn throughput(voice: &mut Printer, topology: &Topology, plain: &StreamReport) -> Result<()> {
    voice.step("Throughput over the same hops");
    let ours = stream(topology).context("throughput of mc-gateway")?;
    let gigabits = |report: &StreamReport| format!("{:.1} Gb/s", report.bits_per_second / 1e9);
    voice.result("plain routing, one TCP connection", &gigabits(plain));
    voice.result(
        "mc-gateway, one TCP connection",
        &format!(
            "{}, {:.2} of plain routing",
            gigabits(&ours),
            ours.bits_per_second / plain.bits_per_second
        ),
    );
    voice.text(&["One short run each; `cargo xtask bench` measures accurately and includes kernel VXLAN."]);
    Ok(())
}

/// Kills an agent under traffic and starts a new one.
fn restart_under_traffic(voice: &mut Printer, topology: &mut Topology) -> Result<()> {
    let place = Place::GatewayEast;
    voice.step(&format!(
        "kill -9 of the agent on {} under {RATE} numbered packets per second",
        place.name()
    ));
    let bpf_dir = topology.bpf_dir(place);
    let passed = || Ok::<u64, anyhow::Error>(Counters::read(&bpf_dir)?.packets(PacketPath::Transit));
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let mut stream =
        topology
            .traffic()
            .sequenced(from, to, pod(topology, Cluster::West), RATE, STREAM_DURATION)?;

    let pid = topology.agent_pid(place)?;
    topology.kill_agent(place)?;
    let killed_at = passed()?;
    let without = wait_for("packets forwarded without an agent", PASS_TIMEOUT, || {
        let without = passed()
            .map_err(|error| format!("{error:#}"))?
            .saturating_sub(killed_at);
        if without >= PACKETS_WITHOUT_AGENT {
            Ok(without)
        } else {
            Err(format!("{without} packets"))
        }
    })?;
    voice.result(
        &format!("process {pid} killed"),
        &format!("{without} packets forwarded since"),
    );
    topology.start_agent(place)?;
    ensure!(
        stream.is_running(),
        "the stream ended before the new agent was ready"
    );
    voice.result("new agent started", "it adopted the existing programs and maps");
    let report = stream.finish(STREAM_DURATION + PASS_TIMEOUT)?;
    voice.result(
        "numbered packets",
        &format!(
            "{} sent, {} received, {} lost, {} duplicated, {} reordered",
            report.sent, report.received, report.lost, report.duplicated, report.reordered
        ),
    );
    ensure!(report.lost == 0 && report.ended, "packets lost: {report:?}");
    Ok(())
}
