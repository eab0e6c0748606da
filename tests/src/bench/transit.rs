//! One hop alone: the gateway's program against the kernel's forwarding.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use mc_gateway_common::abi::PROGRAM_FROM_UNDERLAY;

use super::{
    hop::{Hop, IN, IN_MAC},
    objects::{Gateway, SINK, WIRE},
    row::Figure,
    world::{self, Layout, Sizes},
};

/// What the hop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Drops every frame at once: what the source costs by itself.
    Nothing,
    /// Sends every frame on as it is: what getting it to the sink costs at least.
    Wire,
    /// Routes 64-byte datagrams that are not encapsulated.
    Forward,
    /// Runs `from_underlay` on the same datagrams, encapsulated.
    Transit,
}

// === impl Kind ===

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Wire, Self::Forward, Self::Transit];

    /// Name in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "hop-nothing",
            Self::Wire => "hop-wire",
            Self::Forward => "hop-forward",
            Self::Transit => "hop-transit",
        }
    }
}

/// Frames per second through the hop.
pub const RATE: &str = "packets_per_second";
/// Nanoseconds per frame, from the source to the sink.
pub const TIME: &str = "nanoseconds_per_packet";

/// The same without what the source costs in that round: the hop by itself.
pub const OWN: &str = "own_nanoseconds_per_packet";

/// Flows at a time.
const FLOWS: u32 = 64;
const SIZES: Sizes = Sizes {
    prefixes: 10,
    clusters: 1,
    members: 1,
    layout: Layout::Dense,
};

/// The hop and what is attached to it in turn.
#[derive(Debug)]
pub(super) struct Transit {
    // Drops first: it is attached in the hop's namespace.
    gateway: Gateway,
    hop: Hop,
}

// === impl Transit ===

impl Transit {
    pub(super) fn create(prefix: &str, objects: &Path) -> Result<Self> {
        let mut hop = Hop::create(prefix, objects)?;
        hop.close(0)?;
        let [outside, _] = hop.outside;
        hop.yardstick.aim(outside.ifindex)?;
        let gateway = Gateway::load(objects, &world::gateway(SIZES, hop.inside, &[outside]))?;
        Ok(Self { gateway, hop })
    }

    /// Measures each kind of hop once, in this order.
    pub(super) fn measure(&mut self, kinds: &[Kind], duration: Duration) -> Result<Vec<(Kind, Vec<Figure>)>> {
        let mut times = Vec::new();
        for kind in kinds {
            times.push((*kind, self.time(*kind, duration)?));
        }
        let source = times
            .iter()
            .find(|(kind, _)| *kind == Kind::Nothing)
            .map_or(0.0, |(_, time)| *time);
        Ok(times
            .into_iter()
            .map(|(kind, time)| {
                let mut figures = vec![(RATE.to_owned(), 1e9 / time), (TIME.to_owned(), time)];
                if kind != Kind::Nothing {
                    figures.push((OWN.to_owned(), time - source));
                }
                (kind, figures)
            })
            .collect())
    }

    /// Nanoseconds a frame takes from the source to the sink.
    fn time(&mut self, kind: Kind, duration: Duration) -> Result<f64> {
        let Self { gateway, hop } = self;
        let frames = if kind == Kind::Forward {
            world::plain_flows(FLOWS, SIZES, IN_MAC)
        } else {
            world::flows(FLOWS, 0, SIZES, hop.inside, IN_MAC)
        };
        hop.yardstick.prepare(&frames)?;
        let frame = frames.first().map(Vec::as_slice).unwrap_or_default();
        let classifier = match kind {
            Kind::Nothing => Some(SINK),
            Kind::Wire => Some(WIRE),
            Kind::Forward | Kind::Transit => None,
        };
        let link = match classifier {
            Some(name) => Some((name, hop.yardstick.attach(&hop.netns, name, IN)?)),
            None => None,
        };
        if kind == Kind::Transit {
            gateway.attach(&hop.netns, PROGRAM_FROM_UNDERLAY, IN)?;
        }
        let before = hop.arrived()?;
        let sent = hop
            .yardstick
            .send(&hop.netns, hop.inside.ifindex, frame, duration)?;
        let arrived = hop.arrived()? - before;
        if let Some((name, id)) = link {
            hop.yardstick.detach(name, id)?;
        }
        gateway.detach()?;
        // A frame that does not arrive costs less: such a figure would flatter.
        ensure!(
            kind == Kind::Nothing || arrived * 1000 >= sent.frames * 999,
            "{}: only {arrived} of {} frames crossed the hop; drops: {:?}",
            kind.name(),
            sent.frames,
            gateway.drops()?
        );
        Ok(sent.nanoseconds)
    }
}
