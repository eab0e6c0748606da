//! Invariants on objects that are being deleted.
//!
//! | violation | cause |
//! |---|---|
//! | written-while-deleted | a controller changes the spec of an object that is being deleted |
//! | released-early | the leader releases an export whose import still has its cluster and is older than any list |

use jiff::Timestamp;
use mc_api::names;
use mc_test_kit::fake_apiserver::store::{Actor, Change};
use serde_json::Value;

use crate::{
    invariants::{antrea, list, service_key, text},
    member_namespaces::merged_imports,
    simulation::{Cluster, MAX_LIST_AGE},
};

/// Checks a write of a controller to an object that was being deleted before. A leader that was restored from a
/// snapshot may know newer objects.
pub(crate) fn check(
    leader: &Cluster,
    actor: Actor,
    change: &Change,
    is_restored: bool,
    now: Timestamp,
    found: &mut Vec<String>,
) {
    let Some(old) = change.old.as_ref().filter(|old| old.is_terminating()) else {
        return;
    };
    if !change.deleted && old.value["spec"] != change.new.value["spec"] {
        found.push("written-while-deleted".to_owned());
    }
    if change.deleted && actor == Actor::Leader && change.resource.1 == "resourceexports" && !is_restored {
        let spec = &old.value["spec"];
        let listed_since = now.checked_sub(MAX_LIST_AGE).unwrap_or(now).to_string();
        let mut imports = merged_imports(&leader.store)
            .filter(|(_, import)| text(import.meta("creationTimestamp")) < listed_since);
        let is_imported = match spec["kind"].as_str() {
            Some("ClusterInfo") => imports
                .any(|(_, import)| import.value["spec"]["clusterinfo"]["clusterID"] == spec["clusterID"]),
            // The import of a name that another Service takes over is changed in the same plan.
            Some("Endpoints") if shares_name(leader, spec) => false,
            Some("Endpoints") => imports.any(|(_, import)| {
                let import = &import.value["spec"];
                let is_same = service_key(import) == service_key(spec);
                let mut clusters = list(&import["endpoints"]["clusters"]);
                is_same && clusters.any(|cluster| cluster["clusterID"] == spec["clusterID"])
            }),
            _ => false,
        };
        if is_imported {
            found.push("released-early".to_owned());
        }
    }
}

/// Whether a Service of another Namespace is exported whose import has the same name.
fn shares_name(leader: &Cluster, spec: &Value) -> bool {
    let import = |spec: &Value| {
        let (namespace, name) = service_key(spec);
        names::endpoints_import(&namespace, &name)
    };
    let mut exports = leader.store.all(&antrea("resourceexports"));
    exports.any(|(_, export)| {
        let other = &export.value["spec"];
        other["kind"] == "Endpoints"
            && other["namespace"] != spec["namespace"]
            && import(other) == import(spec)
    })
}
