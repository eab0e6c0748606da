//! Whose a name is that several objects come to: `prod` + `web-api` and `prod-web` + `api` are joined to the same one.
//!
//! Pure. Guarantee: who has a name keeps it for as long as it claims it; else the oldest claim has it, and of equally
//! old ones the first in order, so that everybody who looks at the same objects decides alike.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Namespace and name of a Service.
pub type Tuple = (String, String);

/// That a Service wants a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The name.
    pub name: String,
    /// The Service.
    pub of: Tuple,
    /// Whether it has the name already.
    pub has: bool,
    /// Since when it wants it.
    pub since: Option<Time>,
}

/// Whose each of the names is.
#[must_use]
pub fn owners(claims: impl IntoIterator<Item = Claim>) -> BTreeMap<String, Tuple> {
    let mut owners: BTreeMap<String, (bool, Option<Time>, Tuple)> = BTreeMap::new();
    for Claim { name, of, has, since } in claims {
        let claim = (!has, since, of);
        match owners.entry(name) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(claim);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                if claim < *entry.get() {
                    entry.insert(claim);
                }
            }
        }
    }
    owners
        .into_iter()
        .map(|(name, (_, _, tuple))| (name, tuple))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(namespace: &str, name: &str, has: bool, since: &str) -> Claim {
        Claim {
            name: format!("{namespace}-{name}"),
            of: (namespace.to_owned(), name.to_owned()),
            has,
            since: Some(Time(since.parse().unwrap())),
        }
    }

    #[test]
    fn who_has_it_keeps_it_else_the_oldest_gets_it() {
        let old = claim("prod", "web-api", false, "2026-01-01T00:00:00Z");
        let young = claim("prod-web", "api", false, "2026-01-02T00:00:00Z");
        let has = Claim {
            has: true,
            ..young.clone()
        };
        for (claims, owner) in [
            (vec![&old, &young], &old),
            (vec![&old, &has], &has),
            (vec![&young], &young),
        ] {
            let owners = owners(claims.into_iter().cloned());
            assert_eq!(owners.get("prod-web-api"), Some(&owner.of));
        }
    }

    proptest! {
        #[test]
        fn the_order_of_claims_decides_nothing(
            claims in proptest::collection::vec((0..3_usize, any::<bool>(), 0..3_u8), 0..6).prop_map(|claims| {
                let tuples = [("a", "b-c-d"), ("a-b", "c-d"), ("a-b-c", "d")];
                claims.into_iter().map(|(of, has, day)| {
                    let (namespace, name) = tuples[of];
                    claim(namespace, name, has, &format!("2026-01-0{}T00:00:00Z", day + 1))
                }).collect::<Vec<_>>()
            }).prop_shuffle()
        ) {
            let mut sorted = claims.clone();
            sorted.sort_by_key(|c| c.of.clone());
            let found = owners(claims.clone());
            prop_assert_eq!(&found, &owners(sorted));
            let owner = found.get("a-b-c-d");
            prop_assert_eq!(owner.is_some(), !claims.is_empty());
            prop_assert!(claims.is_empty() || claims.iter().any(|c| Some(&c.of) == owner));
        }
    }
}
