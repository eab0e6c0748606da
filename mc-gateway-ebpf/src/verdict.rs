//! Application of a verdict as a TC action.

use core::ptr;

use aya_ebpf::{
    bindings::{BPF_F_INGRESS, TC_ACT_OK, TC_ACT_SHOT, TC_ACT_UNSPEC, bpf_redir_neigh},
    helpers::{bpf_redirect, bpf_redirect_neigh},
};
use mc_gateway_common::{abi::Neighbor, verdict::Verdict};

use crate::{
    maps::{count_drop, count_outcome},
    sample_drop::mc_sample_drop,
    skb::{RxInfo, Skb},
};

/// Counts a verdict of `program` and returns the classifier's TC action.
#[inline(always)]
pub(crate) fn apply_verdict(packet: &Skb, verdict: Verdict, received: RxInfo, program: u32) -> i32 {
    let RxInfo { bytes, gso } = received;
    #[cfg(feature = "log")]
    crate::decision_log::log(packet.raw().cast(), program, &verdict);
    match verdict {
        // "Next" for TCX, "continue" for clsact: other programs on the device still run.
        Verdict::Pass => TC_ACT_UNSPEC,
        Verdict::Drop(reason) => {
            count_drop(reason);
            mc_sample_drop(packet.raw().cast(), reason as u32, program);
            TC_ACT_SHOT as i32
        }
        Verdict::Send {
            outcome,
            ifindex,
            addressed,
        } => {
            count_outcome(outcome, bytes, gso);
            if addressed {
                // SAFETY: plain values only.
                return unsafe { bpf_redirect(ifindex, 0) as i32 };
            }
            send(packet.neighbor(), ifindex)
        }
        Verdict::Deliver { outcome, ifindex } => {
            count_outcome(outcome, bytes, gso);
            // SAFETY: plain values only.
            unsafe { bpf_redirect(ifindex, BPF_F_INGRESS as u64) as i32 }
        }
        Verdict::KernelDecap { outcome } => {
            count_outcome(outcome, bytes, gso);
            TC_ACT_OK as i32
        }
        Verdict::Consume { outcome } => {
            count_outcome(outcome, bytes, gso);
            TC_ACT_SHOT as i32
        }
    }
}

/// Sends the packet out of a device with the link addresses that the kernel finds.
#[inline(always)]
fn send(neighbor: *const Neighbor, ifindex: u32) -> i32 {
    // SAFETY: not null, and it points into a map value, which lives as long as the program.
    if !neighbor.is_null() && unsafe { (*neighbor).family } != 0 {
        const LEN: i32 = size_of::<bpf_redir_neigh>() as i32;
        const { assert!(size_of::<Neighbor>() == size_of::<bpf_redir_neigh>()) }
        // SAFETY: as above; the kernel only reads it, and both types have the same layout.
        return unsafe { bpf_redirect_neigh(ifindex, neighbor.cast_mut().cast(), LEN, 0) as i32 };
    }
    // SAFETY: no parameters: the kernel looks up the neighbour.
    unsafe { bpf_redirect_neigh(ifindex, ptr::null_mut(), 0, 0) as i32 }
}
