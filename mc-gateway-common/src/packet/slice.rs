//! A packet in a byte vector: [`Packet`] on the host.

use core::cell::Cell;

use super::{
    access::{Frame, Packet},
    checksum::{self, L4ChecksumDelta},
    device_sum::DeviceSum,
    eth,
    header_words::{self, HeaderWords},
    ip,
    outer_family::OuterFamily,
};
use crate::abi::Neighbor;

/// Receiving device of every frame: the loopback device, as in `BPF_PROG_TEST_RUN`.
const IFINDEX: u32 = 1;

/// A frame in memory with its offload state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePacket {
    frame: Vec<u8>,
    device_sum: DeviceSum,
    gso_size: u32,
    checksum_partial: bool,
    vlan_id: u16,
    ingress_ifindex: u32,
    identity: Cell<u32>,
    rule: Cell<u32>,
}

impl SlicePacket {
    /// A packet from a whole frame, Ethernet header first.
    #[must_use]
    pub fn new(frame: Vec<u8>) -> Self {
        Self {
            frame,
            device_sum: DeviceSum::default(),
            gso_size: 0,
            checksum_partial: false,
            vlan_id: 0,
            ingress_ifindex: IFINDEX,
            identity: Cell::default(),
            rule: Cell::default(),
        }
    }

    /// Makes the packet a GSO packet of segments with `size` bytes of payload.
    pub fn set_gso_size(&mut self, size: u32) {
        self.gso_size = size;
    }

    /// Sets whether a device completes the transport checksum later.
    pub fn set_checksum_partial(&mut self, later: bool) {
        self.checksum_partial = later;
    }

    /// Sets the VLAN of a tag beside the packet.
    pub fn set_vlan_id(&mut self, id: u16) {
        self.vlan_id = id;
    }

    /// Sets the device that the node has received the packet on; 0 for a packet of the node.
    pub fn set_ingress_ifindex(&mut self, ifindex: u32) {
        self.ingress_ifindex = ifindex;
    }

    /// The frame's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.frame
    }

    /// Whether the sum that a device computed over the received frame (`CHECKSUM_COMPLETE`), with the changes that the
    /// kernel makes to it, is the sum of the frame as it is now.
    #[must_use]
    pub const fn has_valid_device_sum(&self) -> bool {
        self.device_sum.is_valid()
    }

    /// Overwrites bytes without a change of the device's sum. Returns the old bytes.
    fn overwrite<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<[u8; N]> {
        let old = self.load::<N>(offset)?;
        let start = usize::try_from(offset).ok()?;
        self.frame
            .get_mut(start..start.checked_add(N)?)?
            .copy_from_slice(bytes);
        self.device_sum.bytes_changed(offset, &old, bytes);
        Some(old)
    }
}

impl Frame for SlicePacket {
    fn frame_len(&self) -> u32 {
        u32::try_from(self.frame.len()).unwrap_or(u32::MAX)
    }

    fn ethertype(&self) -> u16 {
        self.load::<2>(eth::ETHERTYPE).map_or(0, u16::from_be_bytes)
    }

    fn load_words<const AT: u32, const W: usize>(&self) -> Option<HeaderWords<W>> {
        let mut words = [0; W];
        let mut at = AT;
        for word in &mut words {
            *word = u64::from_le_bytes(self.load(at)?);
            at = at.wrapping_add(8);
        }
        Some(HeaderWords::new(AT as usize, words))
    }

    fn load_u32<const AT: u32>(&self) -> Option<u32> {
        self.load(AT).map(u32::from_le_bytes)
    }

    fn write_linear<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        self.overwrite(AT, &header_words::to_bytes::<W, N>(words).0)
            .map(drop)
    }

    fn gso_size(&self) -> u32 {
        self.gso_size
    }

    fn update_sum(&mut self, difference: u32) {
        // bpf_csum_update
        self.device_sum.add(0, &difference.to_ne_bytes());
    }
}

impl Packet for SlicePacket {
    fn vlan_id(&self) -> u16 {
        self.vlan_id
    }

    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let start = usize::try_from(offset).ok()?;
        self.frame.get(start..start.checked_add(N)?)?.try_into().ok()
    }

    fn store<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()> {
        let old = self.overwrite(offset, bytes)?;
        // BPF_F_RECOMPUTE_CSUM of bpf_skb_store_bytes
        self.device_sum.subtract(offset, &old);
        self.device_sum.add(offset, bytes);
        Some(())
    }

    fn store_summed<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()> {
        self.overwrite(offset, bytes).map(drop)
    }

    fn write_encap<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        let bytes = header_words::to_bytes::<W, N>(words).0;
        self.overwrite(AT, &bytes)?;
        // bpf_csum_update
        self.device_sum.add(AT, &bytes);
        Some(())
    }

    fn ifindex(&self) -> u32 {
        IFINDEX
    }

    fn ingress_ifindex(&self) -> u32 {
        self.ingress_ifindex
    }

    /// Without effect: the neighbour is no part of the frame.
    fn set_neighbor(&mut self, _: &Neighbor) {}

    fn set_identity(&self, identity: u32) {
        self.identity.set(identity);
    }

    fn identity(&self) -> u32 {
        self.identity.get()
    }

    fn set_rule(&self, rule: u32) {
        self.rule.set(rule);
    }

    /// Without effect: a sample is no part of the frame.
    fn sample_audited(&self, _: u32, _: u32) {}

    fn grow(&mut self, room: OuterFamily) -> Option<()> {
        self.insert(room.encap_len())
    }

    fn shrink(&mut self, room: OuterFamily, inner_v6: bool) -> Option<()> {
        let end = eth::LEN.checked_add(usize::try_from(room.encap_len()).ok()?)?;
        // bpf_skb_adjust_room (net/core/filter.c) fails if less than the IP header would remain.
        let least = if inner_v6 { ip::V6_LEN } else { ip::V4_LEN };
        if self.frame.len() < end.checked_add(least)? {
            return None;
        }
        self.frame.drain(eth::LEN..end);
        Some(())
    }

    fn is_checksum_partial(&mut self, offset: u32) -> Option<bool> {
        self.load::<2>(offset)?;
        Some(self.checksum_partial)
    }

    fn resize(&mut self, len: u32) -> Option<()> {
        let len = usize::try_from(len).ok()?;
        if len < eth::LEN {
            return None;
        }
        self.frame.resize(len, 0);
        self.gso_size = 0;
        Some(())
    }

    fn insert(&mut self, bytes: u32) -> Option<()> {
        if self.frame.len() < eth::LEN {
            return None;
        }
        let zeros = std::iter::repeat_n(0, usize::try_from(bytes).ok()?);
        self.frame.splice(eth::LEN..eth::LEN, zeros);
        Some(())
    }

    fn update_l4_checksum(&mut self, offset: u32, difference: L4ChecksumDelta) -> Option<()> {
        if self.checksum_partial && !difference.pseudo {
            return Some(());
        }
        let check = self.load::<2>(offset)?;
        if difference.udp && check == [0, 0] {
            return Some(());
        }
        let check = checksum::update(check, difference.sum);
        let check = if difference.udp {
            checksum::nonzero_for_udp(check)
        } else {
            check
        };
        if difference.pseudo {
            // inet_proto_csum_replace_by_diff (net/core/utils.c) considers the change of the checksum itself only.
            self.device_sum.subtract(0, &difference.sum.to_ne_bytes());
        }
        self.overwrite(offset, &check).map(drop)
    }
}
