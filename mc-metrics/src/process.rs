//! Memory and CPU time of this process.

use std::fs;

/// Ticks per second in `/proc/PID/stat`: `USER_HZ`, 100 on every supported architecture (proc(5)).
const TICKS: f64 = 100.0;

/// Resources used by this process; an absent one is unreadable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// Resident memory.
    pub(crate) resident_bytes: Option<u64>,
    /// CPU time, user and system.
    pub(crate) cpu_seconds: Option<f64>,
}

/// The usage that `/proc` shows.
pub(crate) fn usage() -> Usage {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    Usage {
        resident_bytes: resident_bytes(&read("/proc/self/status")),
        cpu_seconds: cpu_seconds(&read("/proc/self/stat")),
    }
}

/// `VmRSS` of `/proc/PID/status`.
fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Fields 14 and 15 of `/proc/PID/stat`. The second field is a name in parentheses that may hold any character.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some((f64::from(ticks()?) + f64::from(ticks()?)) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 150 25 3 4 20 0 3 0 12 1 2";
        assert_eq!(cpu_seconds(stat), Some(1.75));
        assert_eq!(cpu_seconds("7 (a"), None);
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(resident_bytes("Name:\tx\nVmRSS:\t    12 kB\n"), Some(12_288));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
    }
}
