//! Application of a transit verdict as an XDP action.

use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    btf_maps::DevMapHash,
    macros::btf_map,
};
use mc_gateway_common::{abi::transit::MAX_TRANSIT_DEVICES, packet::Frame as _, pipeline, verdict::Verdict};

use crate::{
    maps::{KernelMaps, count_drop, count_outcome},
    xdp_frame::XdpFrame,
};

#[btf_map(name = "mc_transit_devs")]
static DEVICES: DevMapHash<{ MAX_TRANSIT_DEVICES as usize }> = DevMapHash::new();

/// Runs the transit pipeline, counts its verdict and returns the XDP action.
#[inline(always)]
pub(crate) fn forward(raw: *mut xdp_md) -> u32 {
    let mut frame = XdpFrame::new(raw);
    let bytes = frame.frame_len();
    let verdict = pipeline::transit(&mut frame, &KernelMaps, |ifindex| {
        // The kernel keeps the device for the action XDP_REDIRECT. Any other action ignores it.
        DEVICES.redirect(ifindex, 0).is_ok()
    });
    match verdict {
        Verdict::Send { outcome, .. } => {
            count_outcome(outcome, bytes, false);
            xdp_action::XDP_REDIRECT
        }
        Verdict::Drop(reason) => {
            count_drop(reason);
            xdp_action::XDP_DROP
        }
        _ => xdp_action::XDP_PASS,
    }
}
