//! Application of a transit verdict as an XDP action.

use core::mem;

use aya_ebpf::{
    bindings::{
        BPF_FIB_LKUP_RET_SUCCESS, BPF_FIB_LOOKUP_OUTPUT, bpf_fib_lookup as FibLookup, xdp_action, xdp_md,
    },
    btf_maps::DevMapHash,
    helpers::bpf_fib_lookup,
    macros::btf_map,
};
use mc_gateway_common::{
    abi::{Address, Neighbor, NextHop, transit::MAX_TRANSIT_DEVICES},
    packet::Frame as _,
    pipeline::{self, LinkAddresses},
    verdict::Verdict,
};

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
    let verdict = pipeline::transit(&mut frame, &KernelMaps, |next_hop| {
        // The kernel keeps the device for the action XDP_REDIRECT. Any other action ignores it.
        DEVICES.redirect(next_hop.ifindex, 0).ok()?;
        link_addresses(raw, next_hop)
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

/// Link addresses towards a next hop by the kernel's routes and neighbors; `None` without a valid neighbor: only the
/// kernel's own output resolves one.
#[inline(always)]
fn link_addresses(raw: *mut xdp_md, next_hop: &NextHop) -> Option<LinkAddresses> {
    // SAFETY: all zeros is a valid value.
    let mut lookup: FibLookup = unsafe { mem::zeroed() };
    lookup.ifindex = next_hop.ifindex;
    let (src, dst) = (Address::from(next_hop.local), Address::from(next_hop.addr));
    if dst.is_v4() {
        lookup.family = Neighbor::V4 as u8;
        lookup.__bindgen_anon_3.ipv4_src = src.v4_u32();
        lookup.__bindgen_anon_4.ipv4_dst = dst.v4_u32();
    } else {
        lookup.family = Neighbor::V6 as u8;
        // SAFETY: both types are 16 bytes in network order.
        unsafe {
            lookup.__bindgen_anon_3.ipv6_src = mem::transmute::<[u8; 16], [u32; 4]>(src.bytes());
            lookup.__bindgen_anon_4.ipv6_dst = mem::transmute::<[u8; 16], [u32; 4]>(dst.bytes());
        }
    }
    const LEN: i32 = size_of::<FibLookup>() as i32;
    // SAFETY: the parameters are valid for their length.
    let ret = unsafe { bpf_fib_lookup(raw.cast(), &raw mut lookup, LEN, BPF_FIB_LOOKUP_OUTPUT) };
    (ret == BPF_FIB_LKUP_RET_SUCCESS as i64).then_some(LinkAddresses {
        dst: lookup.dmac,
        src: lookup.smac,
    })
}
