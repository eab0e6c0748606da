//! Which ServiceAccount is which member: what the admission policies ask (deploy/base/leader/admission.yaml).
//!
//! Pure, and of the ServiceAccounts alone: a member that claims another's ID in an object changes nothing here.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{ResourceExt, core::ObjectMeta};

use crate::{
    api::{names, validation},
    plan::{Plan, Side},
    world::{LeaderWorld, get},
};

/// Keeps the `ConfigMap`: names of `ServiceAccount`s to cluster IDs. One whose annotation is no ID has an empty one, and
/// may write nothing; one without the annotation is not there.
pub fn plan(world: &LeaderWorld, plan: &mut Plan) {
    let mut data = BTreeMap::new();
    for account in world.service_accounts.values() {
        let Some(id) = account.annotations().get(names::ANNOTATION_CLUSTER_ID) else {
            continue;
        };
        let checked = validation::dns_label(id, 63);
        if let Err(cause) = &checked {
            plan.notice(
                format!("ServiceAccount {}", account.name_any()),
                format!(
                    "annotation {}: {cause}; it may write nothing",
                    names::ANNOTATION_CLUSTER_ID
                ),
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
