//! The binding of ServiceAccounts to cluster IDs, the parameter of the admission policies
//! (deploy/base/leader/admission.yaml).
//!
//! Pure, a function of the ServiceAccounts and the `ClusterSet` alone: no object of a member influences it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{names, validation};

use super::members;
use crate::{
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// The cluster IDs by names of `ServiceAccount`s. An invalid annotation is bound to the empty ID, which may write
/// nothing; an account without annotation and entry in `spec.members` is absent.
fn bindings(snapshot: &LeaderSnapshot, plan: &mut Plan) -> BTreeMap<String, String> {
    let mut data = BTreeMap::new();
    let listed = listed_bindings(snapshot, plan);
    for account in snapshot.service_accounts.values() {
        let annotation = account.annotations().get(names::ANNOTATION_CLUSTER_ID);
        let listed = listed.get(account.name_any().as_str()).copied();
        let Some(id) = annotation.map(String::as_str).or(listed) else {
            continue;
        };
        let report = |plan: &mut Plan, problem: String| {
            plan.issue(
                format!("ServiceAccount {}", account.name_any()),
                format!("annotation {}: {problem}", names::ANNOTATION_CLUSTER_ID),
            );
        };
        let checked = validation::dns_label(id, 63);
        if let Err(cause) = &checked {
            report(plan, format!("{cause}; it may write nothing"));
        }
        if let Some(listed) = listed.filter(|listed| *listed != id) {
            report(
                plan,
                format!("{id:?} differs from {listed:?} of spec.members; the annotation is used"),
            );
        }
        data.insert(account.name_any(), checked.unwrap_or_default().to_owned());
    }
    data
}

/// Plans the `ConfigMap` with the bindings, and returns them.
#[must_use]
pub fn plan(snapshot: &LeaderSnapshot, plan: &mut Plan) -> BTreeMap<String, String> {
    let bindings = bindings(snapshot, plan);
    let old = get(
        &snapshot.service_account_bindings,
        &snapshot.namespace,
        names::SERVICE_ACCOUNT_BINDINGS,
    );
    let data = Some(bindings.clone()).filter(|data| !data.is_empty());
    let same = old.is_some_and(|old| old.data.clone().filter(|data| !data.is_empty()) == data);
    if !same {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(names::SERVICE_ACCOUNT_BINDINGS.to_owned()),
                namespace: Some(snapshot.namespace.clone()),
                ..ObjectMeta::default()
            },
            data,
            ..ConfigMap::default()
        };
        plan.apply(ApiServer::Local, &map);
    }
    bindings
}

/// The bindings of `spec.members[].serviceAccount`, the older form. An account listed for several members is bound to
/// none of them.
fn listed_bindings<'a>(snapshot: &'a LeaderSnapshot, plan: &mut Plan) -> BTreeMap<&'a str, &'a str> {
    let mut listed: BTreeMap<&str, &str> = BTreeMap::new();
    let mut shared = BTreeSet::new();
    let Some(set) = members::current_cluster_set(snapshot) else {
        return listed;
    };
    for (i, member) in set.spec.members.iter().enumerate() {
        if member.service_account.is_empty() {
            continue;
        }
        if let Err(cause) = validation::dns_label(&member.cluster_id, 63) {
            let subject = format!("ClusterSet {}", set.name_any());
            plan.issue(subject, format!("spec.members[{i}].clusterID: {cause}; ignored"));
            continue;
        }
        let other = listed.insert(&member.service_account, &member.cluster_id);
        if other.is_some_and(|other| other != member.cluster_id) {
            shared.insert(member.service_account.as_str());
        }
    }
    for account in shared {
        listed.remove(account);
        plan.issue(
            format!("ClusterSet {}", set.name_any()),
            format!("spec.members: several have the ServiceAccount {account:?}; it is bound to none of them"),
        );
    }
    listed
}
