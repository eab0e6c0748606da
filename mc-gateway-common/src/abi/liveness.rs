//! Layout of the liveness maps: arrays by next hop slot, as long as `mc_nexthops`.
//!
//! The agent alone writes `mc_probe_sent`, the program alone writes `mc_probe_reply` and `mc_probe_rtt`, except when
//! the agent gives a slot to another next hop.

/// Name of the map of sent probes: array of [`ProbeSent`] by next hop slot.
pub const PROBE_SENT: &str = "mc_probe_sent";
/// Name of the map of answers: array of [`ProbeReply`] by next hop slot.
pub const PROBE_REPLY: &str = "mc_probe_reply";
/// Name of the map of round-trip times: array of [`ProbeRtt`] by next hop slot.
pub const PROBE_RTT: &str = "mc_probe_rtt";

/// Buckets of a [`ProbeRtt`].
pub const RTT_BUCKETS: usize = 16;
/// Upper bound of the first bucket in nanoseconds; each further one is twice as large, the last has none.
pub const RTT_FIRST_BUCKET: u32 = 32_768;

/// The last probe sent to a next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct ProbeSent {
    /// [`super::Next hop::id`] of the next hop the number belongs to. Where the slot holds another next hop, it
    /// was never probed.
    pub id: u32,
    /// Number of the last probe; wraps around.
    pub sequence: u32,
}

/// The last answer of a next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProbeReply {
    /// [`super::Next hop::id`] of the next hop that answered.
    pub id: u32,
    /// Number of the newest probe that was answered.
    pub sequence: u32,
    /// When its answer came: nanoseconds of `CLOCK_MONOTONIC`, 0 for never.
    pub at: u64,
    /// Since when the next hop answers again after it was dead, in the same clock; 0 outside a hold-down.
    pub held_since: u64,
    /// Round-trip time of that probe in nanoseconds.
    pub rtt: u32,
    /// Length in bytes of the largest outer IP packet among the answered probes of `size_sequence`.
    pub size: u32,
    /// Number of the newest size probe that was answered.
    pub size_sequence: u32,
    /// Always 0.
    pub pad: u32,
}

/// How long the answers of a next hop took. Answers on two CPUs at the same moment may count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProbeRtt {
    /// Sum of all round-trip times in nanoseconds.
    pub sum: u64,
    /// Answers by round-trip time: see [`RTT_FIRST_BUCKET`].
    pub buckets: [u64; RTT_BUCKETS],
}

const _: () = assert!(size_of::<ProbeSent>() == 8 && align_of::<ProbeSent>() == 8);
const _: () = assert!(size_of::<ProbeReply>() == 40 && align_of::<ProbeReply>() == 8);
const _: () = assert!(size_of::<ProbeRtt>() == 8 + 8 * RTT_BUCKETS && align_of::<ProbeRtt>() == 8);
