//! IDs of the rules of network policies in the maps, and their names. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::rule_id;
use crate::policy::{RuleRef, Tables};

/// Name and action of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleName {
    /// Kind and name of the policy.
    pub policy: String,
    /// Path of the rule in the policy, as in [`RuleRef::path`].
    pub rule: String,
    /// `Allow`, `Drop`, `Reject` or `Pass`; followed by ` (audit)` if it is audited.
    pub action: String,
}

/// End of [`RuleName::action`] of an audited rule.
const AUDITED: &str = " (audit)";

impl RuleName {
    /// Whether the rule decides on no packet.
    #[must_use]
    pub fn is_audited(&self) -> bool {
        self.action.ends_with(AUDITED)
    }
}

/// A different ID for each rule, by the node's key and the names of policies and rules: a counter of a rule outlives
/// changes of others.
pub(super) fn rule_ids(key: &[u8; 16], names: &[RuleRef]) -> Vec<u32> {
    distinct(names.iter().map(|name| rule_id(key, &name.policy, &name.path())))
}

/// The numbers, with another one for each that occurs again.
fn distinct(numbers: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut used = BTreeSet::new();
    let distinct = numbers.map(|mut number| {
        while !used.insert(number) {
            number = number.wrapping_add(1).max(1);
        }
        number
    });
    distinct.collect()
}

/// Names of the rules that packets may meet.
pub(super) fn rule_names(tables: &Tables, ids: &[u32]) -> BTreeMap<u32, RuleName> {
    let mut names = BTreeMap::new();
    for value in tables.rules.values() {
        let Ok(at) = usize::try_from(value.rule) else {
            continue;
        };
        let (Some(id), Some(name)) = (ids.get(at), tables.rule_names.get(at)) else {
            continue;
        };
        // A rule has hundreds of entries, with the same action.
        names.entry(*id).or_insert_with(|| RuleName {
            policy: name.policy.to_string(),
            rule: name.path(),
            action: format!(
                "{}{}",
                value.action.name(),
                if value.is_audited { AUDITED } else { "" }
            ),
        });
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_with_one_hash_have_different_ids() {
        let ids = distinct([5, 5, 6, u32::MAX, u32::MAX].into_iter());
        assert_eq!(ids, [5, 6, 7, u32::MAX, 1]);
    }
}
