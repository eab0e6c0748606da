//! Copies for members with a Namespace of their own: of all imports, and of the exports that members read directly.
//!
//! Copies of exports go to the common Namespace as well, from the Namespaces of members. Only those of accepted members
//! are copied.

use std::collections::BTreeSet;

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

use super::{members, resources::is_active};
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

/// Plans the copies. Each Namespace has a share of a batch: none delays the others, nor the rest of the plan.
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
    let exports = exports_to_copy(snapshot);
    let share = (BATCH / 4).checked_div(all.len()).unwrap_or_default().max(1);
    for target in all {
        let is_common = target == snapshot.namespace;
        let has_copies = targets.contains(target);
        let is_current = if is_common {
            true
        } else {
            let originals = has_copies.then(|| originals(snapshot));
            copy_imports(snapshot, target, originals, &planned, share, plan)
        };
        let exports = exports.iter().filter(|(source, _)| source.namespace != target);
        let exports = exports.filter(|_| is_common && !targets.is_empty() || has_copies);
        copy_exports(snapshot, target, exports, is_current, share, plan);
    }
}

/// The imports that the plan changes in the common Namespace.
struct PlannedImports {
    /// The names of those that it creates or updates.
    applied: BTreeSet<String>,
    is_empty: bool,
}

// === impl PlannedImports ===

impl PlannedImports {
    fn of(plan: &Plan) -> Self {
        let writes = plan.writes.iter();
        let writes: Vec<_> = writes
            .filter(|write| write.target.kind == Kind::ResourceImport)
            .collect();
        let applied = writes
            .iter()
            .filter(|write| matches!(write.op, WriteOp::Apply(_)));
        Self {
            applied: applied.map(|write| write.target.name.clone()).collect(),
            is_empty: writes.is_empty(),
        }
    }
}

/// Whether the copies in a Namespace are current without a write. Copies of imports that the plan creates again remain:
/// the member would withdraw these.
fn copy_imports<'a>(
    snapshot: &LeaderSnapshot,
    target: &str,
    originals: Option<impl Iterator<Item = &'a ResourceImport>>,
    planned: &PlannedImports,
    share: usize,
    plan: &mut Plan,
) -> bool {
    let copies = &snapshot.member_namespaces.import_copies;
    let originals: Vec<_> = originals.into_iter().flatten().collect();
    let names: BTreeSet<_> = originals.iter().map(|import| import.name_any()).collect();
    let stale = copies.iter().filter(|(name, copy)| {
        name.namespace == target
            && copy.metadata.deletion_timestamp.is_none()
            && !names.contains(&name.name)
            && !planned.applied.contains(&name.name)
    });
    let stale: Vec<_> = stale.map(|(_, copy)| copy.as_ref()).collect();
    let missing: Vec<_> = originals
        .into_iter()
        .filter(|import| {
            let old = get(copies, target, &import.name_any());
            old.is_none_or(|old| old.spec != import.spec)
        })
        .collect();
    for copy in stale.iter().take(share) {
        plan.delete(ApiServer::Local, *copy);
    }
    for import in missing.iter().take(share) {
        let copy = ResourceImport {
            metadata: metadata(target, &import.name_any()),
            spec: import.spec.clone(),
            status: None,
        };
        plan.apply(ApiServer::Local, &copy);
    }
    stale.is_empty() && missing.is_empty() && planned.is_empty
}

fn originals(snapshot: &LeaderSnapshot) -> impl Iterator<Item = &ResourceImport> {
    let imports = snapshot.imports.values().map(AsRef::as_ref);
    imports.filter(|import: &&ResourceImport| import.metadata.deletion_timestamp.is_none())
}

/// The exports of accepted members that others read. Further fields and labels of a member are not copied, and no copy
/// is larger than members accept.
fn exports_to_copy(snapshot: &LeaderSnapshot) -> Vec<(&NamespacedName, ResourceExport)> {
    if snapshot.member_namespaces.members.is_empty() {
        return vec![];
    }
    let accepted = members::accepted(snapshot);
    let active = snapshot
        .exports
        .iter()
        .filter(|(_, export)| is_active(export) && accepted.contains(export.spec.cluster_id.as_str()));
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
        let origin = [(names::LABEL_COPIED_FROM.to_owned(), source.namespace.clone())];
        let copy = ResourceExport {
            metadata: ObjectMeta {
                labels: Some(
                    labels
                        .map(|(key, value)| (key.clone(), value.clone()))
                        .chain(origin)
                        .collect(),
                ),
                ..metadata("", &name)
            },
            spec: ResourceExportSpec {
                cluster_id: spec.cluster_id.clone(),
                kind: spec.kind.clone(),
                raw: Some(raw),
                ..ResourceExportSpec::default()
            },
            status: None,
        };
        (name == source.name).then_some((source, copy))
    });
    copied.collect()
}

/// The label of complete exports follows the imports (`is_current`): members take it for a sign that they have those of
/// the cluster. An export of a member with the name of a copy is not replaced.
fn copy_exports<'a>(
    snapshot: &LeaderSnapshot,
    target: &str,
    exports: impl Iterator<Item = &'a (&'a NamespacedName, ResourceExport)>,
    is_current: bool,
    share: usize,
    plan: &mut Plan,
) {
    let namespaces = &snapshot.member_namespaces;
    let before = plan.writes.len();
    let mut wanted = BTreeSet::new();
    for (source, export) in exports {
        let old = get(&namespaces.export_copies, target, &source.name);
        wanted.insert(source.name.as_str());
        let mut copy = export.clone();
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
        let is_taken = get(&namespaces.misplaced_exports, target, &source.name).is_some();
        if !same && !is_taken && plan.writes.len() < before.saturating_add(share) {
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

fn metadata(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..ObjectMeta::default()
    }
}
