//! Resolves derived-name collisions: `prod` + `web-api` and `prod-web` + `api` join to the same name.
//!
//! Pure. Guarantee: the owner of a name keeps it while it requests it; else the oldest request gets it, of equally old
//! ones the first in order. So every observer of the same objects decides alike.

use std::collections::{BTreeMap, btree_map::Entry};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mc_kube::NamespacedName;

/// A Service's request for a derived name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRequest {
    /// The name.
    pub name: String,
    /// The Service.
    pub service: NamespacedName,
    /// Whether the Service has the name already.
    pub is_current_owner: bool,
    /// Creation time of the request.
    pub since: Option<Time>,
}

/// The owner of each requested name.
#[must_use]
pub fn resolve_owners(requests: impl IntoIterator<Item = NameRequest>) -> BTreeMap<String, NamespacedName> {
    let mut owners: BTreeMap<String, (bool, Option<Time>, NamespacedName)> = BTreeMap::new();
    for request in requests {
        let rank = (!request.is_current_owner, request.since, request.service);
        match owners.entry(request.name) {
            Entry::Vacant(entry) => {
                entry.insert(rank);
            }
            Entry::Occupied(mut entry) => {
                if rank < *entry.get() {
                    entry.insert(rank);
                }
            }
        }
    }
    let owners = owners.into_iter();
    owners.map(|(name, (_, _, service))| (name, service)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(namespace: &str, name: &str, is_current_owner: bool, since: &str) -> NameRequest {
        NameRequest {
            name: format!("{namespace}-{name}"),
            service: NamespacedName::new(namespace, name),
            is_current_owner,
            since: Some(Time(since.parse().unwrap())),
        }
    }

    #[test]
    fn the_owner_keeps_the_name_else_the_oldest_request_gets_it() {
        let old = request("prod", "web-api", false, "2026-01-01T00:00:00Z");
        let young = request("prod-web", "api", false, "2026-01-02T00:00:00Z");
        let current = NameRequest {
            is_current_owner: true,
            ..young.clone()
        };
        for (requests, owner) in [
            (vec![&old, &young], &old),
            (vec![&old, &current], &current),
            (vec![&young], &young),
        ] {
            let owners = resolve_owners(requests.into_iter().cloned());
            assert_eq!(owners.get("prod-web-api"), Some(&owner.service));
        }
    }

    proptest! {
        #[test]
        fn the_order_of_requests_is_irrelevant(
            requests in proptest::collection::vec((0..3_usize, any::<bool>(), 0..3_u8), 0..6).prop_map(|requests| {
                let services = [("a", "b-c-d"), ("a-b", "c-d"), ("a-b-c", "d")];
                requests.into_iter().map(|(service, is_current_owner, day)| {
                    let (namespace, name) = services[service];
                    request(namespace, name, is_current_owner, &format!("2026-01-0{}T00:00:00Z", day + 1))
                }).collect::<Vec<_>>()
            }).prop_shuffle()
        ) {
            let mut sorted = requests.clone();
            sorted.sort_by_key(|r| r.service.clone());
            let owners = resolve_owners(requests.clone());
            prop_assert_eq!(&owners, &resolve_owners(sorted));
            let owner = owners.get("a-b-c-d");
            prop_assert_eq!(owner.is_some(), !requests.is_empty());
            prop_assert!(requests.is_empty() || requests.iter().any(|r| Some(&r.service) == owner));
        }
    }
}
