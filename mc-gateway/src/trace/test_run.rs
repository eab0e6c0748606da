//! Runs of the pinned programs (`BPF_PROG_TEST_RUN`).

use aya::TestRunOptions;
use aya::programs::{SchedClassifier, TestRun as _};
use bytes::Bytes;
use mc_gateway_common::verdict::{Outcome, Verdict};

use super::TraceError;
use crate::inspect::snapshot::Snapshot;
use crate::plan::Program;

/// Return values of a classifier (`linux/pkt_cls.h`).
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_SHOT: u32 = 2;
/// As [`TC_ACT_SHOT`]: to the kernel's stack.
const TC_ACT_OK: u32 = 0;
const TC_ACT_REDIRECT: u32 = 7;
/// Device on which the node has received a packet to a Pod: the loopback device, which no program is attached to.
pub(super) const RECEIVED_ON: u32 = 1;
/// Offset of `ingress_ifindex` in `struct __sk_buff` (`linux/bpf.h`), and the length of a context that ends with it.
const INGRESS_IFINDEX_AT: usize = 36;
const CONTEXT_BYTES: usize = INGRESS_IFINDEX_AT + 4;
/// Room for any outer header.
const HEADROOM: usize = 256;

/// Result of the run in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestRunResult {
    pub(super) action: u32,
    /// The packet after the run; unused after a drop.
    pub(super) bytes: Bytes,
}

impl TestRunResult {
    /// Whether action and bytes are those of a verdict and its packet.
    pub(super) fn agrees_with(&self, verdict: Verdict, bytes: &[u8]) -> bool {
        match verdict {
            Verdict::Pass => self.action == TC_ACT_UNSPEC && self.bytes == bytes,
            Verdict::Drop(_) | Verdict::Consume { .. } => self.action == TC_ACT_SHOT,
            Verdict::KernelDecap { .. } => self.action == TC_ACT_OK && self.bytes == bytes,
            Verdict::Send { .. } | Verdict::Deliver { .. } => {
                self.action == TC_ACT_REDIRECT && self.bytes == bytes
            }
        }
    }

    /// Whether the program drops a packet that the verdict answers with an ICMP error: the rate limit, which the maps
    /// of the model do not have, allows none.
    pub(super) fn is_out_of_errors(&self, verdict: Verdict) -> bool {
        let answers = match verdict {
            Verdict::Send { outcome, .. } | Verdict::Deliver { outcome, .. } => {
                matches!(outcome, Outcome::TooBig | Outcome::Rejected)
            }
            _ => false,
        };
        answers && self.action == TC_ACT_SHOT
    }
}

/// Runs the pinned program on a frame. One at the device of a Pod finds that the node has received it.
pub(super) fn run(snapshot: &Snapshot, program: Program, frame: &[u8]) -> Result<TestRunResult, TraceError> {
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
    let mut context = [0; CONTEXT_BYTES];
    context[INGRESS_IFINDEX_AT..].copy_from_slice(&RECEIVED_ON.to_ne_bytes());
    let result = classifier
        .test_run(TestRunOptions {
            data_in: Some(frame),
            data_out: Some(&mut out),
            ctx_in: (program == Program::ToPod).then_some(&context[..]),
            ..TestRunOptions::default()
        })
        .map_err(failed("run it (needs root)"))?;
    out.truncate(usize::try_from(result.data_size_out).unwrap_or(0));
    Ok(TestRunResult {
        action: result.return_value,
        bytes: out.into(),
    })
}

#[cfg(test)]
mod tests {
    use mc_gateway_common::verdict::DropReason;

    use super::*;

    #[test]
    fn agreement_compares_action_and_bytes() {
        let sent = Verdict::Send {
            outcome: Outcome::Encap,
            ifindex: 3,
            addressed: false,
        };
        let result = |action| TestRunResult {
            action,
            bytes: Bytes::from_static(&[1, 2]),
        };
        assert!(result(TC_ACT_REDIRECT).agrees_with(sent, &[1, 2]));
        assert!(!result(TC_ACT_REDIRECT).agrees_with(sent, &[1, 3]));
        assert!(!result(TC_ACT_SHOT).agrees_with(sent, &[1, 2]));
        let dropped = Verdict::Drop(DropReason::NoRoute);
        assert!(result(TC_ACT_SHOT).agrees_with(dropped, &[9]));
        assert!(result(TC_ACT_UNSPEC).agrees_with(Verdict::Pass, &[1, 2]));
    }

    #[test]
    fn a_dropped_packet_may_be_one_without_a_token() {
        let result = |action| TestRunResult {
            action,
            bytes: Bytes::new(),
        };
        let answered = |outcome| Verdict::Deliver { outcome, ifindex: 3 };
        for (outcome, expected) in [
            (Outcome::Rejected, true),
            (Outcome::TooBig, true),
            (Outcome::Reset, false),
        ] {
            assert_eq!(result(TC_ACT_SHOT).is_out_of_errors(answered(outcome)), expected);
            assert!(!result(TC_ACT_REDIRECT).is_out_of_errors(answered(outcome)));
        }
        assert!(!result(TC_ACT_SHOT).is_out_of_errors(Verdict::Pass));
    }
}
