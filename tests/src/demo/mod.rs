//! The demo: the main job without Kubernetes, told to somebody who sees it for the first time.

mod maps;
mod picture;
mod voice;

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use mc_gateway_common::verdict::Path as PacketPath;

use self::voice::Voice;
use crate::{
    capture::{Capture, Direction},
    counters::Counters,
    decode::{Frame, Payload},
    topology::{Cluster, Family, Inner, Masquerade, Options, Place, Topology, Variant, manifests},
    traffic::StreamReport,
    wait::wait_for,
};

/// Start of the names of everything the demo creates.
pub const PREFIX: &str = "mcdemo";
/// Port of the demo's web server.
const WEB_PORT: u16 = 8080;
/// Time of one throughput measurement.
const MEASURE: Duration = Duration::from_secs(2);
/// The stream an agent is killed under: packets per second and time.
const RATE: u32 = 10_000;
const STREAM: Duration = Duration::from_secs(6);
/// Packets that have to pass while no agent runs.
const WITHOUT_AGENT: u64 = 10_000;
/// How long packets may take to pass.
const PASS: Duration = Duration::from_secs(5);

/// What to do.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Start of the names of everything that is created.
    pub prefix: String,
    /// The program `mc-gateway`.
    pub agent: PathBuf,
    /// Whether to leave everything up.
    pub keep: bool,
    /// Whether addresses are IPv6, those of Pods and those of nodes.
    pub ipv6: bool,
}

/// Tells the story. Everything is removed at the end, also after a failure, unless `keep` is set.
pub fn run(settings: &Settings) -> Result<()> {
    let start = Instant::now();
    let mut voice = Voice::default();
    let mut options = Options::new(&settings.prefix, Some(settings.agent.clone()))?;
    options.masquerade = Masquerade::LeavingBoth;
    if settings.ipv6 {
        options.inner = Inner::V6;
        options.outer = Family::V6;
    }

    voice.title("mc-gateway: a Pod in one cluster reaches a Pod in another, through eBPF gateways");
    voice.say(&[
        "Six network namespaces of this machine play two clusters of two nodes each. There is no Kubernetes,",
        "but the agents, the eBPF programs and the packets are real.",
    ]);
    let mut topology = Topology::create(options)?;
    voice.step("Two clusters: in each a Pod on a regular node, and a gateway node");
    voice.show(&picture::picture(family(&topology)));

    let plain = plain_routing(&mut topology)?;
    agents(&mut voice, &mut topology)?;
    let frame = first_contact(&mut voice, &topology)?;
    voice.step("One packet as it crosses the network between the gateways");
    voice.show(&frame.to_string());
    voice.say(&[
        "The gateways only rewrite the outer headers. What the Pod sent stays wrapped from its node to",
        "the other Pod's node.",
    ]);
    inside(&mut voice, &topology)?;
    throughput(&mut voice, &topology, &plain)?;
    survive(&mut voice, &mut topology)?;

    if settings.keep {
        topology.keep();
        voice.step("Left up for you to explore");
        voice.show(&picture::try_this(&topology));
    } else {
        voice.step("Cleaning up");
        topology.reset()?;
        let prefix = topology.options().prefix.clone();
        drop(topology);
        let left = crate::netns::residue(&prefix)?;
        ensure!(left.is_empty(), "left behind: {left:?}");
        voice.say(&["Every namespace, device, route, rule and pinned map is gone again."]);
    }
    voice.title(&format!("Done in {:.0} s.", start.elapsed().as_secs_f64()));
    Ok(())
}

/// The yardstick, measured before any agent runs.
fn plain_routing(topology: &mut Topology) -> Result<StreamReport> {
    topology.configure(Variant::Plain)?;
    let report = stream(topology).context("plain routing")?;
    topology.reset()?;
    // From here on the CNI masquerades as CNIs do by default: everything that leaves the cluster.
    topology.set_masquerade(Masquerade::LeavingCluster)?;
    Ok(report)
}

fn stream(topology: &Topology) -> Result<StreamReport> {
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    topology
        .traffic()
        .stream(from, to, pod(topology, Cluster::West), MEASURE)
}

/// Family of all addresses.
fn family(topology: &Topology) -> Family {
    topology.options().outer
}

/// Address of a cluster's Pod.
fn pod(topology: &Topology, cluster: Cluster) -> IpAddr {
    cluster.pod_addr(family(topology))
}

/// Whether this is more than what hosts find their neighbours by (RFC 4861 and, behind a header of options, RFC
/// 3810; ARP is no IP packet).
fn is_packet(frame: &Frame) -> bool {
    frame.ip.as_ref().is_some_and(|ip| match ip.payload {
        Payload::Icmpv6 { kind, .. } => !(133..=137).contains(&kind),
        Payload::Other => ip.from.is_ipv4() || ip.protocol != 0,
        _ => true,
    })
}

fn agents(voice: &mut Voice, topology: &mut Topology) -> Result<()> {
    voice.step("An mc-gateway agent on each of the four nodes");
    let start = Instant::now();
    topology.configure(Variant::McGateway)?;
    voice.say(&[
        &format!(
            "All four were ready after {:.1} s. They were told what to do by the same",
            start.elapsed().as_secs_f64()
        ),
        "YAML a Kubernetes cluster would hold. In cluster east, for example:",
    ]);
    let shown: Vec<String> = manifests(Cluster::East, topology.options())
        .into_iter()
        .filter(|(name, _)| name != "nodes.yaml")
        .map(|(_, content)| content)
        .collect();
    voice.show(&shown.join("---\n"));
    Ok(())
}

/// Ping and TCP from Pod to Pod, with a capture between the gateways. Returns one captured frame.
fn first_contact(voice: &mut Voice, topology: &Topology) -> Result<Frame> {
    let traffic = topology.traffic();
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let (client, server) = (pod(topology, Cluster::East), pod(topology, Cluster::West));
    let file = topology.directory().join("between.pcap");
    let between = topology.netns(Place::GatewayWest);
    let device = picture::between_device();
    let capture = Capture::start(traffic, between, device, Direction::Both, None, &file)?;

    voice.step(&format!("Pod {client} in east talks to Pod {server} in west"));
    let ping = traffic.ping(from, server, 3)?;
    ensure!(
        ping.received == ping.sent,
        "only {} of {} pings were answered",
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
    ensure!(masqueraded == 0, "the CNI masqueraded {masqueraded} connections");
    voice.say(&[
        "The server was asked by the client Pod's own address: nothing on the way translated it, though",
        "the nodes' CNI masquerades what leaves the cluster (its rule has counted 0 connections).",
    ]);

    let frames: Vec<Frame> = capture
        .finish()?
        .iter()
        .filter_map(|bytes| Frame::decode(bytes))
        .collect();
    // How gateways find their neighbours (ARP, ICMPv6) is the underlay's own business, and probes are theirs.
    let packets: Vec<&Frame> = frames
        .iter()
        .filter(|frame| is_packet(frame) && !frame.is_probe())
        .collect();
    let bare = packets.iter().filter(|frame| frame.inner().is_none()).count();
    ensure!(
        bare == 0,
        "{bare} of {} packets between the gateways were not encapsulated",
        packets.len()
    );
    voice.say(&[&format!(
        "Between the gateways {} packets were seen besides their probes, every one of them encapsulated.",
        packets.len()
    )]);
    match packets
        .iter()
        .find(|frame| frame.inner().is_some_and(|inner| inner.from == client))
    {
        Some(frame) => Ok((*frame).clone()),
        None => bail!(
            "no packet of {client} was seen between the gateways ({} others)",
            packets.len()
        ),
    }
}

/// Maps and counters.
fn inside(voice: &mut Voice, topology: &Topology) -> Result<()> {
    let place = Place::GatewayEast;
    let directory = topology.bpf_dir(place);
    voice.step(&format!(
        "What the gateway of east knows: its eBPF maps in {}",
        directory.display()
    ));
    voice.say(&[match family(topology) {
        Family::V4 => {
            "Addresses are 16 bytes, IPv4 in the last four. Every map can be read like this at any time."
        }
        Family::V6 => "Every map can be read like this at any time.",
    }]);
    for (map, meaning) in [
        (
            "mc_prefixes",
            "Where an address belongs (action 1: deliver here, 2: forward to a group of nodes):",
        ),
        (
            "mc_peers",
            "From whom packets are accepted (flags 1: another cluster's gateway, 4: a node of ours):",
        ),
    ] {
        let pin = directory.join(mc_gateway_common::abi::MAPS_DIR).join(map);
        voice.say(&[meaning, &format!("$ bpftool map dump pinned {}", pin.display())]);
        voice.show(&maps::dump(&pin)?);
    }
    voice.step("What each node has done so far, counted by its programs");
    let mut table = format!(
        "{:<12}{:>14}{:>14}{:>14}{:>10}\n",
        "node", "encapsulated", "passed on", "delivered", "dropped"
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
    voice.show(&table);
    Ok(())
}

fn format_row(name: &str, [encap, transit, deliver, dropped]: [u64; 4]) -> String {
    format!("{name:<12}{encap:>14}{transit:>14}{deliver:>14}{dropped:>10}\n")
}

fn throughput(voice: &mut Voice, topology: &Topology, plain: &StreamReport) -> Result<()> {
    voice.step("How fast it is, over the same hops");
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
    voice.say(&["One short run each; `cargo xtask bench` measures properly and adds kernel VXLAN."]);
    Ok(())
}

/// Kills an agent under traffic and starts it again.
fn survive(voice: &mut Voice, topology: &mut Topology) -> Result<()> {
    let place = Place::GatewayEast;
    voice.step(&format!(
        "kill -9 to the agent of {} while {RATE} numbered packets a second go by",
        place.name()
    ));
    let bpf_dir = topology.bpf_dir(place);
    let passed = || Ok::<u64, anyhow::Error>(Counters::read(&bpf_dir)?.packets(PacketPath::Transit));
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let mut stream = topology
        .traffic()
        .sequenced(from, to, pod(topology, Cluster::West), RATE, STREAM)?;

    let pid = topology.agent_pid(place)?;
    topology.kill_agent(place)?;
    let killed_at = passed()?;
    let without = wait_for("packets passing without an agent", PASS, || {
        let without = passed()
            .map_err(|error| format!("{error:#}"))?
            .saturating_sub(killed_at);
        if without >= WITHOUT_AGENT {
            Ok(without)
        } else {
            Err(format!("{without} packets"))
        }
    })?;
    voice.result(
        &format!("process {pid} killed"),
        &format!("{without} packets have passed since, nobody missed it"),
    );
    topology.start_agent(place)?;
    ensure!(
        stream.is_running(),
        "the stream ended before the new agent was ready"
    );
    voice.result("a new agent started", "it adopted the programs and maps it found");
    let report = stream.finish(STREAM + PASS)?;
    voice.result(
        "numbered packets",
        &format!(
            "{} sent, {} received, {} lost, {} repeated, {} out of order",
            report.sent, report.received, report.lost, report.duplicated, report.reordered
        ),
    );
    ensure!(report.lost == 0 && report.ended, "packets were lost: {report:?}");
    Ok(())
}
