//! The kernel's packet as a [`Packet`], and verdicts as TC actions.

use core::{mem::MaybeUninit, ptr};

use aya_ebpf::{
    bindings::{
        __sk_buff, BPF_F_ADJ_ROOM_ENCAP_L2_ETH, BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L4_UDP,
        BPF_F_ADJ_ROOM_FIXED_GSO, BPF_F_INGRESS, BPF_F_RECOMPUTE_CSUM, TC_ACT_SHOT, TC_ACT_UNSPEC,
    },
    helpers::{
        bpf_redirect, bpf_redirect_neigh, bpf_skb_adjust_room, bpf_skb_load_bytes, bpf_skb_store_bytes,
    },
    programs::TcContext,
};
use mc_gateway_common::{
    packet::{Aligned, Packet, eth, tunnel::ROOM},
    verdict::Verdict,
};

use crate::maps::{count_drop, count_path};

/// `BPF_ADJ_ROOM_MAC`: room is made right behind the Ethernet header.
const ADJ_ROOM_MAC: u32 = 1;
/// `BPF_F_ADJ_ROOM_ENCAP_L2(14)`: length of the inner Ethernet header, in the flags' top byte.
const ENCAP_L2_LEN: u64 = (eth::LEN as u64) << 56;
/// FIXED_GSO keeps the segment size: the inner packet stays what its sender made it.
const GROW: u64 = (BPF_F_ADJ_ROOM_FIXED_GSO
    | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4
    | BPF_F_ADJ_ROOM_ENCAP_L4_UDP
    | BPF_F_ADJ_ROOM_ENCAP_L2_ETH) as u64
    | ENCAP_L2_LEN;
/// Without FIXED_GSO the segment size would grow by the room removed.
const SHRINK: u64 = BPF_F_ADJ_ROOM_FIXED_GSO as u64;

/// The packet a classifier was called for.
pub(crate) struct Skb {
    raw: *mut __sk_buff,
}

impl Skb {
    #[inline(always)]
    pub(crate) fn new(ctx: &TcContext) -> Self {
        Self { raw: ctx.skb.skb }
    }

    /// Length of the frame, and whether it is a super-packet, read before anything changes it.
    #[inline(always)]
    pub(crate) fn received(&self) -> Received {
        Received {
            bytes: self.frame_len(),
            // SAFETY: the context pointer is valid while the program runs.
            gso: unsafe { (*self.raw).gso_size } != 0,
        }
    }
}

/// What counters need to know of a packet as it was received.
#[derive(Clone, Copy)]
pub(crate) struct Received {
    bytes: u32,
    gso: bool,
}

impl Packet for Skb {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        // SAFETY: the context pointer is valid while the program runs.
        unsafe { (*self.raw).len }
    }

    #[inline(always)]
    fn ethertype(&self) -> u16 {
        // SAFETY: as above; the field holds a 16-bit value in network order.
        u16::from_be(unsafe { (*self.raw).protocol } as u16)
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let mut bytes = Aligned(MaybeUninit::<[u8; N]>::uninit());
        // SAFETY: the buffer is N bytes long, and the helper fills all of it or fails.
        let ret =
            unsafe { bpf_skb_load_bytes(self.raw.cast(), offset, bytes.0.as_mut_ptr().cast(), N as u32) };
        if ret != 0 {
            return None;
        }
        // SAFETY: the helper has succeeded.
        Some(unsafe { bytes.0.assume_init() })
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()> {
        // Only packets with a hardware checksum (CHECKSUM_COMPLETE) pay for the recomputation.
        // SAFETY: the buffer is N bytes long.
        let ret = unsafe {
            bpf_skb_store_bytes(
                self.raw.cast(),
                offset,
                bytes.as_ptr().cast(),
                N as u32,
                BPF_F_RECOMPUTE_CSUM as u64,
            )
        };
        (ret == 0).then_some(())
    }

    #[inline(always)]
    fn grow(&mut self) -> Option<()> {
        // SAFETY: no pointer into the packet is held anywhere.
        let ret = unsafe { bpf_skb_adjust_room(self.raw, ROOM as i32, ADJ_ROOM_MAC, GROW) };
        (ret == 0).then_some(())
    }

    #[inline(always)]
    fn shrink(&mut self) -> Option<()> {
        // SAFETY: no pointer into the packet is held anywhere.
        let ret = unsafe { bpf_skb_adjust_room(self.raw, -(ROOM as i32), ADJ_ROOM_MAC, SHRINK) };
        (ret == 0).then_some(())
    }
}

/// Counts a verdict and turns it into the classifier's return value.
#[inline(always)]
pub(crate) fn carry_out(verdict: Verdict, received: Received) -> i32 {
    let Received { bytes, gso } = received;
    match verdict {
        // "Next" for TCX and "continue" for clsact: other programs on the device still run.
        Verdict::Pass => TC_ACT_UNSPEC,
        Verdict::Drop(reason) => {
            count_drop(reason);
            TC_ACT_SHOT as i32
        }
        Verdict::Send { path, ifindex } => {
            count_path(path, bytes, gso);
            // SAFETY: no parameters are passed: the kernel resolves the neighbour by itself.
            unsafe { bpf_redirect_neigh(ifindex, ptr::null_mut(), 0, 0) as i32 }
        }
        Verdict::Deliver { path, ifindex } => {
            count_path(path, bytes, gso);
            // SAFETY: plain values only.
            unsafe { bpf_redirect(ifindex, BPF_F_INGRESS as u64) as i32 }
        }
        Verdict::Consume { path } => {
            count_path(path, bytes, gso);
            TC_ACT_SHOT as i32
        }
    }
}
