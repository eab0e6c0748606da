//! Which ServiceAccount is which member: what the admission policies ask (deploy/base/leader/admission.yaml).
//!
//! Pure, and of the ServiceAccounts and the `ClusterSet` alone: a member that claims another's ID in an object changes nothing here.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ObjectMeta};

use super::members;
use crate::{
    api::{names, validation},
    plan::{Plan, Side},
    world::{LeaderWorld, get},
};

/// Keeps the `ConfigMap`: names of `ServiceAccount`s to cluster IDs. One whose annotation is no ID has an empty one, and
/// may write nothing; one without the annotation, which the `ClusterSet` does not bind in its older form either, is not
/// there.
pub fn plan(world: &LeaderWorld, plan: &mut Plan) {
    let mut data = BTreeMap::new();
    let listed = listed(world, plan);
    for account in world.service_accounts.values() {
        let annotation = account.annotations().get(names::ANNOTATION_CLUSTER_ID);
        let listed = listed.get(account.name_any().as_str()).copied();
        let Some(id) = annotation.map(String::as_str).or(listed) else {
            continue;
        };
        let tell = |plan: &mut Plan, what: String| {
            let subject = format!("ServiceAccount {}", account.name_any());
            plan.notice(
                subject,
                format!("annotation {}: {what}", names::ANNOTATION_CLUSTER_ID),
            );
        };
        let checked = validation::dns_label(id, 63);
        if let Err(cause) = &checked {
            tell(plan, format!("{cause}; it may write nothing"));
        }
        if let Some(listed) = listed.filter(|listed| *listed != id) {
            tell(
                plan,
                format!("{id:?} is not the {listed:?} of spec.members; the annotation counts"),
            );
        }
        data.insert(account.name_any(), checked.unwrap_or_default().to_owned());
    }
    let old = get(&world.identities, &world.namespace, names::MEMBER_IDENTITIES);
    let data = Some(data).filter(|data| !data.is_empty());
    let same = old.is_some_and(|old| old.data.clone().filter(|data| !data.is_empty()) == data);
    if !same {
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(names::MEMBER_IDENTITIES.to_owned()),
                namespace: Some(world.namespace.clone()),
                ..ObjectMeta::default()
            },
            data,
            ..ConfigMap::default()
        };
        plan.apply(Side::Local, &map);
    }
}

/// Whom the `ClusterSet` binds, in its older form: `spec.members[].serviceAccount`. One that several members share is
/// nobody's, as it is without the annotation.
fn listed<'a>(world: &'a LeaderWorld, plan: &mut Plan) -> BTreeMap<&'a str, &'a str> {
    let mut listed: BTreeMap<&str, &str> = BTreeMap::new();
    let mut shared = BTreeSet::new();
    let Some(set) = members::current(world) else {
        return listed;
    };
    for (i, member) in set.spec.members.iter().enumerate() {
        if member.service_account.is_empty() {
            continue;
        }
        if let Err(cause) = validation::dns_label(&member.cluster_id, 63) {
            let subject = format!("ClusterSet {}", set.name_any());
            plan.notice(subject, format!("spec.members[{i}].clusterID: {cause}; ignored"));
            continue;
        }
        let other = listed.insert(&member.service_account, &member.cluster_id);
        if other.is_some_and(|other| other != member.cluster_id) {
            shared.insert(member.service_account.as_str());
        }
    }
    for account in shared {
        listed.remove(account);
        plan.notice(
            format!("ClusterSet {}", set.name_any()),
            format!("spec.members: several have the ServiceAccount {account:?}; it is bound to none of them"),
        );
    }
    listed
}
