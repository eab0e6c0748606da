//! Rate limits: token buckets per CPU, for ICMP errors (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4) and for the
//! entries that packets create in maps.
//!
//! *Guarantees*: at most [`Rate::burst`] tokens at once and one more every [`Rate::interval`]. A clock that stops or
//! jumps back adds no tokens.

use crate::abi::rate_limit::{MAX_SENDER_LIMITS, PeerLimit, PeerLimits, PeerRates, Rate, TokenBucket};

const NANOSECONDS: u64 = 1_000_000_000;
/// Rate of ICMP errors to this node.
pub const ICMP_ERRORS: Rate = per_second(1_000, 50);
/// Rate of answers to the rejected packets of the senders of one slot: five senders use up the share of rejections in
/// [`ICMP_ERRORS`] at once, and ten in the long run.
pub const REJECTIONS: Rate = per_second(100, 5);

/// Leaves the bits of a slot of a word.
const SLOT_SHIFT: u32 = u32::BITS.wrapping_sub(MAX_SENDER_LIMITS.ilog2());

/// The slot of a sender's limit, by the folded address. Senders of one slot share its tokens.
#[inline(always)]
#[must_use]
pub const fn sender_slot(folded: u32) -> u32 {
    // Fibonacci hashing: neighbouring addresses, those of one Node's Pods, have different slots.
    folded.wrapping_mul(0x9e37_79b1) >> SLOT_SHIFT
}

const _: () = assert!(MAX_SENDER_LIMITS.is_power_of_two());

/// `tokens` per second, at least one, and `burst` at once.
#[must_use]
pub const fn per_second(tokens: u32, burst: u32) -> Rate {
    Rate {
        burst: burst as u64,
        interval: match NANOSECONDS.checked_div(tokens as u64) {
            Some(interval) => interval,
            None => NANOSECONDS,
        },
    }
}

impl PeerRates {
    /// The rates without a setting.
    pub const DEFAULT: Self = Self::per_second(1_000, 10_000);

    /// Rates of a peer on each CPU: tokens per second. A twentieth of the ICMP errors, and all flows of a second, may
    /// come at once.
    #[must_use]
    pub const fn per_second(icmp_errors: u32, flows: u32) -> Self {
        let at_once = icmp_errors / 20;
        Self {
            icmp_errors: per_second(icmp_errors, if at_once == 0 { 1 } else { at_once }),
            flows: per_second(flows, flows),
        }
    }
}

/// Bucket and rate of a limit.
#[inline(always)]
pub const fn of_peer<'l>(
    limits: &'l mut PeerLimits,
    rates: &PeerRates,
    limit: PeerLimit,
) -> (&'l mut TokenBucket, Rate) {
    match limit {
        PeerLimit::IcmpErrors => (&mut limits.icmp_errors, rates.icmp_errors),
        PeerLimit::Flows => (&mut limits.flows, rates.flows),
        PeerLimit::Fragments => (&mut limits.fragments, rates.flows),
    }
}

/// Takes a token at time `now`, in nanoseconds of any monotonic clock. Returns false if the bucket is empty.
#[inline(always)]
#[must_use]
pub fn take_token(bucket: &mut TokenBucket, rate: Rate, now: u64) -> bool {
    take_above(bucket, rate, now, 0)
}

/// As [`take_token`], but leaves half of [`Rate::burst`] for it.
#[inline(always)]
#[must_use]
pub fn take_spare_token(bucket: &mut TokenBucket, rate: Rate, now: u64) -> bool {
    take_above(bucket, rate, now, rate.burst >> 1)
}

/// Takes a token if more than `reserved` are left.
#[inline(always)]
fn take_above(bucket: &mut TokenBucket, rate: Rate, now: u64, reserved: u64) -> bool {
    let earned = now
        .saturating_sub(bucket.at)
        .checked_div(rate.interval)
        .unwrap_or(0);
    if earned > 0 {
        let full = bucket.tokens.saturating_add(earned).min(rate.burst);
        bucket.tokens = bucket.tokens.max(full);
        bucket.at = bucket.at.wrapping_add(earned.wrapping_mul(rate.interval));
    }
    if bucket.tokens <= reserved {
        return false;
    }
    bucket.tokens = bucket.tokens.wrapping_sub(1);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: u64 = ICMP_ERRORS.interval;

    fn taken(bucket: &mut TokenBucket, now: u64, tries: u32) -> u32 {
        (0..tries)
            .map(|_| u32::from(take_token(bucket, ICMP_ERRORS, now)))
            .sum()
    }

    #[test]
    fn rates_are_per_second() {
        assert_eq!(INTERVAL, 1_000_000);
        let rates = PeerRates::per_second(10, 40_000);
        assert_eq!(
            (rates.icmp_errors.burst, rates.icmp_errors.interval),
            (1, 100_000_000)
        );
        assert_eq!((rates.flows.burst, rates.flows.interval), (40_000, 25_000));
        assert_eq!(PeerRates::DEFAULT.icmp_errors, ICMP_ERRORS);
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
    fn spare_tokens_leave_half_of_the_burst() {
        let spare = |bucket: &mut TokenBucket, now| {
            let tries = 0..1_000;
            tries
                .filter(|_| take_spare_token(bucket, ICMP_ERRORS, now))
                .count()
        };
        let mut bucket = TokenBucket::default();
        let start = 1_000 * INTERVAL;
        assert_eq!(spare(&mut bucket, start), 25);
        assert_eq!(spare(&mut bucket, start + INTERVAL), 1, "earned ones are spare");
        assert_eq!(taken(&mut bucket, start + INTERVAL, 1_000), 25);
        assert_eq!(spare(&mut bucket, start + 26 * INTERVAL), 0);
        assert_eq!(spare(&mut bucket, start + 27 * INTERVAL), 1);
    }

    #[test]
    fn neighbouring_senders_have_slots_of_their_own() {
        let slots = |first: u32| (0..MAX_SENDER_LIMITS).map(move |host| sender_slot(first + host));
        let used: std::collections::BTreeSet<u32> = slots(0x0a01_0200).collect();
        assert!(used.len() > 150, "{} of {MAX_SENDER_LIMITS}", used.len());
        assert!(used.iter().all(|slot| *slot < MAX_SENDER_LIMITS));
        assert_eq!((sender_slot(0), sender_slot(u32::MAX)), (0, 97));
    }

    #[test]
    fn five_senders_use_up_the_share_of_rejections_at_once() {
        assert_eq!(5 * REJECTIONS.burst, ICMP_ERRORS.burst / 2);
        assert_eq!(REJECTIONS.interval, 10 * ICMP_ERRORS.interval);
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
