//! The exports that count: those of accepted members, and those that are in use already.
//!
//! A missing announce admits nothing new and withdraws nothing: a leader that was restored from a snapshot lacks the
//! announces of members whose exports it has. Only an eviction ([`super::eviction`]) or a departure withdraws.

use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::ResourceExt;
use mc_api::{
    label_identity, names,
    resource_export::{ResourceExport, SUCCEEDED, kind as export_kind},
    resource_import::kind,
};
use mc_kube::NamespacedName;

use super::{
    eviction::evicted,
    members,
    resources::{is_active, remove_finalizer},
};
use crate::{
    issue_code::IssueCode,
    plan::Plan,
    snapshot::{LeaderSnapshot, get},
};

/// The snapshot without the exports that do not count.
#[must_use]
pub(super) fn admitted<'a>(snapshot: &'a LeaderSnapshot, plan: &mut Plan) -> Cow<'a, LeaderSnapshot> {
    let members = Members::new(snapshot);
    let refused: Vec<_> = snapshot
        .exports
        .iter()
        .filter(|(_, export)| !members.admit(snapshot, export))
        .collect();
    if refused.is_empty() {
        return Cow::Borrowed(snapshot);
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, export) in &refused {
        remove_finalizer(export, plan);
        if is_active(export) {
            let count = counts.entry(&export.spec.cluster_id).or_default();
            *count = count.saturating_add(1);
        }
    }
    for (cluster, count) in counts {
        plan.issue(
            IssueCode::NotAMember,
            format!("cluster {cluster:?}"),
            format!("{count} ResourceExports are ignored: the cluster has no accepted MemberClusterAnnounce"),
        );
    }
    let refused = refused.into_iter().map(|(name, _)| name.clone()).collect();
    Cow::Owned(without(snapshot, &refused))
}

/// The snapshot without these exports.
#[must_use]
pub(super) fn without(snapshot: &LeaderSnapshot, refused: &BTreeSet<NamespacedName>) -> LeaderSnapshot {
    let exports = snapshot.exports.iter();
    let exports = exports.filter(|(name, _)| !refused.contains(name));
    LeaderSnapshot {
        exports: Arc::new(
            exports
                .map(|(name, export)| (name.clone(), Arc::clone(export)))
                .collect(),
        ),
        ..snapshot.clone()
    }
}

/// The clusters whose exports count.
struct Members<'a> {
    accepted: BTreeSet<&'a str>,
    evicted: BTreeSet<&'a str>,
    /// The clusters of each imported label, where an export is of no accepted member; `None`: unknown.
    labels: OnceCell<BTreeMap<&'a str, Option<BTreeSet<&'a str>>>>,
}

// === impl Members ===

impl<'a> Members<'a> {
    fn new(snapshot: &'a LeaderSnapshot) -> Self {
        let set = members::current_cluster_set(snapshot);
        Self {
            accepted: members::accepted(snapshot),
            evicted: set.map(evicted).unwrap_or_default(),
            labels: OnceCell::new(),
        }
    }

    fn admit(&self, snapshot: &'a LeaderSnapshot, export: &ResourceExport) -> bool {
        let cluster = export.spec.cluster_id.as_str();
        if self.accepted.contains(cluster) {
            return true;
        }
        let is_evicted = self.evicted.contains(cluster);
        match export.spec.kind.as_str() {
            export_kind::CLUSTER_INFO => !is_evicted && exports_network(snapshot, export),
            export_kind::LABEL_IDENTITY => !is_evicted && self.exports_label(snapshot, export),
            export_kind::SERVICE | export_kind::ENDPOINTS => !is_evicted && exports_service(snapshot, export),
            // An administrator's.
            _ => true,
        }
    }

    /// Whether the import of the label has the cluster.
    fn exports_label(&self, snapshot: &'a LeaderSnapshot, export: &ResourceExport) -> bool {
        let labels = self.labels.get_or_init(|| {
            let imports = snapshot.imports.values();
            let labels = imports.filter(|import| import.spec.kind == kind::LABEL_IDENTITY);
            let labels =
                labels.filter_map(|i| label_identity::parse_import(i.spec.label_identity.as_ref()).ok());
            labels
                .map(|identity| (identity.label, identity.clusters))
                .collect()
        });
        let label = label_identity::parse_export(export.spec.label_identity.as_ref());
        let clusters = label.ok().and_then(|label| labels.get(label));
        let cluster = export.spec.cluster_id.as_str();
        clusters.is_some_and(|clusters| {
            clusters
                .as_ref()
                .is_none_or(|clusters| clusters.contains(cluster))
        })
    }
}

/// Whether the network has an import.
fn exports_network(snapshot: &LeaderSnapshot, export: &ResourceExport) -> bool {
    get(&snapshot.imports, &snapshot.namespace, &export.name_any())
        .is_some_and(|import| import.spec.kind == kind::CLUSTER_INFO)
}

/// Whether the import of the Service has the cluster.
fn exports_service(snapshot: &LeaderSnapshot, export: &ResourceExport) -> bool {
    let spec = &export.spec;
    let conditions = export.status.iter().flat_map(|status| &status.conditions);
    let has_succeeded = conditions
        .into_iter()
        .any(|condition| condition.type_ == SUCCEEDED);
    let name = names::endpoints_import(&spec.namespace, &spec.name);
    let import = get(&snapshot.imports, &snapshot.namespace, &name).and_then(|i| i.spec.endpoints.as_ref());
    has_succeeded
        || import.is_some_and(|import| import.clusters.iter().any(|c| c.cluster_id == spec.cluster_id))
}
