//! Sampled drops as structured log lines (target `drops`).
//!
//! The programs limit samples per second and CPU; this side selects the lines to log, and counts every sample.

mod decode;
mod log_filter;
mod names;

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
use tokio::task::yield_now;
use tokio::time::interval;
use tracing::{debug, info, warn};

use crate::attachment::Program;
use crate::flow_names::FlowNames;
use crate::maps::{MapsError, open};
use crate::metrics::Metrics;
use decode::{AUDITED, DroppedPacket, decode};
use log_filter::{LogFilter, REPEAT_INTERVAL};
use names::{Names, names};

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
                let known = flow_names(metrics);
                for repeated in filter.repeated(Instant::now()) {
                    log(&repeated.last, &names(&repeated.last, &known), Some(repeated.count));
                    // A look-up walks all Pods, and the main loop shares the thread.
                    yield_now().await;
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
                log(&dropped, &names(&dropped, &flow_names(metrics)), None);
            }
        }
        ready.clear_ready();
    }
}

fn flow_names(metrics: &Metrics) -> Arc<FlowNames> {
    Arc::clone(&metrics.state().flow_names)
}

/// Whether `record` has a complete header; its packet may be malformed.
#[must_use]
pub fn is_valid_record(record: &[u8]) -> bool {
    decode(record).is_some()
}

/// Logs a packet, or the last of `repeated` ones. Strings are fields: both log formats escape line breaks in them.
fn log(dropped: &DroppedPacket, names: &Names<'_>, repeated: Option<u64>) {
    let reason = DropReason::ALL
        .into_iter()
        .find(|reason| *reason as u32 == dropped.reason);
    let (reason, message) = match reason {
        Some(reason) => (reason.name(), "packet dropped"),
        None if dropped.reason == AUDITED => ("audit", "packet passes, an audited rule would drop it"),
        None => ("unknown", "packet dropped"),
    };
    let DroppedPacket {
        ifindex,
        length,
        identity,
        peer,
        flow,
        ..
    } = dropped;
    let program = dropped.program.map_or("unknown", Program::name);
    let peer = peer.map(tracing::field::display);
    let src = flow.map(|flow| tracing::field::display(flow.src));
    let dst = flow.map(|flow| tracing::field::display(flow.dst));
    let proto = flow.map(|flow| flow.proto);
    let (src_port, dst_port) = (
        flow.and_then(|flow| flow.src_port),
        flow.and_then(|flow| flow.dst_port),
    );
    macro_rules! log_at {
        ($level:ident) => {
            $level!(
                target: "drops",
                reason,
                program,
                ifindex,
                length,
                peer,
                peer_name = names.peer,
                src,
                dst,
                proto,
                src_port,
                dst_port,
                policy = names.policy,
                rule = names.rule,
                identity,
                src_cluster = names.src_cluster.as_deref(),
                src_namespace_labels = names.src_namespace_labels.as_deref(),
                src_pod = names.src.pod,
                src_labels = names.src.labels.as_deref(),
                dst_pod = names.dst.pod,
                dst_labels = names.dst.labels.as_deref(),
                repeated,
                "{message}"
            )
        };
    }
    // Multicast of the kernel itself on a new device is no reason for an alert.
    if flow.is_some_and(|flow| decode::is_link_local_multicast(flow.dst)) {
        log_at!(debug);
    } else {
        log_at!(info);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Mutex, PoisonError};

    use tracing_subscriber::fmt::MakeWriter;

    use super::names::PodNames;
    use super::*;

    /// The log in memory.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Lines {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    const FORGED: &str = "x\n2026-01-01T00:00:00Z  INFO drops: packet dropped\r\u{2028}\u{1b}[2K\"";

    /// The log of a packet whose names contain line breaks, in the format of text and of JSON.
    fn logged(reason: u32) -> [String; 2] {
        let packet = DroppedPacket {
            reason,
            program: Some(Program::FromRemote),
            ifindex: 3,
            length: 60,
            rule: 77,
            identity: Some(9),
            peer: None,
            flow: None,
        };
        let pod = || PodNames {
            pod: Some(FORGED),
            labels: Some(FORGED.into()),
        };
        let names = Names {
            peer: FORGED,
            policy: Some(FORGED),
            rule: Some(FORGED),
            src_cluster: Some(FORGED.into()),
            src_namespace_labels: Some(FORGED.into()),
            src: pod(),
            dst: pod(),
        };
        let (text, json) = (Lines::default(), Lines::default());
        let builder = || tracing_subscriber::fmt().with_ansi(false);
        tracing::subscriber::with_default(builder().with_writer(text.clone()).finish(), || {
            log(&packet, &names, None);
        });
        tracing::subscriber::with_default(builder().json().with_writer(json.clone()).finish(), || {
            log(&packet, &names, None);
        });
        [text, json].map(|lines| String::from_utf8(lines.0.lock().unwrap().clone()).unwrap())
    }

    #[test]
    fn a_line_break_in_a_label_forges_no_log_line() {
        let [text, json] = logged(DropReason::Policy as u32);
        for log in [&text, &json] {
            assert_eq!(log.lines().count(), 1, "{log}");
            let line = log.strip_suffix('\n').unwrap();
            assert!(!line.contains(char::is_control), "{line:?}");
        }
        assert!(!text.contains('\u{2028}'), "{text:?}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        for field in [
            "policy",
            "src_cluster",
            "src_namespace_labels",
            "src_labels",
            "dst_labels",
        ] {
            assert!(
                text.contains(&format!("{field}={FORGED:?}")),
                "no {field} in {text}"
            );
            assert_eq!(json["fields"][field], FORGED);
        }
    }

    #[test]
    fn a_packet_that_an_audited_rule_would_drop_is_not_logged_as_dropped() {
        let [_, json] = logged(AUDITED);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["fields"]["reason"], "audit");
        assert_eq!(
            json["fields"]["message"],
            "packet passes, an audited rule would drop it"
        );
    }
}
