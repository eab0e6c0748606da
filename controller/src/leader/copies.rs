//! Copies for members with a Namespace of their own: of all imports, and of the exports that members read directly.
//!
//! Copies of exports go to the common Namespace as well, from the Namespaces of members. A copy is created for accepted
//! members only.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Namespace;
use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{
    import_failures::ImportFailures,
    names,
    policy_selectors::PolicySelectors,
    resource_export::{ResourceExport, ResourceExportSpec, kind},
    resource_import::ResourceImport,
};
use mc_kube::NamespacedName;

use super::{
    members,
    resources::{self, is_active},
};
use crate::{
    plan::{ApiServer, BATCH, Kind, Plan, WriteOp},
    snapshot::{LeaderSnapshot, get},
};

/// The labels by which members select and read them.
const COPIED_LABELS: [&str; 3] = [
    names::LABEL_SOURCE_CLUSTER_ID,
    names::LABEL_SOURCE_KIND,
    names::LABEL_EXPORTS_COMPLETE,
];

/// Plans the copies: a batch, of which each Namespace that lacks some has a share.
pub(super) fn plan(snapshot: &LeaderSnapshot, plan: &mut Plan) {
    let namespaces = &snapshot.member_namespaces;
    let is_active = |object: &Namespace| object.metadata.deletion_timestamp.is_none();
    let targets = namespaces.members.iter();
    let targets = targets.filter(|(_, member)| member.object.as_deref().is_none_or(is_active));
    let targets: BTreeSet<_> = targets.map(|(name, _)| name.as_str()).collect();
    let with_copies = namespaces
        .import_copies
        .keys()
        .chain(namespaces.export_copies.keys());
    let all: BTreeSet<_> = with_copies
        .map(|name| name.namespace.as_str())
        .chain(targets.iter().copied())
        .chain([snapshot.namespace.as_str()])
        .collect();
    let planned = PlannedImports::of(plan);
    let changes: BTreeMap<_, _> = all
        .iter()
        .filter(|target| **target != snapshot.namespace)
        .map(|target| {
            (
                *target,
                ImportChanges::of(snapshot, target, targets.contains(target), &planned),
            )
        })
        .collect();
    let busy = changes.values().filter(|changes| !changes.is_empty()).count();
    let share = (BATCH / 2).checked_div(busy).unwrap_or_default().max(1);
    for (target, changes) in &changes {
        changes.write(target, share, plan);
    }
    let exports = exports_to_copy(snapshot);
    let share = (BATCH / 4).checked_div(all.len()).unwrap_or_default().max(1);
    for target in all {
        let is_common = target == snapshot.namespace;
        let is_current =
            is_common || planned.is_empty && changes.get(target).is_none_or(ImportChanges::is_empty);
        let exports = exports.iter().filter(|export| export.source.namespace != target);
        let has_copies = is_common && !targets.is_empty() || targets.contains(target);
        let exports = exports.filter(|_| has_copies);
        copy_exports(snapshot, target, exports, is_current, share, plan);
    }
}

/// The imports that the plan changes in the common Namespace.
struct PlannedImports {
    /// The names of those that it creates or updates.
    kept: BTreeSet<String>,
    is_empty: bool,
}

// === impl PlannedImports ===

impl PlannedImports {
    fn of(plan: &Plan) -> Self {
        let writes = plan.writes.iter();
        let writes: Vec<_> = writes
            .filter(|write| write.target.kind == Kind::ResourceImport)
            .collect();
        let kept = writes
            .iter()
            .filter(|write| !matches!(write.op, WriteOp::Delete { .. }));
        Self {
            kept: kept.map(|write| write.target.name.clone()).collect(),
            is_empty: writes.is_empty(),
        }
    }
}

/// The differences between the copies in a Namespace and the imports.
#[derive(Default)]
struct ImportChanges<'a> {
    stale: Vec<&'a ResourceImport>,
    changed: Vec<&'a ResourceImport>,
    missing: Vec<&'a ResourceImport>,
}

// === impl ImportChanges ===

impl<'a> ImportChanges<'a> {
    /// Copies of imports that the plan creates again remain: the member would withdraw these.
    fn of(snapshot: &'a LeaderSnapshot, target: &str, has_copies: bool, planned: &PlannedImports) -> Self {
        let copies = &snapshot.member_namespaces.import_copies;
        let mut changes = Self::default();
        let mut names = BTreeSet::new();
        for import in originals(snapshot).filter(|_| has_copies) {
            let name = import.name_any();
            match get(copies, target, &name) {
                None => changes.missing.push(import),
                Some(old) if old.spec != import.spec => changes.changed.push(import),
                Some(_) => {}
            }
            names.insert(name);
        }
        let stale = copies.iter().filter(|(name, copy)| {
            name.namespace == target
                && copy.metadata.deletion_timestamp.is_none()
                && !names.contains(&name.name)
                && !planned.kept.contains(&name.name)
        });
        changes.stale = stale.map(|(_, copy)| copy.as_ref()).collect();
        changes
    }

    fn is_empty(&self) -> bool {
        self.stale.is_empty() && self.changed.is_empty() && self.missing.is_empty()
    }

    /// Creations come last: a quota of the Namespace may reject them.
    fn write(&self, target: &str, share: usize, plan: &mut Plan) {
        for copy in self.stale.iter().take(share) {
            plan.delete(ApiServer::Local, *copy);
        }
        for import in self.changed.iter().chain(&self.missing).take(share) {
            let copy = resources::import(target, &import.name_any(), import.spec.clone());
            plan.apply(ApiServer::Local, &copy);
        }
    }
}

fn originals(snapshot: &LeaderSnapshot) -> impl Iterator<Item = &ResourceImport> {
    let imports = snapshot.imports.values().map(AsRef::as_ref);
    imports.filter(|import: &&ResourceImport| import.metadata.deletion_timestamp.is_none())
}

/// An export that other members read.
struct ExportToCopy<'a> {
    source: &'a NamespacedName,
    /// Its copy, without a Namespace.
    copy: ResourceExport,
    /// Whether its cluster is an accepted member.
    is_accepted: bool,
}

/// The exports that other members read. Further fields and labels of a member are not copied, and no copy is larger
/// than members accept.
fn exports_to_copy(snapshot: &LeaderSnapshot) -> Vec<ExportToCopy<'_>> {
    if snapshot.member_namespaces.members.is_empty() {
        return vec![];
    }
    let accepted = members::accepted(snapshot);
    let active = snapshot.exports.iter().filter(|(_, export)| is_active(export));
    let copied = active.filter_map(|(source, export)| {
        let spec = &export.spec;
        let (name, raw) = match spec.kind.as_str() {
            kind::POLICY_SELECTORS => (
                names::policy_selectors_export(&spec.cluster_id),
                PolicySelectors::from_raw(spec.raw.as_ref()).ok()?.to_raw(),
            ),
            kind::IMPORT_FAILURES => (
                names::import_failures_export(&spec.cluster_id),
                ImportFailures::from_raw(spec.raw.as_ref()).ok()?.to_raw(),
            ),
            _ => return None,
        };
        let labels = export.labels().iter();
        let labels = labels.filter(|(key, _)| COPIED_LABELS.contains(&key.as_str()));
        let labels = labels.map(|(key, value)| (key.clone(), value.clone()));
        let origin = [(names::LABEL_COPIED_FROM.to_owned(), source.namespace.clone())];
        let copy = ResourceExport {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(labels.chain(origin).collect()),
                ..ObjectMeta::default()
            },
            spec: ResourceExportSpec {
                cluster_id: spec.cluster_id.clone(),
                kind: spec.kind.clone(),
                raw: Some(raw),
                ..ResourceExportSpec::default()
            },
            status: None,
        };
        (name == source.name).then(|| ExportToCopy {
            source,
            copy,
            is_accepted: accepted.contains(spec.cluster_id.as_str()),
        })
    });
    copied.collect()
}

/// The label of complete exports follows the imports (`is_current`): members take it for a sign that they have those of
/// the cluster. An export of a member with the name of a copy is not replaced. Without an accepted announce of its
/// cluster an export gets no copy, and keeps the one that it has.
fn copy_exports<'a>(
    snapshot: &LeaderSnapshot,
    target: &str,
    exports: impl Iterator<Item = &'a ExportToCopy<'a>>,
    is_current: bool,
    share: usize,
    plan: &mut Plan,
) {
    let namespaces = &snapshot.member_namespaces;
    let before = plan.writes.len();
    let mut wanted = BTreeSet::new();
    for export in exports {
        let name = export.source.name.as_str();
        wanted.insert(name);
        let old = get(&namespaces.export_copies, target, name);
        let mut copy = export.copy.clone();
        copy.metadata.namespace = Some(target.to_owned());
        let complete = names::LABEL_EXPORTS_COMPLETE;
        let is_known = old.is_some_and(|old| old.labels().get(complete) == copy.labels().get(complete));
        if !is_current && !is_known {
            copy.labels_mut().remove(complete);
        }
        // Users may add labels to a copy.
        let same = old.is_some_and(|old| {
            let has_label = |key: &&str| old.labels().get(*key) == copy.labels().get(*key);
            let mut keys = COPIED_LABELS.iter().chain([&names::LABEL_COPIED_FROM]);
            old.spec == copy.spec && keys.all(has_label)
        });
        let is_taken = get(&namespaces.misplaced_exports, target, name).is_some();
        let has_room = plan.writes.len() < before.saturating_add(share);
        if export.is_accepted && !same && !is_taken && has_room {
            plan.apply(ApiServer::Local, &copy);
        }
    }
    for (name, copy) in namespaces.export_copies.iter() {
        let is_stale = name.namespace == target && !wanted.contains(name.name.as_str());
        if is_stale && is_active(copy) && plan.writes.len() < before.saturating_add(share) {
            plan.delete(ApiServer::Local, copy.as_ref());
        }
    }
}
