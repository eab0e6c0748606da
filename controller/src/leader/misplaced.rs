//! Announces and exports outside of the Namespace of their cluster: they do not count, and are released when they are
//! deleted, as by a member that has moved into a Namespace of its own.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use mc_api::{member_cluster_announce::MemberClusterAnnounce, names};
use serde_json::{Map, Value, json};

use super::{
    members::{self, MEMBER_REFUSED},
    resources::{is_active, remove_finalizer},
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, ObjectRef, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// Rejects and releases them, and reports Namespaces that are not those of a member.
pub(super) fn plan(snapshot: &LeaderSnapshot, plan: &mut Plan) {
    let namespaces = &snapshot.member_namespaces;
    for (name, reason) in &namespaces.refused {
        plan.issue(
            IssueCode::MemberNamespaceRefused,
            format!("Namespace {name}"),
            format!("is not that of a member: {reason}"),
        );
    }
    let mut leaving = BTreeSet::new();
    for (announce, reason) in &namespaces.misplaced_announces {
        if announce.metadata.deletion_timestamp.is_none() {
            if has_moved(snapshot, announce) {
                plan.delete(ApiServer::Local, announce.as_ref());
            } else {
                reject(announce, reason, plan);
            }
            continue;
        }
        let namespace = announce.namespace().unwrap_or_default();
        let exports = namespaces.misplaced_exports.values().map(AsRef::as_ref);
        let exports = exports.filter(|export| export.namespace().unwrap_or_default() == namespace);
        members::deregister(exports, announce, plan);
        leaving.insert((namespace, announce.cluster_id.as_str()));
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for copy in namespaces.export_copies.values() {
        remove_finalizer(copy, plan);
    }
    for export in namespaces.misplaced_exports.values() {
        remove_finalizer(export, plan);
        let cluster = export.spec.cluster_id.as_str();
        if is_active(export) && !leaving.contains(&(export.namespace().unwrap_or_default(), cluster)) {
            let count = counts.entry(cluster).or_default();
            *count = count.saturating_add(1);
        }
    }
    for (cluster, count) in counts {
        plan.issue(
            IssueCode::NotAMember,
            format!("cluster {cluster:?}"),
            format!("{count} ResourceExports are ignored: they are not in the Namespace of the cluster"),
        );
    }
}

/// Whether the leader has accepted the announce before, and that in the member's own Namespace since: the former
/// membership would return with its exports when the member leaves. Its account may not be able to end it.
fn has_moved(snapshot: &LeaderSnapshot, announce: &MemberClusterAnnounce) -> bool {
    let home = snapshot.member_namespaces.home(&announce.cluster_id);
    let current = home.and_then(|(home, _)| get(&snapshot.announces, home, &announce.name_any()));
    members::is_admitted(announce) && current.is_some_and(|current| members::is_admitted(current))
}

fn reject(announce: &MemberClusterAnnounce, reason: &str, plan: &mut Plan) {
    plan.warning_event(ApiServer::Local, announce, MEMBER_REFUSED, reason);
    plan.issue(
        IssueCode::MemberRefused,
        ObjectRef::new(ApiServer::Local, announce).to_string(),
        format!("rejected: {reason}"),
    );
    let changes = names::ANNOTATION_REJECTED_REASON.changes(announce, Some(reason));
    let annotations: Map<_, _> = changes
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect();
    if !annotations.is_empty() {
        let patch = json!({ "metadata": { "annotations": Value::Object(annotations) } });
        plan.patch(ApiServer::Local, announce, patch);
    }
}
