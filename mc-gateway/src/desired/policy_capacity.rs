//! The policies that the maps cannot hold beside older ones. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use mc_api::network_policy::{ENFORCEMENT_ACTION, Policy};
use mc_gateway_common::abi::policy::{
    ADDRESS_CLASSES, EXPORTERS, MAX_ADDRESS_CLASSES, MAX_EXPORTERS, MAX_POLICY_RULES, POLICY_RULES,
};

use crate::objects::FieldError;
use crate::policy_tables::PolicyTables;

/// Compilations at most to find the policies that fit. Beyond them, policies are left out together.
const MAX_ATTEMPTS: u32 = 32;

/// A map of which one half cannot hold the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess {
    map: &'static str,
    needed: usize,
    capacity: usize,
}

impl Excess {
    /// The first map that the tables exceed.
    pub(super) fn of(tables: &PolicyTables) -> Option<Self> {
        let sizes = [
            (POLICY_RULES, tables.rules_by_prefix(), MAX_POLICY_RULES),
            (EXPORTERS, tables.exporters.len(), MAX_EXPORTERS),
            (ADDRESS_CLASSES, tables.address_classes.len(), MAX_ADDRESS_CLASSES),
        ];
        sizes.into_iter().find_map(|(map, needed, entries)| {
            let capacity = usize::try_from(entries / 2).unwrap_or(usize::MAX);
            let excess = Self {
                map,
                needed,
                capacity,
            };
            (needed > capacity).then_some(excess)
        })
    }

    /// The error of a policy that is left out because of the map.
    pub(super) fn error(&self, policy: &Policy) -> FieldError {
        let Self {
            map,
            needed,
            capacity,
        } = self;
        let (field, value, reason) = if policy.is_audited() {
            let reason = format!(
                "has no effect: map {map} would have {needed} entries with all policies, more than its capacity of \
                 {capacity}"
            );
            let field = format!("metadata.annotations[{ENFORCEMENT_ACTION}]");
            (field, "Audit".to_owned(), reason)
        } else {
            let reason = format!(
                "entries of all policies exceed the capacity of {capacity}: packets of the Pods that the policy selects \
                 are dropped"
            );
            (format!("map {map}"), needed.to_string(), reason)
        };
        FieldError {
            object: policy.object(),
            field,
            value,
            reason,
        }
    }

    /// Indices of the policies that do not fit beside older ones; audited policies come after those in force.
    /// `selecting` has the policies with a rule for a Pod of the Node: others need no room. `fits` compiles the
    /// policies at the given indices and returns whether the maps can hold them.
    pub(super) fn left_out(
        &self,
        policies: &[Policy],
        selecting: &BTreeSet<Arc<str>>,
        fits: impl FnMut(&[usize]) -> bool,
    ) -> BTreeSet<usize> {
        let all = policies.iter().enumerate();
        let (candidates, others): (Vec<_>, Vec<_>) =
            all.partition(|(_, policy)| selecting.contains(policy.object().as_str()));
        let mut candidates: Vec<_> = candidates
            .into_iter()
            .map(|(index, policy)| ((policy.is_audited(), &policy.created, &policy.name), index))
            .collect();
        candidates.sort_unstable();
        let candidates: Vec<_> = candidates.into_iter().map(|(_, index)| index).collect();
        if self.map == EXPORTERS {
            // Policies have no part in these entries.
            return candidates.into_iter().collect();
        }
        let kept = others.into_iter().map(|(index, _)| index).collect();
        FirstFit {
            kept,
            attempts: MAX_ATTEMPTS,
            fits,
        }
        .left_out(&candidates)
        .into_iter()
        .collect()
    }
}

/// The search for items that fit, in their order.
struct FirstFit<F> {
    /// The items that fit together.
    kept: Vec<usize>,
    /// Calls of `fits` that remain.
    attempts: u32,
    fits: F,
}

impl<F: FnMut(&[usize]) -> bool> FirstFit<F> {
    /// The items that do not fit beside the kept ones and those before them. `items` do not fit as a whole.
    fn left_out(&mut self, items: &[usize]) -> Vec<usize> {
        if items.len() <= 1 || self.attempts == 0 {
            return items.to_vec();
        }
        let (first, second) = items.split_at(items.len() / 2);
        let mut left_out = Vec::new();
        for half in [first, second] {
            let kept = self.kept.len();
            self.kept.extend_from_slice(half);
            if !self.attempt() {
                self.kept.truncate(kept);
                left_out.extend(self.left_out(half));
            }
        }
        left_out
    }

    fn attempt(&mut self) -> bool {
        let Some(attempts) = self.attempts.checked_sub(1) else {
            return false;
        };
        self.attempts = attempts;
        (self.fits)(&self.kept)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The items left out where each has a size and all together have `room`; and the number of attempts.
    fn left_out(sizes: &[u32], room: u32) -> (Vec<usize>, u32) {
        let mut attempts = 0;
        let fits = |kept: &[usize]| {
            attempts += 1;
            kept.iter().map(|index| sizes[*index]).sum::<u32>() <= room
        };
        let mut search = FirstFit {
            kept: vec![],
            attempts: MAX_ATTEMPTS,
            fits,
        };
        let all: Vec<_> = (0..sizes.len()).collect();
        let left_out = search.left_out(&all);
        (left_out, attempts)
    }

    #[test]
    fn of_items_that_do_not_fit_the_later_ones_are_left_out() {
        assert_eq!(left_out(&[11], 10).0, [0]);
        assert_eq!(left_out(&[6, 6], 10).0, [1]);
        assert_eq!(left_out(&[6, 6, 4], 10).0, [1]);
        assert_eq!(left_out(&[11, 6, 4], 10).0, [0]);
        let mut sizes = vec![1; 1000];
        sizes[700] = 1000;
        let (items, attempts) = left_out(&sizes, 999);
        assert_eq!(items, [700]);
        assert!(attempts <= 20, "{attempts} attempts");
    }

    proptest! {
        /// Few items: the number of attempts is no limit.
        #[test]
        fn the_first_fit_is_found(sizes in proptest::collection::vec(1_u32..20, 1..16), room in 0_u32..100) {
            prop_assume!(sizes.iter().sum::<u32>() > room);
            let (mut used, mut expected) = (0, Vec::new());
            for (index, size) in sizes.iter().enumerate() {
                if used + size <= room {
                    used += size;
                } else {
                    expected.push(index);
                }
            }
            prop_assert_eq!(left_out(&sizes, room).0, expected);
        }

        /// Many items: the kept ones fit, within the attempts.
        #[test]
        fn kept_items_fit(sizes in proptest::collection::vec(1_u32..20, 1..300), room in 0_u32..1000) {
            prop_assume!(sizes.iter().sum::<u32>() > room);
            let (items, attempts) = left_out(&sizes, room);
            let kept = sizes.iter().enumerate().filter(|(index, _)| !items.contains(index));
            prop_assert!(kept.map(|(_, size)| size).sum::<u32>() <= room);
            prop_assert!(attempts <= MAX_ATTEMPTS);
        }
    }
}
