//! The table as `nft` lists it.
//!
//! nftables does not print rules as they were written. A table of an earlier agent is recognised by the fingerprint in
//! its first rule; after that, any difference to the listing is a change by another program.

use serde_json::Value;

use super::{Table, table};
use crate::resolved::NftRules;

/// Fields that differ between two listings of an unchanged table.
const VOLATILE: [&str; 3] = ["handle", "packets", "bytes"];

/// Chains, rules and counters of the table, without handles and counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing(Vec<Value>);

impl Listing {
    /// The output of `nft -j list table`; none if it has another form.
    pub(super) fn parse(json: &str) -> Option<Self> {
        let mut document = serde_json::from_str::<Value>(json).ok()?;
        let items = document.get_mut("nftables")?.as_array_mut()?;
        let mut items = std::mem::take(items);
        // The version of nft.
        items.retain(|item| item.get("metainfo").is_none());
        items.iter_mut().for_each(remove_volatile);
        Some(Self(items))
    }

    /// Whether an agent has written the table for `rules`: same fingerprint and number of rules.
    #[must_use]
    pub fn is_of(&self, rules: &NftRules, device: &str) -> bool {
        self.is_table(&table(rules, device))
    }

    /// Whether an agent has written this table: same fingerprint and numbers of rules and set elements.
    pub(super) fn is_table(&self, table: &Table) -> bool {
        let found: Vec<&Value> = self.0.iter().filter_map(|item| item.get("rule")).collect();
        let comment = found.first().and_then(|rule| rule.get("comment"));
        let rules: usize = table.chains.iter().map(|chain| chain.rules.len()).sum();
        let elements: usize = table.sets.iter().map(|set| set.elements.len()).sum();
        let sets = self.0.iter().filter_map(|item| item.get("set"));
        let lists = sets.filter_map(|set| set.get("elem")?.as_array());
        comment.and_then(Value::as_str) == Some(table.fingerprint().as_str())
            && found.len() == rules
            && lists.map(Vec::len).sum::<usize>() == elements
    }
}

fn remove_volatile(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !VOLATILE.contains(&name.as_str()));
            fields.values_mut().for_each(remove_volatile);
            // The order of a set's elements is none of its contents.
            if let Some(Value::Array(elements)) = fields.get_mut("elem") {
                elements.sort_by_cached_key(Value::to_string);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(remove_volatile),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(comment: &str, rules: usize, packets: u32) -> Listing {
        let more = ",{\"rule\":{\"handle\":4,\"expr\":[{\"drop\":null}]}}".repeat(rules - 1);
        let text = format!(
            "{{\"nftables\":[{{\"metainfo\":{{}}}},{{\"counter\":{{\"handle\":{packets},\"packets\":{packets}}}}},\
             {{\"rule\":{{\"comment\":\"{comment}\",\"expr\":[{{\"counter\":{{\"packets\":{packets},\"bytes\":0}}}}]}}}}\
             {more}]}}"
        );
        Listing::parse(&text).unwrap()
    }

    #[test]
    fn a_table_is_identified_by_fingerprint_and_size() {
        let wanted = NftRules::default();
        let table = table(&wanted, "mc0");
        let mark = table.fingerprint();
        let count = table.chains.iter().map(|chain| chain.rules.len()).sum();
        assert!(listing(&mark, count, 0).is_of(&wanted, "mc0"));
        assert!(
            !listing(&mark, count - 1, 0).is_of(&wanted, "mc0"),
            "a rule is missing"
        );
        assert!(!listing("mc-gateway 00", count, 0).is_of(&wanted, "mc0"));
        assert!(!listing(&mark, count, 0).is_of(&wanted, "mc1"));
        for text in ["", "{}", "[]", "{\"nftables\": 1}"] {
            assert_eq!(Listing::parse(text), None);
        }
    }

    #[test]
    fn counts_and_handles_are_no_changes() {
        assert_eq!(listing("m", 2, 0), listing("m", 2, 7));
        assert_ne!(listing("m", 2, 0), listing("n", 2, 0));
        let changed = "{\"nftables\":[{\"rule\":{\"handle\":4,\"expr\":[{\"accept\":null}]}}]}";
        let original = changed.replace("accept", "drop");
        assert_ne!(Listing::parse(changed), Listing::parse(&original));
    }
}
