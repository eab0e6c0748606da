//! A single hop: the gateway's program compared with the kernel's forwarding.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use mc_gateway_common::abi::PROGRAM_FROM_UNDERLAY;

use super::{
    bpf_objects::{Entry, LoadedGateway, SINK, WIRE},
    end_to_end::Metric,
    fixture::{self, Layout, Sizes},
    single_hop::{IN_DEVICE, IN_MAC, SingleHop},
};

/// Kind of processing in the hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopKind {
    /// Drops every frame at ingress: the cost of the source.
    Drop,
    /// Redirects every frame unchanged: the lower bound of any hop.
    Wire,
    /// Routes 64-byte datagrams without encapsulation.
    Forward,
    /// Runs `from_underlay` on the same datagrams, encapsulated.
    Transit,
    /// Drops every frame in the driver: the cost of a source in front of it.
    DriverDrop,
    /// [`Self::Forward`] of frames from the driver, with the allocation of their socket buffers.
    DriverForward,
    /// [`Self::Transit`] of such frames.
    DriverTransit,
    /// Runs the XDP program on such frames.
    XdpTransit,
}

// === impl Kind ===

impl HopKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Drop,
        Self::Wire,
        Self::Forward,
        Self::Transit,
        Self::DriverDrop,
        Self::DriverForward,
        Self::DriverTransit,
        Self::XdpTransit,
    ];

    /// Name in the report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "hop-drop",
            Self::Wire => "hop-wire",
            Self::Forward => "hop-forward",
            Self::Transit => "hop-transit",
            Self::DriverDrop => "hop-driver-drop",
            Self::DriverForward => "hop-driver-forward",
            Self::DriverTransit => "hop-driver-transit",
            Self::XdpTransit => "hop-xdp-transit",
        }
    }

    /// Whether it measures the source alone.
    const fn is_source(self) -> bool {
        matches!(self, Self::Drop | Self::DriverDrop)
    }

    /// Where its frames enter.
    pub(super) const fn entry(self) -> Entry {
        match self {
            Self::Drop | Self::Wire | Self::Forward | Self::Transit => Entry::Device,
            Self::DriverDrop | Self::DriverForward | Self::DriverTransit | Self::XdpTransit => Entry::Driver,
        }
    }
}

/// Frames per second through the hop.
pub const RATE: &str = "packets_per_second";
/// Nanoseconds per frame, from the source to the sink.
pub const TIME: &str = "nanoseconds_per_packet";

/// The same, minus the time of the source in that round: the hop alone.
pub const NET_TIME: &str = "net_nanoseconds_per_packet";

/// Number of flows.
const FLOWS: u32 = 64;
const SIZES: Sizes = Sizes {
    prefixes: 10,
    clusters: 1,
    next_hops: 1,
    layout: Layout::Dense,
};

/// The hop and the gateway's programs.
#[derive(Debug)]
pub(super) struct Transit {
    // Dropped first: attached in the namespace of the hop.
    gateway: LoadedGateway,
    hop: SingleHop,
}

// === impl Transit ===

impl Transit {
    pub(super) fn create(prefix: &str, objects: &Path, entry: Entry) -> Result<Self> {
        let mut hop = SingleHop::create(prefix, objects, entry)?;
        hop.attach_sink(0)?;
        let [outside, _] = hop.outside;
        hop.programs.set_wire_target(outside.ifindex)?;
        let gateway = LoadedGateway::load(objects, &fixture::gateway(SIZES, hop.inside, &[outside]))?;
        Ok(Self { gateway, hop })
    }

    /// Measures each kind once, in this order.
    pub(super) fn measure(
        &mut self,
        kinds: &[HopKind],
        duration: Duration,
    ) -> Result<Vec<(HopKind, Vec<Metric>)>> {
        let mut times = Vec::new();
        for kind in kinds {
            times.push((*kind, self.time(*kind, duration)?));
        }
        let source = times
            .iter()
            .find(|(kind, _)| kind.is_source())
            .map_or(0.0, |(_, time)| *time);
        Ok(times
            .into_iter()
            .map(|(kind, time)| {
                let mut figures = vec![(RATE.to_owned(), 1e9 / time), (TIME.to_owned(), time)];
                if !kind.is_source() {
                    figures.push((NET_TIME.to_owned(), time - source));
                }
                (kind, figures)
            })
            .collect())
    }

    /// Nanoseconds per frame from the source to the sink.
    fn time(&mut self, kind: HopKind, duration: Duration) -> Result<f64> {
        let Self { gateway, hop } = self;
        let frames = if matches!(kind, HopKind::Forward | HopKind::DriverForward) {
            fixture::plain_flows(FLOWS, SIZES, IN_MAC)
        } else {
            fixture::flows(FLOWS, 0, SIZES, hop.inside, IN_MAC)
        };
        hop.programs.set_frames(&frames)?;
        let frame = frames.first().map(Vec::as_slice).unwrap_or_default();
        let classifier = match kind {
            HopKind::Drop => Some(SINK),
            HopKind::Wire => Some(WIRE),
            _ => None,
        };
        let link = match classifier {
            Some(name) => Some((name, hop.programs.attach(&hop.netns, name, IN_DEVICE)?)),
            None => None,
        };
        if matches!(
            kind,
            HopKind::Transit | HopKind::DriverTransit | HopKind::XdpTransit
        ) {
            gateway.attach(&hop.netns, PROGRAM_FROM_UNDERLAY, IN_DEVICE)?;
        }
        if kind == HopKind::XdpTransit {
            let [outside, _] = hop.outside;
            gateway.attach_transit(&hop.netns, IN_DEVICE, outside.ifindex)?;
        }
        let discard = match kind {
            HopKind::DriverDrop => Some(hop.programs.attach_discard(&hop.netns, IN_DEVICE)?),
            _ => None,
        };
        let before = hop.received_frames()?;
        let sent = hop.programs.send(&hop.netns, hop.source, frame, duration)?;
        let arrived = hop.received_frames()? - before;
        if let Some((name, id)) = link {
            hop.programs.detach(name, id)?;
        }
        if let Some(id) = discard {
            hop.programs.detach_discard(id)?;
        }
        gateway.detach()?;
        // A lost frame costs less and would improve the figure.
        ensure!(
            kind.is_source() || arrived * 1000 >= sent.frames * 999,
            "{}: {arrived} of {} frames forwarded; drops: {:?}",
            kind.name(),
            sent.frames,
            gateway.drops()?
        );
        Ok(sent.nanoseconds)
    }
}
