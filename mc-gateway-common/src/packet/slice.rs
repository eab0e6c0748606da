//! A packet in a byte vector: the host's implementation of [`Packet`].

use super::{L4Difference, Packet, checksum, encap::Room, eth, ip};

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

    /// The loopback device's, as with `BPF_PROG_TEST_RUN`.
    fn ifindex(&self) -> u32 {
        1
    }

    fn is_gso(&self) -> bool {
        false
    }

    fn grow(&mut self, room: Room) -> Option<()> {
        if self.0.len() < eth::LEN {
            return None;
        }
        let zeros = std::iter::repeat_n(0, usize::try_from(room.bytes()).ok()?);
        self.0.splice(eth::LEN..eth::LEN, zeros);
        Some(())
    }

    fn shrink(&mut self, room: Room, inner_v6: bool) -> Option<()> {
        let end = eth::LEN.checked_add(usize::try_from(room.bytes()).ok()?)?;
        // The kernel refuses to shrink below the network header's minimum: bpf_skb_adjust_room
        // (net/core/filter.c) wants at least the IP header left.
        let least = if inner_v6 { ip::V6_LEN } else { ip::V4_LEN };
        if self.0.len() < end.checked_add(least)? {
            return None;
        }
        self.0.drain(eth::LEN..end);
        Some(())
    }

    fn update_l4(&mut self, offset: u32, difference: L4Difference) -> Option<()> {
        let check = self.load::<2>(offset)?;
        if difference.udp && check == [0, 0] {
            return Some(());
        }
        let check = checksum::update(check, difference.sum);
        let check = if difference.udp {
            checksum::for_udp(check)
        } else {
            check
        };
        self.store(offset, &check)
    }
}
