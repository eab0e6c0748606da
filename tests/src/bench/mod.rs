//! The benchmark: plain routing, kernel VXLAN on every leg and mc-gateway, in turn over the same six
//! namespaces, so that what changes on the machine meanwhile hits all of them alike.

pub mod report;

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail};

use self::report::{Measurement, Report, Setup};
use crate::topology::{Cluster, Masquerade, Options, Place, Topology, Variant};

/// Start of the names of everything the benchmark creates, unless told otherwise.
pub const PREFIX: &str = "mcbench";
/// Payload of the small datagrams in bytes.
const SMALL: usize = 64;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Start of the names of everything that is created.
    pub prefix: String,
    /// The program `mc-gateway`.
    pub agent: Option<PathBuf>,
    /// The variants to measure.
    pub variants: Vec<Variant>,
    /// How often each is measured.
    pub rounds: u32,
    /// Time of one throughput and of one packet rate measurement.
    pub duration: Duration,
    /// Requests of one latency measurement.
    pub requests: usize,
    /// Underlay MTU.
    pub mtu: u32,
    /// Whether Pods are attached to a bridge, as bridge CNIs do.
    pub bridge: bool,
}

/// Measures everything and returns the report; `progress` gets one line for each measurement.
pub fn run(settings: &Settings, mut progress: impl FnMut(&Measurement)) -> Result<Report> {
    if settings.rounds == 0 || settings.variants.is_empty() {
        bail!(
            "{} rounds of {} variants measure nothing",
            settings.rounds,
            settings.variants.len()
        );
    }
    let mut options = Options::new(&settings.prefix, settings.agent.clone())?;
    options.mtu = settings.mtu;
    options.bridge = settings.bridge;
    // The regular nodes have the NAT rule of a masquerading CNI in every variant, as real ones do; where
    // packets are routed plainly the administrator has to exempt the other cluster.
    options.masquerade = Masquerade::LeavingBoth;
    let mut topology = Topology::create(options)?;
    let mut measurements = Vec::new();
    for round in 1..=settings.rounds {
        // Each round starts with another variant: none of them always runs on a rested machine.
        let shift = usize::try_from(round)? % settings.variants.len();
        for variant in settings
            .variants
            .iter()
            .cycle()
            .skip(shift)
            .take(settings.variants.len())
        {
            topology.configure(*variant)?;
            let measurement = measure(&topology, *variant, round, settings)
                .with_context(|| format!("round {round}, {variant}"))?;
            progress(&measurement);
            measurements.push(measurement);
        }
    }
    topology.reset()?;
    Ok(Report::new(setup(settings), measurements))
}

/// One variant, once.
fn measure(topology: &Topology, variant: Variant, round: u32, settings: &Settings) -> Result<Measurement> {
    let traffic = topology.traffic();
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let address = Cluster::West.pod_ip();
    // Neighbours and connection tracking are warm, and a path that does not work says so at once.
    traffic.ping(from, address, 3)?;
    let stream = traffic.stream(from, to, address, settings.duration)?;
    let sink = traffic.blast(from, to, address, SMALL, settings.duration)?;
    let latency = traffic.latency(from, to, address, settings.requests)?;
    Ok(Measurement {
        round,
        variant,
        tcp_bits_per_second: stream.bits_per_second,
        udp64_packets_per_second: sink.packets_per_second,
        udp64_sent: sink.sent,
        udp64_received: sink.received,
        latency_p50_us: latency.p50_us,
        latency_p99_us: latency.p99_us,
    })
}

fn setup(settings: &Settings) -> Setup {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Setup {
        kernel: kernel.trim().to_owned(),
        cpus: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        rounds: settings.rounds,
        seconds: settings.duration.as_secs_f64(),
        requests: settings.requests,
        underlay_mtu: settings.mtu,
        bridge: settings.bridge,
        pod_mtu: settings.mtu - crate::topology::OVERHEAD,
    }
}
