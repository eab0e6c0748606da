//! Layout of the prefix table: one hash map of all prefixes, and the lengths in use.
//!
//! A look-up probes the hash map once for each length in use, from long to short. The lengths of a family are in two
//! lists, of which the generation selects one, so that no program reads a list that the agent is writing.

use super::{Addr, Address, V4_PREFIX_BITS};

/// Name of the prefix map: hash of [`PrefixKey`] to [`super::Prefix`].
pub const PREFIXES: &str = "mc_prefixes";
/// Capacity of `mc_prefixes`.
pub const MAX_PREFIXES: u32 = 131_072;
/// Name of the map of lengths in use: array of [`PrefixLengths`], indexed by [`lengths_slot`].
pub const PREFIX_LENS: &str = "mc_prefix_lens";
/// Slots of the `mc_prefix_lens` array.
pub const PREFIX_LENS_SLOTS: u32 = 4;
/// Name of the generation of the prefix table: array of one `u32`. The agent raises it between any two changes of the
/// table, so that a program detects changes during a look-up. Its lowest bit is the list in use.
pub const PREFIX_GENERATION: &str = "mc_prefix_gen";

/// The longest prefix length, that of an address.
pub const MAX_LENGTH: u32 = 128;
/// Number of different prefix lengths.
const LENGTHS: usize = MAX_LENGTH as usize + 1;
/// Lengths that a program reads in one step.
pub const STEP_LENGTHS: usize = 16;
/// [`LENGTHS`], rounded up to whole steps.
const LIST_LEN: usize = LENGTHS.next_multiple_of(STEP_LENGTHS);
/// Entry of [`PrefixLengths`] behind the last length.
pub const NO_LENGTH: u8 = 255;

/// A key of the prefix map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct PrefixKey {
    /// Length in bits, 96 and more for IPv4.
    pub len: u32,
    /// Network address: all bits behind the length are zero.
    pub addr: Addr,
}

/// Prefix lengths in use for the addresses of one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PrefixLengths {
    /// The lengths from long to short, followed by [`NO_LENGTH`].
    pub lens: [u8; LIST_LEN],
}

/// Slot in `mc_prefix_lens` of the lengths for IPv4 or IPv6 addresses in a generation.
#[inline(always)]
#[must_use]
pub const fn lengths_slot(generation: u32, v4: bool) -> u32 {
    (generation & 1) << 1 | v4 as u32
}

impl PrefixKey {
    /// The prefix of this length that contains an address.
    #[must_use]
    pub fn new(len: u32, addr: Addr) -> Self {
        Self {
            len,
            addr: Address::from(addr).network(len).bytes(),
        }
    }

    /// Whether the prefix contains IPv4 or IPv6 addresses. A prefix shorter than that of all IPv4 addresses may contain
    /// both.
    #[must_use]
    pub fn contains_family(&self, v4: bool) -> bool {
        let common = if self.len < V4_PREFIX_BITS {
            self.len
        } else {
            V4_PREFIX_BITS
        };
        let all_v4 = Address::v4(0).network(common);
        let contains_v4 = Address::from(self.addr).network(common) == all_v4;
        if v4 {
            contains_v4
        } else {
            !contains_v4 || self.len < V4_PREFIX_BITS
        }
    }
}

impl PrefixLengths {
    /// The list of all lengths for which `is_used` is true.
    #[must_use]
    pub fn new(is_used: impl Fn(u32) -> bool) -> Self {
        let mut list = Self::default();
        let used = (0..=128_u8).rev().filter(|len| is_used(u32::from(*len)));
        for (slot, len) in list.lens.iter_mut().zip(used) {
            *slot = len;
        }
        list
    }

    /// The lengths of the prefixes with addresses of this IP version.
    #[must_use]
    pub fn of<'k>(keys: impl Iterator<Item = &'k PrefixKey>, v4: bool) -> Self {
        let mut used = [false; LENGTHS];
        for key in keys.filter(|key| key.contains_family(v4)) {
            if let Some(used) = usize::try_from(key.len).ok().and_then(|len| used.get_mut(len)) {
                *used = true;
            }
        }
        Self::new(|len| {
            let len = usize::try_from(len).unwrap_or(LENGTHS);
            used.get(len).copied().unwrap_or(false)
        })
    }
}

impl Default for PrefixLengths {
    fn default() -> Self {
        Self {
            lens: [NO_LENGTH; LIST_LEN],
        }
    }
}

const _: () = assert!(size_of::<PrefixKey>() == 20 && align_of::<PrefixKey>() == 4);
const _: () = assert!(size_of::<PrefixLengths>() == LIST_LEN && align_of::<PrefixLengths>() == 1);

#[cfg(feature = "user")]
mod user {
    #![expect(unsafe_code, reason = "Pod is an unsafe marker trait")]
    use super::{PrefixKey, PrefixLengths};

    // SAFETY: repr(C), Copy, no padding (asserted above) and every bit pattern is valid.
    unsafe impl aya::Pod for PrefixKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for PrefixLengths {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::ip::mapped;

    #[test]
    fn lengths_are_ordered_from_long_to_short() {
        let keys = [
            PrefixKey::new(112, mapped([10, 1, 2, 3])),
            PrefixKey::new(128, mapped([10, 1, 2, 3])),
            PrefixKey::new(120, mapped([10, 1, 2, 3])),
            PrefixKey::new(112, mapped([10, 2, 0, 0])),
            PrefixKey::new(64, [0xfd; 16]),
            PrefixKey::new(0, [0; 16]),
        ];
        assert_eq!(keys[0].addr, mapped([10, 1, 0, 0]));
        let v4 = PrefixLengths::of(keys.iter(), true);
        assert_eq!(v4.lens[..5], [128, 120, 112, 0, NO_LENGTH]);
        let v6 = PrefixLengths::of(keys.iter(), false);
        assert_eq!(v6.lens[..3], [64, 0, NO_LENGTH]);
        let all = PrefixLengths::new(|_| true);
        assert_eq!((all.lens[0], all.lens[128], all.lens[129]), (128, 0, NO_LENGTH));
    }

    #[test]
    fn a_short_prefix_of_all_ipv4_addresses_contains_both_families() {
        let families = |len, addr| [true, false].map(|v4| PrefixKey::new(len, addr).contains_family(v4));
        assert_eq!(families(96, mapped([0; 4])), [true, false]);
        assert_eq!(families(128, mapped([1; 4])), [true, false]);
        assert_eq!(families(95, mapped([0; 4])), [true, true]);
        assert_eq!(families(0, [0; 16]), [true, true]);
        assert_eq!(families(8, [0xfd; 16]), [false, true]);
        assert_eq!(families(128, [0xfd; 16]), [false, true]);
    }
}
