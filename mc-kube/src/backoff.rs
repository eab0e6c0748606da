//! Exponential back-off with jitter.
//!
//! Jitter spreads the retries of many clients after an outage. Its seed is derived from names, so that clients differ
//! and a simulation repeats. `kube`'s own `ExponentialBackoff` takes no seed from its constructor; it wraps the same
//! `backon` builder.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

/// Delays between retries: doubled with each one, each extended by up to its own length.
#[derive(Debug)]
pub struct Backoff {
    builder: ExponentialBuilder,
    delays: ExponentialBackoff,
    max: Duration,
}

// === impl Backoff ===

impl Backoff {
    /// Delays of `min` to `max`, jitter included.
    #[must_use]
    pub fn new(min: Duration, max: Duration, seed: u64) -> Self {
        let builder = ExponentialBuilder::new()
            .with_min_delay(min)
            .with_max_delay(max)
            .with_factor(2.0)
            .without_max_times()
            .with_jitter()
            .with_jitter_seed(seed);
        Self {
            builder,
            delays: builder.build(),
            max,
        }
    }

    /// The delay before the next retry.
    pub fn next_delay(&mut self) -> Duration {
        self.delays.next().unwrap_or(self.max).min(self.max)
    }

    /// Starts over with the shortest delay.
    pub fn reset(&mut self) {
        self.delays = self.builder.build();
    }
}

/// A jitter seed from the names of a client and of its work (FNV-1a).
#[must_use]
pub fn jitter_seed<'a>(names: impl IntoIterator<Item = &'a str>) -> u64 {
    let bytes = names.into_iter().flat_map(|name| name.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(seed: u64) -> Vec<Duration> {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(3), seed);
        (0..20).map(|_| backoff.next_delay()).collect()
    }

    #[test]
    fn delays_grow_to_the_maximum_and_differ_between_clients() {
        let [east, west] = ["east", "west"].map(|name| delays(jitter_seed([name])));
        let base = Duration::from_millis(50);
        assert!(east[0] >= base && east[0] <= base * 2, "{:?}", east[0]);
        assert_eq!(east[19], Duration::from_secs(3));
        assert_ne!(east[..5], west[..5]);
        assert_eq!(east, delays(jitter_seed(["east"])), "the same seed repeats");
    }

    #[test]
    fn a_reset_starts_over() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(3), 1);
        let first = backoff.next_delay();
        for _ in 0..9 {
            let _ = backoff.next_delay();
        }
        backoff.reset();
        assert_eq!(backoff.next_delay(), first);
    }
}
