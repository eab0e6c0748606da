//! Distribution of flows over one and two destination gateways, counted by the gateways.
//!
//! All hosts share the CPUs of one machine, so throughput cannot double with a second gateway. The share of packets
//! that each gateway receives shows its share of the load.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use mc_gateway_common::{
    abi::{LinkAddresses, PROGRAM_FROM_UNDERLAY},
    verdict::Outcome as PacketPath,
};

use super::{
    bpf_objects::{Entry, LoadedGateway},
    fixture::{self, Layout, Leg, Sizes},
    single_hop::{IN_DEVICE, IN_MAC, SINK_DEVICE, SingleHop},
};

/// Note in the report about the unit of the ratio.
pub const NOTE: &str = "two_gateways_vs_one counts packets: all hosts share the CPUs of one machine, so throughput cannot double";
/// Flows of a measurement, a power of two.
const FLOWS: u32 = 4_096;
/// Subject in the report.
pub const SUBJECT: &str = "gateways";

/// A sending gateway with one next hop, one with two, and the two receiving gateways.
#[derive(Debug)]
pub(super) struct Gateways {
    // Dropped first: attached in the namespaces of the hop.
    senders: [LoadedGateway; 2],
    receivers: [LoadedGateway; 2],
    hop: SingleHop,
}

// === impl Gateways ===

impl Gateways {
    pub(super) fn create(prefix: &str, objects: &Path) -> Result<Self> {
        let hop = SingleHop::create(prefix, objects, Entry::Device)?;
        let sender = |next_hops| {
            let tables = fixture::gateway(sizes(next_hops), hop.inside, &hop.outside);
            LoadedGateway::load(objects, &tables)
        };
        let senders = [sender(1)?, sender(2)?];
        let receiver = |leg: Leg, sink| {
            let there = Leg {
                ifindex: 0,
                local: leg.remote,
                remote: leg.local,
                link: LinkAddresses::default(),
            };
            let mut gateway = LoadedGateway::load(objects, &fixture::destination(there))?;
            gateway.attach(sink, PROGRAM_FROM_UNDERLAY, SINK_DEVICE)?;
            Ok::<_, anyhow::Error>(gateway)
        };
        let ([first, second], [sink0, sink1]) = (hop.outside, &hop.sinks);
        let receivers = [receiver(first, sink0)?, receiver(second, sink1)?];
        Ok(Self {
            senders,
            receivers,
            hop,
        })
    }

    /// All packets by those of the busier gateway, for one and for two gateways. Each round uses new flows.
    pub(super) fn measure(&mut self, round: u32, duration: Duration) -> Result<Vec<(u32, f64)>> {
        let Self {
            senders,
            receivers,
            hop,
        } = self;
        let frames = fixture::flows(FLOWS, round * FLOWS, sizes(1), hop.inside, IN_MAC);
        let frame = frames.first().map(Vec::as_slice).unwrap_or_default();
        hop.programs.set_frames(&frames)?;
        let mut figures = Vec::new();
        for (gateways, sender) in (1..).zip(senders) {
            let delivered = |receivers: &[LoadedGateway; 2]| -> Result<[u64; 2]> {
                let [first, second] = receivers;
                Ok([
                    first.packets(PacketPath::Deliver)?,
                    second.packets(PacketPath::Deliver)?,
                ])
            };
            let before = delivered(receivers)?;
            sender.attach(&hop.netns, PROGRAM_FROM_UNDERLAY, IN_DEVICE)?;
            let sent = hop.programs.send(&hop.netns, hop.source, frame, duration)?;
            sender.detach()?;
            let after = delivered(receivers)?;
            let [first, second] = [after[0] - before[0], after[1] - before[1]];
            let total = first + second;
            ensure!(
                total * 1000 >= sent.frames * 999,
                "{gateways} gateways: {total} of {} frames delivered; drops: {:?}",
                sent.frames,
                sender.drops()?
            );
            #[expect(clippy::cast_precision_loss, reason = "no measurement has 2^52 packets")]
            let split = total as f64 / first.max(second) as f64;
            figures.push((gateways, split));
        }
        Ok(figures)
    }
}

fn sizes(next_hops: u32) -> Sizes {
    Sizes {
        prefixes: 1,
        clusters: 1,
        next_hops,
        layout: Layout::Dense,
    }
}
