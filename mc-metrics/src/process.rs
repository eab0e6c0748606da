//! What this process costs, as Prometheus' own clients tell it.

use std::fs;

use crate::text::{Kind, Text};

/// How many ticks of `/proc/PID/stat` a second has: `USER_HZ`, 100 wherever this runs (proc(5)).
const TICKS: f64 = 100.0;

/// Writes what is known of this process.
pub fn write(text: &mut Text) {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    if let Some(bytes) = resident(&read("/proc/self/status")) {
        text.single(
            "process_resident_memory_bytes",
            Kind::Gauge,
            "Resident memory of the process.",
            bytes,
        );
    }
    if let Some(seconds) = cpu(&read("/proc/self/stat")) {
        text.single(
            "process_cpu_seconds_total",
            Kind::Counter,
            "CPU time of the process, user and system.",
            seconds,
        );
    }
}

/// Bytes, of `/proc/PID/status`.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Seconds, of `/proc/PID/stat`: fields 14 and 15. The second one is a name in brackets, which may hold anything.
fn cpu(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some((f64::from(ticks()?) + f64::from(ticks()?)) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 150 25 3 4 20 0 3 0 12 1 2";
        assert_eq!(cpu(stat), Some(1.75));
        assert_eq!(cpu("7 (a"), None);
        assert_eq!(resident("Name:\tx\nVmRSS:\t    12 kB\n"), Some(12_288));
        assert_eq!(resident("Name:\tx\n"), None);
        let mut text = Text::default();
        write(&mut text);
        let text = text.finish();
        assert!(
            text.contains("process_resident_memory_bytes ") && text.contains("process_cpu_seconds_total "),
            "{text}"
        );
    }
}
