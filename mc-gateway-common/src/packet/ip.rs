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
#[inline(always)]
#[must_use]
pub const fn mapped(address: [u8; 4]) -> Addr {
    let [a, b, c, d] = address;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// The IPv4 address of a mapped [`Addr`]; the last four bytes of any other.
#[inline(always)]
#[must_use]
pub const fn unmapped(address: Addr) -> [u8; 4] {
    let [.., a, b, c, d] = address;
    [a, b, c, d]
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
        let [
            vihl,
            _,
            t0,
            t1,
            _,
            _,
            f0,
            f1,
            ttl,
            proto,
            _,
            _,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ] = *bytes;
        Self {
            vihl,
            total: u16::from_be_bytes([t0, t1]),
            frags: u16::from_be_bytes([f0, f1]),
            ttl,
            proto,
            src: [s0, s1, s2, s3],
            dst: [d0, d1, d2, d3],
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
