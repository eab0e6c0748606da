//! Link addresses of next hops.

/// Destination and source address of an Ethernet header: its first twelve bytes as little-endian words, followed by
/// zeros. All is zero without a known destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LinkAddresses {
    words: [u64; 2],
}

/// The six bytes of a destination.
const DST: u64 = (1 << 48) - 1;

impl LinkAddresses {
    /// No addresses.
    pub const UNKNOWN: Self = Self { words: [0; 2] };

    /// The addresses of a neighbor and of the device towards it.
    #[must_use]
    pub const fn new(dst: [u8; 6], src: [u8; 6]) -> Self {
        let ([d0, d1, d2, d3, d4, d5], [s0, s1, s2, s3, s4, s5]) = (dst, src);
        Self {
            words: [
                u64::from_le_bytes([d0, d1, d2, d3, d4, d5, s0, s1]),
                u64::from_le_bytes([s2, s3, s4, s5, 0, 0, 0, 0]),
            ],
        }
    }

    /// Whether the destination is known.
    #[inline(always)]
    #[must_use]
    pub const fn is_known(&self) -> bool {
        let [first, _] = self.words;
        first & DST != 0
    }

    /// The first twelve bytes of the frame as little-endian words.
    #[inline(always)]
    #[must_use]
    pub const fn words(&self) -> [u64; 2] {
        self.words
    }

    /// Address of the neighbor.
    #[must_use]
    pub const fn dst(&self) -> [u8; 6] {
        let [first, _] = self.words;
        let [d0, d1, d2, d3, d4, d5, _, _] = first.to_le_bytes();
        [d0, d1, d2, d3, d4, d5]
    }

    /// Address of the device.
    #[must_use]
    pub const fn src(&self) -> [u8; 6] {
        let [first, second] = self.words;
        let [_, _, _, _, _, _, s0, s1] = first.to_le_bytes();
        let [s2, s3, s4, s5, ..] = second.to_le_bytes();
        [s0, s1, s2, s3, s4, s5]
    }
}

const _: () = assert!(size_of::<LinkAddresses>() == 16 && align_of::<LinkAddresses>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_the_order_of_the_frame() {
        let (dst, src) = ([2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13]);
        let link = LinkAddresses::new(dst, src);
        let bytes: Vec<u8> = link.words().into_iter().flat_map(u64::to_le_bytes).collect();
        assert_eq!(bytes[..12], [dst, src].concat());
        assert_eq!(bytes[12..], [0; 4]);
        assert_eq!((link.dst(), link.src()), (dst, src));
    }

    #[test]
    fn a_device_alone_is_no_link() {
        assert!(LinkAddresses::new([0, 0, 0, 0, 0, 1], [0; 6]).is_known());
        assert!(!LinkAddresses::new([0; 6], [0xff; 6]).is_known());
        assert!(!LinkAddresses::default().is_known());
    }
}
