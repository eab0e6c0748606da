//! CPU time of the whole machine.

use std::fs;

use anyhow::{Context as _, Result};

/// CPU time that processes and the kernel have used since boot, on all CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BusyTime {
    ticks: u64,
}

/// Ticks per second in `/proc/stat` (`USER_HZ`, the same on all architectures of Linux with an eBPF JIT).
const TICKS_PER_SECOND: f64 = 100.0;

// === impl BusyTime ===

impl BusyTime {
    /// Reads `/proc/stat`.
    pub(super) fn now() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        Self::parse(&stat)
            .with_context(|| format!("no CPU times in `{}`", stat.lines().next().unwrap_or_default()))
    }

    /// Sum of user, nice, system, irq and softirq on the first line (`proc_stat(5)`). Time that a hypervisor took
    /// (`steal`) is another machine's.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .map(|ticks| ticks.parse().ok())
            .collect::<Option<_>>()?;
        let [user, nice, system, _idle, _iowait, irq, softirq, ..] = ticks.as_slice() else {
            return None;
        };
        Some(Self {
            ticks: user + nice + system + irq + softirq,
        })
    }

    /// Seconds of CPU time since an earlier reading.
    #[expect(clippy::cast_precision_loss, reason = "no measurement has 2^52 ticks")]
    pub(super) fn seconds_since(self, earlier: Self) -> f64 {
        self.ticks.saturating_sub(earlier.ticks) as f64 / TICKS_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_is_not_busy() {
        let stat = "cpu  10 1 20 1000 500 3 4 900 0 0\ncpu0 1 2 3\n";
        let busy = BusyTime::parse(stat).unwrap();
        assert_eq!(busy.ticks, 38);
        let later = BusyTime { ticks: 138 };
        assert!((later.seconds_since(busy) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_short_line_has_no_times() {
        assert_eq!(BusyTime::parse("cpu  1 2 3\n"), None);
        assert_eq!(BusyTime::parse("intr 1\n"), None);
    }
}
