//! The traits and views the decisions see packets through.

pub mod checksum;
pub mod ecn;
pub mod encap;
pub mod eth;
mod inner_sum;
pub mod ip;
pub mod outer;
pub mod probe;
#[cfg(any(test, feature = "std"))]
mod slice;
pub mod tunnel;

use encap::Room;

pub use inner_sum::inner_sum;
#[cfg(any(test, feature = "std"))]
pub use slice::SlicePacket;

/// Bytes the compiler may read and write in words: without the alignment every field of a header or key
/// becomes byte loads, shifts and ors in a program.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Aligned<T>(pub T);

/// A change that a transport checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L4Difference {
    /// From [`checksum::difference`].
    pub sum: u32,
    /// What changed is in the pseudo header (addresses), not in the transport header or payload.
    pub pseudo: bool,
    /// The checksum is UDP's: zero means none and stays, and a computed zero becomes `0xffff`.
    pub udp: bool,
}

/// A frame as a TC classifier sees it: offset 0 is the first byte of the Ethernet header.
///
/// The kernel side is `bpf_skb_load_bytes` and its kin, which are safe on non-linear packets and at
/// variable offsets; the host side is a byte vector.
pub trait Packet {
    /// Length of the whole frame in bytes. A GSO super-packet may be longer than 65,535.
    fn frame_len(&self) -> u32;

    /// Ethertype in host order, as the kernel has parsed it.
    fn ethertype(&self) -> u16;

    /// Copies `N` bytes at `offset`, or `None` where the frame is too short.
    fn load<const N: usize>(&self, offset: u32) -> Option<[u8; N]>;

    /// Copies `N` bytes at the constant offset `AT`, or `None` where the frame is too short: like
    /// [`Packet::load`], for headers every packet has at the same place.
    #[inline(always)]
    fn head<const AT: u32, const N: usize>(&self) -> Option<[u8; N]> {
        self.load(AT)
    }

    /// Overwrites `N` bytes at `offset`, or `None` where that is impossible.
    fn store<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()>;

    /// Index of the device the packet arrived on or leaves through.
    fn ifindex(&self) -> u32;

    /// Whether this is a GSO super-packet: it will be cut into packets of the wire later.
    fn is_gso(&self) -> bool;

    /// Inserts room of unspecified content behind the Ethernet header and marks the packet as tunnelled,
    /// so that segmentation offloads keep working on the inner packet.
    fn grow(&mut self, room: Room) -> Option<()>;

    /// Removes the room behind the Ethernet header; what stays is an IPv6 packet or an IPv4 one.
    fn shrink(&mut self, room: Room, inner_v6: bool) -> Option<()>;

    /// Updates the checksum of a TCP, UDP or `ICMPv6` header at `offset` after bytes it covers changed by
    /// `difference` (see [`checksum::difference`]). Right also for packets whose checksum a device is
    /// still to complete.
    fn update_l4(&mut self, offset: u32, difference: L4Difference) -> Option<()>;
}
