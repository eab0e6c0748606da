//! The traits and views the decisions see packets through.

mod address;
pub mod checksum;
pub mod ecn;
pub mod encap;
pub mod eth;
pub mod icmp;
mod inner_sum;
pub mod ip;
pub mod outer;
pub mod probe;
#[cfg(any(test, feature = "std"))]
mod slice;
pub mod tcp;
pub mod transport;
pub mod tunnel;
pub mod words;

use encap::Room;
use transport::Transport;

use crate::{
    abi::NextHop,
    flow,
    path::{mss, service, too_big},
    tables::Tables,
    verdict::DropReason,
};

pub use address::Address;
pub use inner_sum::inner_sum;
#[cfg(any(test, feature = "std"))]
pub use slice::SlicePacket;
pub use words::Words;

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

    /// Copies `W` words at the constant offset `AT`, or `None` where the frame is too short: for headers
    /// every packet has at the same place.
    #[inline(always)]
    fn words<const AT: u32, const W: usize>(&self) -> Option<Words<W>> {
        let mut words = [0; W];
        let mut at = AT;
        for word in &mut words {
            *word = u64::from_le_bytes(self.load(at)?);
            at = at.wrapping_add(8);
        }
        Some(Words::new(AT as usize, words))
    }

    /// Four bytes at the constant offset `AT` as a little-endian number, likewise.
    #[inline(always)]
    fn half<const AT: u32>(&self) -> Option<u32> {
        self.load(AT).map(u32::from_le_bytes)
    }

    /// Overwrites `N` bytes at `offset`, or `None` where that is impossible.
    fn store<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()>;

    /// Overwrites the first `N` bytes of `words` at the constant offset `AT`, in place: for what the sum a
    /// device has made of the packet (`CHECKSUM_COMPLETE`) does not cover, which is the link header, and for
    /// changes that leave it as it is, as those of an IPv4 header with its checksum do.
    #[inline(always)]
    fn put<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        self.store(AT, &words::bytes::<W, N>(words).0)
    }

    /// Fills room that [`Self::grow`] has made at the constant offset `AT` with the first `N` bytes of
    /// `words`.
    #[inline(always)]
    fn fill<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        self.put::<AT, W, N>(words)
    }

    /// Overwrites `N` bytes a transport checksum covers; [`Self::update_l4`] must follow with the change.
    fn store_summed<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()>;

    /// Device the program is attached to.
    fn ifindex(&self) -> u32;

    /// Bytes behind the headers in every packet a GSO super-packet will be cut into; 0 for an ordinary
    /// packet.
    fn gso_size(&self) -> u32;

    /// Whether this is a GSO super-packet: it will be cut into packets of the wire later.
    #[inline(always)]
    fn is_gso(&self) -> bool {
        self.gso_size() != 0
    }

    /// Inserts room of unspecified content behind the Ethernet header and marks the packet as tunnelled,
    /// so that segmentation offloads keep working on the inner packet.
    fn grow(&mut self, room: Room) -> Option<()>;

    /// Removes the room behind the Ethernet header; what stays is an IPv6 packet or an IPv4 one.
    fn shrink(&mut self, room: Room, inner_v6: bool) -> Option<()>;

    /// Updates the checksum of a TCP, UDP or `ICMPv6` header at `offset` after bytes it covers changed by
    /// `difference` (see [`checksum::difference`]). Right also for packets whose checksum a device is
    /// still to complete.
    fn update_l4(&mut self, offset: u32, difference: L4Difference) -> Option<()>;

    /// Whether the checksum at `offset` is still to be completed by a device (`CHECKSUM_PARTIAL`).
    fn is_summed_later(&mut self, offset: u32) -> Option<bool>;

    /// Names the neighbour a [`crate::verdict::Verdict::Send`] of this packet goes to, which otherwise the
    /// kernel's routes say.
    fn aim(&mut self, via: &NextHop);

    /// Cuts the frame to `len` bytes; of a super-packet an ordinary packet is left.
    fn resize(&mut self, len: u32) -> Option<()>;

    /// Inserts `bytes` of unspecified content behind the Ethernet header; nothing else changes.
    fn insert(&mut self, bytes: u32) -> Option<()>;

    // What follows is rare and long. A program overrides it by calling a function of its own, so that the
    // verifier checks it once and not for every way that leads there.

    /// [`mss::clamp`].
    #[inline(always)]
    fn clamp_mss(&mut self, at: u32, mtu: u32) -> Option<bool>
    where
        Self: Sized,
    {
        mss::clamp(self, at, mtu)
    }

    /// [`transport::locate`].
    #[inline(always)]
    fn locate(&self, v6: bool, at: u32) -> Transport
    where
        Self: Sized,
    {
        transport::locate(self, v6, at)
    }

    /// [`icmp::sum`].
    #[inline(always)]
    fn sum(&self, at: u32, len: u32) -> Option<u16>
    where
        Self: Sized,
    {
        icmp::sum(self, at, len)
    }

    /// [`icmp::settle`].
    #[inline(always)]
    fn settle(&mut self, at: u32, quoted: u32, sum: u16, transport: Transport) -> Option<u16>
    where
        Self: Sized,
    {
        icmp::settle(self, at, quoted, sum, transport)
    }

    /// [`icmp::store_headers`].
    #[inline(always)]
    fn store_error(&mut self, v6: bool, at: u32, mtu: u32, sum: u16) -> Option<()>
    where
        Self: Sized,
    {
        icmp::store_headers(self, v6, at, mtu, sum)
    }

    /// [`too_big::send_back`].
    #[inline(always)]
    fn send_back<T: Tables>(&mut self, tables: &T, v6: bool, at: u32) -> Option<()>
    where
        Self: Sized,
    {
        too_big::send_back(self, tables, v6, at)
    }

    /// [`flow::hash_unusual`].
    #[inline(always)]
    fn hash_unusual(&self, v6: bool, at: u32) -> u32
    where
        Self: Sized,
    {
        flow::hash_unusual(self, v6, at)
    }

    /// [`too_big::headers_len`].
    #[inline(always)]
    fn segment_headers(&self, at: u32) -> u32
    where
        Self: Sized,
    {
        too_big::headers_len(self, at)
    }

    /// [`too_big::answer`].
    #[inline(always)]
    fn answer_too_big<T: Tables>(
        &mut self,
        tables: &T,
        at: u32,
        size: u32,
        mtu: u32,
    ) -> Result<(), DropReason>
    where
        Self: Sized,
    {
        too_big::answer(self, tables, at, size, mtu)
    }

    /// [`service::serve`].
    #[inline(always)]
    fn serve<T: Tables>(&mut self, tables: &T, v6: bool, finding: u64) -> u64
    where
        Self: Sized,
    {
        service::serve(self, tables, v6, finding)
    }

    /// [`service::choose`].
    #[inline(always)]
    fn choose_backend<T: Tables>(&mut self, tables: &T, v6: bool) -> u64
    where
        Self: Sized,
    {
        service::choose(self, tables, v6)
    }

    /// [`service::backend_of`].
    #[inline(always)]
    fn backend_of<T: Tables>(&self, tables: &T, at: u32, flow: u64, back: bool) -> u64
    where
        Self: Sized,
    {
        service::backend_of(self, tables, at, flow, back)
    }

    /// [`service::to_pod`].
    #[inline(always)]
    fn serve_request<T: Tables>(&mut self, tables: &T, at: u32, backend: u64) -> Result<(), DropReason>
    where
        Self: Sized,
    {
        service::to_pod(self, tables, at, backend)
    }

    /// [`service::directly`].
    #[inline(always)]
    fn forget_service<T: Tables>(&self, tables: &T, at: u32)
    where
        Self: Sized,
    {
        service::directly(self, tables, at);
    }

    /// [`service::from_pod`].
    #[inline(always)]
    fn serve_reply<T: Tables>(&mut self, tables: &T) -> Result<(), DropReason>
    where
        Self: Sized,
    {
        service::from_pod(self, tables)
    }

    /// [`service::rename`].
    #[inline(always)]
    fn rename(&mut self, at: u32, source: bool, to: u32) -> Result<(), DropReason>
    where
        Self: Sized,
    {
        service::rename(self, at, source, to)
    }

    /// [`service::rename_arrival`].
    #[inline(always)]
    fn rename_arrival<T: Tables>(&mut self, tables: &T, finding: u64, back: bool) -> u64
    where
        Self: Sized,
    {
        service::rename_arrival(self, tables, finding, back)
    }

    /// [`service::flow_at`].
    #[inline(always)]
    fn flow_at(&self, v6: bool, at: u32) -> u64
    where
        Self: Sized,
    {
        service::flow_at(self, v6, at)
    }
}
