//! Rate limit of ICMP errors: a token bucket per CPU (RFC 1812 section 4.3.2.8, RFC 4443 section
//! 2.4).
//!
//! *Guarantees*: at most [`BURST`] errors at once and one more every [`INTERVAL`]. A clock that stops or jumps back
//! adds no tokens.

use crate::abi::rate_limit::TokenBucket;

/// Errors in one burst.
pub const BURST: u64 = 50;
/// Nanoseconds per token.
pub const INTERVAL: u64 = 1_000_000;

/// Takes a token at time `now`, in nanoseconds of any monotonic clock. Returns false if the bucket is empty.
#[inline(always)]
#[must_use]
pub fn take_token(bucket: &mut TokenBucket, now: u64) -> bool {
    let earned = now.saturating_sub(bucket.at) / INTERVAL;
    if earned > 0 {
        let full = bucket.tokens.saturating_add(earned).min(BURST);
        bucket.tokens = bucket.tokens.max(full);
        bucket.at = bucket.at.wrapping_add(earned.wrapping_mul(INTERVAL));
    }
    if bucket.tokens == 0 {
        return false;
    }
    bucket.tokens = bucket.tokens.wrapping_sub(1);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut TokenBucket, now: u64, tries: u32) -> u32 {
        (0..tries).map(|_| u32::from(take_token(bucket, now))).sum()
    }

    #[test]
    fn a_burst_and_then_one_per_interval() {
        let mut bucket = TokenBucket::default();
        let start = 1_000 * INTERVAL;
        assert_eq!(taken(&mut bucket, start, 1_000), 50);
        assert_eq!(taken(&mut bucket, start + INTERVAL - 1, 10), 0);
        assert_eq!(taken(&mut bucket, start + INTERVAL, 10), 1);
        assert_eq!(taken(&mut bucket, start + 5 * INTERVAL / 2, 10), 1);
        assert_eq!(
            taken(&mut bucket, start + 3 * INTERVAL, 10),
            1,
            "the half interval is not lost"
        );
        assert_eq!(taken(&mut bucket, start + 3_600_000 * INTERVAL, 1_000), 50);
    }

    #[test]
    fn a_clock_that_jumps_back_adds_no_tokens() {
        let mut bucket = TokenBucket {
            tokens: 1,
            at: 1_000 * INTERVAL,
        };
        assert_eq!(taken(&mut bucket, 0, 10), 1);
        assert_eq!(taken(&mut bucket, 999 * INTERVAL, 10), 0);
    }
}
