//! The inner source MAC address: the secret of a pair of peers, combined with the backend ID where a gateway has
//! selected one.
//!
//! ```text
//!  0  bit 1: locally administered (IEEE 802), always set; bit 2: a backend ID; bit 3: a secret; bits 4-5: period;
//!     bit 6: the Node of the backend may return the packet
//!  1  five bytes: secret XOR backend ID, both 0 if absent
//! ```

use super::service::{BACKEND_ID_BITS, BACKEND_MAC};
use crate::packet::eth::{Mac, mac_to_u64};

/// Number of secrets by which a packet can be checked at a time: the period of a secret modulo this number is in the
/// address.
pub const SECRET_SLOTS: usize = 4;

/// First byte of an address without a secret and without a backend ID.
const LOCALLY_ADMINISTERED: u8 = 0x02;
/// Bit of the first byte: a backend ID. The first byte of an address without a secret is then [`BACKEND_MAC`].
const BACKEND: u8 = 0x04;
/// Bit of the first byte: a secret.
const SECRET: u8 = 0x08;
/// Bits of the first byte: the slot of the secret.
const SLOT_SHIFT: u32 = 4;
const SLOT_MASK: u64 = SECRET_SLOTS as u64 - 1;
/// Bit of the first byte, beside [`BACKEND`]: the Node of the backend may return the packet to the gateway.
const MAY_RETURN: u8 = 0x40;
/// Distance from [`SECRET`] to [`MAY_RETURN`].
const SECRET_TO_MAY_RETURN: u32 = 3;
/// The six bytes of the address.
const ADDRESS: u64 = 0xffff_ffff_ffff;

const _: () = assert!(LOCALLY_ADMINISTERED | BACKEND == BACKEND_MAC);
const _: () = assert!(SECRET << SECRET_TO_MAY_RETURN == MAY_RETURN);
const _: () = assert!(BACKEND_ID_BITS == 40 && SECRET_SLOTS.is_power_of_two());

/// An inner source MAC address as a little-endian number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct SourceMac(u64);

impl SourceMac {
    /// The address without a secret.
    pub const UNKEYED: Self = Self(LOCALLY_ADMINISTERED as u64);

    /// The address with the secret of a period.
    #[inline(always)]
    #[must_use]
    pub const fn keyed(period: u64, secret: [u8; 5]) -> Self {
        let slot = (period & SLOT_MASK) as u8;
        let [s0, s1, s2, s3, s4] = secret;
        let first = LOCALLY_ADMINISTERED | SECRET | slot << SLOT_SHIFT;
        Self(mac_to_u64([first, s0, s1, s2, s3, s4]))
    }

    /// The address in the lower six bytes of a number.
    #[inline(always)]
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & ADDRESS)
    }

    /// As a number; never 0 for an address of [`Self::keyed`] or [`Self::UNKEYED`].
    #[inline(always)]
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The bytes of the address.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(self) -> Mac {
        let [m0, m1, m2, m3, m4, m5, _, _] = self.0.to_le_bytes();
        [m0, m1, m2, m3, m4, m5]
    }

    /// Slot of the secret by which the address is checked.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self) -> usize {
        ((self.0 >> SLOT_SHIFT) & SLOT_MASK) as usize
    }

    /// Whether the address has a secret.
    #[inline(always)]
    #[must_use]
    pub const fn is_keyed(self) -> bool {
        self.0 & SECRET as u64 != 0
    }

    /// The address combined with a backend ID.
    #[inline(always)]
    #[must_use]
    pub const fn with_backend(self, backend: u64) -> Self {
        Self(self.0 ^ backend_bits(backend))
    }

    /// The address with a backend ID, of a packet that the backend's Node may return.
    #[inline(always)]
    #[must_use]
    pub const fn may_return(self) -> Self {
        Self(self.0 | MAY_RETURN as u64)
    }

    /// [`Self::may_return`] if `mark` is 1, the address itself if it is 0.
    #[inline(always)]
    #[must_use]
    pub const fn with_return_mark(self, mark: u64) -> Self {
        Self(self.0 | mark << MAY_RETURN.trailing_zeros())
    }

    /// Whether the backend's Node may return the packet. The first byte of any other address may have the same bits:
    /// [`Self::compare`] decides.
    #[inline(always)]
    #[must_use]
    pub const fn has_return_mark(self) -> bool {
        self.0 & (BACKEND | MAY_RETURN) as u64 == (BACKEND | MAY_RETURN) as u64
    }

    /// The address combined with the backend ID of `other`, an address without a secret, if `mask` is all ones; the
    /// address itself if it is 0. Only an address with a secret gets the mark of [`Self::may_return`]: a Node without
    /// a secret may have a release that does not know the mark.
    #[inline(always)]
    #[must_use]
    pub const fn with_backend_of(self, other: Self, mask: u64) -> Self {
        let known = !(MAY_RETURN as u64) | (self.0 & SECRET as u64) << SECRET_TO_MAY_RETURN;
        Self(self.0 ^ ((other.0 ^ Self::UNKEYED.0) & mask & known))
    }

    /// Compares the address with `expected`, an address without a backend ID. With a backend ID the mark of
    /// [`Self::may_return`] is ignored.
    #[inline(always)]
    pub const fn compare(self, expected: Self) -> MacMatch {
        let difference = self.0 ^ expected.0;
        if difference == 0 {
            return MacMatch::Equal;
        }
        if difference & 0xff & !(MAY_RETURN as u64) != BACKEND as u64 {
            return MacMatch::Different;
        }
        MacMatch::Backend(difference.swap_bytes() >> 16 & ((1 << BACKEND_ID_BITS) - 1))
    }
}

/// Result of [`SourceMac::compare`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MacMatch {
    /// The addresses are equal.
    Equal,
    /// The address is the expected one combined with this number. It is a backend ID if such a backend exists: with
    /// another secret it is any number of 40 bits.
    Backend(u64),
    /// The address has another secret.
    Different,
}

/// The bits by which addresses with and without a backend ID differ.
#[inline(always)]
const fn backend_bits(backend: u64) -> u64 {
    let [_, _, _, b0, b1, b2, b3, b4] = backend.to_be_bytes();
    mac_to_u64([BACKEND, b0, b1, b2, b3, b4])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_backend_is_found_with_its_secret_only(period: u64, secret: [u8; 5], other: [u8; 5], id in 0..1_u64 << BACKEND_ID_BITS) {
            let mac = SourceMac::keyed(period, secret);
            prop_assert_eq!(mac.compare(mac), MacMatch::Equal);
            prop_assert!(mac.is_keyed() && mac.slot() == usize::try_from(period % 4).unwrap());
            let combined = mac.with_backend(id);
            prop_assert_eq!(combined.slot(), mac.slot());
            prop_assert_eq!(combined.compare(mac), MacMatch::Backend(id));
            prop_assert_eq!(mac.with_backend_of(SourceMac::UNKEYED.with_backend(id), u64::MAX), combined);
            prop_assert_eq!(mac.with_backend_of(SourceMac::UNKEYED.with_backend(id), 0), mac);
            let marked = combined.may_return();
            prop_assert_eq!(marked.compare(mac), MacMatch::Backend(id));
            prop_assert_eq!((combined.with_return_mark(1), combined.with_return_mark(0)), (marked, combined));
            prop_assert!(marked.has_return_mark() && !combined.has_return_mark() && !mac.may_return().has_return_mark());
            prop_assert_eq!(mac.may_return().compare(mac), MacMatch::Different);
            let unkeyed = SourceMac::UNKEYED.with_backend(id);
            prop_assert_eq!(mac.with_backend_of(unkeyed.may_return(), u64::MAX), marked);
            prop_assert_eq!(SourceMac::UNKEYED.with_backend_of(unkeyed.may_return(), u64::MAX), unkeyed);
            prop_assert_eq!(mac.with_backend_of(unkeyed.may_return(), 0), mac);
            let others = SourceMac::keyed(period, other);
            prop_assert_eq!(combined.compare(others) == MacMatch::Backend(id), secret == other);
            prop_assert_eq!(mac.compare(others) == MacMatch::Equal, secret == other);
            let next = SourceMac::keyed(period.wrapping_add(1), secret);
            prop_assert_eq!(next.compare(mac), MacMatch::Different);
        }

        #[test]
        fn an_address_is_unicast_and_locally_administered(period: u64, secret: [u8; 5], id in 0..1_u64 << BACKEND_ID_BITS) {
            for mac in [SourceMac::UNKEYED, SourceMac::keyed(period, secret)] {
                for mac in [mac, mac.with_backend(id), mac.with_backend(id).may_return()] {
                    prop_assert_eq!(mac.bytes()[0] & 3, 2);
                    prop_assert_eq!(SourceMac::from_bits(mac.to_bits()), mac);
                }
            }
        }
    }

    #[test]
    fn an_address_without_a_secret_is_that_of_earlier_releases() {
        let mac = SourceMac::UNKEYED.with_backend(0x01_0203_0405);
        assert_eq!(mac.bytes(), [BACKEND_MAC, 1, 2, 3, 4, 5]);
    }
}
