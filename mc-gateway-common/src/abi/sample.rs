//! Layout of the sampled drops: a ring buffer of [`DropSample`] and the gate in front of it.
//!
//! A program copies the first bytes of a packet it drops as they are; whoever reads the ring takes them
//! apart. So a drop costs the program one copy at most, and nothing but a counter once the gate is shut.

/// Name of the ring buffer of [`DropSample`].
pub const DROP_SAMPLES: &str = "mc_drop_samples";
/// Name of the gate: per-CPU array of one [`SampleLimiter`].
pub const SAMPLE_LIMIT: &str = "mc_sample_limit";

/// Size of the ring in bytes: a power of two and a multiple of the page size (Linux 5.8).
pub const RING_BYTES: u32 = 65_536;
/// Bytes of a packet that are kept: outer Ethernet and IPv6, UDP, tunnel header, inner Ethernet and IPv6, ports.
pub const SAMPLE_BYTES: usize = 128;
/// Samples a CPU takes in one window.
pub const SAMPLES_PER_WINDOW: u64 = 10;
/// A window is 2 to the power of this in nanoseconds: 1.07 s.
pub const WINDOW_SHIFT: u32 = 30;

/// [`Sample::program`]: `to_remote`.
pub const TO_REMOTE: u32 = 1;
/// [`Sample::program`]: `from_underlay`.
pub const FROM_UNDERLAY: u32 = 2;

/// A packet that was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DropSample {
    /// When: nanoseconds of `CLOCK_MONOTONIC_COARSE`.
    pub at: u64,
    /// [`crate::verdict::DropReason`] by number.
    pub reason: u32,
    /// [`TO_REMOTE`] or [`FROM_UNDERLAY`].
    pub program: u32,
    /// Device the program is attached to.
    pub ifindex: u32,
    /// Length of the frame when it was dropped.
    pub length: u32,
    /// Used bytes of `bytes`.
    pub captured: u32,
    /// Always 0.
    pub pad: u32,
    /// First bytes of the frame when it was dropped, Ethernet header first.
    pub bytes: [u8; SAMPLE_BYTES],
}

/// How many samples one CPU took and left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SampleLimiter {
    /// Number of the current window.
    pub window: u64,
    /// Samples taken in it.
    pub taken: u64,
    /// Drops that were not sampled because the window was full.
    pub suppressed: u64,
    /// Samples that were lost because nobody read the ring.
    pub lost: u64,
}

/// Whether a drop at `now` (nanoseconds) is sampled; the gate remembers it.
#[inline(always)]
pub const fn allow(gate: &mut SampleLimiter, now: u64) -> bool {
    let window = now >> WINDOW_SHIFT;
    if gate.window != window {
        gate.window = window;
        gate.taken = 1;
        return true;
    }
    let open = gate.taken < SAMPLES_PER_WINDOW;
    if open {
        gate.taken = gate.taken.wrapping_add(1);
    } else {
        gate.suppressed = gate.suppressed.wrapping_add(1);
    }
    open
}

// The program masks with it.
const _: () = assert!(SAMPLE_BYTES.is_power_of_two());
const _: () = assert!(size_of::<DropSample>() == 32 + SAMPLE_BYTES && align_of::<DropSample>() == 8);
const _: () = assert!(size_of::<SampleLimiter>() == 32 && align_of::<SampleLimiter>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_sampled_a_few_times_a_window_and_counted() {
        let mut gate = SampleLimiter::default();
        let mut passed = 0;
        for packet in 0..1_000_u64 {
            passed += u64::from(allow(&mut gate, (5 << WINDOW_SHIFT) + packet));
        }
        assert_eq!((passed, gate.suppressed), (SAMPLES_PER_WINDOW, 990));
        assert!(allow(&mut gate, 6 << WINDOW_SHIFT), "a new window opens the gate");
        assert_eq!((gate.taken, gate.suppressed), (1, 990));
    }
}
