//! Access to the liveness maps.

use crate::abi::liveness::{ProbeReply, ProbeSent};

/// Probe records of next hops by slot.
pub trait Liveness {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    fn now(&self) -> u64;
    /// [`Self::now`] at the last tick of the timer, up to 10 ms ago: a look-up without reading the clock.
    fn recent_time(&self) -> u64;
    /// The last probe to the next hop in `slot`.
    fn sent(&self, slot: u32) -> Option<ProbeSent>;
    /// The last reply of the next hop in `slot`.
    fn seen(&self, slot: u32) -> Option<ProbeReply>;
    /// Writes the last reply of the next hop in `slot`. Without effect for a slot out of range.
    fn set_seen(&self, slot: u32, seen: ProbeReply);
    /// Counts a round-trip time of `rtt` nanoseconds.
    fn count_rtt(&self, slot: u32, rtt: u32);
}

#[cfg(any(test, feature = "std"))]
pub use host::LivenessMaps;

#[cfg(any(test, feature = "std"))]
mod host {
    use std::{cell::RefCell, collections::BTreeMap};

    use super::Liveness;
    use crate::{
        abi::{
            MAX_NEXT_HOPS,
            liveness::{ProbeReply, ProbeRtt, ProbeSent, rtt_bucket},
        },
        maps::MemoryMaps,
    };

    /// The liveness maps in memory.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct LivenessMaps {
        /// See [`Liveness::now`].
        pub now: u64,
        /// Slot to last probe.
        pub sent: BTreeMap<u32, ProbeSent>,
        /// Slot to last reply.
        pub seen: RefCell<BTreeMap<u32, ProbeReply>>,
        /// Slot to round-trip times.
        pub rtt: RefCell<BTreeMap<u32, ProbeRtt>>,
    }

    impl Liveness for MemoryMaps {
        fn now(&self) -> u64 {
            self.health.now
        }

        fn recent_time(&self) -> u64 {
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
