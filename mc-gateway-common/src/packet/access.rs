//! Byte access to a frame: the traits that the pipelines read and write packets through.

use super::{checksum::L4ChecksumDelta, header_words::HeaderWords, outer_family::OuterFamily};
use crate::abi::Neighbor;

/// Access to a frame at constant offsets: all that the forwarding of a tunnel packet needs, in an XDP program, too.
/// Offset 0 is the first byte of the Ethernet header.
pub trait Frame {
    /// Length of the whole frame in bytes. A GSO packet may be longer than 65,535.
    fn frame_len(&self) -> u32;

    /// Ethertype in host order, as parsed by the kernel.
    fn ethertype(&self) -> u16;

    /// Copies `W` words at the constant offset `AT`; `None` if the frame is too short. For headers at the same
    /// offset in every packet.
    fn load_words<const AT: u32, const W: usize>(&self) -> Option<HeaderWords<W>>;

    /// Four bytes at the constant offset `AT` as a little-endian number; `None` if the frame is too short.
    fn load_u32<const AT: u32>(&self) -> Option<u32>;

    /// Overwrites `N` bytes at the constant offset `AT` in place with the first bytes of `words`. Only for bytes
    /// outside the device's sum of the packet (`CHECKSUM_COMPLETE`), such as the link header, and for changes that
    /// preserve the sum, such as an IPv4 header together with its checksum, or with [`Self::update_sum`].
    fn write_linear<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()>;

    /// Payload bytes per segment of a GSO packet; 0 for an ordinary packet.
    fn gso_size(&self) -> u32;

    /// Whether this is a GSO packet, segmented before it reaches the wire.
    #[inline(always)]
    fn is_gso(&self) -> bool {
        self.gso_size() != 0
    }

    /// Adds the change of bytes written with [`Self::write_linear`] to the device's sum of the packet
    /// (`CHECKSUM_COMPLETE`). Without such a sum there is nothing to update.
    fn update_sum(&mut self, difference: u32);
}

/// A frame as a TC classifier receives it.
///
/// In the kernel the implementation calls `bpf_skb_load_bytes` and similar helpers, which are safe for
/// non-linear packets and variable offsets. On the host it is a byte vector.
pub trait Packet: Frame {
    /// VLAN of the frame if its tag is beside the packet; 0 without a tag, and for a tag with a priority only (IEEE
    /// 802.1Q, VLAN ID 0).
    fn vlan_id(&self) -> u16;

    /// Copies `N` bytes at `offset`; `None` if the frame is too short.
    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]>;

    /// Overwrites `N` bytes at `offset`; `None` if that is impossible.
    fn store<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()>;

    /// Writes the first `N` bytes of `words` at the constant offset `AT`, into the space inserted by
    /// [`Self::grow`].
    #[inline(always)]
    fn write_encap<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        self.write_linear::<AT, W, N>(words)
    }

    /// Overwrites `N` bytes covered by a transport checksum. A call of [`Self::update_l4_checksum`] with the
    /// change must follow.
    fn store_summed<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()>;

    /// Device the program is attached to.
    fn ifindex(&self) -> u32;

    /// Device that this node has received the packet on; 0 for a packet of the node itself (`skb_iif`, which fragments
    /// keep: `ip_copy_metadata`, `net/ipv4/ip_output.c`).
    fn ingress_ifindex(&self) -> u32;

    /// Inserts space of unspecified content for the outer headers behind the Ethernet header, and marks the
    /// packet as tunnelled, so that segmentation offloads apply to the inner packet.
    fn grow(&mut self, outer: OuterFamily) -> Option<()>;

    /// Removes the outer headers behind the Ethernet header. The inner packet is IPv6 or IPv4.
    fn shrink(&mut self, outer: OuterFamily, inner_v6: bool) -> Option<()>;

    /// Updates the TCP, UDP or `ICMPv6` checksum at `offset` by `delta`. Correct also for a checksum that a
    /// device completes later.
    fn update_l4_checksum(&mut self, offset: u32, delta: L4ChecksumDelta) -> Option<()>;

    /// Whether a device completes the checksum at `offset` later (`CHECKSUM_PARTIAL`).
    fn is_checksum_partial(&mut self, offset: u32) -> Option<bool>;

    /// Sets the neighbour of a [`crate::verdict::Verdict::Send`]. By default the kernel's routes select it.
    fn set_neighbor(&mut self, neighbor: &Neighbor);

    /// Keeps the label identity of the sender beside the packet, for [`Self::identity`].
    fn set_identity(&self, identity: u32);

    /// The number from [`Self::set_identity`].
    fn identity(&self) -> u32;

    /// Keeps the ID of the policy rule that decides on the packet beside it, for a sample of the drop; 0 for none.
    fn set_rule(&self, rule: u32);

    /// Samples a packet that passes the program of this number in samples, although an audited rule would drop it.
    /// Replaces the rule of [`Self::set_rule`].
    fn sample_audited(&self, rule: u32, program: u32);

    /// Truncates the frame to `len` bytes. A GSO packet becomes an ordinary packet.
    fn resize(&mut self, len: u32) -> Option<()>;

    /// Inserts `bytes` of unspecified content behind the Ethernet header, without other changes.
    fn insert(&mut self, bytes: u32) -> Option<()>;
}
