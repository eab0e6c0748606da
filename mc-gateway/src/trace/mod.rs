//! `mc-gateway trace`: the decisions of the loaded programs on one packet.
//!
//! A synthetic packet runs through the pinned program (`BPF_PROG_TEST_RUN`) and, on a snapshot of the maps, through
//! the same pipeline in this process; verdict and bytes must be equal. Nothing is sent, but the program counts the
//! packet.

mod explain;
pub mod packet;
pub mod protocol;
mod test_run;

use std::net::IpAddr;

use aya::programs::ProgramError;
use mc_gateway_common::abi::{self, Addr, SourceMac};
use mc_gateway_common::maps::MemoryMaps;
use mc_gateway_common::packet::SlicePacket;
use mc_gateway_common::verdict::{DropReason, Outcome, Verdict};
use thiserror::Error;

use crate::cidr::{from_abi_addr, same_family, to_abi_addr};
use crate::clock::monotonic_ns;
use crate::config::Paths;
use crate::inspect::snapshot::{Snapshot, SnapshotError};
use crate::plan::Program;
use packet::TraceFlow;

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

/// Traces `flow`, arriving `from` "mc0", "pod" (at the device of a Pod), or a peer's address or name.
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

/// A report, and whether programs and model agree.
fn trace_once(place: &Paths, flow: &TraceFlow, from: &str) -> Result<(TraceReport, bool), TraceError> {
    let snapshot = Snapshot::read(place)?;
    let mut tables = snapshot.to_maps();
    tables.health.now = monotonic_ns();
    let mut trace = Trace {
        snapshot: &snapshot,
        flow,
        tables,
        lines: Vec::new(),
        result: TraceResult::Unknown,
        agree: true,
    };
    if from == "pod" {
        trace.at_pod()?;
    } else if from == "mc0" || from == place.device {
        trace.at_mc0()?;
    } else {
        trace.at_underlay(resolve_peer(&snapshot, from)?)?;
    }
    let mut text = trace.lines.join("\n");
    text.push('\n');
    let result = if trace.agree {
        trace.result
    } else {
        TraceResult::Unknown
    };
    Ok((TraceReport { text, result }, trace.agree))
}

/// The programs that a packet meets, one after the other.
struct Trace<'s> {
    snapshot: &'s Snapshot,
    flow: &'s TraceFlow,
    tables: MemoryMaps,
    lines: Vec<String>,
    /// That of the last program.
    result: TraceResult,
    /// Whether all programs and the model agree.
    agree: bool,
}

/// The run of one program.
struct Step {
    verdict: Verdict,
    /// The packet after it.
    bytes: Vec<u8>,
}

impl Trace<'_> {
    /// A packet at the device of its Pod: to a Pod of this cluster, or on to `mc0`.
    fn at_pod(&mut self) -> Result<(), TraceError> {
        let frame = self.flow.mc0_frame(&self.snapshot.contents.config);
        let step = self.run(Program::FromPod, &frame, Vec::new())?;
        if step.verdict != Verdict::Pass {
            return Ok(());
        }
        if explain::is_forwarded(self.snapshot, self.flow.dst) {
            return self.at_mc0();
        }
        self.run(Program::ToPod, &frame, Vec::new())?;
        Ok(())
    }

    /// A packet that leaves through `mc0`.
    fn at_mc0(&mut self) -> Result<(), TraceError> {
        let frame = self.flow.mc0_frame(&self.snapshot.contents.config);
        let explained = explain::to_remote(self.snapshot, self.flow);
        self.run(Program::ToRemote, &frame, explained)?;
        Ok(())
    }

    /// A packet from a peer, as far as the Pod.
    fn at_underlay(&mut self, peer: IpAddr) -> Result<(), TraceError> {
        let (snapshot, flow) = (self.snapshot, self.flow);
        let local = local_addr_for(snapshot, peer).ok_or(TraceError::NoLocal(peer))?;
        let mac = source_mac(snapshot, flow, peer);
        let frame = flow.underlay_frame(&snapshot.contents.config, to_abi_addr(peer), local, mac);
        let explained = explain::from_underlay(snapshot, flow, peer);
        let step = self.run(Program::FromUnderlay, &frame, explained)?;
        match step.verdict {
            Verdict::Send {
                outcome: Outcome::Transit,
                ..
            } => {
                let inner_at = frame.len().saturating_sub(flow.ip_packet().len());
                self.lines
                    .extend(explain::chosen_backend(snapshot, &step.bytes, inner_at));
            }
            Verdict::Deliver { .. } if !snapshot.contents.policies.current().pods.is_empty() => {
                self.run(Program::FromRemote, &step.bytes, Vec::new())?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Runs a program and the model, and adds the lines about it behind those `explained`.
    fn run(&mut self, program: Program, frame: &[u8], explained: Vec<String>) -> Result<Step, TraceError> {
        let mut packet = SlicePacket::new(frame.to_vec());
        packet.set_ingress_ifindex(test_run::RECEIVED_ON);
        let verdict = program.run_on_host(&mut packet, &self.tables);
        let kernel = test_run::run(self.snapshot, program, frame)?;
        let flow = self.flow;
        self.lines.push(format!(
            "{:?} {} -> {} in {}",
            flow.protocol,
            flow.src,
            flow.dst,
            program.name()
        ));
        self.lines.extend(explained);
        let rules = self.tables.policies.counters.take();
        self.lines
            .extend(rules.keys().map(|id| explain::rule(self.snapshot, *id)));
        let (description, result) = describe_verdict(program, verdict);
        self.lines.push(description);
        if kernel.agrees_with(verdict, packet.bytes()) {
            self.lines.push(format!(
                "the loaded program agrees (it counted this packet in {})",
                abi::OUTCOMES
            ));
        } else if kernel.is_out_of_errors(verdict) {
            self.lines.push(
                "the loaded program drops the packet now: the rate limit of ICMP errors is exhausted"
                    .to_owned(),
            );
        } else {
            self.agree = false;
            self.lines.push(format!(
                "ERROR: the loaded program disagrees: action {}, {} bytes; expected from the maps: {verdict:?}, {} bytes",
                kernel.action,
                kernel.bytes.len(),
                packet.bytes().len()
            ));
        }
        self.result = result;
        Ok(Step {
            verdict,
            bytes: packet.bytes().to_vec(),
        })
    }
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

fn describe_verdict(program: Program, verdict: Verdict) -> (String, TraceResult) {
    match verdict {
        Verdict::Pass if matches!(program, Program::FromRemote | Program::ToPod | Program::FromPod) => {
            ("=> pass: no policy drops it".to_owned(), TraceResult::Forwarded)
        }
        Verdict::Send {
            outcome: Outcome::Reset,
            ..
        }
        | Verdict::Deliver {
            outcome: Outcome::Reset,
            ..
        } => (
            "=> reset: a policy rejects the connection".to_owned(),
            TraceResult::Dropped,
        ),
        Verdict::Send {
            outcome: Outcome::Rejected,
            ..
        }
        | Verdict::Deliver {
            outcome: Outcome::Rejected,
            ..
        } => (
            "=> rejected: a policy rejects the packet, an ICMP error answers it".to_owned(),
            TraceResult::Dropped,
        ),
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
    fn a_drop_has_advice() {
        let (text, result) = describe_verdict(Program::ToRemote, Verdict::Drop(DropReason::NoNextHop));
        assert!(
            text.contains("no-next-hop") && text.contains("inspect groups"),
            "{text}"
        );
        assert_eq!(result, TraceResult::Dropped);
    }

    #[test]
    fn an_answer_of_a_policy_is_no_forwarded_packet() {
        for outcome in [Outcome::Reset, Outcome::Rejected] {
            let sent = Verdict::Send {
                outcome,
                ifindex: 3,
                addressed: true,
            };
            for (program, verdict) in [
                (Program::FromPod, sent),
                (Program::ToPod, Verdict::Deliver { outcome, ifindex: 3 }),
            ] {
                let (text, result) = describe_verdict(program, verdict);
                let start = format!("=> {}: a policy rejects", outcome.name());
                assert!(text.starts_with(&start), "{text}");
                assert_eq!(result, TraceResult::Dropped);
            }
        }
    }
}
