//! Sampled drops as structured log lines (target `drops`).
//!
//! The programs limit samples per second and CPU; this side limits log lines per second and node, and counts every
//! sample.

mod decode;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::maps::{MapData, RingBuf};
use mc_gateway_common::abi::sample::DROP_SAMPLES;
use mc_gateway_common::verdict::DropReason;
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::{debug, info, warn};

use crate::maps::{MapsError, open};
use crate::metrics::Metrics;
use decode::{DroppedPacket, decode};

/// Lines logged in one [`WINDOW`].
const MAX_LINES: u32 = 20;
/// Span over which lines are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// A failure to read the samples.
#[derive(Debug, Error)]
pub enum DropSamplesError {
    /// The ring cannot be opened.
    #[error(transparent)]
    Tables(#[from] MapsError),
    /// The ring cannot be polled.
    #[error("wait for {DROP_SAMPLES}")]
    Wait(#[source] io::Error),
}

/// Logs and counts sampled drops in a background task.
pub fn start(maps: &Path, metrics: Arc<Metrics>) -> Result<(), DropSamplesError> {
    let ring: RingBuf<MapData> = open(maps, DROP_SAMPLES)?;
    // SAFETY: the ring owns its descriptor, keeps it and is dropped with the registration.
    let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }
        .map_err(|error| DropSamplesError::Wait(error.into()))?;
    tokio::spawn(async move {
        if let Err(error) = read(ring, &metrics).await {
            warn!(%error, "drop samples are no longer logged");
        }
    });
    Ok(())
}

async fn read(mut ring: AsyncFd<RingBuf<MapData>>, metrics: &Metrics) -> io::Result<()> {
    let mut limit = LogLimit::new(Instant::now());
    loop {
        let mut ready = ring.readable_mut().await?;
        while let Some(item) = ready.get_inner_mut().next() {
            let dropped = decode(&item);
            let mut state = metrics.state();
            state.samples_read = state.samples_read.saturating_add(1);
            let Some(dropped) = dropped else { continue };
            let peer = dropped
                .peer
                .map(|peer| state.names.peer(peer))
                .unwrap_or_default();
            drop(state);
            if limit.allow(Instant::now()) {
                log(&dropped, &peer);
            }
        }
        ready.clear_ready();
    }
}

/// Whether `record` has a complete header; its packet may be malformed.
#[must_use]
pub fn is_valid_record(record: &[u8]) -> bool {
    decode(record).is_some()
}

fn log(dropped: &DroppedPacket, peer_name: &str) {
    let reason = DropReason::ALL
        .into_iter()
        .find(|reason| *reason as u32 == dropped.reason)
        .map_or("unknown", DropReason::name);
    let DroppedPacket {
        program,
        ifindex,
        length,
        peer,
        flow,
        ..
    } = dropped;
    let peer = peer.map(tracing::field::display);
    let src = flow.map(|flow| tracing::field::display(flow.src));
    let dst = flow.map(|flow| tracing::field::display(flow.dst));
    let proto = flow.map(|flow| flow.proto);
    let (src_port, dst_port) = (
        flow.and_then(|flow| flow.src_port),
        flow.and_then(|flow| flow.dst_port),
    );
    // Multicast of the kernel itself on a new device is no reason for an alert.
    if flow.is_some_and(|flow| decode::is_link_local_multicast(flow.dst)) {
        debug!(target: "drops", reason, program, ifindex, length, peer, peer_name, src, dst, proto, src_port, dst_port, "packet dropped");
    } else {
        info!(target: "drops", reason, program, ifindex, length, peer, peer_name, src, dst, proto, src_port, dst_port, "packet dropped");
    }
}

/// Limit of log lines per window.
#[derive(Debug)]
struct LogLimit {
    window_start: Instant,
    lines: u32,
}

impl LogLimit {
    fn new(now: Instant) -> Self {
        Self {
            window_start: now,
            lines: 0,
        }
    }

    fn allow(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.window_start) >= WINDOW {
            *self = Self::new(now);
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= MAX_LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_within_a_second_and_not_after_it() {
        let start = Instant::now();
        let mut limit = LogLimit::new(start);
        let allowed = (0..100).filter(|_| limit.allow(start)).count();
        assert_eq!(allowed, 20);
        assert!(limit.allow(start + WINDOW));
    }
}
