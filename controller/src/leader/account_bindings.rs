//! The cluster IDs of `ServiceAccount`s in the leader cluster.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use mc_api::{member_cluster_announce::MemberClusterAnnounce, names};
use mc_kube::ObjectMap;

use crate::snapshot::{LeaderSnapshot, get};

/// The first character of keys in the `ConfigMap` that are the Namespaces of members: names of accounts have none.
const SEPARATE: char = '_';
/// The same of keys for clusters that count in their Namespace: accounts elsewhere may not write for them.
const RESERVED: char = '-';

/// The cluster IDs of `ServiceAccount`s.
#[derive(Debug, Default)]
pub struct AccountBindings {
    /// The IDs by names of accounts, and by keys of Namespaces of members. An account with the empty ID may write
    /// nothing.
    pub ids: BTreeMap<String, String>,
    /// The clusters that are accepted once their binding is recorded.
    pub unrecorded: BTreeSet<String>,
}

// === impl AccountBindings ===

impl AccountBindings {
    /// The account that an announce states, if it is bound to its cluster.
    #[must_use]
    pub fn bound_account<'a>(&self, announce: &'a MemberClusterAnnounce) -> Option<&'a str> {
        let stated = announce.annotations().get(names::ANNOTATION_SERVICE_ACCOUNT)?;
        let id = self.ids.get(stated)?;
        (*id == announce.cluster_id).then_some(stated.as_str())
    }
}

/// A cluster with the annotations that restrict it.
pub(super) struct RestrictedMember<'a> {
    /// The annotated object, for messages.
    pub(super) subject: String,
    /// The ID of the cluster; `None`: the object is bound to none.
    pub(super) cluster: Option<&'a str>,
    /// The annotations.
    pub(super) annotations: &'a BTreeMap<String, String>,
}

/// The bindings of Namespaces of members, by the keys of the `ConfigMap`.
pub(super) fn of_namespaces(snapshot: &LeaderSnapshot) -> BTreeMap<String, String> {
    let mut bindings = BTreeMap::new();
    for (namespace, member) in &snapshot.member_namespaces.members {
        bindings.insert(format!("{SEPARATE}{namespace}"), member.cluster_id.clone());
        if member.is_home {
            bindings.insert(format!("{RESERVED}{namespace}"), member.cluster_id.clone());
        }
    }
    bindings
}

/// Whether a key of the `ConfigMap` is that of an account.
pub(super) fn is_account(key: &str) -> bool {
    !key.starts_with([SEPARATE, RESERVED])
}

/// The keys and IDs in the `ConfigMap` of the leader in `namespace`.
pub(super) fn recorded<'a>(
    records: &'a ObjectMap<ConfigMap>,
    namespace: &str,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let record = get(records, namespace, names::SERVICE_ACCOUNT_BINDINGS);
    let data = record.and_then(|record| record.data.as_ref());
    data.into_iter()
        .flatten()
        .map(|(key, id)| (key.as_str(), id.as_str()))
}

/// The recorded Namespaces of members, with the ID of each.
#[must_use]
pub fn recorded_namespaces(records: &ObjectMap<ConfigMap>, namespace: &str) -> BTreeMap<String, String> {
    recorded(records, namespace)
        .filter_map(|(key, id)| Some((key.strip_prefix(SEPARATE)?.to_owned(), id.to_owned())))
        .collect()
}

/// The annotated objects of all members: the Namespace of a member that counts there, and the accounts of the others.
pub(super) fn restricted_members<'a>(
    snapshot: &'a LeaderSnapshot,
    bindings: &'a BTreeMap<String, String>,
) -> Vec<RestrictedMember<'a>> {
    let namespaces = &snapshot.member_namespaces;
    let accounts = snapshot.service_accounts.values().map(|account| {
        let id = bindings.get(&account.name_any()).map(String::as_str);
        RestrictedMember {
            subject: format!("ServiceAccount {}", account.name_any()),
            cluster: id.filter(|id| !id.is_empty()),
            annotations: account.annotations(),
        }
    });
    let in_common = accounts.filter(|account| {
        account
            .cluster
            .is_none_or(|cluster| namespaces.home(cluster).is_none())
    });
    let members = namespaces.members.iter().filter(|(_, member)| member.is_home);
    let members = members.filter_map(|(name, member)| {
        Some(RestrictedMember {
            subject: format!("Namespace {name}"),
            cluster: Some(member.cluster_id.as_str()),
            annotations: member.object.as_ref()?.annotations(),
        })
    });
    in_common.chain(members).collect()
}
