//! Packets dropped by the table.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::LIST;
use super::filter::REASONS;

/// Dropped packets by reason; empty if the table cannot be read. Reads no rules of other tables, which a service proxy
/// may have thousands of.
#[must_use]
pub fn read_counters() -> BTreeMap<&'static str, u64> {
    let list = Command::new("nft")
        .args(LIST)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    list.map(|output| parse(&output.stdout)).unwrap_or_default()
}

/// The sums of the counters in rules with a reason as comment.
fn parse(json: &[u8]) -> BTreeMap<&'static str, u64> {
    let Ok(document) = serde_json::from_slice::<Value>(json) else {
        return BTreeMap::new();
    };
    let items = document.get("nftables").and_then(Value::as_array);
    let mut sums = BTreeMap::new();
    for rule in items.into_iter().flatten().filter_map(|item| item.get("rule")) {
        let comment = rule.get("comment").and_then(Value::as_str);
        let Some(reason) = REASONS.into_iter().find(|reason| comment == Some(reason)) else {
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
    sums
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
        assert_eq!(parse(json), [("not-exported", 0), ("tunnel-guard", 12)].into());
        for invalid in [&b""[..], b"{}", b"[]", br#"{"nftables": {}}"#] {
            assert_eq!(parse(invalid), BTreeMap::new());
        }
    }
}
