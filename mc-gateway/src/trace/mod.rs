//! `mc-gateway trace`: the decisions of the loaded programs on one packet.
//!
//! A synthetic packet runs through the pinned program (`BPF_PROG_TEST_RUN`) and, on a snapshot of the maps, through
//! the same pipeline in this process; verdict and bytes must be equal. Nothing is sent, but the program counts the
//! packet.

mod explain;
pub mod packet;
pub mod protocol;

use std::net::IpAddr;

use aya::TestRunOptions;
use aya::programs::{ProgramError, SchedClassifier, TestRun as _};
use bytes::Bytes;
use mc_gateway_common::abi::{self, Addr, SourceMac};
use mc_gateway_common::packet::SlicePacket;
use mc_gateway_common::pipeline;
use mc_gateway_common::verdict::{DropReason, Outcome, Verdict};
use thiserror::Error;

use crate::cidr::{from_abi_addr, same_family, to_abi_addr};
use crate::clock::monotonic_ns;
use crate::config::Paths;
use crate::inspect::snapshot::{Snapshot, SnapshotError};
use crate::plan::Program;
use packet::TraceFlow;

/// Return values of a classifier (`linux/pkt_cls.h`).
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;
/// As [`TC_ACT_SHOT`]: to the kernel's stack.
const TC_ACT_OK: u32 = 0;
const TC_ACT_REDIRECT: u32 = 7;
/// Room for any outer header.
const HEADROOM: usize = 256;
/// Attempts while the maps change.
const ATTEMPTS: usize = 3;

/// A trace that cannot run.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The pins.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// IPv4 and IPv6.
    #[error("{src} and {dst} are not of one IP version")]
    Families {
        /// Source.
        src: IpAddr,
        /// Destination.
        dst: IpAddr,
    },
    /// `--from`.
    #[error("--from {from:?}: neither mc0 nor a peer; peers: {}", .peers.join(", "))]
    NoPeer {
        /// As given.
        from: String,
        /// All peers.
        peers: Vec<String>,
    },
    /// No outer destination.
    #[error("--from {0}: this node has no address of that IP version")]
    NoLocal(IpAddr),
    /// The pinned program.
    #[error("program {program}: {operation}")]
    Program {
        /// Its name.
        program: &'static str,
        /// The failed operation.
        operation: &'static str,
        /// The error of the kernel.
        source: ProgramError,
    },
}

/// Result of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceResult {
    /// Sent on or delivered.
    Forwarded,
    /// Dropped or answered.
    Dropped,
    /// Passed, or program and model disagree.
    Unknown,
}

/// Explanation and result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceReport {
    /// One decision a line.
    pub text: String,
    /// Result of the last decision.
    pub result: TraceResult,
}

/// Result of the run in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TestRunResult {
    action: u32,
    /// The packet after the run; unused after a drop.
    bytes: Bytes,
}

/// Traces `flow`, arriving `from` "mc0" or a peer's address or name.
pub fn trace(place: &Paths, flow: &TraceFlow, from: &str) -> Result<TraceReport, TraceError> {
    if !same_family(flow.src, flow.dst) {
        return Err(TraceError::Families {
            src: flow.src,
            dst: flow.dst,
        });
    }
    let mut report = trace_once(place, flow, from)?;
    for _ in 1..ATTEMPTS {
        if report.1 {
            break;
        }
        // The maps may have changed between the snapshot and the run.
        report = trace_once(place, flow, from)?;
    }
    Ok(report.0)
}

/// A report, and whether program and model agree.
fn trace_once(place: &Paths, flow: &TraceFlow, from: &str) -> Result<(TraceReport, bool), TraceError> {
    let snapshot = Snapshot::read(place)?;
    let config = &snapshot.contents.config;
    let mut tables = snapshot.to_maps();
    tables.health.now = monotonic_ns();
    let (program, frame, mut lines) = if from == "mc0" || from == place.device {
        (
            Program::ToRemote,
            flow.mc0_frame(config),
            explain::to_remote(&snapshot, flow),
        )
    } else {
        let peer = resolve_peer(&snapshot, from)?;
        let local = local_addr_for(&snapshot, peer).ok_or(TraceError::NoLocal(peer))?;
        let frame = flow.underlay_frame(
            config,
            to_abi_addr(peer),
            local,
            source_mac(&snapshot, flow, peer),
        );
        (
            Program::FromUnderlay,
            frame,
            explain::from_underlay(&snapshot, flow, peer),
        )
    };
    let mut packet = SlicePacket::new(frame.to_vec());
    let verdict = match program {
        Program::ToRemote => pipeline::to_remote(&mut packet, &tables),
        Program::FromUnderlay => pipeline::from_underlay(&mut packet, &tables),
        Program::FromTunnel => pipeline::from_tunnel(&mut packet, &tables),
        Program::FromRemote => pipeline::from_remote(&mut packet, &tables),
        Program::ToPod => pipeline::to_pod(&mut packet, &tables),
        Program::FromPod => pipeline::from_pod(&mut packet, &tables),
    };
    let kernel = test_run(&snapshot, program, &frame)?;
    let agree = matches_kernel(verdict, packet.bytes(), &kernel);
    let (description, result) = describe_verdict(verdict);
    if let Verdict::Send {
        outcome: Outcome::Transit,
        ..
    } = verdict
    {
        let inner_at = frame.len().saturating_sub(flow.ip_packet().len());
        lines.extend(explain::chosen_backend(&snapshot, packet.bytes(), inner_at));
    }
    let title = format!(
        "{:?} {} -> {} in {}",
        flow.protocol,
        flow.src,
        flow.dst,
        program.name()
    );
    lines.insert(0, title);
    lines.push(description);
    if agree {
        lines.push(format!(
            "the loaded program agrees (it counted this packet in {})",
            abi::OUTCOMES
        ));
    } else {
        lines.push(format!(
            "ERROR: the loaded program disagrees: action {}, {} bytes; expected from the maps: {verdict:?}, {} bytes",
            kernel.action,
            kernel.bytes.len(),
            packet.bytes().len()
        ));
    }
    let mut text = lines.join("\n");
    text.push('\n');
    let result = if agree { result } else { TraceResult::Unknown };
    Ok((TraceReport { text, result }, agree))
}

/// The inner source MAC address of a packet from the peer: an accepted one, from a gateway of this cluster combined
/// with the first Pod of this node behind the Service.
fn source_mac(snapshot: &Snapshot, flow: &TraceFlow, peer: IpAddr) -> SourceMac {
    let Some(peer) = snapshot.contents.peers.get(&to_abi_addr(peer)) else {
        return SourceMac::UNKEYED;
    };
    let accepted = peer.source_macs.into_iter().find(|mac| *mac != 0);
    let mac = accepted.map_or(SourceMac::UNKEYED, SourceMac::from_bits);
    let by_gateway = peer.flags & abi::PEER_REMOTE_GATEWAY == 0;
    match flow.backend(snapshot).filter(|_| by_gateway) {
        Some((id, _)) => mac.with_backend(id),
        None => mac,
    }
}

/// A peer by address or name.
fn resolve_peer(snapshot: &Snapshot, from: &str) -> Result<IpAddr, TraceError> {
    if let Ok(addr) = from.parse() {
        return Ok(addr);
    }
    let known = snapshot.contents.peers.keys().map(from_abi_addr);
    let named: Vec<(IpAddr, String)> = known.map(|addr| (addr, snapshot.names.peer(addr))).collect();
    let found = named
        .iter()
        .find(|(_, name)| name == from || name.split_once(' ').is_some_and(|(_, name)| name == from));
    found.map(|(addr, _)| *addr).ok_or_else(|| TraceError::NoPeer {
        from: from.to_owned(),
        peers: named
            .iter()
            .map(|(addr, name)| format!("{addr} ({name})"))
            .collect(),
    })
}

/// The local address to which a peer sends.
fn local_addr_for(snapshot: &Snapshot, peer: IpAddr) -> Option<Addr> {
    let contents = &snapshot.contents;
    let known = contents
        .next_hops
        .values()
        .find(|next_hop| from_abi_addr(&next_hop.addr) == peer);
    if let Some(next_hop) = known {
        return Some(next_hop.local);
    }
    let mut local = contents
        .config
        .local
        .iter()
        .filter(|addr| **addr != Addr::default());
    local.find(|addr| same_family(from_abi_addr(addr), peer)).copied()
}

fn test_run(snapshot: &Snapshot, program: Program, frame: &[u8]) -> Result<TestRunResult, TraceError> {
    let name = program.name();
    let failed = |operation| {
        move |source| TraceError::Program {
            program: name,
            operation,
            source,
        }
    };
    let path = snapshot.dir.join("programs").join(name);
    let classifier = SchedClassifier::from_pin(path).map_err(failed("open its pin"))?;
    let mut out = vec![0; frame.len().saturating_add(HEADROOM)];
    let result = classifier
        .test_run(TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ..TestRunOptions::default()
        })
        .map_err(failed("run it (needs root)"))?;
    out.truncate(usize::try_from(result.data_size_out).unwrap_or(0));
    Ok(TestRunResult {
        action: result.return_value,
        bytes: out.into(),
    })
}

fn matches_kernel(verdict: Verdict, bytes: &[u8], kernel: &TestRunResult) -> bool {
    match verdict {
        Verdict::Pass => kernel.action == TC_ACT_UNSPEC && kernel.bytes == bytes,
        Verdict::Drop(_) | Verdict::Consume { .. } => kernel.action == TC_ACT_SHOT,
        Verdict::KernelDecap { .. } => kernel.action == TC_ACT_OK && kernel.bytes == bytes,
        Verdict::Send { .. } | Verdict::Deliver { .. } => {
            kernel.action == TC_ACT_REDIRECT && kernel.bytes == bytes
        }
    }
}

fn describe_verdict(verdict: Verdict) -> (String, TraceResult) {
    match verdict {
        Verdict::Pass => (
            "=> pass: not a packet of mc-gateway".to_owned(),
            TraceResult::Unknown,
        ),
        Verdict::Drop(reason) => (describe_drop(reason), TraceResult::Dropped),
        Verdict::Send {
            outcome: path,
            ifindex,
            ..
        } => (
            format!("=> {}: sent through device {ifindex}", path.name()),
            TraceResult::Forwarded,
        ),
        Verdict::Deliver {
            outcome: path,
            ifindex,
        } => (
            format!("=> {}: received on device {ifindex}", path.name()),
            TraceResult::Forwarded,
        ),
        Verdict::KernelDecap { outcome: path } => (
            format!("=> {}: left to the tunnel device", path.name()),
            TraceResult::Forwarded,
        ),
        Verdict::Consume { outcome: path } => (format!("=> {}: consumed", path.name()), TraceResult::Dropped),
    }
}

fn describe_drop(reason: DropReason) -> String {
    format!("=> dropped: {}\n{}", reason.name(), explain::advice(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_compares_action_and_bytes() {
        let sent = Verdict::Send {
            outcome: Outcome::Encap,
            ifindex: 3,
            addressed: false,
        };
        let outcome = |action| TestRunResult {
            action,
            bytes: Bytes::from_static(&[1, 2]),
        };
        assert!(matches_kernel(sent, &[1, 2], &outcome(TC_ACT_REDIRECT)));
        assert!(!matches_kernel(sent, &[1, 3], &outcome(TC_ACT_REDIRECT)));
        assert!(!matches_kernel(sent, &[1, 2], &outcome(TC_ACT_SHOT)));
        let dropped = Verdict::Drop(DropReason::NoRoute);
        assert!(matches_kernel(dropped, &[9], &outcome(TC_ACT_SHOT)));
        assert!(matches_kernel(Verdict::Pass, &[1, 2], &outcome(TC_ACT_UNSPEC)));
    }

    #[test]
    fn a_drop_has_advice() {
        let (text, result) = describe_verdict(Verdict::Drop(DropReason::NoNextHop));
        assert!(
            text.contains("no-next-hop") && text.contains("inspect groups"),
            "{text}"
        );
        assert_eq!(result, TraceResult::Dropped);
    }
}
