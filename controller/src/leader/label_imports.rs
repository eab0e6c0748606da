//! The imports of label identities: label, ID and the clusters that export the label.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use mc_api::{
    label_identity::{self, ImportedIdentity, MAX_CLUSTERS, digest, object_name},
    resource_import::{ResourceImport, ResourceImportSpec, kind},
};
use serde_json::json;

use super::{
    label_id_store::{Allocation, LabelIdStore},
    resources::import,
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// How long a label that is not exported keeps its import: Pods may be restarting and lists may be stale.
pub const GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(30);

/// An exported label.
pub(super) struct ExportedLabel<'a> {
    pub(super) label: &'a str,
    /// The clusters with an active export.
    pub(super) clusters: BTreeSet<&'a str>,
    pub(super) since: Option<Time>,
}

/// An import with the label and the name that the leader would write.
pub(super) struct ValidImport<'a> {
    pub(super) object: &'a ResourceImport,
    pub(super) digest: String,
    pub(super) id: u32,
    clusters: Option<BTreeSet<&'a str>>,
}

/// All imports of this kind.
#[derive(Default)]
pub(super) struct Imports<'a> {
    pub(super) valid: Vec<ValidImport<'a>>,
    pub(super) invalid: Vec<&'a ResourceImport>,
    /// Digests and IDs of imports with a wrong name.
    pub(super) misnamed: Vec<(String, u32)>,
    /// All IDs of valid and misnamed imports.
    pub(super) ids: BTreeSet<u32>,
}

// === impl Imports ===

impl<'a> Imports<'a> {
    /// The imports in the snapshot, the oldest first: of two with one ID it keeps the ID. Invalid ones are reported.
    pub(super) fn read(snapshot: &'a LeaderSnapshot, plan: &mut Plan) -> Self {
        let mut all = Self::default();
        let mut issues = vec![];
        for object in snapshot
            .imports
            .values()
            .filter(|i| i.spec.kind == kind::LABEL_IDENTITY)
        {
            let reason = match label_identity::parse_import(object.spec.label_identity.as_ref()) {
                Ok(ImportedIdentity { label, id, clusters }) => {
                    all.ids.insert(id);
                    let digest = digest(label);
                    if object_name(&digest) == object.name_any() {
                        all.valid.push(ValidImport {
                            object,
                            digest,
                            id,
                            clusters,
                        });
                        continue;
                    }
                    all.misnamed.push((digest.clone(), id));
                    format!("this label belongs to the name {:?}", object_name(&digest))
                }
                Err(error) => error.to_string(),
            };
            issues.push((format!("ResourceImport {}", object.name_any()), reason));
            all.invalid.push(object);
        }
        plan.issues(
            IssueCode::LabelNotImported,
            "ResourceImports of kind LabelIdentity",
            issues,
        );
        all.valid
            .sort_by_key(|i| (i.object.creation_timestamp(), i.object.name_any()));
        all
    }
}

/// Plans the imports of exported labels, then the changes of clusters of all imports: in a batch, a new identity does
/// not wait for them.
pub(super) fn write_imports(
    snapshot: &LeaderSnapshot,
    stored: &LabelIdStore,
    imports: &Imports<'_>,
    wanted: &BTreeMap<String, ExportedLabel<'_>>,
    ids: &BTreeMap<String, u32>,
    plan: &mut Plan,
) {
    let before = plan.writes.len();
    for (digest, wanted) in wanted {
        if let Some(id) = ids.get(digest).filter(|_| plan.has_room(before)) {
            write_import(snapshot, stored, digest, *id, wanted, plan);
        }
    }
    for import in &imports.valid {
        if !plan.has_room(before) {
            return;
        }
        let allocation = stored.get(import.id);
        // An import whose record is unreadable keeps its ID.
        let is_recorded = allocation.map_or(stored.is_frozen(import.id), |a| a.digest == import.digest);
        let (is_kept, clusters) = match wanted.get(&import.digest) {
            Some(wanted) => (
                ids.get(&import.digest) == Some(&import.id)
                    && allocation.is_none_or(|a| a.released_at.is_none()),
                listed_clusters(wanted),
            ),
            // No cluster exports the label, although its import is kept for a while.
            None => (
                allocation
                    .and_then(grace_end)
                    .is_none_or(|end| end > snapshot.now),
                BTreeSet::new(),
            ),
        };
        if is_recorded && is_kept {
            write_clusters(import, &clusters, plan);
        }
    }
}

/// Plans the import of a label once the store has its allocation.
fn write_import(
    snapshot: &LeaderSnapshot,
    stored: &LabelIdStore,
    digest: &str,
    id: u32,
    wanted: &ExportedLabel<'_>,
    plan: &mut Plan,
) {
    let label = wanted.label;
    let unlisted = wanted.clusters.len().saturating_sub(MAX_CLUSTERS);
    if unlisted > 0 {
        plan.issue(
            IssueCode::TooManyLabelClusters,
            format!("label {label:?}"),
            format!("{unlisted} clusters are not in its import, which names {MAX_CLUSTERS} at most"),
        );
    }
    let is_stored = stored
        .get(id)
        .is_some_and(|a| a.digest == digest && a.released_at.is_none());
    if !is_stored {
        return;
    }
    let name = object_name(digest);
    let payload = json!({ "label": label, "id": id, "clusters": listed_clusters(wanted) });
    let spec = ResourceImportSpec {
        kind: kind::LABEL_IDENTITY.to_owned(),
        label_identity: Some(payload),
        ..ResourceImportSpec::default()
    };
    let new = import(&snapshot.namespace, name, spec);
    let Some(old) = get(&snapshot.imports, &snapshot.namespace, name) else {
        return plan.create(ApiServer::Local, &new);
    };
    if old.spec.kind != kind::LABEL_IDENTITY {
        return plan.issue(
            IssueCode::NameTaken,
            format!("label {label:?}"),
            format!(
                "has no ID: the name {name:?} is taken by a ResourceImport of kind {:?}",
                old.spec.kind
            ),
        );
    }
    let old_payload = label_identity::parse_import(old.spec.label_identity.as_ref());
    let is_current = matches!(&old_payload, Ok(old) if (old.label, old.id) == (label, id));
    // The import of another label with this hash is deleted first.
    let is_collision = matches!(&old_payload, Ok(other)
        if other.label != label && object_name(&self::digest(other.label)) == name);
    if !is_current && !is_collision && old.metadata.deletion_timestamp.is_none() {
        plan.apply(ApiServer::Local, &new);
    }
}

/// Plans the clusters of an import. Conditional on its resource version: a late write never creates an import again.
fn write_clusters(import: &ValidImport<'_>, clusters: &BTreeSet<&str>, plan: &mut Plan) {
    if import.clusters.as_ref() == Some(clusters) || import.object.metadata.deletion_timestamp.is_some() {
        return;
    }
    let patch = json!({ "spec": { "labelIdentity": { "clusters": clusters } } });
    plan.patch(ApiServer::Local, import.object, patch);
}

/// Deletes imports of labels that are not exported, after the grace period recorded in the store.
pub(super) fn delete_unwanted(
    snapshot: &LeaderSnapshot,
    stored: &LabelIdStore,
    imports: &Imports<'_>,
    wanted: &BTreeMap<String, ExportedLabel<'_>>,
    plan: &mut Plan,
) {
    let before = plan.writes.len();
    for import in imports.valid.iter().filter(|i| !wanted.contains_key(&i.digest)) {
        if !plan.has_room(before) {
            return;
        }
        if stored.is_frozen(import.id) {
            continue;
        }
        let Some(allocation) = stored.get(import.id) else {
            continue;
        };
        if allocation.digest != import.digest {
            // The ID was never allocated to this label.
            plan.delete(ApiServer::Local, import.object);
            continue;
        }
        let Some(end) = grace_end(allocation) else {
            continue;
        };
        if end <= snapshot.now {
            plan.delete(ApiServer::Local, import.object);
        } else {
            plan.requeue_at(end);
        }
    }
    for invalid in imports.invalid.iter().copied() {
        // An import with a wanted name is overwritten.
        if !wanted.keys().any(|d| object_name(d) == invalid.name_any()) {
            plan.delete(ApiServer::Local, invalid);
        }
    }
}

/// When the import of a label that is not exported is deleted.
fn grace_end(allocation: &Allocation) -> Option<Timestamp> {
    allocation
        .released_at
        .and_then(|at| at.checked_add(GRACE_PERIOD).ok())
}

/// The clusters in the import of a label. Those beyond the limit are not named and cannot claim the label.
fn listed_clusters<'a>(wanted: &ExportedLabel<'a>) -> BTreeSet<&'a str> {
    wanted.clusters.iter().copied().take(MAX_CLUSTERS).collect()
}
