//! Measurements over four hops: setup, measurement and removal of each case.

use std::{net::IpAddr, time::Instant};

use anyhow::{Context as _, Result};

use super::{
    Settings,
    bed::Bed,
    case::Case,
    cpu_time::BusyTime,
    section::Pace,
    services::{self, SERVICES},
    vxlan_metadata,
};
use crate::{
    netns::Netns,
    topology::{Cluster, Family, Format, Inner, Masquerade, Options, Place, Topology, Variant},
};

/// Payload of the small datagrams in bytes.
pub(super) const SMALL_PAYLOAD: usize = 64;
/// Sizes of requests and responses in bytes.
pub const SIZES: [usize; 3] = [64, 1024, 8192];
/// Numbers of parallel TCP connections.
pub const STREAMS: [usize; 3] = [1, 2, 4];

/// Name and value of a metric.
pub(super) type Metric = (String, f64);

/// Options of the topology for a case. Topologies of several shapes coexist; only one is measured at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TopologyShape {
    /// IPv4 and Geneve.
    Default,
    /// IPv4 and VXLAN.
    Vxlan,
    /// IPv4 and Geneve, with the XDP program.
    Xdp,
    /// IPv4 and VXLAN, with the XDP program.
    VxlanXdp,
    /// IPv6 inside and outside, and Geneve.
    Ipv6,
}

// === impl Shape ===

impl TopologyShape {
    /// All shapes. The default is first, because its name is a prefix of the others.
    pub(super) const ALL: [Self; 5] = [Self::Default, Self::Vxlan, Self::Xdp, Self::VxlanXdp, Self::Ipv6];

    pub(super) const fn for_case(case: Case) -> Self {
        match case {
            Case::McGatewayVxlan => Self::Vxlan,
            Case::McGatewayXdp => Self::Xdp,
            Case::McGatewayVxlanXdp => Self::VxlanXdp,
            case if case.ipv6() => Self::Ipv6,
            _ => Self::Default,
        }
    }

    /// Name prefix of a topology with this shape.
    pub(super) fn prefix(self, prefix: &str) -> String {
        match self {
            Self::Default => prefix.to_owned(),
            Self::Vxlan => format!("{prefix}-vx"),
            Self::Xdp => format!("{prefix}-xd"),
            Self::VxlanXdp => format!("{prefix}-vxd"),
            Self::Ipv6 => format!("{prefix}-v6"),
        }
    }

    /// Creates a topology.
    pub(super) fn create(self, settings: &Settings, bed: Bed) -> Result<Topology> {
        let mut options = Options::new(&self.prefix(&settings.prefix), Some(settings.agent.clone()))?;
        options.mtu = settings.mtu;
        options.bridge = bed.bridge();
        options.links = bed.links();
        // The NAT rule of a masquerading CNI in every case. It exempts the other cluster, as plain routing requires.
        options.masquerade = Masquerade::LeavingBoth;
        match self {
            Self::Default => {}
            Self::Vxlan => options.format = Format::Vxlan,
            Self::Xdp => options = options.with_xdp(),
            Self::VxlanXdp => {
                options = options.with_xdp();
                options.format = Format::Vxlan;
            }
            Self::Ipv6 => {
                options.inner = Inner::V6;
                options.outer = Family::V6;
            }
        }
        Topology::create(options)
    }
}

/// Address of the receiving Pod.
pub(super) fn server_addr(topology: &Topology) -> IpAddr {
    let family = topology.options().inner.families().first().copied();
    Cluster::West.pod_addr(family.unwrap_or_default())
}

/// Runs `work` with a case set up; the case is removed after success and failure.
pub(super) fn with_case<T>(
    topology: &mut Topology,
    case: Case,
    work: impl FnOnce(&mut Topology) -> Result<T>,
) -> Result<T> {
    let set_up = set_up(topology, case).with_context(|| format!("cannot set up {}", case.title()));
    let result = set_up.and_then(|()| work(topology).with_context(|| case.title().to_owned()));
    let taken_down = take_down(topology, case).with_context(|| format!("cannot remove {}", case.title()));
    // The first error takes precedence.
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
        Case::MetadataVxlan => vxlan_metadata::set_up(topology)?,
        Case::McGateway
        | Case::McGatewayVxlan
        | Case::McGatewayXdp
        | Case::McGatewayVxlanXdp
        | Case::McGatewayIpv6 => {
            topology.configure(Variant::McGateway)?;
        }
    }
    let (from, to) = (topology.netns(Place::PodEast), server_addr(topology));
    // Warms neighbours and connection tracking, and detects a broken path.
    topology.traffic().ping(from, to, 3)?;
    Ok(())
}

fn take_down(topology: &mut Topology, case: Case) -> Result<()> {
    match case {
        Case::PlainServices => {
            for place in Place::NODES {
                let table = services::TABLE;
                // Declared first: deletion of a missing table is an error.
                topology
                    .netns(place)
                    .nft(&format!("table ip {table}\ndelete table ip {table}\n"))?;
            }
        }
        Case::MetadataVxlan => vxlan_metadata::take_down(topology)?,
        _ => {}
    }
    topology.reset()
}

/// Measures TCP with each number of streams, with retransmissions and CPU time of one, and small datagrams with loss.
#[expect(
    clippy::cast_precision_loss,
    reason = "no measurement has 2^52 segments or datagrams"
)]
pub(super) fn throughput(topology: &Topology, pace: &Pace) -> Result<Vec<Metric>> {
    let traffic = topology.traffic();
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let address = server_addr(topology);
    let mut figures = Vec::new();
    for streams in STREAMS {
        let duration = if streams == 1 { pace.traffic } else { pace.streams };
        let (busy, start, retransmitted) = (BusyTime::now()?, Instant::now(), retransmitted_segments(from)?);
        let report = traffic.streams(from, to, address, streams, duration)?;
        figures.push((tcp_metric(streams), report.bits_per_second));
        if streams == 1 {
            let busy_cpus = BusyTime::now()?.seconds_since(busy) / start.elapsed().as_secs_f64();
            // CPU seconds by gigabyte are busy CPUs by gigabytes per second.
            let cpu = busy_cpus * 8e9 / report.bits_per_second;
            let retransmitted = retransmitted_segments(from)?.saturating_sub(retransmitted);
            figures.push((CPU_PER_GIGABYTE.to_owned(), cpu));
            figures.push((RETRANSMISSIONS.to_owned(), retransmitted as f64));
        }
    }
    let sink = traffic.udp_flood(from, to, address, SMALL_PAYLOAD, pace.traffic)?;
    figures.push((UDP64.to_owned(), sink.packets_per_second));
    let lost = sink.sent.saturating_sub(sink.received);
    figures.push((UDP64_LOSS.to_owned(), lost as f64 / sink.sent.max(1) as f64));
    Ok(figures)
}

/// Measures requests and responses of each size.
pub(super) fn latency(topology: &Topology, pace: &Pace) -> Result<Vec<Metric>> {
    let traffic = topology.traffic();
    let (from, to) = (topology.netns(Place::PodEast), topology.netns(Place::PodWest));
    let mut figures = Vec::new();
    for size in SIZES {
        let report = traffic.latency(from, to, server_addr(topology), size, pace.requests)?;
        figures.push((rr_metric(size, 50), report.p50_us));
        figures.push((rr_metric(size, 99), report.p99_us));
    }
    Ok(figures)
}

/// TCP segments that the processes of a namespace have retransmitted (`RetransSegs`, RFC 4022).
fn retransmitted_segments(netns: &Netns) -> Result<u64> {
    let snmp = netns.run("cat", ["/proc/net/snmp"])?;
    parse_retransmitted(&snmp).with_context(|| format!("no RetransSegs in `{snmp}`"))
}

/// `RetransSegs` in `/proc/net/snmp`, a line of names and a line of values for each protocol.
fn parse_retransmitted(snmp: &str) -> Option<u64> {
    let mut tcp = snmp.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (tcp.next()?, tcp.next()?);
    let mut columns = names.split_whitespace().zip(values.split_whitespace());
    let (_, value) = columns.find(|(name, _)| *name == "RetransSegs")?;
    value.parse().ok()
}

/// CPU seconds of the whole machine by gigabyte (10^9 bytes) of one TCP stream.
pub const CPU_PER_GIGABYTE: &str = "tcp1_cpu_seconds_per_gigabyte";

/// Segments that the sender of one TCP stream has retransmitted.
pub const RETRANSMISSIONS: &str = "tcp1_retransmissions";

/// Share of the small datagrams that were lost, from 0 to 1; the sender does not wait for the path.
pub const UDP64_LOSS: &str = "udp64_loss";

/// Small datagrams received per second.
pub const UDP64: &str = "udp64_packets_per_second";

/// Name of the total TCP throughput over a number of connections, in bits per second.
#[must_use]
pub fn tcp_metric(streams: usize) -> String {
    format!("tcp{streams}_bits_per_second")
}

/// Name of a percentile of the request/response time at a size, in microseconds.
#[must_use]
pub fn rr_metric(size: usize, percentile: u32) -> String {
    format!("rr{size}_p{percentile}_us")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retransmitted_segments_are_found_by_name() {
        let snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoMin MaxConn RetransSegs InErrs\nTcp: 200 -1 17 0\nUdp: In\nUdp: 1\n";
        assert_eq!(parse_retransmitted(snmp), Some(17));
        assert_eq!(parse_retransmitted("Tcp: RtoMin\nTcp: 200\n"), None);
    }
}
