//! Headers of a packet as words; fields are extracted by shifts.
//!
//! A header copied as bytes and read as words stalls at every field, because the CPU cannot forward a store of
//! bytes to a load of a word. A field at a constant offset of these words costs one shift.

#![expect(clippy::cast_possible_truncation, reason = "fields are cut out of words")]

use super::aligned::Aligned;
use crate::abi::Address;

// Fields are extracted in memory order; no supported machine is big-endian.
const _: () = assert!(cfg!(target_endian = "little"));

/// `8 * W` bytes of a frame.
#[derive(Clone, Copy, Debug)]
pub struct HeaderWords<const W: usize> {
    at: usize,
    words: [u64; W],
}

impl<const W: usize> HeaderWords<W> {
    /// The little-endian words from offset `at` on.
    #[inline(always)]
    #[must_use]
    pub const fn new(at: usize, words: [u64; W]) -> Self {
        Self { at, words }
    }

    /// The words of a whole header.
    #[inline(always)]
    #[must_use]
    pub fn from_bytes<const N: usize>(bytes: &[u8; N]) -> Self {
        let mut words = [0; W];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            for (to, from) in whole.iter_mut().zip(bytes) {
                *to = *from;
            }
            *word = u64::from_le_bytes(whole);
        }
        Self::new(0, words)
    }

    /// The words followed by zero words, `M` in all.
    #[inline(always)]
    #[must_use]
    pub fn padded<const M: usize>(&self) -> HeaderWords<M> {
        let mut words = [0; M];
        for (to, from) in words.iter_mut().zip(self.words) {
            *to = from;
        }
        HeaderWords::new(self.at, words)
    }

    /// The word with index `i`; 0 beyond the last.
    #[inline(always)]
    #[must_use]
    pub const fn word(&self, i: usize) -> u64 {
        if i < W {
            #[expect(clippy::indexing_slicing, reason = "just compared")]
            self.words[i]
        } else {
            0
        }
    }

    /// Eight bytes at `at` as a little-endian number.
    #[inline(always)]
    #[must_use]
    pub const fn u64_le(&self, at: usize) -> u64 {
        let at = at.wrapping_sub(self.at);
        let (i, shift) = (at / 8, ((at % 8) as u32).wrapping_mul(8));
        let low = self.word(i);
        if shift == 0 {
            return low;
        }
        low >> shift | self.word(i.wrapping_add(1)) << 64_u32.wrapping_sub(shift)
    }

    /// A byte.
    #[inline(always)]
    #[must_use]
    pub const fn u8(&self, at: usize) -> u8 {
        self.u64_le(at) as u8
    }

    /// A number of two bytes in network order.
    #[inline(always)]
    #[must_use]
    pub const fn u16_be(&self, at: usize) -> u16 {
        (self.u64_le(at) as u16).swap_bytes()
    }

    /// Four bytes as a little-endian number.
    #[inline(always)]
    #[must_use]
    pub const fn u32_le(&self, at: usize) -> u32 {
        self.u64_le(at) as u32
    }

    /// An IPv4 address.
    #[inline(always)]
    #[must_use]
    pub const fn v4(&self, at: usize) -> Address {
        Address::v4(self.u32_le(at))
    }

    /// An IPv6 address.
    #[inline(always)]
    #[must_use]
    pub const fn v6(&self, at: usize) -> Address {
        Address::from_words(self.u64_le(at), self.u64_le(at.wrapping_add(8)))
    }
}

/// The first `N` bytes of `words` in memory order, written as words.
#[inline(always)]
#[must_use]
pub fn to_bytes<const W: usize, const N: usize>(words: [u64; W]) -> Aligned<[u8; N]> {
    const { assert!(N > 8 * (W - 1) && N <= 8 * W) }
    let mut bytes = Aligned([0; N]);
    let (whole, rest) = bytes.0.as_chunks_mut::<8>();
    for (to, from) in whole.iter_mut().zip(words) {
        *to = from.to_le_bytes();
    }
    let mut last = words.last().copied().unwrap_or(0);
    let (fours, rest) = rest.as_chunks_mut::<4>();
    for four in fours {
        *four = (last as u32).to_le_bytes();
        last >>= 32;
    }
    let (twos, ones) = rest.as_chunks_mut::<2>();
    for two in twos {
        *two = (last as u16).to_le_bytes();
        last >>= 16;
    }
    for one in ones {
        *one = last as u8;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fields_equal_the_bytes(bytes: [u8; 40], at in 0..24_usize) {
            let words = HeaderWords::<5>::from_bytes(&bytes);
            let (one, two) = (bytes[at], [bytes[at], bytes[at + 1]]);
            let four: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
            let eight: [u8; 8] = bytes[at..at + 8].try_into().unwrap();
            let sixteen: [u8; 16] = bytes[at..at + 16].try_into().unwrap();
            prop_assert_eq!(words.u8(at), one);
            prop_assert_eq!(words.u16_be(at), u16::from_be_bytes(two));
            prop_assert_eq!(words.u32_le(at).to_le_bytes(), four);
            prop_assert_eq!(words.u64_le(at).to_le_bytes(), eight);
            prop_assert_eq!(words.v6(at).bytes(), sixteen);
            // The same bytes further back in a frame.
            let words = HeaderWords::new(14, words.words);
            prop_assert_eq!(words.u8(14 + at), one);
        }

        #[test]
        fn written_words_are_read_back(bytes: [u8; 15]) {
            let words = HeaderWords::<2>::from_bytes(&bytes);
            prop_assert_eq!(to_bytes::<2, 15>(words.words).0, bytes);
            let twelve: [u8; 12] = bytes[..12].try_into().unwrap();
            prop_assert_eq!(to_bytes::<2, 12>(words.words).0, twelve);
        }
    }
}
