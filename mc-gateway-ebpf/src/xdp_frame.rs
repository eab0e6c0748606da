//! A frame before the kernel allocates a socket buffer, as a [`Frame`].

use aya_ebpf::bindings::xdp_md;
use mc_gateway_common::packet::{Frame, HeaderWords, eth};

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

impl Frame for XdpFrame {
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

    #[inline(always)]
    fn load_words<const AT: u32, const W: usize>(&self) -> Option<HeaderWords<W>> {
        let start = self.bytes::<AT>(8 * W)?;
        // SAFETY: the bytes are in the frame.
        Some(HeaderWords::new(AT as usize, unsafe { words::load(start) }))
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
    fn gso_size(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn update_sum(&mut self, _: u32) {}
}
