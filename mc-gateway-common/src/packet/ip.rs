//! IPv4 headers: a checked view, and addresses in the tables' form.

use network_types::ip::Ipv4Hdr;

use crate::abi::Addr;

/// Length of an IPv4 header without options.
pub const V4_LEN: usize = Ipv4Hdr::LEN;

/// Protocol number of TCP (IANA).
pub const TCP: u8 = 6;
/// Protocol number of UDP (IANA).
pub const UDP: u8 = 17;
/// Protocol number of SCTP (IANA).
pub const SCTP: u8 = 132;

/// "More fragments" and the fragment offset: anything set means a fragment (RFC 791).
const FRAGMENT: u16 = 0x3fff;

/// An IPv4 address in the form the tables use.
///
/// Written as arithmetic on one number, so that programs store words instead of bytes.
#[inline(always)]
#[must_use]
pub const fn mapped(address: [u8; 4]) -> Addr {
    (0xffff_0000_0000 | u32::from_be_bytes(address) as u128).to_be_bytes()
}

/// The IPv4 address of a mapped [`Addr`]; the last four bytes of any other.
#[inline(always)]
#[must_use]
pub const fn unmapped(address: Addr) -> [u8; 4] {
    match address.last_chunk() {
        Some(last) => *last,
        None => [0; 4],
    }
}

/// The header in words of four bytes.
#[inline(always)]
const fn words(bytes: &[u8; 20]) -> [[u8; 4]; 5] {
    match bytes.as_chunks::<4>().0.first_chunk() {
        Some(words) => *words,
        None => [[0; 4]; 5],
    }
}

/// The fixed part of an IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V4 {
    /// Version and header length byte.
    pub vihl: u8,
    /// Total length in bytes.
    pub total: u16,
    /// Flags and fragment offset.
    pub frags: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub proto: u8,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
}

impl V4 {
    /// Reads the fields; nothing is checked.
    #[inline(always)]
    #[must_use]
    pub const fn read(bytes: &[u8; 20]) -> Self {
        // As five words: the compiler then reads words.
        let [first, second, third, src, dst] = words(bytes);
        let [vihl, _, t0, t1] = first;
        let [_, _, f0, f1] = second;
        let [ttl, proto, _, _] = third;
        Self {
            vihl,
            total: u16::from_be_bytes([t0, t1]),
            frags: u16::from_be_bytes([f0, f1]),
            ttl,
            proto,
            src,
            dst,
        }
    }

    /// Whether this is a fragment, the first one included.
    #[inline(always)]
    #[must_use]
    pub const fn is_fragment(&self) -> bool {
        self.frags & FRAGMENT != 0
    }

    /// Offset of this fragment in the packet, in units of eight bytes.
    #[inline(always)]
    #[must_use]
    pub const fn fragment_offset(&self) -> u16 {
        self.frags & 0x1fff
    }

    /// Whether the header is the 20 bytes without options.
    #[inline(always)]
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.vihl == 0x45
    }

    /// Whether version, header length and total length fit the `available` bytes from the header's start.
    ///
    /// A GSO super-packet above 64 KiB carries a total length of 0 (`BIG TCP`, Linux 6.3).
    #[inline(always)]
    #[must_use]
    pub fn fits(&self, available: u32) -> bool {
        let header = u32::from(self.vihl & 0xf).wrapping_mul(4);
        let total = u32::from(self.total);
        let total_fits = if total == 0 {
            available > 0xffff
        } else {
            total >= header && total <= available
        };
        self.vihl >> 4 == 4 && header >= 20 && header <= available && total_fits
    }
}
