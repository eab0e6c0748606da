//! A frame before the kernel allocates a socket buffer, as a [`Packet`].

use core::array;

use aya_ebpf::bindings::xdp_md;
use mc_gateway_common::{
    abi::Neighbor,
    packet::{HeaderWords, L4ChecksumDelta, OuterFamily, Packet, eth},
};

use crate::words;

/// The frame of an XDP program, in one buffer. It is shorter than a page, and no device has summed or segments it.
pub(crate) struct XdpFrame {
    raw: *mut xdp_md,
}

impl XdpFrame {
    #[inline(always)]
    pub(crate) fn new(raw: *mut xdp_md) -> Self {
        Self { raw }
    }

    /// Address of the byte at `AT`, if the frame has `len` bytes from there.
    #[inline(always)]
    fn bytes<const AT: u32>(&self, len: usize) -> Option<usize> {
        // SAFETY: the context pointer is valid while the program runs; the verifier treats these two fields as packet
        // pointers.
        let (start, end) = unsafe { ((*self.raw).data as usize, (*self.raw).data_end as usize) };
        let at = start + AT as usize;
        (at + len <= end).then_some(at)
    }
}

impl Packet for XdpFrame {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).data_end.wrapping_sub((*self.raw).data) }
    }

    #[inline(always)]
    fn ethertype(&self) -> u16 {
        // With the last two bytes of the source address it is a word.
        let word = self.load_u32::<{ eth::ETHERTYPE - 2 }>().unwrap_or(0);
        u16::from_be((word >> 16) as u16)
    }

    /// A frame with a tag has the tag's ethertype.
    #[inline(always)]
    fn vlan_id(&self) -> u16 {
        0
    }

    /// Unused: every offset is a constant here.
    #[inline(always)]
    fn load<const N: usize>(&self, _: u32) -> Option<[u8; N]> {
        None
    }

    #[inline(always)]
    fn load_words<const AT: u32, const W: usize>(&self) -> Option<HeaderWords<W>> {
        let start = self.bytes::<AT>(8 * W)?;
        // SAFETY: the bytes are in the frame.
        let words = array::from_fn(|i| unsafe { words::load_u64(start + 8 * i) });
        Some(HeaderWords::new(AT as usize, words))
    }

    #[inline(always)]
    fn load_u32<const AT: u32>(&self) -> Option<u32> {
        let start = self.bytes::<AT>(4)?;
        // SAFETY: the bytes are in the frame.
        Some(unsafe { words::load_u32(start) })
    }

    #[inline(always)]
    fn write_linear<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        let start = self.bytes::<AT>(N)?;
        // SAFETY: the bytes are in the frame.
        unsafe { words::store::<W, N>(start, words) };
        Some(())
    }

    #[inline(always)]
    fn store<const N: usize>(&mut self, _: u32, _: &[u8; N]) -> Option<()> {
        None
    }

    #[inline(always)]
    fn store_summed<const N: usize>(&mut self, _: u32, _: &[u8; N]) -> Option<()> {
        None
    }

    #[inline(always)]
    fn ifindex(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw).ingress_ifindex }
    }

    #[inline(always)]
    fn gso_size(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn grow(&mut self, _: OuterFamily) -> Option<()> {
        None
    }

    #[inline(always)]
    fn shrink(&mut self, _: OuterFamily, _: bool) -> Option<()> {
        None
    }

    #[inline(always)]
    fn update_l4_checksum(&mut self, _: u32, _: L4ChecksumDelta) -> Option<()> {
        None
    }

    #[inline(always)]
    fn is_checksum_partial(&mut self, _: u32) -> Option<bool> {
        None
    }

    #[inline(always)]
    fn set_neighbor(&mut self, _: &Neighbor) {}

    #[inline(always)]
    fn resize(&mut self, _: u32) -> Option<()> {
        None
    }

    #[inline(always)]
    fn insert(&mut self, _: u32) -> Option<()> {
        None
    }
}
