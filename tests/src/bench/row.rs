//! Over the whole row of six namespaces: each case set up, measured and taken down in turn.

use std::net::IpAddr;

use anyhow::{Context as _, Result};

use super::{
    Settings,
    case::Case,
    metadata,
    part::Pace,
    services::{self, SERVICES},
};
use crate::topology::{Cluster, Family, Format, Inner, Masquerade, Options, Place, Topology, Variant};

/// Payload of the small datagrams in bytes.
pub(super) const SMALL: usize = 64;
/// Sizes of requests and answers in bytes.
pub const SIZES: [usize; 3] = [64, 1024, 8192];
/// Numbers of TCP connections at a time.
pub const STREAMS: [usize; 3] = [1, 2, 4];

/// A figure and its value.
pub(super) type Figure = (String, f64);

/// The shape of the row a case needs. Rows of several shapes stand side by side; one that is not being
/// measured is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shape {
    /// IPv4 and Geneve.
    Ordinary,
    /// IPv4 and VXLAN.
    Vxlan,
    /// IPv6 inside and outside, and Geneve.
    Ipv6,
}

// === impl Shape ===

impl Shape {
    /// All of them. The ordinary one is first: the names of the others begin with its names.
    pub(super) const ALL: [Self; 3] = [Self::Ordinary, Self::Vxlan, Self::Ipv6];

    pub(super) const fn of(case: Case) -> Self {
        match case {
            Case::McGatewayVxlan => Self::Vxlan,
            case if case.ipv6() => Self::Ipv6,
            _ => Self::Ordinary,
        }
    }

    /// Start of the names of a row of this shape.
    pub(super) fn prefix(self, prefix: &str) -> String {
        match self {
            Self::Ordinary => prefix.to_owned(),
            Self::Vxlan => format!("{prefix}-vx"),
            Self::Ipv6 => format!("{prefix}-v6"),
        }
    }

    /// Creates a row.
    pub(super) fn create(self, settings: &Settings) -> Result<Topology> {
        let mut options = Options::new(&self.prefix(&settings.prefix), Some(settings.agent.clone()))?;
        options.mtu = settings.mtu;
        options.bridge = settings.bridge;
        // The regular nodes have the NAT rule of a masquerading CNI in every case, as real ones do; where
        // packets are routed plainly the administrator has to exempt the other cluster.
        options.masquerade = Masquerade::LeavingBoth;
        match self {
            Self::Ordinary => {}
            Self::Vxlan => options.format = Format::Vxlan,
            Self::Ipv6 => {
                options.inner = Inner::V6;
                options.outer = Family::V6;
            }
        }
        Topology::create(options)
    }
}

/// Address of the Pod that is sent to.
pub(super) fn target(topology: &Topology) -> IpAddr {
    let family = topology.options().inner.families().first().copied();
    Cluster::West.pod_addr(family.unwrap_or_default())
}

/// Sets a case up, does something, and takes the case down whatever came of it.
pub(super) fn with_case<T>(
    topology: &mut Topology,
    case: Case,
    work: impl FnOnce(&mut Topology) -> Result<T>,
) -> Result<T> {
    let set_up = set_up(topology, case).with_context(|| format!("cannot set up {}", case.title()));
    let result = set_up.and_then(|()| work(topology).with_context(|| case.title().to_owned()));
    let taken_down = take_down(topology, case).with_context(|| format!("cannot take down {}", case.title()));
    // What went wrong first is what matters.
    let value = result?;
    taken_down?;
    Ok(value)
}

fn set_up(topology: &mut Topology, case: Case) -> Result<()> {
    match case {
        Case::Plain | Case::PlainIpv6 => topology.configure(Variant::Plain)?,
        Case::PlainServices => {
            topology.configure(Variant::Plain)?;
            for place in Place::NODES {
                topology
                    .netns(place)
                    .nft(&services::rules(place.cluster(), SERVICES))?;
            }
        }
        Case::KernelVxlan | Case::KernelVxlanIpv6 => topology.configure(Variant::KernelVxlan)?,
        Case::MetadataVxlan => metadata::set_up(topology)?,
        Case::McGateway | Case::McGatewayVxlan | Case::McGatewayIpv6 => {
            topology.configure(Variant::McGateway)?;
        }
    }
    let (from, to) = (topology.netns(Place::PodEast), target(topology));
    // Neighbours and connection tracking are warm, and a path that does not work says so at once.
    topology.traffic().ping(from, to, 3)?;
    Ok(())
}

fn take_down(topology: &mut Topology, case: Case) -> Result<()> {
    match case {
        Case::PlainServices => {
            for place in Place::NODES {
                let table = services::TABLE;
                // Declared first so that deleting it works whether it is there or not.
                topology
                    .netns(place)
                    .nft(&format!("table ip {table}\ndelete table ip {table}\n"))?;
            }
        }
        Case::MetadataVxlan => metadata::take_down(topology)?,
        _ => {}
    }
    topology.reset()
}

/// TCP with several numbers of streams, and small datagrams.
pub(super) fn throughput(topology: &Topology, pace: &Pace) -> Result<Vec<Figure>> {
    let traffic = topology.traffic();
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let address = target(topology);
    let mut figures = Vec::new();
    for streams in STREAMS {
        let duration = if streams == 1 { pace.traffic } else { pace.streams };
        let report = traffic.streams(from, to, address, streams, duration)?;
        figures.push((tcp(streams), report.bits_per_second));
    }
    let sink = traffic.blast(from, to, address, SMALL, pace.traffic)?;
    figures.push((UDP64.to_owned(), sink.packets_per_second));
    Ok(figures)
}

/// Requests and answers of several sizes.
pub(super) fn latency(topology: &Topology, pace: &Pace) -> Result<Vec<Figure>> {
    let traffic = topology.traffic();
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let mut figures = Vec::new();
    for size in SIZES {
        let report = traffic.latency(from, to, target(topology), size, pace.requests)?;
        figures.push((rr(size, 50), report.p50_us));
        figures.push((rr(size, 99), report.p99_us));
    }
    Ok(figures)
}

/// Small datagrams received per second.
pub const UDP64: &str = "udp64_packets_per_second";

/// Bits per second over so many TCP connections together.
#[must_use]
pub fn tcp(streams: usize) -> String {
    format!("tcp{streams}_bits_per_second")
}

/// Percentile of the time of one request and its answer of this size, in microseconds.
#[must_use]
pub fn rr(size: usize, percentile: u32) -> String {
    format!("rr{size}_p{percentile}_us")
}
