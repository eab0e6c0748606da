//! Sampled drops as structured log lines (target `drops`).
//!
//! The programs limit samples per second and CPU; this side selects the lines to log, and counts every sample.

mod decode;
mod log_filter;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use aya::maps::{MapData, RingBuf};
use mc_gateway_common::abi::sample::DROP_SAMPLES;
use mc_gateway_common::verdict::DropReason;
use thiserror::Error;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::interval;
use tracing::{debug, info, warn};

use crate::desired::rule_names::RuleName;
use crate::maps::{MapsError, open};
use crate::metrics::Metrics;
use decode::{DroppedPacket, decode};
use log_filter::{LogFilter, REPEAT_INTERVAL};

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
    let mut filter = LogFilter::new(Instant::now());
    let mut repeat_check = interval(REPEAT_INTERVAL);
    loop {
        let mut ready = tokio::select! {
            ready = ring.readable_mut() => ready?,
            _ = repeat_check.tick() => {
                for repeated in filter.repeated(Instant::now()) {
                    log(&repeated.last, &names(&repeated.last, metrics), Some(repeated.count));
                }
                continue;
            }
        };
        while let Some(item) = ready.get_inner_mut().next() {
            let dropped = decode(&item);
            let mut state = metrics.state();
            state.samples_read = state.samples_read.saturating_add(1);
            drop(state);
            let Some(dropped) = dropped else { continue };
            if filter.is_logged(&dropped, Instant::now()) {
                log(&dropped, &names(&dropped, metrics), None);
            }
        }
        ready.clear_ready();
    }
}

/// Names of the objects that a sample has by number or address.
struct Names {
    /// Of the peer; empty for a packet of this cluster or of an unknown peer.
    peer: String,
    /// Of the policy rule that dropped the packet.
    rule: Option<RuleName>,
}

fn names(dropped: &DroppedPacket, metrics: &Metrics) -> Names {
    let state = metrics.state();
    Names {
        peer: dropped
            .peer
            .map(|peer| state.names.peer(peer))
            .unwrap_or_default(),
        rule: state.names.rules.get(&dropped.rule).cloned(),
    }
}

/// Whether `record` has a complete header; its packet may be malformed.
#[must_use]
pub fn is_valid_record(record: &[u8]) -> bool {
    decode(record).is_some()
}

/// Logs a packet, or the last of `repeated` ones.
fn log(dropped: &DroppedPacket, names: &Names, repeated: Option<u64>) {
    let reason = DropReason::ALL
        .into_iter()
        .find(|reason| *reason as u32 == dropped.reason)
        .map_or("unknown", DropReason::name);
    let DroppedPacket {
        program,
        ifindex,
        length,
        identity,
        peer,
        flow,
        ..
    } = dropped;
    let peer_name = &names.peer;
    let policy = names.rule.as_ref().map(|rule| &*rule.policy);
    let rule = names.rule.as_ref().map(|rule| &*rule.rule);
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
        debug!(target: "drops", reason, program, ifindex, length, peer, peer_name, src, dst, proto, src_port, dst_port, policy, rule, identity, repeated, "packet dropped");
    } else {
        info!(target: "drops", reason, program, ifindex, length, peer, peer_name, src, dst, proto, src_port, dst_port, policy, rule, identity, repeated, "packet dropped");
    }
}
