//! Invariants about the writers of objects: `foreign` and `out-of-scope`.

use mc_api::names;
use mc_test_kit::fake_apiserver::store::{Actor, Change, StoredObject};
use serde_json::Value;

use crate::{
    invariants::{list, text},
    member_namespaces::is_copy,
    simulation::{Cluster, MEMBER_NAMESPACE},
};

/// An object without the parts that any writer may change.
fn comparable(stored: &StoredObject, status: bool) -> Value {
    let mut value = stored.value.clone();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
    }
    if status && let Some(map) = value.as_object_mut() {
        map.remove("status");
    }
    value
}

/// Adds the findings of the invariant `foreign`.
pub(crate) fn check_foreign(server: usize, actor: Actor, change: &Change, found: &mut Vec<String>) {
    let Some(old) = &change.old else { return };
    if old.creator == Actor::User {
        let published = matches!(
            (actor, server, change.resource.1.as_str()),
            (Actor::Leader, 0, "clustersets")
                | (
                    Actor::Member(_),
                    1..,
                    "clustersets" | "serviceexports" | "clusternetworkpolicies"
                )
        );
        if change.deleted || comparable(old, published) != comparable(&change.new, published) {
            found.push("foreign: the object".to_owned());
        }
        return;
    }
    if change.deleted {
        let held = list(old.meta("finalizers")).any(|f| f == "example.com/hold");
        if held {
            found.push("foreign: the finalizer".to_owned());
        }
        return;
    }
    let Some(users) = old.managed_fields.get(&("kubectl".to_owned(), false)) else {
        return;
    };
    let have = mc_test_kit::fake_apiserver::fields::leaf_fields(&change.new.value);
    let had = mc_test_kit::fake_apiserver::fields::leaf_fields(&old.value);
    for path in users {
        let metadata = ["labels", "annotations", "finalizers"]
            .iter()
            .any(|f| path.starts_with(&format!("\u{1}metadata\u{1}{f}\u{1}")));
        if metadata && had.get(path) != have.get(path) {
            found.push(format!(
                "foreign: {}",
                mc_test_kit::fake_apiserver::fields::display_path(path)
            ));
        }
    }
}

/// Adds the findings of the invariant `out-of-scope`.
pub(crate) fn check_scope(
    clusters: &[Cluster],
    server: usize,
    actor: Actor,
    change: &Change,
    found: &mut Vec<String>,
) {
    let plural = change.resource.1.as_str();
    let versions = || change.old.iter().chain([&change.new]);
    let right = match (actor, server) {
        (Actor::Leader, 0) => match plural {
            "resourceimports" => true,
            "clustersets" => change.old.is_some(),
            "resourceexports" if is_copy(&change.new) => true,
            "resourceexports" | "memberclusterannounces" => change
                .old
                .as_ref()
                .is_some_and(|old| old.value["spec"] == change.new.value["spec"]),
            _ => !["secrets", "serviceaccounts"].contains(&plural),
        },
        (Actor::Member(i), 0) => {
            // Former IDs of the cluster are allowed: its controller also ends former memberships.
            let id = &clusters[i].id;
            match plural {
                "memberclusterannounces" => versions().all(|a| {
                    let reply = text(&a.value["clusterID"]);
                    is_own_id(&reply, id) && change.key.1 == names::member_announce(&reply)
                }),
                "resourceexports" => versions().all(|e| {
                    let reply = text(&e.value["spec"]["clusterID"]);
                    is_own_id(&reply, id)
                        && e.label(names::LABEL_SOURCE_CLUSTER_ID) == Some(&reply)
                        && change.key.1.starts_with(&format!("{reply}-"))
                }),
                _ => false,
            }
        }
        (Actor::Member(i), server) if server == i => match plural {
            "gateways" | "clusterinfoimports" => change.key.0 == MEMBER_NAMESPACE,
            "services" => versions().all(|s| s.annotation(names::ANNOTATION_IMPORTED_SERVICE).is_some()),
            "endpointslices" => {
                versions().all(|s| s.label(names::LABEL_MANAGED_BY) == Some(names::MANAGED_BY))
            }
            _ => !["secrets", "nodes", "namespaces"].contains(&plural),
        },
        _ => false,
    };
    if !right {
        found.push("out-of-scope".to_owned());
    }
}

/// A cluster has its ID, or after rejoining the same with a suffix.
pub(crate) fn is_own_id(reply: &str, id: &str) -> bool {
    reply == id || reply.strip_suffix("-2") == Some(id)
}
