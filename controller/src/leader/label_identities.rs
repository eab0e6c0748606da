//! Label identities: one ID for each label, the same in all clusters of the set.
//!
//! Guarantees, under repeated, lost and delayed writes and restarts of the leader:
//! - an import has an ID only after the store ([`super::label_id_store`]) has the allocation; so no two labels ever
//!   have one ID, and a label that is exported again has its former ID;
//! - a label that is no longer exported keeps its import for [`GRACE_PERIOD`], without clusters, and its ID for the
//!   quarantine after that;
//! - an import names the clusters that export its label, and no other ([`super::label_imports`]).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use mc_api::{
    label_identity::{self, MAX_ID, MIN_ID, digest, object_name},
    names,
    resource_export::{ResourceExport, kind as export_kind},
};

use super::{
    label_id_store::{Allocation, LabelIdStore, SHARD_SIZE, shard_of},
    label_imports::{ExportedLabel, GRACE_PERIOD, Imports, delete_unwanted, write_imports},
    resources::{is_active, remove_finalizer},
};
use crate::{
    issue_code::IssueCode,
    plan::Plan,
    snapshot::{LeaderSnapshot, api_time},
};

/// Plans one import with an ID for each exported label.
pub fn plan(snapshot: &LeaderSnapshot, plan: &mut Plan) {
    plan_up_to(snapshot, MAX_ID, plan);
}

/// Like [`plan`], with IDs up to `last`.
pub(super) fn plan_up_to(snapshot: &LeaderSnapshot, last: u32, plan: &mut Plan) {
    let exports: Vec<_> = snapshot
        .exports
        .values()
        .filter(|e| e.spec.kind == export_kind::LABEL_IDENTITY)
        .map(AsRef::as_ref)
        .collect();
    // Released at once: the grace period outlives the export, and exports of Antrea have no finalizer either.
    for export in &exports {
        remove_finalizer(export, plan);
    }
    let Some(shards) = snapshot
        .label_id_shards
        .as_ref()
        .filter(|_| snapshot.config.stretched_network_policy)
    else {
        let count = exports.iter().filter(|e| is_active(e)).count();
        if count > 0 {
            plan.issue(
                IssueCode::LabelsDisabled,
                "enableStretchedNetworkPolicy",
                format!("not enabled here: {count} label identities of members are ignored"),
            );
        }
        return;
    };
    let stored = LabelIdStore::read(&snapshot.namespace, shards, plan);
    let imports = Imports::read(snapshot, plan);
    let wanted = wanted(&exports, &imports, plan);
    let mut next = stored.clone();
    let ids = known_ids(snapshot, &mut next, &imports, &wanted);
    let ids = allocate(snapshot, last, &mut next, &imports, &wanted, ids, plan);
    next.prune(&stored, |id, allocation| {
        ids.get(&allocation.digest) != Some(&id) && is_expired(snapshot, &imports, id, allocation)
    });
    next.write(snapshot, &stored, plan);
    write_imports(snapshot, &stored, &imports, &wanted, &ids, plan);
    delete_unwanted(snapshot, &stored, &imports, &wanted, plan);
}

/// The exported labels by digest. Invalid exports are reported and ignored.
fn wanted<'a>(
    exports: &[&'a ResourceExport],
    imports: &Imports<'_>,
    plan: &mut Plan,
) -> BTreeMap<String, ExportedLabel<'a>> {
    let mut wanted: BTreeMap<String, ExportedLabel<'a>> = BTreeMap::new();
    let mut issues = vec![];
    for export in exports.iter().filter(|e| is_active(e)) {
        match parse_export(export) {
            Ok((digest, label)) => {
                let since = export.creation_timestamp();
                let known = wanted.entry(digest).or_insert_with(|| ExportedLabel {
                    label,
                    clusters: BTreeSet::new(),
                    since: since.clone(),
                });
                known.clusters.insert(&export.spec.cluster_id);
                known.since = known.since.clone().min(since);
            }
            Err(reason) => issues.push((format!("ResourceExport {}", export.name_any()), reason)),
        }
    }
    issues.extend(remove_hash_collisions(&mut wanted, imports));
    plan.issues(
        IssueCode::ExportRefused,
        "ResourceExports of kind LabelIdentity",
        issues,
    );
    wanted
}

/// Digest and label of an export whose fields, labels and name are consistent.
fn parse_export(export: &ResourceExport) -> Result<(String, &str), String> {
    let spec = &export.spec;
    let label =
        label_identity::parse_export(spec.label_identity.as_ref()).map_err(|e| format!("ignored: {e}"))?;
    if spec.cluster_id.is_empty() {
        return Err("ignored: spec.clusterID is empty".to_owned());
    }
    let digest = digest(label);
    let name = names::label_identity_export(&spec.cluster_id, object_name(&digest));
    if export.name_any() != name {
        return Err(format!(
            "ignored: spec.clusterID {:?} and this label belong to the name {name:?}",
            spec.cluster_id
        ));
    }
    match export.labels().get(names::LABEL_SOURCE_CLUSTER_ID) {
        Some(id) if *id != spec.cluster_id => Err(format!(
            "ignored: spec.clusterID {:?} is not the label {}, {id:?}",
            spec.cluster_id,
            names::LABEL_SOURCE_CLUSTER_ID
        )),
        _ => Ok((digest, label)),
    }
}

/// Removes all but one of the labels with one name, which is a prefix of the digest. The imported label keeps the name.
fn remove_hash_collisions(
    wanted: &mut BTreeMap<String, ExportedLabel<'_>>,
    imports: &Imports<'_>,
) -> Vec<(String, String)> {
    let mut owners: BTreeMap<String, (bool, Option<Time>, String)> = BTreeMap::new();
    for (digest, label) in wanted.iter() {
        let is_imported = imports.valid.iter().any(|i| i.digest == *digest);
        let rank = (!is_imported, label.since.clone(), digest.clone());
        owners
            .entry(object_name(digest).to_owned())
            .and_modify(|old| *old = old.clone().min(rank.clone()))
            .or_insert(rank);
    }
    let losers: Vec<String> = wanted
        .keys()
        .filter(|d| {
            owners
                .get(object_name(d))
                .is_some_and(|(_, _, owner)| owner != *d)
        })
        .cloned()
        .collect();
    losers
        .iter()
        .filter_map(|digest| wanted.remove(digest).map(|w| (digest, w)))
        .map(|(digest, w)| {
            (
                format!("label {:?}", w.label),
                format!("ignored: another label has the hash {}, too", object_name(digest)),
            )
        })
        .collect()
}

/// The IDs of labels from the store and from imports that are not in the store, written by another leader before.
/// Updates the release times in the store.
fn known_ids(
    snapshot: &LeaderSnapshot,
    next: &mut LabelIdStore,
    imports: &Imports<'_>,
    wanted: &BTreeMap<String, ExportedLabel<'_>>,
) -> BTreeMap<String, u32> {
    let mut ids = BTreeMap::new();
    for import in &imports.valid {
        let is_owner = match next.get(import.id) {
            _ if next.is_frozen(import.id) => true,
            Some(allocation) => allocation.digest == import.digest,
            None => {
                next.set(import.id, Allocation::new(&import.digest));
                true
            }
        };
        if is_owner {
            ids.insert(import.digest.clone(), import.id);
        }
    }
    for (digest, id) in &imports.misnamed {
        if next.get(*id).is_none() {
            next.set(*id, Allocation::new(digest));
        }
    }
    // Allocations without an import yet; of two for one label the lowest ID.
    let imported: BTreeSet<String> = ids.keys().cloned().collect();
    for (id, allocation) in next.iter() {
        let digest = &allocation.digest;
        if wanted.contains_key(digest) && !imported.contains(digest) && !ids.contains_key(digest) {
            ids.insert(digest.clone(), id);
        }
    }
    update_releases(snapshot, next, imports, |id, digest| {
        wanted.contains_key(digest) && ids.get(digest) == Some(&id)
    });
    ids
}

/// Clears the release time of IDs in use and sets that of the others.
fn update_releases(
    snapshot: &LeaderSnapshot,
    next: &mut LabelIdStore,
    imports: &Imports<'_>,
    in_use: impl Fn(u32, &str) -> bool,
) {
    let now = api_time(snapshot.now).0;
    let mut changes = vec![];
    for (id, allocation) in next.iter() {
        let released_at = match allocation.released_at {
            _ if in_use(id, &allocation.digest) => None,
            None => Some(now),
            // The clock was set back.
            Some(at) if at > now => Some(now),
            // The import has outlived its grace period: the quarantine begins with its deletion.
            Some(at) if imports.ids.contains(&id) && now.duration_since(at) > GRACE_PERIOD + GRACE_PERIOD => {
                now.checked_sub(GRACE_PERIOD).ok()
            }
            Some(at) => Some(at),
        };
        if released_at != allocation.released_at {
            let digest = allocation.digest.clone();
            changes.push((id, Allocation { digest, released_at }));
        }
    }
    for (id, allocation) in changes {
        next.set(id, allocation);
    }
}

/// The end of the quarantine of an ID.
fn quarantine_end(snapshot: &LeaderSnapshot, released_at: Timestamp) -> Timestamp {
    released_at
        .checked_add(GRACE_PERIOD + snapshot.config.quarantine)
        .unwrap_or(Timestamp::MAX)
}

/// Whether the quarantine of an ID is over and no import has it.
fn is_expired(snapshot: &LeaderSnapshot, imports: &Imports<'_>, id: u32, allocation: &Allocation) -> bool {
    let released_at = allocation.released_at;
    !imports.ids.contains(&id) && released_at.is_some_and(|at| quarantine_end(snapshot, at) <= snapshot.now)
}

/// Allocates the lowest free IDs to labels without one, the oldest first.
fn allocate(
    snapshot: &LeaderSnapshot,
    last: u32,
    next: &mut LabelIdStore,
    imports: &Imports<'_>,
    wanted: &BTreeMap<String, ExportedLabel<'_>>,
    mut ids: BTreeMap<String, u32>,
    plan: &mut Plan,
) -> BTreeMap<String, u32> {
    let mut without: Vec<_> = wanted.iter().filter(|(d, _)| !ids.contains_key(*d)).collect();
    without.sort_by_key(|(digest, w)| (w.since.clone(), *digest));
    let mut id = MIN_ID;
    for (digest, _) in &without {
        while id <= last && !is_free(snapshot, next, imports, id) {
            id = if next.is_frozen(id) {
                (shard_of(id) + 1) * SHARD_SIZE
            } else {
                id + 1
            };
        }
        if id > last {
            break;
        }
        next.set(id, Allocation::new(digest));
        ids.insert((*digest).clone(), id);
        id += 1;
    }
    let pending = without.iter().filter(|(d, _)| !ids.contains_key(*d)).count();
    if pending > 0 {
        let quarantined: Vec<_> = next
            .iter()
            .filter_map(|(_, a)| Some(quarantine_end(snapshot, a.released_at?)))
            .collect();
        plan.issue(
            IssueCode::LabelIdsExhausted,
            "label identities",
            format!(
                "no ID is free for {pending} labels: all {last} are allocated, {} of them in quarantine",
                quarantined.len()
            ),
        );
        if let Some(first) = quarantined.into_iter().filter(|at| *at > snapshot.now).min() {
            plan.requeue_at(first);
        }
    }
    ids
}

fn is_free(snapshot: &LeaderSnapshot, next: &LabelIdStore, imports: &Imports<'_>, id: u32) -> bool {
    !next.is_frozen(id)
        && !imports.ids.contains(&id)
        && next
            .get(id)
            .is_none_or(|allocation| is_expired(snapshot, imports, id, allocation))
}
