//! A packet in a byte vector: the host's implementation of [`Packet`].

use super::{Packet, eth, tunnel};

/// A frame in memory. Behaves like the kernel's packet, without its offload state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePacket(Vec<u8>);

impl SlicePacket {
    /// Takes a whole frame, Ethernet header first.
    #[must_use]
    pub fn new(frame: Vec<u8>) -> Self {
        Self(frame)
    }

    /// The frame's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Packet for SlicePacket {
    fn frame_len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    fn ethertype(&self) -> u16 {
        self.load::<2>(eth::ETHERTYPE).map_or(0, u16::from_be_bytes)
    }

    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let start = usize::try_from(offset).ok()?;
        self.0.get(start..start.checked_add(N)?)?.try_into().ok()
    }

    fn store<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()> {
        let start = usize::try_from(offset).ok()?;
        self.0
            .get_mut(start..start.checked_add(N)?)?
            .copy_from_slice(bytes);
        Some(())
    }

    fn grow(&mut self) -> Option<()> {
        if self.0.len() < eth::LEN {
            return None;
        }
        self.0.splice(eth::LEN..eth::LEN, [0; tunnel::ROOM]);
        Some(())
    }

    fn shrink(&mut self) -> Option<()> {
        let end = eth::LEN.checked_add(tunnel::ROOM)?;
        // The kernel refuses to shrink below the network header's minimum: bpf_skb_adjust_room
        // (net/core/filter.c) wants at least an IPv4 header left.
        if self.0.len() < end.checked_add(super::ip::V4_LEN)? {
            return None;
        }
        self.0.drain(eth::LEN..end);
        Some(())
    }
}
