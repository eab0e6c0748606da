//! The size of a Service's endpoints in its `ResourceImport`: an export that does not fit is refused alone.
//!
//! etcd refuses objects above 1.5 MiB, and the import has the endpoints of all clusters twice: in Antrea's list, and by
//! cluster. Guarantees: the result fits; a cluster loses nothing because another one exports more.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::EndpointSubset;
use mc_api::resource_import::{ClusterEndpoints, EndpointsImport};

/// The endpoints of all clusters together, in bytes of JSON; some 30,000 addresses.
const BUDGET: usize = 600 << 10;

/// The endpoints that a cluster exports.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    /// The cluster.
    pub(super) cluster: &'a str,
    /// The creation of its export.
    pub(super) since: Option<Timestamp>,
    /// The endpoints.
    pub(super) subsets: Vec<EndpointSubset>,
}

/// The endpoints of an import, and the clusters whose export does not fit.
#[derive(Debug, Default, PartialEq)]
#[must_use]
pub(super) struct Fit {
    /// The endpoints by cluster, in the order of their IDs.
    pub(super) clusters: Vec<ClusterEndpoints>,
    /// The error of each cluster whose endpoints are refused; those that it had before remain.
    pub(super) refused: BTreeMap<String, BudgetError>,
}

/// The endpoints of a cluster do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.endpoints.subsets: {size} bytes, but the endpoints of all clusters together have at most {budget} bytes and \
     {used} are used by the others"
)]
pub(super) struct BudgetError {
    size: usize,
    used: usize,
    budget: usize,
}

/// Fits the endpoints into the budget: first the shares that clusters have already, then new endpoints, those of the
/// oldest export first.
pub(super) fn fit(candidates: Vec<Candidate<'_>>, current: Option<&EndpointsImport>) -> Fit {
    fit_within(BUDGET, candidates, current)
}

fn fit_within(budget: usize, mut candidates: Vec<Candidate<'_>>, current: Option<&EndpointsImport>) -> Fit {
    let bounds = candidates.iter().map(|candidate| size_bound(&candidate.subsets));
    if bounds.sum::<Option<usize>>().is_some_and(|sum| sum <= budget) {
        let accepted = candidates.into_iter().map(|c| (c.cluster, c.subsets));
        return Fit {
            clusters: by_cluster(accepted.collect()),
            refused: BTreeMap::new(),
        };
    }
    let mut shares: BTreeMap<&str, &[EndpointSubset]> = BTreeMap::new();
    for share in current.into_iter().flat_map(|import| &import.clusters) {
        shares.insert(&share.cluster_id, &share.subsets);
    }
    candidates.sort_by(|a, b| (a.since, a.cluster).cmp(&(b.since, b.cluster)));
    // With the size, and the part of it that the cluster has already.
    let sized: Vec<_> = candidates
        .into_iter()
        .map(|candidate| {
            let size = size_of(&candidate.subsets);
            let share = shares.get(candidate.cluster).map_or(0, |share| size_of(share));
            (candidate, size, share.min(size))
        })
        .collect();
    let mut used: usize = sized.iter().map(|(_, _, reserved)| reserved).sum();
    let (mut accepted, mut refused) = (BTreeMap::new(), BTreeMap::new());
    for (candidate, size, reserved) in sized {
        let others = used.saturating_sub(reserved);
        if size == reserved || others.saturating_add(size) <= budget {
            used = others.saturating_add(size);
            accepted.insert(candidate.cluster, candidate.subsets);
            continue;
        }
        let error = BudgetError {
            size,
            used: others,
            budget,
        };
        refused.insert(candidate.cluster.to_owned(), error);
        if let Some(share) = shares.get(candidate.cluster) {
            accepted.insert(candidate.cluster, share.to_vec());
        }
    }
    Fit {
        clusters: by_cluster(accepted),
        refused,
    }
}

fn by_cluster(accepted: BTreeMap<&str, Vec<EndpointSubset>>) -> Vec<ClusterEndpoints> {
    let clusters = accepted.into_iter().map(|(cluster, subsets)| ClusterEndpoints {
        cluster_id: cluster.to_owned(),
        subsets,
    });
    clusters.collect()
}

/// An upper bound of [`size_of`] without serialization, for the many small Services; `None` for subsets with fields
/// that our exporters do not write.
fn size_bound(subsets: &[EndpointSubset]) -> Option<usize> {
    /// Names of fields and punctuation of an address or a port.
    const FIELDS: usize = 100;
    /// The longest escape of a byte.
    const ESCAPE: usize = 6;
    let bytes = |texts: [Option<&str>; 3]| {
        let escaped = texts
            .into_iter()
            .flatten()
            .map(|text| text.len().saturating_mul(ESCAPE));
        escaped.fold(FIELDS, usize::saturating_add)
    };
    let mut bound = FIELDS;
    for subset in subsets {
        if subset.not_ready_addresses.is_some() {
            return None;
        }
        bound = bound.saturating_add(FIELDS);
        for address in subset.addresses.iter().flatten() {
            if address.target_ref.is_some() {
                return None;
            }
            let texts = [
                Some(address.ip.as_str()),
                address.hostname.as_deref(),
                address.node_name.as_deref(),
            ];
            bound = bound.saturating_add(bytes(texts));
        }
        for port in subset.ports.iter().flatten() {
            let texts = [&port.name, &port.protocol, &port.app_protocol].map(Option::as_deref);
            bound = bound.saturating_add(bytes(texts));
        }
    }
    Some(bound)
}

/// Bytes of JSON.
fn size_of(subsets: &[EndpointSubset]) -> usize {
    serde_json::to_vec(subsets).map_or(usize::MAX, |json| json.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A subset of `len` addresses of some 20 bytes each.
    fn subsets(len: usize) -> Vec<EndpointSubset> {
        let addresses =
            (0..len).map(|i| json!({ "ip": format!("10.{}.{}.{}", i >> 16, (i >> 8) & 255, i & 255) }));
        serde_json::from_value(
            json!([{ "addresses": addresses.collect::<Vec<_>>(), "ports": [{ "port": 80 }] }]),
        )
        .unwrap()
    }

    fn candidate(cluster: &'static str, age: i64, len: usize) -> Candidate<'static> {
        Candidate {
            cluster,
            since: Timestamp::from_second(1_700_000_000 - age).ok(),
            subsets: subsets(len),
        }
    }

    fn import(clusters: Vec<ClusterEndpoints>) -> EndpointsImport {
        EndpointsImport {
            subsets: clusters.iter().flat_map(|c| c.subsets.clone()).collect(),
            clusters,
        }
    }

    /// Number of addresses by cluster.
    fn lens(fit: &Fit) -> Vec<(&str, usize)> {
        let len = |c: &ClusterEndpoints| {
            c.subsets
                .iter()
                .flat_map(|s| s.addresses.iter().flatten())
                .count()
        };
        fit.clusters
            .iter()
            .map(|c| (c.cluster_id.as_str(), len(c)))
            .collect()
    }

    /// Room for some 50 addresses.
    const SMALL: usize = 1000;

    fn fit_small(candidates: Vec<Candidate<'_>>, current: Option<&EndpointsImport>) -> Fit {
        fit_within(SMALL, candidates, current)
    }

    #[test]
    fn an_oversized_export_is_refused_and_freezes_no_other() {
        let large = 100_000;
        let fitted = fit(vec![candidate("east", 9, large), candidate("west", 1, 3)], None);
        assert_eq!(lens(&fitted), [("west", 3)]);
        let error = fitted.refused["east"].to_string();
        assert!(
            error.starts_with("spec.endpoints.subsets: ") && error.contains("at most 614400 bytes"),
            "{error}"
        );
        // West changes, and east still has the endpoints that were accepted before.
        let current = import(fit(vec![candidate("east", 9, 5), candidate("west", 1, 3)], None).clusters);
        let both = vec![candidate("east", 9, large), candidate("west", 1, 4)];
        let fitted = fit(both, Some(&current));
        assert_eq!(lens(&fitted), [("east", 5), ("west", 4)]);
    }

    #[test]
    fn a_newcomer_displaces_no_cluster() {
        let current = import(fit_small(vec![candidate("east", 1, 30)], None).clusters);
        // An older export of another cluster that appears later, as after a restore.
        let both = || vec![candidate("east", 1, 30), candidate("old", 9, 40)];
        let fitted = fit_small(both(), Some(&current));
        assert_eq!(lens(&fitted), [("east", 30)]);
        assert!(fitted.refused.contains_key("old"));
        let unordered = fit_small(both(), None);
        assert_eq!(lens(&unordered), [("old", 40)], "the older one");
    }

    #[test]
    fn a_cluster_that_leaves_frees_its_share() {
        let current = import(fit_small(vec![candidate("east", 9, 40)], None).clusters);
        let fitted = fit_small(vec![candidate("west", 1, 40)], Some(&current));
        assert_eq!(lens(&fitted), [("west", 40)]);
    }

    proptest! {
        /// The bound is one, also for text that JSON escapes.
        #[test]
        fn the_bound_is_not_below_the_size(
            ips in proptest::collection::vec(any::<std::net::IpAddr>(), 0..5),
            text in any::<Option<String>>(),
            count in 0_usize..3,
        ) {
            let addresses: Vec<_> = ips.iter().map(|ip| json!({ "ip": ip, "hostname": text, "nodeName": text })).collect();
            let port = json!({ "port": 65_535, "name": text, "protocol": text, "appProtocol": text });
            let subset = json!({ "addresses": addresses, "ports": [port.clone(), port] });
            let subsets: Vec<EndpointSubset> = serde_json::from_value(json!(vec![subset; count])).unwrap();
            prop_assert!(size_bound(&subsets) >= Some(size_of(&subsets)));
        }

        /// The result fits, no export that does is refused, and one that shrinks or stays is accepted.
        #[test]
        fn the_result_fits(
            before in proptest::collection::vec(0_usize..60, 3),
            after in proptest::collection::vec(0_usize..60, 3),
        ) {
            let ids = ["a", "b", "c"];
            let all = |lens: &[usize]| {
                let all = ids.iter().zip(lens);
                all.map(|(id, len)| candidate(id, 1, *len)).collect::<Vec<_>>()
            };
            let current = import(fit_small(all(&before), None).clusters);
            let fitted = fit_small(all(&after), Some(&current));
            let total: usize = fitted.clusters.iter().map(|c| size_of(&c.subsets)).sum();
            prop_assert!(total <= SMALL, "{total}");
            for (id, len) in ids.iter().zip(&after) {
                let of = |clusters: &[ClusterEndpoints]| {
                    clusters.iter().find(|c| c.cluster_id == *id).map(|c| c.subsets.clone())
                };
                let share = of(&current.clusters).map_or(0, |subsets| size_of(&subsets));
                let size = size_of(&subsets(*len));
                if let Some(error) = fitted.refused.get(*id) {
                    prop_assert!(size > share && error.used + size > SMALL, "{error}");
                } else {
                    prop_assert_eq!(of(&fitted.clusters), Some(subsets(*len)));
                }
            }
        }
    }
}
