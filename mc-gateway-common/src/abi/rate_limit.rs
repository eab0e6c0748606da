//! Layout of the rate limit maps.

/// Name of the map: per-CPU array of one [`TokenBucket`].
pub const ICMP_LIMIT: &str = "mc_icmp_limit";

/// Name of the map: per-CPU array of [`PeerLimits`], indexed by [`super::Peer::stats`]. It is not pinned: each load of
/// the programs starts with full buckets.
pub const PEER_LIMITS: &str = "mc_peer_limits";
/// Name of the map: per-CPU array of [`TokenBucket`] for answers to rejected packets, indexed by
/// [`crate::rate_limit::sender_slot`]. Not pinned, as [`PEER_LIMITS`].
pub const SENDER_LIMITS: &str = "mc_sender_limit";
/// Its entries.
pub const MAX_SENDER_LIMITS: u32 = 256;
/// Name of the variable of the object with its [`PeerRates`], constant once loaded.
pub const PEER_RATES: &str = "MC_PEER_RATES";

/// Tokens of a peer on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PeerLimits {
    /// ICMP errors to the peer.
    pub icmp_errors: TokenBucket,
    /// New entries in `mc_flows`.
    pub flows: TokenBucket,
    /// New entries in `mc_fragments`.
    pub fragments: TokenBucket,
}

/// Rate of a [`TokenBucket`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rate {
    /// Tokens of a full bucket.
    pub burst: u64,
    /// Nanoseconds per token.
    pub interval: u64,
}

/// Rates of [`PeerLimits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PeerRates {
    /// Of ICMP errors.
    pub icmp_errors: Rate,
    /// Of new flows, and of fragmented packets.
    pub flows: Rate,
}

/// A token bucket; see [`crate::rate_limit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TokenBucket {
    /// Available tokens.
    pub tokens: u64,
    /// Time of the last refill, nanoseconds of `CLOCK_MONOTONIC`.
    pub at: u64,
}

const _: () = assert!(size_of::<TokenBucket>() == 16 && align_of::<TokenBucket>() == 8);
const _: () = assert!(size_of::<PeerLimits>() == 48 && align_of::<PeerLimits>() == 8);
const _: () = assert!(size_of::<Rate>() == 16 && align_of::<Rate>() == 8);
const _: () = assert!(size_of::<PeerRates>() == 32 && align_of::<PeerRates>() == 8);

#[cfg(feature = "user")]
mod user {
    #![expect(unsafe_code, reason = "Pod is an unsafe marker trait")]

    // SAFETY: repr(C), Copy, no padding (asserted above) and every bit pattern is valid.
    unsafe impl aya::Pod for super::TokenBucket {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::PeerLimits {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::PeerRates {}
}

/// A limit of each peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerLimit {
    /// [`PeerLimits::icmp_errors`].
    IcmpErrors = 0,
    /// [`PeerLimits::flows`].
    Flows = 1,
    /// [`PeerLimits::fragments`].
    Fragments = 2,
}

impl PeerLimit {
    /// The limit with this number; a number that has none yields the last.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::IcmpErrors,
            1 => Self::Flows,
            _ => Self::Fragments,
        }
    }
}
