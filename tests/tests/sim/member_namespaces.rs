//! A member with a Namespace of its own in the leader cluster.

use std::sync::Arc;

use mc_api::names;
use mc_test_kit::fake_apiserver::store::{Key, Store, StoredObject};
use serde_json::json;

use crate::{
    invariants::{antrea, core},
    simulation::{LEADER_NAMESPACE, Simulation},
};

impl Simulation {
    /// Creates or updates the Namespace of a member with its own.
    pub(crate) fn write_member_namespace(&mut self, server: usize, id: &str) {
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {
                "name": self.leader_namespace(server),
                "labels": { names::LABEL_MEMBER_NAMESPACE_OF: LEADER_NAMESPACE },
                "annotations": { names::ANNOTATION_CLUSTER_ID: id },
            },
        });
        self.write_as_user(0, &core("namespaces"), "", &namespace);
    }

    /// The Namespace of a member's objects in the leader cluster.
    pub(crate) fn leader_namespace(&self, server: usize) -> String {
        if self.separate == Some(server) {
            format!("member-{server}")
        } else {
            LEADER_NAMESPACE.to_owned()
        }
    }
}

/// Whether an export is a copy by the leader.
pub(crate) fn is_copy(export: &StoredObject) -> bool {
    export.label(names::LABEL_COPIED_FROM).is_some()
}

/// The imports that the leader has merged, without copies.
pub(crate) fn merged_imports(leader: &Store) -> impl Iterator<Item = (&Key, &Arc<StoredObject>)> {
    let imports = leader.all(&antrea("resourceimports"));
    imports.filter(|(key, _)| key.0 == LEADER_NAMESPACE)
}

/// The differences after convergence between the imports and their copies in the Namespace of a member, and between
/// the exports that members read and their copies.
pub(crate) fn differences(world: &Simulation, is_ours: impl Fn(&Key) -> bool) -> Vec<String> {
    let Some(server) = world.separate else {
        return vec![];
    };
    let (leader, namespace) = (&world.clusters[0].store, world.leader_namespace(server));
    if leader
        .get(&core("namespaces"), &(String::new(), namespace.clone()))
        .is_none()
    {
        return vec![];
    }
    let all = leader.all(&antrea("resourceimports"));
    let copies: Vec<_> = all
        .filter(|(key, _)| key.0 == namespace)
        .map(|(key, import)| (&key.1, &import.value["spec"]))
        .collect();
    let originals: Vec<_> = merged_imports(leader)
        .filter(|(key, _)| is_ours(key))
        .map(|(key, import)| (&key.1, &import.value["spec"]))
        .collect();
    let mut wrong = vec![];
    if copies != originals {
        wrong.push(format!(
            "imports of {namespace}: {copies:?} instead of {originals:?}"
        ));
    }
    let read = |export: &StoredObject| {
        ["PolicySelectors", "ImportFailures"]
            .contains(&export.value["spec"]["kind"].as_str().unwrap_or_default())
    };
    let exports = || {
        leader
            .all(&antrea("resourceexports"))
            .filter(|(_, export)| read(export))
    };
    for (key, original) in exports().filter(|(_, export)| !is_copy(export)) {
        let target = if key.0 == namespace {
            LEADER_NAMESPACE
        } else {
            &namespace
        };
        let copy = exports().find(|(other, export)| is_copy(export) && other.0 == target && other.1 == key.1);
        let label = |export: &StoredObject| export.label(names::LABEL_EXPORTS_COMPLETE).map(str::to_owned);
        let is_equal = copy.is_some_and(|(_, copy)| {
            copy.value["spec"] == original.value["spec"] && label(copy) == label(original)
        });
        if !is_equal {
            wrong.push(format!("the copy of {key:?} in {target} differs: {copy:?}"));
        }
    }
    wrong
}
