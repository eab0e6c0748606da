//! Addresses in two registers.

#![expect(clippy::cast_possible_truncation, reason = "halves are cut out of words")]

use super::addr::Addr;

/// The prefix of [`Address::v4`] in the low half of the second word.
const MAPPED: u64 = 0xffff_0000;

/// Both words of an address with the first bits set, by their number. A table, because the verifier follows each branch
/// of a computation.
#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
static MASKS: [[u64; 2]; 129] = {
    let mut masks = [[0; 2]; 129];
    let mut mask = u128::MAX;
    let mut behind = 0;
    while behind <= 128_usize {
        let words = mask.to_be();
        masks[128_usize.wrapping_sub(behind)] = [words as u64, (words >> 64) as u64];
        mask <<= 1;
        behind = behind.wrapping_add(1);
    }
    masks
};

/// An [`Addr`] as two little-endian words: loaded from a packet or a map without byte swaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Address {
    high: u64,
    low: u64,
}

impl Address {
    /// The address with these first and second eight bytes, as little-endian numbers.
    #[inline(always)]
    #[must_use]
    pub const fn from_words(high: u64, low: u64) -> Self {
        Self { high, low }
    }

    /// The IPv4 address with these four bytes, as a little-endian number.
    #[inline(always)]
    #[must_use]
    pub const fn v4(bits: u32) -> Self {
        Self::from_words(0, (bits as u64) << 32 | MAPPED)
    }

    /// First and second eight bytes as little-endian numbers.
    #[inline(always)]
    #[must_use]
    pub const fn words(self) -> [u64; 2] {
        [self.high, self.low]
    }

    /// Whether it is an IPv4 address.
    #[inline(always)]
    #[must_use]
    pub const fn is_v4(self) -> bool {
        self.high == 0 && self.low & 0xffff_ffff == MAPPED
    }

    /// The four bytes of an IPv4 address as a little-endian number; the last four of any other.
    #[inline(always)]
    #[must_use]
    pub const fn v4_u32(self) -> u32 {
        (self.low >> 32) as u32
    }

    /// Its bytes in network order.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(self) -> Addr {
        (self.high as u128 | (self.low as u128) << 64).to_le_bytes()
    }

    /// The address with zeros behind the first `len` bits; of more than 128 bits it is the address.
    #[inline(always)]
    #[must_use]
    pub fn network(self, len: u32) -> Self {
        match MASKS.get(len as usize) {
            Some([high, low]) => Self::from_words(self.high & high, self.low & low),
            None => self,
        }
    }

    /// A hash of the address: an IPv4 address itself, an IPv6 address mixed.
    #[inline(always)]
    #[must_use]
    pub const fn fold(self) -> u32 {
        // The third word of an IPv4 address is constant, the first two are zero.
        let third = (self.low ^ MAPPED) as u32;
        self.v4_u32()
            ^ third.rotate_left(13)
            ^ ((self.high >> 32) as u32).rotate_left(7)
            ^ (self.high as u32).rotate_left(17)
    }
}

impl From<Addr> for Address {
    #[inline(always)]
    fn from(bytes: Addr) -> Self {
        let both = u128::from_le_bytes(bytes);
        Self::from_words(both as u64, (both >> 64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::ip;

    #[test]
    fn an_ipv4_address_is_a_mapped_one() {
        let bytes = [192, 0, 2, 7];
        let address = Address::v4(u32::from_le_bytes(bytes));
        assert_eq!(address, ip::mapped(bytes).into());
        assert_eq!(address.bytes(), ip::mapped(bytes));
        assert!(address.is_v4());
        assert_eq!(address.v4_u32().to_le_bytes(), bytes);
        assert_eq!(address.fold(), address.v4_u32());
    }

    proptest! {
        #[test]
        fn a_network_has_the_first_bits(bytes: [u8; 16], len in 0..200_u32) {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(len)).unwrap_or(0);
            let network = u128::from_be_bytes(bytes) & mask;
            prop_assert_eq!(Address::from(bytes).network(len).bytes(), network.to_be_bytes());
        }

        #[test]
        fn no_byte_is_lost(bytes: [u8; 16]) {
            let address = Address::from(bytes);
            prop_assert_eq!(address.bytes(), bytes);
            prop_assert_eq!(address.is_v4(), ip::is_v4(&bytes));
        }
    }
}
