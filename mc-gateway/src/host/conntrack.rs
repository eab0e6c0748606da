//! Error counters of the kernel's connection tracking, which translates this host's own packets.

use std::collections::BTreeMap;

/// Statistics of the network namespace of this process.
const FILE: &str = "/proc/self/net/stat/nf_conntrack";

/// Columns that count dropped packets and evicted connections.
const ERROR_COUNTERS: [&str; 3] = ["insert_failed", "drop", "early_drop"];

/// Errors since the creation of the namespace, by the kernel's names; empty without connection tracking.
#[must_use]
pub fn error_counters() -> BTreeMap<&'static str, u64> {
    std::fs::read_to_string(FILE).map_or_else(|_| BTreeMap::new(), |text| parse(&text))
}

/// Sums the counters of all CPUs: a line of names, then a line of hexadecimal numbers per CPU.
fn parse(text: &str) -> BTreeMap<&'static str, u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    let names: Vec<&str> = lines.next().map(Iterator::collect).unwrap_or_default();
    let mut sums = BTreeMap::new();
    for (name, value) in lines.flat_map(|line| names.iter().zip(line)) {
        let (Some(counter), Ok(value)) = (
            ERROR_COUNTERS.into_iter().find(|counter| counter == name),
            u64::from_str_radix(value, 16),
        ) else {
            continue;
        };
        let sum = sums.entry(counter).or_insert(0_u64);
        *sum = sum.wrapping_add(value);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_cpus_are_summed() {
        let text = "entries  clashres found new insert insert_failed drop early_drop icmp_error\n\
                    00000010  00000000 00000001 00000000 00000000 0000000a 00000001 00000000 00000005\n\
                    00000010  00000000 00000001 00000000 00000000 00000010 00000000 00000002 00000005\n";
        let expected = [("drop", 1), ("early_drop", 2), ("insert_failed", 26)];
        assert_eq!(parse(text), expected.into());
        assert_eq!(parse(""), BTreeMap::new());
        assert_eq!(parse("entries drop\nx y\n"), BTreeMap::new());
    }
}
