//! The Internet checksum: RFC 1071 in full, RFC 1624 for updates.

/// Sums an IPv4 header without options as 16-bit words, folded. A valid header sums to `0xffff`.
#[inline(always)]
#[must_use]
pub fn sum_header(header: &[u8; 20]) -> u16 {
    let mut sum = 0_u32;
    for word in header.as_chunks::<2>().0 {
        sum = sum.wrapping_add(u32::from(u16::from_be_bytes(*word)));
    }
    fold(sum)
}

/// Checksum to write into a header whose checksum field is zero.
#[inline(always)]
#[must_use]
pub fn of_header(header: &[u8; 20]) -> [u8; 2] {
    (!sum_header(header)).to_be_bytes()
}

/// New checksum after eight covered bytes (two IPv4 addresses) changed: RFC 1624 equation 3.
#[inline(always)]
#[must_use]
pub fn update_addresses(check: [u8; 2], old: [u8; 8], new: [u8; 8]) -> [u8; 2] {
    let mut sum = u32::from(!u16::from_be_bytes(check));
    for word in old.as_chunks::<2>().0 {
        sum = sum.wrapping_add(u32::from(!u16::from_be_bytes(*word)));
    }
    for word in new.as_chunks::<2>().0 {
        sum = sum.wrapping_add(u32::from(u16::from_be_bytes(*word)));
    }
    let check = !fold(sum);
    // UDP writes a computed zero as 0xffff: zero means "no checksum" (RFC 768).
    if check == 0 {
        [0xff, 0xff]
    } else {
        check.to_be_bytes()
    }
}

#[inline(always)]
fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    ((sum & 0xffff).wrapping_add(sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of RFC 1071's successors' favourite example.
    const HEADER: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn a_valid_header_sums_to_all_ones() {
        assert_eq!(sum_header(&HEADER), 0xffff);
    }

    #[test]
    fn the_checksum_of_a_known_header() {
        let mut header = HEADER;
        header[10] = 0;
        header[11] = 0;
        assert_eq!(of_header(&header), [0xb8, 0x61]);
    }

    proptest::proptest! {
        #[test]
        fn an_update_equals_full_recomputation(old: [u8; 8], new: [u8; 8], rest: [u8; 12]) {
            let sum = |addresses: [u8; 8]| {
                let mut header = [0; 20];
                header[..12].copy_from_slice(&rest);
                header[12..].copy_from_slice(&addresses);
                of_header(&header)
            };
            let (before, after) = (sum(old), sum(new));
            let updated = update_addresses(before, old, new);
            let equal = |a: [u8; 2], b: [u8; 2]| a == b || (a == [0, 0] && b == [0xff, 0xff]);
            proptest::prop_assert!(equal(after, updated), "{after:?} {updated:?}");
        }
    }
}
