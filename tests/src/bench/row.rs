//! Over the whole row of six namespaces: each case set up, measured and taken down in turn.

use anyhow::{Context as _, Result};

use super::{
    case::Case,
    metadata,
    part::Pace,
    services::{self, SERVICES},
};
use crate::topology::{Cluster, Place, Topology, Variant};

/// Payload of the small datagrams in bytes.
pub(super) const SMALL: usize = 64;
/// Sizes of requests and answers in bytes.
pub const SIZES: [usize; 3] = [64, 1024, 8192];
/// Numbers of TCP connections at a time.
pub const STREAMS: [usize; 3] = [1, 2, 4];

/// A figure and its value.
pub(super) type Figure = (String, f64);

/// Why a case cannot be measured yet.
pub(super) fn unavailable(case: Case) -> Option<&'static str> {
    match case {
        Case::McGatewayVxlan => Some("the row of namespaces is set up for Geneve only"),
        Case::PlainIpv6 | Case::McGatewayIpv6 => Some("the row of namespaces has IPv4 addresses only"),
        _ => None,
    }
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
        Case::KernelVxlan => topology.configure(Variant::KernelVxlan)?,
        Case::MetadataVxlan => metadata::set_up(topology)?,
        Case::McGateway | Case::McGatewayVxlan | Case::McGatewayIpv6 => {
            topology.configure(Variant::McGateway)?;
        }
    }
    let (from, to) = (topology.netns(Place::PodEast), Cluster::West.pod_ip());
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
    let address = Cluster::West.pod_ip();
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
        let report = traffic.latency(from, to, Cluster::West.pod_ip(), size, pace.requests)?;
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
