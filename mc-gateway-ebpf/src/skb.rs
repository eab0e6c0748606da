//! The kernel's packet as a [`Packet`], and verdicts as TC actions.

use core::{array, mem::MaybeUninit, ptr};

use aya_ebpf::{
    bindings::{
        __sk_buff, BPF_F_ADJ_ROOM_DECAP_L3_IPV4, BPF_F_ADJ_ROOM_DECAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L2_ETH,
        BPF_F_ADJ_ROOM_ENCAP_L3_IPV4, BPF_F_ADJ_ROOM_ENCAP_L3_IPV6, BPF_F_ADJ_ROOM_ENCAP_L4_UDP,
        BPF_F_ADJ_ROOM_FIXED_GSO, BPF_F_INGRESS, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR,
        BPF_F_RECOMPUTE_CSUM, TC_ACT_SHOT, TC_ACT_UNSPEC, bpf_redir_neigh,
    },
    helpers::{
        bpf_csum_update, bpf_l4_csum_replace, bpf_redirect, bpf_redirect_neigh, bpf_skb_adjust_room,
        bpf_skb_change_tail, bpf_skb_load_bytes, bpf_skb_pull_data, bpf_skb_store_bytes,
    },
};
use mc_gateway_common::{
    abi::Neighbor,
    maps::Maps,
    packet::{
        Aligned, HeaderWords, L4ChecksumDelta, Packet, checksum, encap::OuterFamily, eth, l4::L4Location,
    },
    verdict::{DropReason, Verdict},
};

use crate::{
    maps::{count_drop, count_outcome},
    mc_sample_drop, subprograms, words,
};

/// `BPF_ADJ_ROOM_MAC`: room is made right behind the Ethernet header.
const ADJ_ROOM_MAC: u32 = 1;
/// `BPF_F_ADJ_ROOM_ENCAP_L2(14)`: length of the inner Ethernet header, in the flags' top byte.
const ENCAP_L2_LEN: u64 = (eth::LEN as u64) << 56;
/// FIXED_GSO keeps the segment size: the inner packet stays what its sender made it.
const GROW: u64 = (BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2_ETH)
    as u64
    | ENCAP_L2_LEN;
/// Without FIXED_GSO the segment size would grow by the room removed.
const PLAIN: u64 = BPF_F_ADJ_ROOM_FIXED_GSO as u64;
/// Length of an IPv6 header, which Linux before 6.3 wants to be left of a packet that came in IPv6.
const PADDED: u32 = 40;
/// Bytes of an encapsulated packet that are read in place: outer headers over IPv4 and an inner IPv6 header.
/// Not one more: of a bulk TCP packet only the headers are in the linear part, and pulling payload costs
/// more than everything else that is done for it.
pub(crate) const HEAD_V4: u32 = eth::END + OuterFamily::V4.encap_len() + 40;
/// As [`HEAD_V4`], over IPv6.
pub(crate) const HEAD_V6: u32 = eth::END + OuterFamily::V6.encap_len() + 40;
/// Bytes of an IPv4 packet that are read in place: its header and the ports.
const PLAIN_V4: u32 = eth::END + 20 + 4;
/// As [`PLAIN_V4`], of an IPv6 packet.
const PLAIN_V6: u32 = eth::END + 40 + 4;

/// The packet a classifier was called for.
pub(crate) struct Skb {
    raw: *mut __sk_buff,
    /// In a map, or null.
    via: *const Neighbor,
}

impl Skb {
    /// A packet whose first `head` bytes, or as many as it has, are read in place.
    #[inline(always)]
    pub(crate) fn new(raw: *mut __sk_buff, head: u32) -> Self {
        // SAFETY: the context pointer is valid while the program runs.
        let (start, end, len) = unsafe { ((*raw).data as usize, (*raw).data_end as usize, (*raw).len) };
        if start + head as usize > end && end - start < len as usize {
            // SAFETY: no pointer into the packet is held anywhere. On failure the packet is as short as it
            // looks, which is refused.
            unsafe { bpf_skb_pull_data(raw, if len < head { len } else { head }) };
        }
        Self::from_raw(raw)
    }

    /// A packet that is in no tunnel.
    #[inline(always)]
    pub(crate) fn plain(raw: *mut __sk_buff) -> Self {
        match Self::from_raw(raw).ethertype() {
            eth::IPV6 => Self::new(raw, PLAIN_V6),
            _ => Self::new(raw, PLAIN_V4),
        }
    }

    /// Of a packet that [`Self::new`] has seen before.
    #[inline(always)]
    pub(crate) fn from_raw(raw: *mut __sk_buff) -> Self {
        Self {
            raw,
            via: ptr::null(),
        }
    }

    #[inline(always)]
    fn adjust(&mut self, by: i32, flags: u64) -> Option<()> {
        // SAFETY: no pointer into the packet is held anywhere.
        let ret = unsafe { bpf_skb_adjust_room(self.raw, by, ADJ_ROOM_MAC, flags) };
        (ret == 0).then_some(())
    }

    /// Address of the byte at `AT`, if `len` bytes from there can be read in place.
    #[inline(always)]
    fn linear<const AT: u32>(&self, len: usize) -> Option<usize> {
        // SAFETY: the context pointer is valid while the program runs; the verifier knows these two fields
        // as pointers to the packet.
        let (start, end) = unsafe { ((*self.raw).data as usize, (*self.raw).data_end as usize) };
        let at = start + AT as usize;
        (at + len <= end).then_some(at)
    }

    /// Length of the frame, and whether it is a super-packet, read before anything changes it.
    #[inline(always)]
    pub(crate) fn rx_info(&self) -> RxInfo {
        RxInfo {
            bytes: self.frame_len(),
            // SAFETY: the context pointer is valid while the program runs.
            gso: unsafe { (*self.raw).gso_size } != 0,
        }
    }
}

/// What counters need to know of a packet as it was received.
#[derive(Clone, Copy)]
pub(crate) struct RxInfo {
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
    fn load_words<const AT: u32, const W: usize>(&self) -> Option<HeaderWords<W>> {
        let start = self.linear::<AT>(8 * W)?;
        // SAFETY: the bytes are in the packet.
        let words = array::from_fn(|i| unsafe { words::load_u64(start + 8 * i) });
        Some(HeaderWords::new(AT as usize, words))
    }

    #[inline(always)]
    fn load_u32<const AT: u32>(&self) -> Option<u32> {
        let start = self.linear::<AT>(4)?;
        // SAFETY: the bytes are in the packet.
        Some(unsafe { words::load_u32(start) })
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
    fn write_linear<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        const { assert!(N > 8 * (W - 1) && N <= 8 * W && N.is_multiple_of(2)) }
        let start = self.linear::<AT>(N)?;
        // SAFETY: the bytes are in the packet, and as the program writes to packets in place the kernel has
        // given it one of its own (bpf_unclone_prologue, net/core/filter.c).
        unsafe {
            for i in 0..N / 8 {
                words::store_u64(start + 8 * i, words[i]);
            }
            let (mut at, mut rest) = (start + N / 8 * 8, words[W - 1]);
            if N % 8 >= 4 {
                words::store_u32(at, rest as u32);
                at += 4;
                rest >>= 32;
            }
            if N % 4 >= 2 {
                words::store_u16(at, rest as u16);
            }
        }
        Some(())
    }

    #[inline(always)]
    fn write_encap<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        self.write_linear::<AT, W, N>(words)?;
        let sum = checksum::fold(checksum::sum_words(words));
        // The new bytes were zeros (bpf_skb_generic_push). Fails where no device has summed the packet.
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
    fn store_summed<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()> {
        // Without RECOMPUTE_CSUM: the sum of the packet stays what it is once `update_l4` has followed.
        // SAFETY: the buffer is N bytes long.
        let ret = unsafe { bpf_skb_store_bytes(self.raw.cast(), offset, bytes.as_ptr().cast(), N as u32, 0) };
        (ret == 0).then_some(())
    }

    #[inline(always)]
    fn gso_size(&self) -> u32 {
        // SAFETY: the context pointer is valid while the program runs.
        unsafe { (*self.raw).gso_size }
    }

    #[inline(always)]
    fn grow(&mut self, room: OuterFamily) -> Option<()> {
        let version = match room {
            OuterFamily::V4 => BPF_F_ADJ_ROOM_ENCAP_L3_IPV4,
            OuterFamily::V6 => BPF_F_ADJ_ROOM_ENCAP_L3_IPV6,
        };
        if let Some(done) = self.adjust(room.encap_len() as i32, GROW | version as u64) {
            return Some(done);
        }
        // Delivered through this device a moment ago, over veth devices all the way: the kernel still takes it
        // for a tunnelled packet and refuses to make it one (bpf_skb_net_grow, net/core/filter.c, Linux 6.18). What
        // it remembers of the headers then is true again with room alone.
        // SAFETY: the context pointer is valid while the program runs.
        let (came_in, goes_out) = unsafe { ((*self.raw).ingress_ifindex, (*self.raw).ifindex) };
        if came_in != goes_out {
            return None;
        }
        self.adjust(room.encap_len() as i32, PLAIN)
    }

    #[inline(always)]
    fn shrink(&mut self, room: OuterFamily, inner_v6: bool) -> Option<()> {
        let less = -(room.encap_len() as i32);
        let version = match (room, inner_v6) {
            (OuterFamily::V4, false) | (OuterFamily::V6, true) => return self.adjust(less, PLAIN),
            (OuterFamily::V4, true) => BPF_F_ADJ_ROOM_DECAP_L3_IPV6,
            (OuterFamily::V6, false) => BPF_F_ADJ_ROOM_DECAP_L3_IPV4,
        };
        if let Some(done) = self.adjust(less, PLAIN | version as u64) {
            return Some(done);
        }
        // Linux before 6.3 knows no change of version and wants as much left as the outer version's header
        // is long. Padding behind the IP packet is what Ethernet has for this; only packets shorter than
        // an IPv6 header get it, and those are never super-packets, which it would break up.
        let left = self
            .frame_len()
            .wrapping_sub(room.encap_len())
            .wrapping_sub(eth::END);
        if matches!(room, OuterFamily::V6) && left < PADDED {
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
        // There is no way to ask but to change the field: an update from inside the packet leaves the field
        // alone exactly where a device is still to complete it.
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
    fn set_neighbor(&mut self, via: &Neighbor) {
        self.via = via;
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
    fn clamp_mss(&mut self, at: u32, mtu: u32) -> Option<bool> {
        let changed = subprograms::mc_clamp_mss(self.raw.cast(), at, mtu);
        (changed != subprograms::FAILED).then_some(changed != 0)
    }

    #[inline(always)]
    fn locate_l4(&self, v6: bool, at: u32) -> L4Location {
        L4Location::unpack(subprograms::mc_locate_l4(self.raw.cast(), v6 as u32, at))
    }

    #[inline(always)]
    fn sum_bytes(&self, at: u32, len: u32) -> Option<u16> {
        let sum = subprograms::mc_sum_bytes(self.raw.cast(), at, len);
        (sum != subprograms::FAILED).then_some(sum as u16)
    }

    #[inline(always)]
    fn finalize_checksum(&mut self, at: u32, quoted: u32, sum: u16, transport: L4Location) -> Option<u16> {
        let sum =
            subprograms::mc_finalize_checksum(self.raw.cast(), at, quoted, sum as u32, transport.pack());
        (sum != subprograms::FAILED).then_some(sum as u16)
    }

    #[inline(always)]
    fn store_icmp_error(&mut self, v6: bool, at: u32, mtu: u32, sum: u16) -> Option<()> {
        let stored = subprograms::mc_store_icmp_error(self.raw.cast(), v6 as u32, at, mtu, sum as u32);
        (stored != subprograms::FAILED).then_some(())
    }

    #[inline(always)]
    fn write_return_encap<T: Maps>(&mut self, _: &T, v6: bool, at: u32) -> Option<()> {
        let stored = subprograms::mc_write_return_encap(self.raw.cast(), v6 as u32, at);
        (stored != subprograms::FAILED).then_some(())
    }

    #[inline(always)]
    fn hash_slow(&self, v6: bool, at: u32) -> u32 {
        subprograms::mc_hash_slow(self.raw.cast(), v6 as u32, at)
    }

    #[inline(always)]
    fn segment_headers_len(&self, at: u32) -> u32 {
        subprograms::mc_segment_headers_len(self.raw.cast(), at)
    }

    #[inline(always)]
    fn reply_too_big<T: Maps>(&mut self, _: &T, at: u32, size: u32, mtu: u32) -> Result<(), DropReason> {
        subprograms::decode_result(subprograms::mc_reply_too_big(self.raw.cast(), at, size, mtu))
    }

    #[inline(always)]
    fn translate_service<T: Maps>(&mut self, _: &T, v6: bool, finding: u64) -> u64 {
        subprograms::mc_translate_service(self.raw.cast(), v6 as u32, finding)
    }

    #[inline(always)]
    fn select_backend<T: Maps>(&mut self, _: &T, v6: bool) -> u64 {
        subprograms::mc_select_backend(self.raw.cast(), v6 as u32)
    }

    #[inline(always)]
    fn flow_backend_id<T: Maps>(&self, _: &T, at: u32, flow: u64, back: bool) -> u64 {
        subprograms::mc_flow_backend_id(self.raw.cast(), at, flow, back as u32)
    }

    #[inline(always)]
    fn dnat_request<T: Maps>(&mut self, _: &T, at: u32, backend: u64) -> Result<(), DropReason> {
        subprograms::decode_result(subprograms::mc_dnat_request(self.raw.cast(), at, backend))
    }

    #[inline(always)]
    fn clear_nat_entry<T: Maps>(&self, _: &T, at: u32) {
        subprograms::mc_clear_nat_entry(self.raw.cast(), at);
    }

    #[inline(always)]
    fn snat_reply<T: Maps>(&mut self, _: &T) -> Result<(), DropReason> {
        subprograms::decode_result(subprograms::mc_snat_reply(self.raw.cast()))
    }

    #[inline(always)]
    fn rewrite_alias(&mut self, at: u32, source: bool, to: u32) -> Result<(), DropReason> {
        subprograms::decode_result(subprograms::mc_rewrite_alias(
            self.raw.cast(),
            at,
            source as u32,
            to,
        ))
    }

    #[inline(always)]
    fn rewrite_ingress_alias<T: Maps>(&mut self, _: &T, finding: u64, back: bool) -> u64 {
        subprograms::mc_rewrite_ingress_alias(self.raw.cast(), finding, back as u32)
    }

    #[inline(always)]
    fn parse_l4(&self, v6: bool, at: u32) -> u64 {
        subprograms::mc_parse_l4(self.raw.cast(), v6 as u32, at)
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
        // SAFETY: plain values only; a size of 0 in the flags means that `to` is a difference.
        let ret = unsafe { bpf_l4_csum_replace(self.raw, offset, 0, difference.sum as u64, flags as u64) };
        (ret == 0).then_some(())
    }
}

/// Counts a verdict of `program` and turns it into the classifier's return value.
#[inline(always)]
pub(crate) fn apply_verdict(packet: &Skb, verdict: Verdict, received: RxInfo, program: u32) -> i32 {
    let RxInfo { bytes, gso } = received;
    #[cfg(feature = "log")]
    crate::decision_log::log(packet.raw.cast(), program, &verdict);
    match verdict {
        // "Next" for TCX and "continue" for clsact: other programs on the device still run.
        Verdict::Pass => TC_ACT_UNSPEC,
        Verdict::Drop(reason) => {
            count_drop(reason);
            mc_sample_drop(packet.raw.cast(), reason as u32, program);
            TC_ACT_SHOT as i32
        }
        Verdict::Send {
            outcome: path,
            ifindex,
        } => {
            count_outcome(path, bytes, gso);
            send(packet.via, ifindex)
        }
        Verdict::Deliver {
            outcome: path,
            ifindex,
        } => {
            count_outcome(path, bytes, gso);
            // SAFETY: plain values only.
            unsafe { bpf_redirect(ifindex, BPF_F_INGRESS as u64) as i32 }
        }
        Verdict::Consume { outcome: path } => {
            count_outcome(path, bytes, gso);
            TC_ACT_SHOT as i32
        }
    }
}

/// Sends the packet out of a device.
#[inline(always)]
fn send(via: *const Neighbor, ifindex: u32) -> i32 {
    // SAFETY: not null, and where it came from it is a whole map value that nobody takes away.
    if !via.is_null() && unsafe { (*via).family } != 0 {
        const LEN: i32 = size_of::<bpf_redir_neigh>() as i32;
        const { assert!(size_of::<Neighbor>() == size_of::<bpf_redir_neigh>()) }
        // SAFETY: as above; the kernel only reads it, and both types have the same layout.
        return unsafe { bpf_redirect_neigh(ifindex, via.cast_mut().cast(), LEN, 0) as i32 };
    }
    // SAFETY: no parameters are passed: the kernel finds the neighbour by itself.
    unsafe { bpf_redirect_neigh(ifindex, ptr::null_mut(), 0, 0) as i32 }
}
