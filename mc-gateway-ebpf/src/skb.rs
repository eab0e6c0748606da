//! The kernel's packet as a [`Packet`].

use core::{
    mem::{MaybeUninit, offset_of},
    ptr,
};

use aya_ebpf::{
    bindings::{
        __sk_buff, BPF_F_ADJ_ROOM_DECAP_L3_IPV4, BPF_F_ADJ_ROOM_DECAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L2_ETH,
        BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L4_UDP,
        BPF_F_ADJ_ROOM_FIXED_GSO, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM,
    },
    helpers::{
        bpf_csum_update, bpf_l4_csum_replace, bpf_skb_adjust_room, bpf_skb_change_tail, bpf_skb_load_bytes,
        bpf_skb_pull_data, bpf_skb_store_bytes,
    },
};
use mc_gateway_common::{
    abi::{Neighbor, kernel_decap::ADJ_ROOM_DECAP_UDP, sample::AUDITED},
    packet::{Aligned, Frame, HeaderWords, L4ChecksumDelta, OuterFamily, Packet, checksum, eth, ip},
};

use crate::{sample_drop::mc_sample_drop, words};

const V4_LEN: u32 = ip::V4_LEN as u32;
const V6_LEN: u32 = ip::V6_LEN as u32;
/// `BPF_ADJ_ROOM_MAC`: bytes are inserted and removed behind the Ethernet header.
const ADJ_ROOM_MAC: u32 = 1;
/// `BPF_F_ADJ_ROOM_ENCAP_L2(14)`: length of the inner Ethernet header, in the flags' top byte.
const ENCAP_L2_LEN: u64 = (eth::LEN as u64) << 56;
/// FIXED_GSO keeps the segment size of the sender.
const GROW: u64 = (BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH)
    as u64
    | ENCAP_L2_LEN;
/// Without FIXED_GSO the segment size would grow by the removed bytes.
const PLAIN: u64 = BPF_F_ADJ_ROOM_FIXED_GSO as u64;

/// 1 if the kernel knows [`ADJ_ROOM_DECAP_UDP`]. The agent replaces the value before it loads the object.
#[unsafe(no_mangle)]
static MC_HAS_DECAP_FLAG: u32 = 0;

/// Whether the kernel knows [`ADJ_ROOM_DECAP_UDP`].
#[inline(always)]
fn has_decap_flag() -> bool {
    // SAFETY: a constant of the object. A volatile read keeps the compiler from using its own value.
    unsafe { (&raw const MC_HAS_DECAP_FLAG).read_volatile() != 0 }
}

/// Minimum length of a packet decapsulated from IPv6 before Linux 6.3: an IPv6 header.
const PADDED: u32 = V6_LEN;
/// Bytes of an encapsulated packet for direct access: outer headers over IPv4 and an inner IPv6 header. Not more: only
/// the headers of a bulk TCP packet are in the linear part, and pulling payload costs more than the rest of the
/// pipeline.
pub(crate) const HEAD_V4: u32 = eth::END + OuterFamily::V4.encap_len() + V6_LEN;
/// As [`HEAD_V4`], over IPv6.
pub(crate) const HEAD_V6: u32 = eth::END + OuterFamily::V6.encap_len() + V6_LEN;
/// Bytes of an IPv4 packet for direct access: its header and the ports.
const PLAIN_V4: u32 = eth::END + V4_LEN + 4;
/// As [`PLAIN_V4`], of an IPv6 packet.
const PLAIN_V6: u32 = eth::END + V6_LEN + 4;

/// VLAN ID of a tag: the lower 12 bits (IEEE 802.1Q).
const VLAN_ID: u16 = 0x0fff;

/// The packet of a classifier.
pub(crate) struct Skb {
    raw: *mut __sk_buff,
    /// Points into a map value, or null.
    neighbor: *const Neighbor,
}

impl Skb {
    /// A packet with direct access to its first `head` bytes, or to all bytes of a shorter one.
    #[inline(always)]
    pub(crate) fn new(raw: *mut __sk_buff, head: u32) -> Self {
        // SAFETY: the context pointer is valid while the program runs.
        let (start, end, len) = unsafe { ((*raw).data as usize, (*raw).data_end as usize, (*raw).len) };
        if start + head as usize > end && end - start < len as usize {
            // SAFETY: no pointer into the packet is held anywhere. After a failure the packet is too short
            // for its headers and is dropped.
            unsafe { bpf_skb_pull_data(raw, if len < head { len } else { head }) };
        }
        Self::from_raw(raw)
    }

    /// A packet outside a tunnel.
    #[inline(always)]
    pub(crate) fn plain(raw: *mut __sk_buff) -> Self {
        match Self::from_raw(raw).ethertype() {
            eth::IPV6 => Self::new(raw, PLAIN_V6),
            _ => Self::new(raw, PLAIN_V4),
        }
    }

    /// A packet after an earlier [`Self::new`].
    #[inline(always)]
    pub(crate) fn from_raw(raw: *mut __sk_buff) -> Self {
        Self {
            raw,
            neighbor: ptr::null(),
        }
    }

    /// The kernel's context.
    #[inline(always)]
    pub(crate) fn raw(&self) -> *mut __sk_buff {
        self.raw
    }

    /// The neighbour set by [`Packet::set_neighbor`], or null.
    #[inline(always)]
    pub(crate) fn neighbor(&self) -> *const Neighbor {
        self.neighbor
    }

    #[inline(always)]
    fn adjust(&mut self, by: i32, flags: u64) -> Option<()> {
        // SAFETY: no pointer into the packet is held anywhere.
        let ret = unsafe { bpf_skb_adjust_room(self.raw, by, ADJ_ROOM_MAC, flags) };
        (ret == 0).then_some(())
    }

    /// Address of the byte at `AT`, if `len` bytes from there are in the linear part.
    #[inline(always)]
    fn linear<const AT: u32>(&self, len: usize) -> Option<usize> {
        let context = self.raw as usize;
        // SAFETY: the context pointer is valid while the program runs; the verifier treats these two fields
        // as packet pointers.
        let (start, end) = unsafe {
            (
                words::load_field::<{ offset_of!(__sk_buff, data) }>(context),
                words::load_field::<{ offset_of!(__sk_buff, data_end) }>(context),
            )
        };
        let at = start + AT as usize;
        (at + len <= end).then_some(at)
    }

    /// Length and GSO state of the received frame, read before any change.
    #[inline(always)]
    pub(crate) fn rx_info(&self) -> RxInfo {
        RxInfo {
            bytes: self.frame_len(),
            // SAFETY: the context pointer is valid while the program runs.
            gso: unsafe { (*self.raw).gso_size } != 0,
        }
    }
}

/// Properties of the received packet, for counters.
#[derive(Clone, Copy)]
pub(crate) struct RxInfo {
    pub(crate) bytes: u32,
    pub(crate) gso: bool,
}

impl Frame for Skb {
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
    fn load_words<const AT: u32, const W: usize>(&self) -> Option<HeaderWords<W>> {
        let start = self.linear::<AT>(8 * W)?;
        // SAFETY: the bytes are in the packet.
        Some(HeaderWords::new(AT as usize, unsafe { words::load(start) }))
    }

    #[inline(always)]
    fn load_u32<const AT: u32>(&self) -> Option<u32> {
        let start = self.linear::<AT>(4)?;
        // SAFETY: the bytes are in the packet.
        Some(unsafe { words::load_u32(start) })
    }

    #[inline(always)]
    fn write_linear<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        let start = self.linear::<AT>(N)?;
        // SAFETY: the bytes are in the packet. The kernel unclones the packet for a program with direct writes
        // (bpf_unclone_prologue, net/core/filter.c).
        unsafe { words::store::<W, N>(start, words) };
        Some(())
    }

    #[inline(always)]
    fn gso_size(&self) -> u32 {
        // SAFETY: the context pointer is valid while the program runs.
        unsafe { (*self.raw).gso_size }
    }

    #[inline(always)]
    fn update_sum(&mut self, difference: u32) {
        // The helper fails without a sum from a device.
        // SAFETY: plain values only.
        unsafe { bpf_csum_update(self.raw, difference) };
    }
}

impl Packet for Skb {
    #[inline(always)]
    fn vlan_id(&self) -> u16 {
        // SAFETY: the context pointer is valid while the program runs.
        let (present, tci) = unsafe { ((*self.raw).vlan_present, (*self.raw).vlan_tci) };
        // Before Linux 6.2 a packet keeps the value of a removed tag (`__vlan_hwaccel_clear_tag`, linux/if_vlan.h).
        if present == 0 { 0 } else { tci as u16 & VLAN_ID }
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
        // SAFETY: the helper succeeded.
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
    fn write_encap<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        self.write_linear::<AT, W, N>(words)?;
        let sum = checksum::fold(checksum::sum_words(words));
        // The inserted bytes were zeros (bpf_skb_generic_push). The helper fails without a sum from a device.
        // SAFETY: plain values only.
        unsafe { bpf_csum_update(self.raw, u32::from(sum)) };
        Some(())
    }

    #[inline(always)]
    fn ifindex(&self) -> u32 {
        // SAFETY: the context pointer is valid while the program runs.
        unsafe { (*self.raw).ifindex }
    }

    #[inline(always)]
    fn ingress_ifindex(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).ingress_ifindex }
    }

    #[inline(always)]
    fn store_summed<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()> {
        // Without RECOMPUTE_CSUM: the sum of the packet is unchanged after `update_l4_checksum`.
        // SAFETY: the buffer is N bytes long.
        let ret = unsafe { bpf_skb_store_bytes(self.raw.cast(), offset, bytes.as_ptr().cast(), N as u32, 0) };
        (ret == 0).then_some(())
    }

    #[inline(always)]
    fn grow(&mut self, outer: OuterFamily) -> Option<()> {
        let version = match outer {
            OuterFamily::V4 => BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
            OuterFamily::V6 => BPF_F_ADJ_ROOM_ENCAP_L3_IPV6,
        };
        if let Some(done) = self.adjust(outer.encap_len() as i32, GROW | version as u64) {
            return Some(done);
        }
        // A packet delivered through this device before, over veth devices only, is still marked as tunnelled, and
        // the helper fails (bpf_skb_net_grow, net/core/filter.c, Linux 6.18). Inserted bytes alone make the kernel's
        // header offsets valid again.
        if self.ingress_ifindex() != self.ifindex() {
            return None;
        }
        self.adjust(outer.encap_len() as i32, PLAIN)
    }

    #[inline(always)]
    fn shrink(&mut self, outer: OuterFamily, inner_v6: bool) -> Option<()> {
        let less = -(outer.encap_len() as i32);
        let version = match (outer, inner_v6) {
            (OuterFamily::V4, false) | (OuterFamily::V6, true) => 0,
            (OuterFamily::V4, true) => BPF_F_ADJ_ROOM_DECAP_L3_IPV6,
            (OuterFamily::V6, false) => BPF_F_ADJ_ROOM_DECAP_L3_IPV4,
        };
        let flags = PLAIN | version as u64;
        if self.is_gso()
            && has_decap_flag()
            && let Some(done) = self.adjust(less, flags | ADJ_ROOM_DECAP_UDP)
        {
            return Some(done);
        }
        if version == 0 {
            return self.adjust(less, PLAIN);
        }
        if let Some(done) = self.adjust(less, flags) {
            return Some(done);
        }
        // Linux before 6.3 does not support a change of the IP version and requires a remainder as long as the outer
        // IP header. Shorter packets get Ethernet padding. They are never GSO packets, which padding would
        // segment.
        let left = self
            .frame_len()
            .wrapping_sub(outer.encap_len())
            .wrapping_sub(eth::END);
        if matches!(outer, OuterFamily::V6) && left < PADDED {
            // SAFETY: no pointer into the packet is held anywhere.
            unsafe {
                bpf_skb_change_tail(
                    self.raw,
                    self.frame_len().wrapping_add(PADDED.wrapping_sub(left)),
                    0,
                )
            };
        }
        self.adjust(less, PLAIN)
    }

    #[inline(always)]
    fn is_checksum_partial(&mut self, offset: u32) -> Option<bool> {
        // No helper reads the state. An update that is not of the pseudo header leaves the field unchanged exactly if
        // a device completes it.
        let before = self.load::<2>(offset)?;
        let one = L4ChecksumDelta {
            sum: 1,
            pseudo: false,
            udp: false,
        };
        self.update_l4_checksum(offset, one)?;
        if self.load::<2>(offset)? == before {
            return Some(true);
        }
        self.store_summed(offset, &before)?;
        Some(false)
    }

    #[inline(always)]
    fn set_neighbor(&mut self, neighbor: &Neighbor) {
        self.neighbor = neighbor;
    }

    #[inline(always)]
    fn set_identity(&self, identity: u32) {
        // The stack has no room for it, and a subprogram can return one word only. No other program reads this word.
        // SAFETY: the context pointer is valid while the program runs.
        unsafe { (*self.raw).cb[0] = identity }
    }

    #[inline(always)]
    fn identity(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).cb[0] }
    }

    #[inline(always)]
    fn set_rule(&self, rule: u32) {
        // `sample_drop` reads it. SAFETY: as above.
        unsafe { (*self.raw).cb[1] = rule }
    }

    #[inline(always)]
    fn sample_audited(&self, rule: u32, program: u32) {
        self.set_rule(rule);
        mc_sample_drop(self.raw.cast(), AUDITED, program);
    }

    #[inline(always)]
    fn resize(&mut self, len: u32) -> Option<()> {
        // SAFETY: no pointer into the packet is held anywhere.
        let ret = unsafe { bpf_skb_change_tail(self.raw, len, 0) };
        (ret == 0).then_some(())
    }

    #[inline(always)]
    fn insert(&mut self, bytes: u32) -> Option<()> {
        self.adjust(bytes as i32, PLAIN)
    }

    #[inline(always)]
    fn update_l4_checksum(&mut self, offset: u32, difference: L4ChecksumDelta) -> Option<()> {
        let mut flags = 0;
        if difference.pseudo {
            flags |= BPF_F_PSEUDO_HDR;
        }
        if difference.udp {
            flags |= BPF_F_MARK_MANGLED_0;
        }
        // SAFETY: plain values only; a size of 0 in the flags makes `to` a difference.
        let ret = unsafe { bpf_l4_csum_replace(self.raw, offset, 0, difference.sum as u64, flags as u64) };
        (ret == 0).then_some(())
    }
}
