//! The Internet checksum: RFC 1071 in full, RFC 1624 for updates.
//!
//! Sums are over 32-bit words in the machine's byte order, as RFC 1071 section 2 allows: the bytes of the
//! folded result are in network order without a swap.

/// A change of bytes covered by a transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L4ChecksumDelta {
    /// Change of the sum, from [`difference`].
    pub sum: u32,
    /// The changed bytes are in the pseudo header (addresses), not in the transport header or payload.
    pub pseudo: bool,
    /// The checksum is UDP's: zero means none and stays, and a computed zero becomes `0xffff`.
    pub udp: bool,
}

/// Unfolded sum of `N` bytes; `N` is a multiple of four.
#[inline(always)]
#[must_use]
pub fn sum<const N: usize>(bytes: &[u8; N]) -> u64 {
    const { assert!(N.is_multiple_of(4)) }
    let mut sum = 0_u64;
    for word in bytes.as_chunks::<4>().0 {
        sum = sum.wrapping_add(u64::from(u32::from_ne_bytes(*word)));
    }
    sum
}

/// [`sum`] of words of eight bytes in memory order.
#[inline(always)]
#[must_use]
pub fn sum_words<const N: usize>(words: [u64; N]) -> u64 {
    let mut sum = 0_u64;
    for word in words {
        sum = sum.wrapping_add(word & 0xffff_ffff).wrapping_add(word >> 32);
    }
    sum
}

/// Folds a sum to 16 bits, in the machine's byte order.
#[inline(always)]
#[must_use]
pub const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff).wrapping_add(sum >> 32);
    let sum = (sum & 0xffff)
        .wrapping_add((sum >> 16) & 0xffff)
        .wrapping_add(sum >> 32);
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    (sum & 0xffff).wrapping_add(sum >> 16) as u16
}

/// Whether the checksum of an IPv4 header without options is valid.
#[inline(always)]
#[must_use]
pub fn is_valid(header: &[u8; 20]) -> bool {
    fold(sum(header)) == 0xffff
}

/// Checksum for a header with a zero checksum field.
#[inline(always)]
#[must_use]
pub fn header_checksum(header: &[u8; 20]) -> [u8; 2] {
    (!fold(sum(header))).to_ne_bytes()
}

/// Change of a sum if `new` replaces `old`, in the form of `bpf_l4_csum_replace`.
#[inline(always)]
#[must_use]
pub fn difference<const N: usize>(old: &[u8; N], new: &[u8; N]) -> u32 {
    let mut difference = sum(new);
    for word in old.as_chunks::<4>().0 {
        difference = difference.wrapping_add(u64::from(!u32::from_ne_bytes(*word)));
    }
    u32::from(fold(difference))
}

/// As [`difference`], from the sums of `old` and `new`.
#[inline(always)]
#[must_use]
pub fn difference_of_sums(old: u64, new: u64) -> u32 {
    u32::from(fold(new.wrapping_add(u64::from(!fold(old)))))
}

/// As [`difference`], for words and folded to 32 bits only: a gateway needs it for every packet.
#[inline(always)]
#[must_use]
pub fn difference_of_words<const N: usize>(old: [u64; N], new: [u64; N]) -> u32 {
    fold_to_32(sum_words(old.map(|word| !word)).wrapping_add(sum_words(new)))
}

/// The change after two changes, folded to 32 bits.
#[inline(always)]
#[must_use]
pub const fn sum_of_differences(a: u32, b: u32) -> u32 {
    fold_to_32((a as u64).wrapping_add(b as u64))
}

/// Folds a sum of fewer than 2^31 halves of words to 32 bits.
#[inline(always)]
const fn fold_to_32(sum: u64) -> u32 {
    let sum = (sum & 0xffff_ffff).wrapping_add(sum >> 32);
    // The first addition carries at most once, and leaves room for the carry.
    (sum & 0xffff_ffff).wrapping_add(sum >> 32) as u32
}

/// Checksum after a change of covered bytes by `difference` (RFC 1624 equation 3).
#[inline(always)]
#[must_use]
pub fn update(check: [u8; 2], difference: u32) -> [u8; 2] {
    let sum = u64::from(!u16::from_ne_bytes(check)).wrapping_add(u64::from(difference));
    (!fold(sum)).to_ne_bytes()
}

/// A checksum in UDP's form: a computed zero is `0xffff`, since zero means "no checksum" (RFC 768).
#[inline(always)]
#[must_use]
pub const fn nonzero_for_udp(check: [u8; 2]) -> [u8; 2] {
    match check {
        [0, 0] => [0xff, 0xff],
        other => other,
    }
}

/// The sum of RFC 1071 in its slow form, 16 bits at a time, for tests.
#[cfg(test)]
pub(crate) fn reference_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 header with a valid checksum.
    const HEADER: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn differences_of_extreme_words_lose_no_carry() {
        for (old, new) in [
            (0, 0),
            (0, u64::MAX),
            (u64::MAX, 0),
            (u64::MAX, u64::MAX),
            (1, u64::MAX << 32),
        ] {
            let of_sums = difference_of_sums(sum_words([old]), sum_words([new]));
            assert_eq!(
                difference_of_words([old], [new]) % 0xffff,
                of_sums % 0xffff,
                "{old:x} {new:x}"
            );
        }
    }

    #[test]
    fn the_checksum_of_a_known_header() {
        assert!(is_valid(&HEADER));
        let mut header = HEADER;
        header[10] = 0;
        header[11] = 0;
        assert!(!is_valid(&header));
        assert_eq!(header_checksum(&header), [0xb8, 0x61]);
    }

    proptest::proptest! {
        #[test]
        fn words_sum_like_pairs_of_bytes(bytes: [u8; 20]) {
            proptest::prop_assert_eq!(fold(sum(&bytes)).to_ne_bytes(), reference_sum(&bytes).to_be_bytes());
        }

        #[test]
        fn folding_loses_no_carry(sum: u64) {
            let expected = match sum % 0xffff {
                0 if sum != 0 => 0xffff,
                rest => rest,
            };
            proptest::prop_assert_eq!(u64::from(fold(sum)), expected);
        }

        #[test]
        fn differences_of_words_and_of_sums_are_equal(old: u64, new: u64) {
            let of_sums = difference_of_sums(sum_words([old]), sum_words([new]));
            let of_words = fold(u64::from(difference_of_words([old], [new])));
            // Both zeros of one's complement are the same change.
            let value = |difference: u32| difference % 0xffff;
            proptest::prop_assert_eq!(value(u32::from(of_words)), value(of_sums));
        }

        #[test]
        fn an_update_equals_full_recomputation(old: [u8; 8], new: [u8; 8], rest: [u8; 12]) {
            let sum = |addresses: [u8; 8]| {
                let mut header = [0; 20];
                header[..12].copy_from_slice(&rest);
                header[12..].copy_from_slice(&addresses);
                header_checksum(&header)
            };
            let (before, after) = (sum(old), sum(new));
            let updated = update(before, difference(&old, &new));
            proptest::prop_assert_eq!(nonzero_for_udp(after), nonzero_for_udp(updated));
        }
    }
}
