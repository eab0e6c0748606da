//! The traits and views the decisions see packets through.

mod address;
pub mod checksum;
pub mod ecn;
pub mod encap;
pub mod eth;
pub mod header_words;
pub mod icmp;
pub mod ip;
pub mod l4;
mod lco;
pub mod outer;
pub mod probe;
#[cfg(any(test, feature = "std"))]
mod slice;
pub mod tcp;
pub mod tunnel;

use encap::OuterFamily;
use l4::L4Location;

use crate::{
    abi::Neighbor,
    flow,
    maps::Maps,
    pipeline::{icmp_too_big, mss, service},
    verdict::DropReason,
};

pub use address::Address;
pub use header_words::HeaderWords;
pub use lco::lco_checksum;
#[cfg(any(test, feature = "std"))]
pub use slice::SlicePacket;

/// Bytes the compiler may read and write in words: without the alignment every field of a header or key
/// becomes byte loads, shifts and ors in a program.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Aligned<T>(pub T);

/// A change that a transport checksum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L4ChecksumDelta {
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
    fn load_words<const AT: u32, const W: usize>(&self) -> Option<HeaderWords<W>> {
        let mut words = [0; W];
        let mut at = AT;
        for word in &mut words {
            *word = u64::from_le_bytes(self.load(at)?);
            at = at.wrapping_add(8);
        }
        Some(HeaderWords::new(AT as usize, words))
    }

    /// Four bytes at the constant offset `AT` as a little-endian number, likewise.
    #[inline(always)]
    fn load_u32<const AT: u32>(&self) -> Option<u32> {
        self.load(AT).map(u32::from_le_bytes)
    }

    /// Overwrites `N` bytes at `offset`, or `None` where that is impossible.
    fn store<const N: usize>(&mut self, offset: u32, bytes: &[u8; N]) -> Option<()>;

    /// Overwrites the first `N` bytes of `words` at the constant offset `AT`, in place: for what the sum a
    /// device has made of the packet (`CHECKSUM_COMPLETE`) does not cover, which is the link header, and for
    /// changes that leave it as it is, as those of an IPv4 header with its checksum do.
    #[inline(always)]
    fn write_linear<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        self.store(AT, &header_words::to_bytes::<W, N>(words).0)
    }

    /// Fills room that [`Self::grow`] has made at the constant offset `AT` with the first `N` bytes of
    /// `words`.
    #[inline(always)]
    fn write_encap<const AT: u32, const W: usize, const N: usize>(&mut self, words: [u64; W]) -> Option<()> {
        self.write_linear::<AT, W, N>(words)
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
    fn grow(&mut self, room: OuterFamily) -> Option<()>;

    /// Removes the room behind the Ethernet header; what stays is an IPv6 packet or an IPv4 one.
    fn shrink(&mut self, room: OuterFamily, inner_v6: bool) -> Option<()>;

    /// Updates the checksum of a TCP, UDP or `ICMPv6` header at `offset` after bytes it covers changed by
    /// `difference` (see [`checksum::difference`]). Right also for packets whose checksum a device is
    /// still to complete.
    fn update_l4_checksum(&mut self, offset: u32, difference: L4ChecksumDelta) -> Option<()>;

    /// Whether the checksum at `offset` is still to be completed by a device (`CHECKSUM_PARTIAL`).
    fn is_checksum_partial(&mut self, offset: u32) -> Option<bool>;

    /// Names the neighbour a [`crate::verdict::Verdict::Send`] of this packet goes to, which otherwise the
    /// kernel's routes say.
    fn set_neighbor(&mut self, via: &Neighbor);

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
        mss::clamp_mss(self, at, mtu)
    }

    /// [`transport::locate`].
    #[inline(always)]
    fn locate_l4(&self, v6: bool, at: u32) -> L4Location
    where
        Self: Sized,
    {
        l4::locate_l4(self, v6, at)
    }

    /// [`icmp::sum`].
    #[inline(always)]
    fn sum_bytes(&self, at: u32, len: u32) -> Option<u16>
    where
        Self: Sized,
    {
        icmp::sum_bytes(self, at, len)
    }

    /// [`icmp::settle`].
    #[inline(always)]
    fn finalize_checksum(&mut self, at: u32, quoted: u32, sum: u16, transport: L4Location) -> Option<u16>
    where
        Self: Sized,
    {
        icmp::finalize_checksum(self, at, quoted, sum, transport)
    }

    /// [`icmp::store_headers`].
    #[inline(always)]
    fn store_icmp_error(&mut self, v6: bool, at: u32, mtu: u32, sum: u16) -> Option<()>
    where
        Self: Sized,
    {
        icmp::store_icmp_error(self, v6, at, mtu, sum)
    }

    /// [`too_big::send_back`].
    #[inline(always)]
    fn write_return_encap<T: Maps>(&mut self, tables: &T, v6: bool, at: u32) -> Option<()>
    where
        Self: Sized,
    {
        icmp_too_big::write_return_encap(self, tables, v6, at)
    }

    /// [`flow::hash_unusual`].
    #[inline(always)]
    fn hash_slow(&self, v6: bool, at: u32) -> u32
    where
        Self: Sized,
    {
        flow::hash_slow(self, v6, at)
    }

    /// [`too_big::headers_len`].
    #[inline(always)]
    fn segment_headers_len(&self, at: u32) -> u32
    where
        Self: Sized,
    {
        icmp_too_big::segment_headers_len(self, at)
    }

    /// [`too_big::answer`].
    #[inline(always)]
    fn reply_too_big<T: Maps>(&mut self, tables: &T, at: u32, size: u32, mtu: u32) -> Result<(), DropReason>
    where
        Self: Sized,
    {
        icmp_too_big::reply_too_big(self, tables, at, size, mtu)
    }

    /// [`service::serve`].
    #[inline(always)]
    fn translate_service<T: Maps>(&mut self, tables: &T, v6: bool, finding: u64) -> u64
    where
        Self: Sized,
    {
        service::translate_service(self, tables, v6, finding)
    }

    /// [`service::choose`].
    #[inline(always)]
    fn select_backend<T: Maps>(&mut self, tables: &T, v6: bool) -> u64
    where
        Self: Sized,
    {
        service::select_backend(self, tables, v6)
    }

    /// [`service::backend_of`].
    #[inline(always)]
    fn flow_backend_id<T: Maps>(&self, tables: &T, at: u32, flow: u64, back: bool) -> u64
    where
        Self: Sized,
    {
        service::flow_backend_id(self, tables, at, flow, back)
    }

    /// [`service::to_pod`].
    #[inline(always)]
    fn dnat_request<T: Maps>(&mut self, tables: &T, at: u32, backend: u64) -> Result<(), DropReason>
    where
        Self: Sized,
    {
        service::dnat_request(self, tables, at, backend)
    }

    /// [`service::directly`].
    #[inline(always)]
    fn clear_nat_entry<T: Maps>(&self, tables: &T, at: u32)
    where
        Self: Sized,
    {
        service::clear_nat_entry(self, tables, at);
    }

    /// [`service::from_pod`].
    #[inline(always)]
    fn snat_reply<T: Maps>(&mut self, tables: &T) -> Result<(), DropReason>
    where
        Self: Sized,
    {
        service::snat_reply(self, tables)
    }

    /// [`service::rename`].
    #[inline(always)]
    fn rewrite_alias(&mut self, at: u32, source: bool, to: u32) -> Result<(), DropReason>
    where
        Self: Sized,
    {
        service::rewrite_alias(self, at, source, to)
    }

    /// [`service::rename_arrival`].
    #[inline(always)]
    fn rewrite_ingress_alias<T: Maps>(&mut self, tables: &T, finding: u64, back: bool) -> u64
    where
        Self: Sized,
    {
        service::rewrite_ingress_alias(self, tables, finding, back)
    }

    /// [`service::flow_at`].
    #[inline(always)]
    fn parse_l4(&self, v6: bool, at: u32) -> u64
    where
        Self: Sized,
    {
        service::parse_l4(self, v6, at)
    }
}
