//! Layout of the ICMP error rate limit map.

/// Name of the map: per-CPU array of one [`TokenBucket`].
pub const ICMP_LIMIT: &str = "mc_icmp_limit";

/// A token bucket; see [`crate::rate_limit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TokenBucket {
    /// Available errors.
    pub tokens: u64,
    /// Time of the last refill, nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
}

const _: () = assert!(size_of::<TokenBucket>() == 16 && align_of::<TokenBucket>() == 8);

#[cfg(feature = "user")]
mod user {
    #![expect(unsafe_code, reason = "Pod is an unsafe marker trait")]

    // SAFETY: repr(C), Copy, no padding (asserted above) and every bit pattern is valid.
    unsafe impl aya::Pod for super::TokenBucket {}
}
