//! A single hop: a namespace with the role of a gateway between a packet source in the kernel and two sinks.
//!
//! ```text
//!  source → in [ hop ] out0 ── eth0 [ sink0 ]
//!                      out1 ── eth0 [ sink1 ]
//! ```
//!
//! Everything runs on one CPU, frame by frame, so the time per frame is the sum of all steps, and two kinds of hop
//! differ by the hop alone.

use std::{net::Ipv4Addr, path::Path};

use anyhow::{Context as _, Result};
use ipnet::Ipv4Net;
use mc_gateway_common::abi::LinkAddresses;
use nix::net::if_::if_nametoindex;

use super::{
    bpf_objects::{BenchPrograms, Entry, SINK},
    fixture::Leg,
};
use crate::{decode::Mac, netns::Netns};

/// Ingress device of the frames.
pub(super) const IN_DEVICE: &str = "in";
/// The other end of it.
const IN_PEER: &str = "in-peer";
/// Its MAC address.
pub(super) const IN_MAC: [u8; 6] = [2, 0xbe, 0, 0, 0, 0x10];
/// Device of a sink.
pub(super) const SINK_DEVICE: &str = "eth0";

/// The namespaces, with the packet source attached to `in`.
#[derive(Debug)]
pub(super) struct SingleHop {
    // Dropped first: attached in the namespaces.
    pub(super) programs: BenchPrograms,
    pub(super) netns: Netns,
    /// Index of the device with the source.
    pub(super) source: u32,
    pub(super) sinks: [Netns; 2],
    pub(super) inside: Leg,
    pub(super) outside: [Leg; 2],
}

// === impl Hop ===

impl SingleHop {
    /// Creates the namespaces, with the source of packets at the device or at its driver.
    pub(super) fn create(prefix: &str, objects: &Path, entry: Entry) -> Result<Self> {
        let hop = Netns::create(&format!("{prefix}-hop"))?;
        let sinks = [
            Netns::create(&format!("{prefix}-sink0"))?,
            Netns::create(&format!("{prefix}-sink1"))?,
        ];
        for netns in sinks.iter().chain([&hop]) {
            netns.sysctl(&[
                ("net.ipv6.conf.all.disable_ipv6", "1"),
                ("net.ipv6.conf.default.disable_ipv6", "1"),
                // As on the nodes of the topology.
                ("net.ipv4.conf.all.rp_filter", "1"),
                ("net.ipv4.conf.default.rp_filter", "1"),
            ])?;
        }
        hop.sysctl(&[("net.ipv4.ip_forward", "1")])?;
        hop.ip(&[
            format!(
                "link add {IN_DEVICE} address {} type veth peer name {IN_PEER}",
                mac(IN_MAC)
            ),
            format!("link set {IN_PEER} up"),
        ])?;
        hop.configure_device(IN_DEVICE, net(50, 1), 1500)?;
        hop.ip(&[
            format!(
                "neigh replace {} lladdr 02:be:00:00:00:11 dev {IN_DEVICE}",
                host(50, 2)
            ),
            format!("route add 10.11.0.0/16 via {} dev {IN_DEVICE}", host(50, 2)),
        ])?;
        let mut outside = Vec::new();
        for (number, (leg, sink)) in (51..).zip(&sinks).enumerate() {
            let device = format!("out{number}");
            let neighbor = [2, 0xbe, 0, 0, 0x20, u8::try_from(number)?];
            let there = mac(neighbor);
            hop.veth(&device, sink, SINK_DEVICE)?;
            sink.ip(&[format!("link set {SINK_DEVICE} address {there}")])?;
            sink.configure_device(SINK_DEVICE, net(leg, 2), 1500)?;
            hop.configure_device(&device, net(leg, 1), 1500)?;
            // Permanent: no frame waits for neighbour resolution.
            hop.ip(&[format!(
                "neigh replace {} lladdr {there} dev {device} nud permanent",
                host(leg, 2)
            )])?;
            outside.push(Leg {
                ifindex: ifindex(&hop, &device)?,
                local: host(leg, 1),
                remote: host(leg, 2),
                link: LinkAddresses::new(neighbor, IN_MAC),
            });
        }
        hop.ip(&[format!("route add 16.0.0.0/7 via {} dev out0", host(51, 2))])?;
        let mut programs = BenchPrograms::load(objects)?;
        let source = match entry {
            Entry::Device => IN_DEVICE,
            Entry::Driver => {
                // Drivers of both veth pairs with NAPI: without it XDP frames are lost.
                hop.run("ethtool", ["-K", IN_DEVICE, "gro", "on"])?;
                for sink in &sinks {
                    sink.run("ethtool", ["-K", SINK_DEVICE, "gro", "on"])?;
                }
                IN_PEER
            }
        };
        programs.attach_source(&hop, source, entry)?;
        Ok(Self {
            programs,
            source: ifindex(&hop, source)?,
            inside: Leg {
                ifindex: ifindex(&hop, IN_DEVICE)?,
                local: host(50, 1),
                remote: host(50, 2),
                link: LinkAddresses::default(),
            },
            outside: outside.try_into().ok().context("two legs")?,
            netns: hop,
            sinks,
        })
    }

    /// Drops all packets at the ingress of a sink.
    pub(super) fn attach_sink(&mut self, sink: usize) -> Result<()> {
        let netns = self.sinks.get(sink).context("no such sink")?;
        self.programs.attach(netns, SINK, SINK_DEVICE)?;
        Ok(())
    }

    /// Frames received by the first sink.
    pub(super) fn received_frames(&self) -> Result<u64> {
        let [sink, _] = &self.sinks;
        let shown = sink.run("ip", ["-json", "-statistics", "link", "show", "dev", SINK_DEVICE])?;
        let shown: serde_json::Value = serde_json::from_str(&shown)?;
        shown
            .pointer("/0/stats64/rx/packets")
            .and_then(serde_json::Value::as_u64)
            .with_context(|| format!("no counter in {shown}"))
    }
}

fn ifindex(netns: &Netns, device: &str) -> Result<u32> {
    netns
        .enter(|| Ok(if_nametoindex(device)?))
        .with_context(|| format!("{device} in {}", netns.name()))
}

fn host(leg: u8, number: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 168, leg, number)
}

fn net(leg: u8, number: u8) -> Ipv4Net {
    Ipv4Net::new_assert(host(leg, number), 24)
}

fn mac(address: [u8; 6]) -> String {
    Mac(address).to_string()
}
