//! What the kernel's connection tracking could not do: translations of this host's own packets fail there.

use std::collections::BTreeMap;

/// Where the kernel tells, for the network namespace of this process.
const FILE: &str = "/proc/self/net/stat/nf_conntrack";

/// Columns that say that a packet was lost, or a connection for another one's sake.
const ERROR_COUNTERS: [&str; 3] = ["insert_failed", "drop", "early_drop"];

/// Losses since the namespace was made, by the kernel's names; empty where there is no connection tracking.
#[must_use]
pub fn error_counters() -> BTreeMap<&'static str, u64> {
    std::fs::read_to_string(FILE).map_or_else(|_| BTreeMap::new(), |text| parse(&text))
}

/// Sums what each CPU counted: a line of names, then hexadecimal numbers in a line per CPU.
fn parse(text: &str) -> BTreeMap<&'static str, u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    let names: Vec<&str> = lines.next().map(Iterator::collect).unwrap_or_default();
    let mut sums = BTreeMap::new();
    for (name, value) in lines.flat_map(|line| names.iter().zip(line)) {
        let (Some(known), Ok(value)) = (
            ERROR_COUNTERS.into_iter().find(|known| known == name),
            u64::from_str_radix(value, 16),
        ) else {
            continue;
        };
        let sum = sums.entry(known).or_insert(0_u64);
        *sum = sum.wrapping_add(value);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_summed() {
        let text = "entries  clashres found new insert insert_failed drop early_drop icmp_error\n\
                    00000010  00000000 00000001 00000000 00000000 0000000a 00000001 00000000 00000005\n\
                    00000010  00000000 00000001 00000000 00000000 00000010 00000000 00000002 00000005\n";
        let expected = [("drop", 1), ("early_drop", 2), ("insert_failed", 26)];
        assert_eq!(parse(text), expected.into());
        assert_eq!(parse(""), BTreeMap::new());
        assert_eq!(parse("entries drop\nx y\n"), BTreeMap::new());
    }
}
