//! The traits and views the decisions see packets through.

pub mod checksum;
pub mod eth;
pub mod ip;
#[cfg(any(test, feature = "std"))]
mod slice;
pub mod tunnel;

#[cfg(any(test, feature = "std"))]
pub use slice::SlicePacket;

/// Bytes the compiler may read and write in words: without the alignment every field of a header or key
/// becomes byte loads, shifts and ors in a program.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Aligned<T>(pub T);

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

    /// Overwrites `N` bytes at `offset`, or `None` where that is impossible.
    fn store<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()>;

    /// Inserts [`tunnel::ROOM`] bytes of unspecified content behind the Ethernet header and marks the
    /// packet as tunnelled, so that segmentation offloads keep working on the inner packet.
    fn grow(&mut self) -> Option<()>;

    /// Removes [`tunnel::ROOM`] bytes behind the Ethernet header.
    fn shrink(&mut self) -> Option<()>;
}
