//! The backend of a client of a Service with session affinity, and the time of its last new flow, in one word.
//!
//! As in service proxies, the time-out counts from the last new flow, not from the last packet.

use super::service::{BACKEND_ID_BITS, Flow};

/// Nanoseconds in a second.
const SECOND: u64 = 1_000_000_000;
/// Bits of the time: seconds modulo 194 days, the rest of the word. A client that returns after that time within its
/// time-out finds its old backend.
const SECONDS_MASK: u64 = u64::MAX >> BACKEND_ID_BITS;
const ID_MASK: u64 = (1 << BACKEND_ID_BITS) - 1;

/// The value of the entry of a client in `mc_flows`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AffinityEntry(u64);

impl AffinityEntry {
    /// The client of `backend`, an ID, at `now`, from [`Self::seconds`].
    #[inline(always)]
    #[must_use]
    pub const fn new(backend: u64, now: u64) -> Self {
        Self(now << BACKEND_ID_BITS | backend & ID_MASK)
    }

    /// The entry with the value of [`Flow::backend`].
    #[inline(always)]
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// The value for [`Flow::backend`].
    #[inline(always)]
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The backend's ID.
    #[inline(always)]
    #[must_use]
    pub const fn backend(self) -> u64 {
        self.0 & ID_MASK
    }

    /// The time of an entry for a clock that shows `nanoseconds`.
    #[inline(always)]
    #[must_use]
    pub const fn seconds(nanoseconds: u64) -> u64 {
        (nanoseconds / SECOND) & SECONDS_MASK
    }

    /// Whether the last new flow of the client is older than `timeout` seconds. An entry without a time, of a version
    /// that stored none, is not.
    #[inline(always)]
    #[must_use]
    pub const fn is_expired(self, now: u64, timeout: u64) -> bool {
        let then = self.0 >> BACKEND_ID_BITS;
        then != 0 && now.wrapping_sub(then) & SECONDS_MASK > timeout
    }
}

const _: () = assert!(size_of::<AffinityEntry>() == size_of::<Flow>());

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_entry_expires_after_its_timeout() {
        let entry = AffinityEntry::new(7, 1_000);
        assert!(!entry.is_expired(1_000, 10) && !entry.is_expired(1_010, 10));
        assert!(entry.is_expired(1_011, 10) && entry.is_expired(1_000_000, 10));
    }

    #[test]
    fn an_entry_without_a_time_does_not_expire() {
        assert!(!AffinityEntry::from_word(7).is_expired(1_000_000, 1));
    }

    #[test]
    fn the_time_may_wrap() {
        let entry = AffinityEntry::new(7, SECONDS_MASK);
        assert!(!entry.is_expired(AffinityEntry::seconds(5 * SECOND), 6));
        assert!(entry.is_expired(AffinityEntry::seconds(7 * SECOND), 6));
        let after = AffinityEntry::seconds((SECONDS_MASK + 1 + 9) * SECOND);
        assert_eq!(after, 9);
    }

    proptest! {
        #[test]
        fn packing_loses_nothing(id in 0..1_u64 << BACKEND_ID_BITS, then in 1..SECONDS_MASK, age in 0..SECONDS_MASK, timeout in 1..86_401_u64) {
            let entry = AffinityEntry::new(id, then);
            prop_assert_eq!(entry.backend(), id);
            prop_assert_eq!(AffinityEntry::from_word(entry.word()), entry);
            prop_assert_eq!(entry.is_expired((then + age) & SECONDS_MASK, timeout), age > timeout);
        }
    }
}
