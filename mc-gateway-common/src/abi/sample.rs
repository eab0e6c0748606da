//! Layout of the drop samples: a ring buffer of [`DropSample`] behind a [`SampleLimiter`].
//!
//! A program copies the first bytes of a dropped packet unparsed; the reader of the ring parses them. A drop costs
//! the program at most one copy, and only a counter beyond the limit.

/// Name of the ring buffer of [`DropSample`].
pub const DROP_SAMPLES: &str = "mc_drop_samples";
/// Name of the limiter map: per-CPU array of one [`SampleLimiter`].
pub const SAMPLE_LIMIT: &str = "mc_sample_limit";

/// Size of the ring in bytes: a power of two and a multiple of the page size (Linux 5.8).
pub const RING_BYTES: u32 = 65_536;
/// Captured bytes of a packet: outer Ethernet and IPv6, UDP, tunnel header, inner Ethernet and IPv6, ports.
pub const SAMPLE_BYTES: usize = 128;
/// Samples per window and CPU.
pub const SAMPLES_PER_WINDOW: u64 = 10;
/// Binary logarithm of the window in nanoseconds: 1.07 s.
pub const WINDOW_SHIFT: u32 = 30;

/// [`DropSample::program`]: `to_remote`.
pub const TO_REMOTE: u32 = 1;
/// [`DropSample::program`]: `from_underlay`.
pub const FROM_UNDERLAY: u32 = 2;
/// [`DropSample::program`]: `from_tunnel`.
pub const FROM_TUNNEL: u32 = 3;
/// [`DropSample::program`]: `from_remote`.
pub const FROM_REMOTE: u32 = 4;
/// [`DropSample::program`]: `to_pod`.
pub const TO_POD: u32 = 5;
/// [`DropSample::program`]: `from_pod`.
pub const FROM_POD: u32 = 6;

/// [`DropSample::reason`] of a packet that passes, although an audited rule would drop it.
pub const AUDITED: u32 = 0;

/// A dropped packet, or one that an audited rule would drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DropSample {
    /// Time of the sample in nanoseconds of `CLOCK_MONOTONIC_COARSE`.
    pub at: u64,
    /// [`crate::verdict::DropReason`] by number, or [`AUDITED`].
    pub reason: u32,
    /// [`TO_REMOTE`], [`FROM_UNDERLAY`], [`FROM_TUNNEL`], [`FROM_REMOTE`], [`TO_POD`] or [`FROM_POD`].
    pub program: u32,
    /// Device the program is attached to.
    pub ifindex: u32,
    /// Length of the frame when it was dropped.
    pub length: u32,
    /// Used bytes of `bytes`.
    pub captured: u32,
    /// [`super::policy::Rule::rule`] of the rule that drops the packet, or would drop it; 0 with other reasons, and
    /// without a rule.
    pub rule: u32,
    /// First bytes of the frame when it was dropped, Ethernet header first.
    pub bytes: [u8; SAMPLE_BYTES],
}

/// Limit of the samples of one CPU, with its counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SampleLimiter {
    /// Number of the current window.
    pub window: u64,
    /// Samples taken in it.
    pub taken: u64,
    /// Drops that were not sampled because the window was full.
    pub suppressed: u64,
    /// Samples lost because the ring was full.
    pub lost: u64,
}

/// Returns whether a drop at `now` (nanoseconds) is sampled, and counts it.
#[inline(always)]
pub const fn allow(limiter: &mut SampleLimiter, now: u64) -> bool {
    let window = now >> WINDOW_SHIFT;
    if limiter.window != window {
        limiter.window = window;
        limiter.taken = 1;
        return true;
    }
    let open = limiter.taken < SAMPLES_PER_WINDOW;
    if open {
        limiter.taken = limiter.taken.wrapping_add(1);
    } else {
        limiter.suppressed = limiter.suppressed.wrapping_add(1);
    }
    open
}

// The program uses it as a mask.
const _: () = assert!(SAMPLE_BYTES.is_power_of_two());
const _: () = assert!(size_of::<DropSample>() == 32 + SAMPLE_BYTES && align_of::<DropSample>() == 8);
const _: () = assert!(size_of::<SampleLimiter>() == 32 && align_of::<SampleLimiter>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_sampled_up_to_the_limit_and_counted() {
        let mut limiter = SampleLimiter::default();
        let mut passed = 0;
        for packet in 0..1_000_u64 {
            passed += u64::from(allow(&mut limiter, (5 << WINDOW_SHIFT) + packet));
        }
        assert_eq!((passed, limiter.suppressed), (SAMPLES_PER_WINDOW, 990));
        assert!(
            allow(&mut limiter, 6 << WINDOW_SHIFT),
            "a new window resets the limit"
        );
        assert_eq!((limiter.taken, limiter.suppressed), (1, 990));
    }
}
