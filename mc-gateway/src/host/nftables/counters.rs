//! Counters of the table.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::filter::COUNTERS;

/// Dropped packets by counter; empty if the table cannot be read. Reads no rules, which a service proxy may have
/// thousands of.
#[must_use]
pub fn read_counters() -> BTreeMap<&'static str, u64> {
    let list = Command::new("nft")
        .args(["-j", "list", "counters", "table", "inet", "mc_gateway"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    list.map(|output| parse(&output.stdout)).unwrap_or_default()
}

fn parse(json: &[u8]) -> BTreeMap<&'static str, u64> {
    let Ok(document) = serde_json::from_slice::<Value>(json) else {
        return BTreeMap::new();
    };
    let items = document.get("nftables").and_then(Value::as_array);
    let counters = items.into_iter().flatten().filter_map(|item| item.get("counter"));
    let packets = |counter: &Value| {
        let name = counter.get("name")?.as_str()?;
        let known = COUNTERS.into_iter().find(|known| *known == name)?;
        Some((known, counter.get("packets")?.as_u64()?))
    };
    counters.filter_map(packets).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_nft_is_parsed() {
        let json = br#"{"nftables": [{"metainfo": {"version": "1.1.3", "json_schema_version": 1}},
            {"counter": {"family": "inet", "name": "tunnel-guard", "table": "mc_gateway", "handle": 1,
             "packets": 10, "bytes": 840}},
            {"counter": {"family": "inet", "name": "foreign", "table": "mc_gateway", "packets": 3, "bytes": 0}},
            {"counter": {"family": "inet", "name": "not-exported", "table": "mc_gateway"}}]}"#;
        assert_eq!(parse(json), [("tunnel-guard", 10)].into());
        for invalid in [&b""[..], b"{}", b"[]", br#"{"nftables": {}}"#] {
            assert_eq!(parse(invalid), BTreeMap::new());
        }
    }
}
