//! The tables of label identities: the class of each number, and the clusters that export it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mc_gateway_common::abi::IDENTITY_HOST;
use mc_gateway_common::abi::policy::{IDENTITIES, LabelIdentity, MAX_IDENTITIES};

use crate::identity_objects::IdentityInfo;
use crate::objects::FieldError;
use crate::policy::tables::UNMATCHED_CLASS;

/// The entries of `mc_identities` and `mc_exporters` in one half. Identities with the same exporters share their set:
/// the number of sets depends on the clusters, not on the identities.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IdentityTables {
    /// By number.
    pub(super) identities: BTreeMap<u32, LabelIdentity>,
    /// Number of a set and ID of a cluster in it.
    pub(super) exporters: BTreeSet<(u32, u64)>,
}

/// The tables of the identities that have a class. `remotes` are the other clusters. A list of clusters that is
/// absent, as from an Antrea leader, stands for all of them. A cluster that exports identities has hosts without one.
pub(super) fn identity_tables(
    classes: &BTreeMap<u32, u32>,
    identities: &[Arc<IdentityInfo>],
    remotes: &BTreeSet<String>,
    cluster_id: impl Fn(&str) -> u64,
) -> IdentityTables {
    let all: Vec<&str> = remotes.iter().map(AsRef::as_ref).collect();
    let mut exporters: BTreeMap<u32, Vec<&str>> = BTreeMap::new();
    let mut with_hosts: BTreeSet<&str> = BTreeSet::new();
    for info in identities.iter().filter(|info| has_slot(info.id)) {
        if !classes.contains_key(&info.id) {
            continue;
        }
        let named = exporters.entry(info.id).or_default();
        match &info.clusters {
            None => named.extend(&all),
            Some(clusters) => {
                let clusters = clusters.iter().filter(|cluster| remotes.contains(*cluster));
                named.extend(clusters.map(String::as_str));
            }
        }
        // Two objects may have the number and the label.
        named.sort_unstable();
        named.dedup();
        named.shrink_to_fit();
        with_hosts.extend(&*named);
    }
    if !exporters.is_empty() {
        exporters.insert(IDENTITY_HOST, with_hosts.into_iter().collect());
    }
    let sets: BTreeSet<&[&str]> = exporters.values().map(AsRef::as_ref).collect();
    let sets: BTreeMap<&[&str], u32> = sets.into_iter().zip(0..).collect();
    let identities = exporters.iter().filter_map(|(id, clusters)| {
        let identity = LabelIdentity {
            class: classes.get(id).copied().unwrap_or(UNMATCHED_CLASS),
            exporters: *sets.get(&**clusters)?,
        };
        Some((*id, identity))
    });
    let members = sets.iter().flat_map(|(clusters, set)| {
        let ids = clusters.iter().map(|cluster| cluster_id(cluster));
        ids.map(|cluster| (*set, cluster))
    });
    IdentityTables {
        identities: identities.collect(),
        exporters: members.collect(),
    }
}

/// Whether `mc_identities` has a slot for the number.
const fn has_slot(identity: u32) -> bool {
    identity < MAX_IDENTITIES
}

/// The lowest of the identities without a slot in `mc_identities`. Their Pods are unknown senders.
pub(super) fn without_slot(identities: &[Arc<IdentityInfo>]) -> Option<FieldError> {
    let ids = identities.iter().map(|info| info.id);
    let without: BTreeSet<u32> = ids.filter(|id| !has_slot(*id)).collect();
    Some(FieldError {
        object: "this Node".to_owned(),
        field: format!("map {IDENTITIES}"),
        value: without.first()?.to_string(),
        reason: format!(
            "is not below {MAX_IDENTITIES}: Pods with this label identity in other clusters are unknown senders ({} \
             identities)",
            without.len()
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An identity of clusters that the leader names, or of any.
    fn info(id: u32, clusters: Option<&[&str]>) -> Arc<IdentityInfo> {
        Arc::new(IdentityInfo {
            name: format!("label-{id}"),
            label_name: format!("label-{id}"),
            id,
            label: String::new(),
            clusters: clusters.map(|names| names.iter().map(ToString::to_string).collect()),
        })
    }

    /// The tables in the ClusterSet of north, south and west, with class 10 + the last digit for each identity.
    fn tables(infos: &[Arc<IdentityInfo>]) -> IdentityTables {
        let classes = infos.iter().map(|info| (info.id, 10 + info.id % 10));
        let classes = classes.chain([(IDENTITY_HOST, UNMATCHED_CLASS)]).collect();
        let remotes = ["north", "south", "west"].map(String::from).into();
        identity_tables(&classes, infos, &remotes, |cluster| {
            u64::from(cluster.as_bytes()[0])
        })
    }

    fn exporters(tables: &IdentityTables, id: u32) -> Vec<char> {
        let set = tables.identities[&id].exporters;
        let of_set = tables.exporters.iter().filter(|(number, _)| *number == set);
        of_set
            .map(|(_, cluster)| char::from(u8::try_from(*cluster).unwrap()))
            .collect()
    }

    #[test]
    fn identities_share_their_sets_of_exporters() {
        let west: &[&str] = &["west"];
        let mut infos: Vec<_> = (1..=1_000).map(|id| info(id, Some(west))).collect();
        infos.extend((1_001..=2_000).map(|id| info(id, Some(&["north", "west"]))));
        let tables = tables(&infos);
        assert_eq!(tables.identities.len(), 2_001);
        assert_eq!(tables.exporters.len(), 3, "west, and north with west");
        assert_eq!(exporters(&tables, 7), ['w']);
        assert_eq!(exporters(&tables, 1_001), ['n', 'w']);
        assert_eq!(exporters(&tables, IDENTITY_HOST), ['n', 'w']);
        assert_eq!(tables.identities[&7].class, 17);
        assert_eq!(tables.identities[&IDENTITY_HOST].class, UNMATCHED_CLASS);
    }

    #[test]
    fn an_identity_of_no_known_cluster_has_an_empty_set() {
        let tables = tables(&[info(1, Some(&["east", "left"])), info(2, Some(&[]))]);
        assert_eq!(exporters(&tables, 1), []);
        assert_eq!(exporters(&tables, 2), []);
        assert_eq!(exporters(&tables, IDENTITY_HOST), []);
    }

    #[test]
    fn the_clusters_of_equal_numbers_are_added() {
        let tables = tables(&[
            info(1, Some(&["west"])),
            info(1, Some(&["north", "west"])),
            info(2, None),
        ]);
        assert_eq!(exporters(&tables, 1), ['n', 'w']);
        assert_eq!(exporters(&tables, 2), ['n', 's', 'w']);
    }

    #[test]
    fn an_identity_without_a_slot_is_an_issue() {
        let last = info(MAX_IDENTITIES - 1, None);
        let beyond = [info(MAX_IDENTITIES + 5, None), info(MAX_IDENTITIES, None), last];
        let tables = tables(&beyond);
        assert_eq!(
            tables.identities.keys().copied().collect::<Vec<_>>(),
            [0, MAX_IDENTITIES - 1]
        );
        let issue = without_slot(&beyond).unwrap().to_string();
        assert!(
            issue.contains("131072") && issue.contains("2 identities"),
            "{issue}"
        );
        assert_eq!(without_slot(&[info(1, None)]), None);
    }

    #[test]
    fn without_identities_the_tables_are_empty() {
        assert_eq!(tables(&[]), IdentityTables::default());
    }
}
