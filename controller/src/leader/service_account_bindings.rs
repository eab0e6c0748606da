//! The binding of ServiceAccounts to cluster IDs, the parameter of the admission policies
//! (deploy/base/leader/admission.yaml).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{names, validation};
use serde_json::{Map, Value, json};

use super::{
    account_bindings::{self, AccountBindings},
    first_use, members,
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// The value of [`names::ANNOTATION_ACCOUNT_BINDING`] on an account of several clusters.
const SHARED: &str = "Shared";

/// The bindings of `spec.members[].serviceAccount`, the older form.
#[derive(Default)]
struct Listed<'a> {
    ids: BTreeMap<&'a str, &'a str>,
    /// Accounts of several members, which are bound to none of them.
    shared: BTreeSet<&'a str>,
}

/// Plans the `ConfigMap` with the bindings, and returns them.
pub fn plan(snapshot: &LeaderSnapshot, plan: &mut Plan) -> AccountBindings {
    let bindings = bindings(snapshot, plan);
    let old = get(
        &snapshot.service_account_bindings,
        &snapshot.namespace,
        names::SERVICE_ACCOUNT_BINDINGS,
    );
    let mode = snapshot.config.account_binding.as_str();
    let same = old.is_some_and(|old| {
        old.data.clone().unwrap_or_default() == bindings.ids
            && old
                .annotations()
                .get(names::ANNOTATION_ACCOUNT_BINDING)
                .map(String::as_str)
                == Some(mode)
    });
    if !same {
        write(snapshot, old, bindings.ids.clone(), plan);
    }
    bindings
}

/// Creates the `ConfigMap`, or changes the version that was read: another one may have newer bindings.
fn write(
    snapshot: &LeaderSnapshot,
    old: Option<&Arc<ConfigMap>>,
    ids: BTreeMap<String, String>,
    plan: &mut Plan,
) {
    let mode = snapshot.config.account_binding.as_str();
    let annotations = [(names::ANNOTATION_ACCOUNT_BINDING.to_owned(), mode.to_owned())];
    let Some(old) = old else {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(names::SERVICE_ACCOUNT_BINDINGS.to_owned()),
                namespace: Some(snapshot.namespace.clone()),
                annotations: Some(annotations.into()),
                ..ObjectMeta::default()
            },
            data: Some(ids),
            ..ConfigMap::default()
        };
        return plan.create(ApiServer::Local, &map);
    };
    let gone = old
        .data
        .iter()
        .flatten()
        .filter(|(account, _)| !ids.contains_key(*account));
    let mut data: Map<_, _> = gone.map(|(account, _)| (account.clone(), Value::Null)).collect();
    data.extend(ids.iter().map(|(account, id)| (account.clone(), json!(id))));
    let annotations: BTreeMap<_, _> = annotations.into();
    let patch = json!({ "metadata": { "annotations": annotations }, "data": data });
    plan.patch(ApiServer::Local, old.as_ref(), patch);
}

/// The annotation of an account is preferred to `spec.members`, and both to its first use. An account without any of
/// them is absent.
fn bindings(snapshot: &LeaderSnapshot, plan: &mut Plan) -> AccountBindings {
    let listed = Listed::of(snapshot, plan);
    let mut ids = BTreeMap::new();
    let mut open = BTreeSet::new();
    for account in snapshot.service_accounts.values() {
        let name = account.name_any();
        let annotation = account.annotations().get(names::ANNOTATION_CLUSTER_ID);
        let listed_id = listed.ids.get(name.as_str()).copied();
        let mut report = |problem: String| {
            plan.issue(
                IssueCode::InvalidAnnotation,
                format!("ServiceAccount {name}"),
                problem,
            );
        };
        let Some(id) = annotation.map(String::as_str).or(listed_id) else {
            let binding = account.annotations().get(names::ANNOTATION_ACCOUNT_BINDING);
            if let Some(value) = binding.filter(|value| *value != SHARED) {
                report(format!(
                    "annotation {}: {value:?} is not {SHARED}; ignored",
                    names::ANNOTATION_ACCOUNT_BINDING
                ));
            }
            let is_shared = binding.is_some_and(|value| value == SHARED)
                || listed.shared.contains(name.as_str())
                || name == names::ANTREA_SHARED_ACCOUNT;
            if !is_shared {
                open.insert(name);
            }
            continue;
        };
        let checked = validation::dns_label(id, 63);
        if let Err(cause) = &checked {
            report(format!(
                "annotation {}: {cause}; it may write nothing",
                names::ANNOTATION_CLUSTER_ID
            ));
        }
        if let Some(listed) = listed_id.filter(|listed| *listed != id) {
            report(format!(
                "annotation {}: {id:?} differs from {listed:?} of spec.members; the annotation is used",
                names::ANNOTATION_CLUSTER_ID
            ));
        }
        ids.insert(name, checked.unwrap_or_default().to_owned());
    }
    let mut bindings = first_use::bindings(snapshot, &ids, &open, plan);
    let bound: BTreeSet<_> = ids.values().chain(bindings.ids.values()).cloned().collect();
    withdraw_ambiguous(snapshot, &bound, &mut ids, plan);
    bindings.ids.extend(ids);
    bindings.ids.extend(account_bindings::of_namespaces(snapshot));
    bindings
}

/// Withdraws the right to write of accounts with an ID that is [ambiguous](names::is_ambiguous) beside that of a member
/// with a `bound` ID. A member without a bound account does not block an account of an administrator.
fn withdraw_ambiguous(
    snapshot: &LeaderSnapshot,
    bound: &BTreeSet<String>,
    ids: &mut BTreeMap<String, String>,
    plan: &mut Plan,
) {
    let members = members::accepted(snapshot);
    for (account, id) in ids {
        let blocks = |member: &&&str| bound.contains(**member) && names::is_ambiguous(member, id);
        let other = members.iter().find(blocks);
        if let Some(member) = other.filter(|_| !members.contains(id.as_str())) {
            plan.issue(
                IssueCode::AmbiguousClusterId,
                format!("ServiceAccount {account}"),
                format!(
                    "cluster ID {id:?} and that of member {member:?} differ by something behind a dash only; it may \
                     write nothing"
                ),
            );
            id.clear();
        }
    }
}

// === impl Listed ===

impl<'a> Listed<'a> {
    /// An account listed for several members is bound to none of them.
    fn of(snapshot: &'a LeaderSnapshot, plan: &mut Plan) -> Self {
        let mut listed = Self::default();
        let Some(set) = members::current_cluster_set(snapshot) else {
            return listed;
        };
        for (i, member) in set.spec.members.iter().enumerate() {
            if member.service_account.is_empty() {
                continue;
            }
            if let Err(cause) = validation::dns_label(&member.cluster_id, 63) {
                let subject = format!("ClusterSet {}", set.name_any());
                plan.issue(
                    IssueCode::InvalidClusterSet,
                    subject,
                    format!("spec.members[{i}].clusterID: {cause}; ignored"),
                );
                continue;
            }
            let other = listed.ids.insert(&member.service_account, &member.cluster_id);
            if other.is_some_and(|other| other != member.cluster_id) {
                listed.shared.insert(member.service_account.as_str());
            }
        }
        for account in &listed.shared {
            listed.ids.remove(account);
            plan.issue(
                IssueCode::InvalidClusterSet,
                format!("ClusterSet {}", set.name_any()),
                format!(
                    "spec.members: several have the ServiceAccount {account:?}; it is bound to none of them"
                ),
            );
        }
        listed
    }
}
