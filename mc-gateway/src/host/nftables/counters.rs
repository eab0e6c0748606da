//! Packets dropped by the tables.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::pod_guard::POD_GUARD;
use super::{TABLES, filter, list};

/// Dropped packets by reason, without those of tables that cannot be read. Reads no rules of other tables, which a
/// service proxy may have thousands of.
#[must_use]
pub fn read_counters() -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    for table in TABLES {
        let list = Command::new("nft")
            .args(list(table))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output();
        if let Ok(output) = list {
            add_counters(&output.stdout, &mut sums);
        }
    }
    sums
}

/// Adds the counters in rules with a reason as comment to the sums.
fn add_counters(json: &[u8], sums: &mut BTreeMap<&'static str, u64>) {
    let Ok(document) = serde_json::from_slice::<Value>(json) else {
        return;
    };
    let items = document.get("nftables").and_then(Value::as_array);
    for rule in items.into_iter().flatten().filter_map(|item| item.get("rule")) {
        let comment = rule.get("comment").and_then(Value::as_str);
        let mut reasons = filter::REASONS.into_iter().chain([POD_GUARD]);
        let Some(reason) = reasons.find(|reason| comment == Some(reason)) else {
            continue;
        };
        let statements = rule.get("expr").and_then(Value::as_array);
        let counters = statements
            .into_iter()
            .flatten()
            .filter_map(|it| it.get("counter"));
        let packets = counters.filter_map(|counter| counter.get("packets")?.as_u64());
        let sum: &mut u64 = sums.entry(reason).or_default();
        *sum = packets.fold(*sum, u64::saturating_add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_nft_is_parsed() {
        let json = br#"{"nftables": [{"metainfo": {"version": "1.1.3", "json_schema_version": 1}},
            {"rule": {"chain": "forward", "comment": "tunnel-guard",
             "expr": [{"match": {}}, {"counter": {"packets": 10, "bytes": 840}}, {"drop": null}]}},
            {"rule": {"chain": "output", "comment": "tunnel-guard", "expr": [{"counter": {"packets": 2}}]}},
            {"rule": {"chain": "output", "comment": "foreign", "expr": [{"counter": {"packets": 3}}]}},
            {"rule": {"comment": "not-exported", "expr": [{"drop": null}]}}]}"#;
        let mut sums = BTreeMap::new();
        add_counters(json, &mut sums);
        let guard =
            br#"{"nftables": [{"rule": {"comment": "pod-guard", "expr": [{"counter": {"packets": 3}}]}}]}"#;
        add_counters(guard, &mut sums);
        add_counters(guard, &mut sums);
        let expected = [("not-exported", 0), ("pod-guard", 6), ("tunnel-guard", 12)];
        assert_eq!(sums, expected.into());
        for invalid in [&b""[..], b"{}", b"[]", br#"{"nftables": {}}"#] {
            add_counters(invalid, &mut sums);
            assert_eq!(sums, expected.into());
        }
    }
}
