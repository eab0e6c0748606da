//! What liveness reads and writes.

use crate::abi::liveness::{ProbeReply, ProbeSent};

/// Liveness of next hops, by their slots.
pub trait Liveness {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    fn now(&self) -> u64;
    /// What was sent to the next hop in `slot`.
    fn sent(&self, slot: u32) -> Option<ProbeSent>;
    /// What the next hop in `slot` answered.
    fn seen(&self, slot: u32) -> Option<ProbeReply>;
    /// Writes what the next hop in `slot` answered. A slot that does not exist is left alone.
    fn set_seen(&self, slot: u32, seen: ProbeReply);
    /// [`crate::select::preferred`]; here so that programs can have it verified on its own.
    fn hrw_winner(&self, group: u32, hash: u32, alive: bool) -> u32;
    /// Whether the next hop `id` in `slot` must not be used: [`crate::liveness::is_dead`], likewise.
    fn is_dead(&self, slot: u32, id: u32) -> bool;
    /// Counts a round-trip time of `rtt` nanoseconds.
    fn count_rtt(&self, slot: u32, rtt: u32);
}

#[cfg(any(test, feature = "std"))]
pub use host::LivenessMaps;

#[cfg(any(test, feature = "std"))]
mod host {
    use std::{cell::RefCell, collections::BTreeMap};

    use super::{Liveness, ProbeReply, ProbeSent};
    use crate::{
        abi::{MAX_NEXT_HOPS, liveness::ProbeRtt},
        liveness::rtt_bucket,
        maps::MemoryMaps,
    };

    /// The liveness tables in memory.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct LivenessMaps {
        /// See [`Health::now`].
        pub now: u64,
        /// Slot to what was sent.
        pub sent: BTreeMap<u32, ProbeSent>,
        /// Slot to what was answered.
        pub seen: RefCell<BTreeMap<u32, ProbeReply>>,
        /// Slot to round-trip times.
        pub rtt: RefCell<BTreeMap<u32, ProbeRtt>>,
    }

    impl Liveness for MemoryMaps {
        fn now(&self) -> u64 {
            self.health.now
        }

        fn sent(&self, slot: u32) -> Option<ProbeSent> {
            (slot < MAX_NEXT_HOPS).then(|| self.health.sent.get(&slot).copied().unwrap_or_default())
        }

        fn seen(&self, slot: u32) -> Option<ProbeReply> {
            let seen = self.health.seen.borrow();
            (slot < MAX_NEXT_HOPS).then(|| seen.get(&slot).copied().unwrap_or_default())
        }

        fn set_seen(&self, slot: u32, seen: ProbeReply) {
            if slot < MAX_NEXT_HOPS {
                self.health.seen.borrow_mut().insert(slot, seen);
            }
        }

        fn hrw_winner(&self, group: u32, hash: u32, alive: bool) -> u32 {
            crate::nexthop_select::hrw_winner(self, group, hash, alive)
        }

        fn is_dead(&self, slot: u32, id: u32) -> bool {
            crate::liveness::is_dead(self, slot, id)
        }

        fn count_rtt(&self, slot: u32, rtt: u32) {
            let mut all = self.health.rtt.borrow_mut();
            let one = all.entry(slot).or_default();
            one.sum = one.sum.wrapping_add(u64::from(rtt));
            if let Some(bucket) = one.buckets.get_mut(rtt_bucket(rtt)) {
                *bucket = bucket.wrapping_add(1);
            }
        }
    }
}
