//! Layout of the liveness maps: arrays by next hop slot, as long as `mc_nexthops`.
//!
//! Only the agent writes `mc_probe_sent`. Only the program writes `mc_probe_reply` and `mc_probe_rtt`, except when the
//! agent reassigns a slot.

/// Name of the map of sent probes: array of [`ProbeSent`] by next hop slot.
pub const PROBE_SENT: &str = "mc_probe_sent";
/// Name of the map of replies: array of [`ProbeReply`] by next hop slot.
pub const PROBE_REPLY: &str = "mc_probe_reply";
/// Name of the map of round-trip times: array of [`ProbeRtt`] by next hop slot.
pub const PROBE_RTT: &str = "mc_probe_rtt";

/// Buckets of a [`ProbeRtt`].
pub const RTT_BUCKETS: usize = 16;
/// Upper bound of the first bucket in nanoseconds. Each further bound is twice as large; the last bucket has none.
pub const RTT_FIRST_BUCKET: u32 = 32_768;

/// The last probe sent to a next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct ProbeSent {
    /// [`super::NextHop::id`] of the probed next hop. If the slot belongs to another next hop, that one was never
    /// probed.
    pub id: u32,
    /// Sequence number of the last probe; wraps around.
    pub sequence: u32,
}

/// The last reply of a next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProbeReply {
    /// [`super::NextHop::id`] of the next hop.
    pub id: u32,
    /// Sequence number of the newest probe with a reply.
    pub sequence: u32,
    /// Time of that reply in nanoseconds of `CLOCK_MONOTONIC`; 0 for never.
    pub at: u64,
    /// Start of the hold-down after the next hop was dead, in the same clock; 0 outside a hold-down.
    pub held_since: u64,
    /// Round-trip time of that probe in nanoseconds.
    pub rtt: u32,
    /// Length in bytes of the outer IP packet of size probe `size_sequence`.
    pub size: u32,
    /// Sequence number of the newest size probe with a reply.
    pub size_sequence: u32,
    /// Always 0.
    pub pad: u32,
}

/// Round-trip times of a next hop. Simultaneous replies on two CPUs may count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProbeRtt {
    /// Sum of all round-trip times in nanoseconds.
    pub sum: u64,
    /// Replies by round-trip time: see [`RTT_FIRST_BUCKET`].
    pub buckets: [u64; RTT_BUCKETS],
}

/// Index of the bucket of a round-trip time in nanoseconds.
#[inline(always)]
#[must_use]
pub const fn rtt_bucket(rtt: u32) -> usize {
    let mut bucket = 0;
    let mut bound = RTT_FIRST_BUCKET;
    // Constant bounds: the compiler unrolls the loop.
    while bucket < RTT_BUCKETS.wrapping_sub(1) && rtt >= bound {
        bound = bound.wrapping_mul(2);
        bucket = bucket.wrapping_add(1);
    }
    bucket
}

const _: () = assert!(size_of::<ProbeSent>() == 8 && align_of::<ProbeSent>() == 8);
const _: () = assert!(size_of::<ProbeReply>() == 40 && align_of::<ProbeReply>() == 8);
const _: () = assert!(size_of::<ProbeRtt>() == 8 + 8 * RTT_BUCKETS && align_of::<ProbeRtt>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double() {
        for (rtt, bucket) in [
            (0, 0),
            (32_767, 0),
            (32_768, 1),
            (65_536, 2),
            (1_000_000, 5),
            (u32::MAX, 15),
        ] {
            assert_eq!(rtt_bucket(rtt), bucket, "{rtt}");
        }
    }
}
