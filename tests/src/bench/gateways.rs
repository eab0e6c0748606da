//! One and two destination gateways: how evenly many flows are split, counted by the gateways themselves.
//!
//! On two CPUs that do all the work of all hosts throughput cannot double with a second gateway. What can be
//! shown is that each of the two gets its share of the packets, and so would get its share of the work.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use mc_gateway_common::{abi::PROGRAM_FROM_UNDERLAY, verdict::Path as PacketPath};

use super::{
    hop::{Hop, IN, IN_MAC, SINK_DEVICE},
    objects::{Gateway, MAX_HEADS},
    world::{self, Layout, Leg, Sizes},
};

/// Why the figure is one of packets and not of bits per second.
pub const NOTE: &str = "two_gateways_vs_one counts packets: on the CPUs of one machine, which do the work of all hosts, \
     throughput cannot double";
/// Subject in the report.
pub const SUBJECT: &str = "gateways";

/// A sending gateway that knows one, and one that knows two gateways of the other cluster; these.
#[derive(Debug)]
pub(super) struct Gateways {
    // Drop first: they are attached in the hop's namespaces.
    senders: [Gateway; 2],
    receivers: [Gateway; 2],
    hop: Hop,
}

// === impl Gateways ===

impl Gateways {
    pub(super) fn create(prefix: &str, objects: &Path) -> Result<Self> {
        let hop = Hop::create(prefix, objects)?;
        let sender = |members| {
            let tables = world::gateway(sizes(members), hop.inside, &hop.outside);
            Gateway::load(objects, &tables)
        };
        let senders = [sender(1)?, sender(2)?];
        let receiver = |leg: Leg, sink| {
            let there = Leg {
                ifindex: 0,
                local: leg.remote,
                remote: leg.local,
            };
            let mut gateway = Gateway::load(objects, &world::destination(there))?;
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

    /// All packets by those of the busiest gateway, for one and for two gateways. Each round has other flows.
    pub(super) fn measure(&mut self, round: u32, duration: Duration) -> Result<Vec<(u32, f64)>> {
        let Self {
            senders,
            receivers,
            hop,
        } = self;
        let flows = u32::try_from(MAX_HEADS)?;
        let frames = world::flows(flows, round * flows, sizes(1), hop.inside, IN_MAC);
        let frame = frames.first().map(Vec::as_slice).unwrap_or_default();
        hop.yardstick.prepare(&frames)?;
        let mut figures = Vec::new();
        for (gateways, sender) in (1..).zip(senders) {
            let delivered = |receivers: &[Gateway; 2]| -> Result<[u64; 2]> {
                let [first, second] = receivers;
                Ok([
                    first.packets(PacketPath::Deliver)?,
                    second.packets(PacketPath::Deliver)?,
                ])
            };
            let before = delivered(receivers)?;
            sender.attach(&hop.netns, PROGRAM_FROM_UNDERLAY, IN)?;
            let sent = hop
                .yardstick
                .send(&hop.netns, hop.inside.ifindex, frame, duration)?;
            sender.detach()?;
            let after = delivered(receivers)?;
            let [first, second] = [after[0] - before[0], after[1] - before[1]];
            let total = first + second;
            ensure!(
                total * 1000 >= sent.frames * 999,
                "{gateways} gateways: {total} of {} frames were delivered; drops: {:?}",
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

fn sizes(members: u32) -> Sizes {
    Sizes {
        prefixes: 1,
        clusters: 1,
        members,
        layout: Layout::Dense,
    }
}
