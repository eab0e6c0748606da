//! The sum that a device computes over a received frame (`CHECKSUM_COMPLETE`), followed through a program.
//!
//! The kernel changes the sum in some helpers and not in others. After a wrong change the receiver drops the packet and
//! logs "hw csum failure". `BPF_PROG_TEST_RUN` has no such packets.

use super::{checksum, eth};

/// Sum of a device minus the sum of the frame behind the Ethernet header: 0 or, in one's complement, `0xffff`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DeviceSum(u16);

impl DeviceSum {
    /// Whether the device's sum is that of the frame.
    pub(super) const fn is_valid(self) -> bool {
        matches!(self.0, 0 | 0xffff)
    }

    /// The kernel adds bytes at `offset` to the sum.
    pub(super) fn add(&mut self, offset: u32, bytes: &[u8]) {
        self.0 = checksum::fold(u64::from(self.0).wrapping_add(sum(offset, bytes)));
    }

    /// The kernel subtracts bytes at `offset` from the sum.
    pub(super) fn subtract(&mut self, offset: u32, bytes: &[u8]) {
        let less = !checksum::fold(sum(offset, bytes));
        self.0 = checksum::fold(u64::from(self.0).wrapping_add(u64::from(less)));
    }

    /// Bytes of the frame changed, while the device's sum did not.
    pub(super) fn bytes_changed(&mut self, offset: u32, old: &[u8], new: &[u8]) {
        // Bytes of the Ethernet header are in no sum.
        let skipped = usize::try_from(eth::END.saturating_sub(offset)).unwrap_or(0);
        let behind = offset.max(eth::END);
        self.add(behind, old.get(skipped..).unwrap_or_default());
        self.subtract(behind, new.get(skipped..).unwrap_or_default());
    }
}

/// Sum of bytes at `offset`.
fn sum(offset: u32, bytes: &[u8]) -> u64 {
    let odd = usize::from(offset % 2 == 1);
    let words = bytes.iter().enumerate().map(|(i, byte)| {
        let pair = if (i.wrapping_add(odd)).is_multiple_of(2) {
            [*byte, 0]
        } else {
            [0, *byte]
        };
        u64::from(u16::from_ne_bytes(pair))
    });
    words.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_recomputed_sum_stays_valid(at in 14..40_u32, old: [u8; 7], new: [u8; 7]) {
            let mut sum = DeviceSum::default();
            sum.bytes_changed(at, &old, &new);
            prop_assume!(old != new);
            sum.subtract(at, &old);
            sum.add(at, &new);
            prop_assert!(sum.is_valid());
        }
    }

    #[test]
    fn changed_bytes_make_the_sum_invalid_except_in_the_ethernet_header() {
        for offset in 8..20 {
            let mut sum = DeviceSum::default();
            sum.bytes_changed(offset, &[1, 2], &[3, 4]);
            assert_eq!(sum.is_valid(), offset <= 12, "{offset}");
        }
    }
}
