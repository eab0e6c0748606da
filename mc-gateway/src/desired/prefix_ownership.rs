//! Ownership of prefixes: the first owner wins, overlapping prefixes of others are rejected.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use prefix_trie::joint::map::JointPrefixMap;

use crate::cidr::parse_prefix;

/// Assigned prefixes with their owners, as a trie.
///
/// *Guarantees*: prefixes of different owners are disjoint, if each is assigned without a [`Self::conflict`].
#[derive(Clone, Debug, Default)]
pub(super) struct PrefixOwners {
    owners: JointPrefixMap<IpNet, Arc<str>>,
}

impl PrefixOwners {
    /// Assigns `prefix` to `owner` unconditionally.
    pub(super) fn assign(&mut self, prefix: IpNet, owner: &Arc<str>) {
        self.owners.insert(prefix, Arc::clone(owner));
    }

    /// Assigns all prefixes of `others`.
    pub(super) fn assign_all(&mut self, others: &Self) {
        for (prefix, owner) in &others.owners {
            self.assign(prefix, owner);
        }
    }

    /// Ends the assignment of `prefix`.
    pub(super) fn release(&mut self, prefix: IpNet) {
        self.owners.remove(&prefix);
    }

    /// The owner of the prefix that contains `addr`.
    pub(super) fn owner_of(&self, addr: IpAddr) -> Option<&str> {
        let (_, owner) = self.owners.get_spm(&addr.into())?;
        Some(owner)
    }

    /// The shortest prefix of another owner that contains `prefix`, else the first one inside it, with its owner.
    pub(super) fn conflict(&self, prefix: IpNet, owner: &str) -> Option<(IpNet, &str)> {
        // Prefixes of different owners are disjoint: all prefixes that contain this one, and all prefixes inside them,
        // have the same owner.
        if let Some((taken, by)) = self.owners.get_spm(&prefix) {
            return (**by != *owner).then_some((taken, &**by));
        }
        let mut inside = self.owners.children(&prefix);
        let (taken, by) = inside.find(|(_, by)| ***by != *owner)?;
        Some((taken, &**by))
    }

    /// The reason why `addr` cannot be an address of `owner`, if it is in a prefix of another one.
    pub(super) fn address_conflict(&self, addr: IpAddr, owner: &str) -> Option<String> {
        let (taken, by) = self.conflict(addr.into(), owner)?;
        Some(format!("is an address in {taken} of {by}"))
    }

    /// The stated prefix if it is valid and disjoint from those of other owners, also from `established` ones.
    pub(super) fn check(&self, established: &Self, owner: &str, text: &str) -> Result<IpNet, String> {
        let prefix = parse_prefix(text).map_err(|error| error.to_string())?;
        let conflict = established.conflict(prefix, owner);
        match conflict.or_else(|| self.conflict(prefix, owner)) {
            Some((taken, by)) => Err(format!("overlaps {taken} of {by}")),
            None => Ok(prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cidr::overlaps;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn owners(assigned: &[(&str, &str)]) -> PrefixOwners {
        let mut owners = PrefixOwners::default();
        for (prefix, owner) in assigned {
            owners.assign(net(prefix), &Arc::from(*owner));
        }
        owners
    }

    #[test]
    fn overlaps_of_other_owners_are_conflicts() {
        let owners = owners(&[("10.1.0.0/16", "a"), ("10.2.0.0/24", "b")]);
        let conflict = |prefix: &str, owner| owners.conflict(net(prefix), owner);
        assert_eq!(conflict("10.1.7.0/24", "b"), Some((net("10.1.0.0/16"), "a")));
        assert_eq!(conflict("10.0.0.0/8", "a"), Some((net("10.2.0.0/24"), "b")));
        assert_eq!(conflict("10.1.0.0/16", "a"), None);
        assert_eq!(conflict("10.3.0.0/16", "c"), None);
        assert_eq!(conflict("fd00::/16", "c"), None);
    }

    #[test]
    fn a_released_prefix_is_no_conflict() {
        let mut owners = owners(&[("10.1.0.0/16", "a")]);
        owners.release(net("10.1.0.0/16"));
        assert_eq!(owners.conflict(net("10.1.0.0/16"), "b"), None);
    }

    /// Few bits, so that many prefixes overlap.
    fn prefix() -> impl Strategy<Value = IpNet> {
        let v4 = (0_u8..8, 5_u8..9).prop_map(|(bits, len)| IpNet::new([bits << 3, 0, 0, 0].into(), len));
        let v6 = (0_u16..4, 14_u8..17)
            .prop_map(|(bits, len)| IpNet::new([0xfd00 | bits, 0, 0, 0, 0, 0, 0, 0].into(), len));
        prop_oneof![v4, v6].prop_map(|net| net.unwrap().trunc())
    }

    proptest! {
        /// The trie finds a conflict if and only if a search through all assigned prefixes finds one.
        #[test]
        fn conflicts_are_those_of_a_linear_search(
            stated in prop::collection::vec((prefix(), 0_usize..3), 0..40),
        ) {
            let names: [Arc<str>; 3] = ["a", "b", "c"].map(Arc::from);
            let mut owners = PrefixOwners::default();
            let mut assigned: Vec<(IpNet, usize)> = Vec::new();
            for (prefix, owner) in stated {
                let expected: Vec<(IpNet, &str)> = assigned
                    .iter()
                    .filter(|(taken, by)| *by != owner && overlaps(*taken, prefix))
                    .map(|(taken, by)| (*taken, &*names[*by]))
                    .collect();
                let found = owners.conflict(prefix, &names[owner]);
                prop_assert_eq!(found.is_some(), !expected.is_empty());
                prop_assert!(found.is_none_or(|found| expected.contains(&found)), "{:?}", found);
                if found.is_none() {
                    owners.assign(prefix, &names[owner]);
                    assigned.push((prefix, owner));
                }
            }
        }
    }
}
