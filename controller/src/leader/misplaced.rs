//! Announces and exports outside of the Namespace of their cluster: they do not count, and are released when they are
//! deleted, as by a member that has moved into a Namespace of its own.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use mc_api::{config::Isolation, member_cluster_announce::MemberClusterAnnounce, names};
use serde_json::{Map, Value, json};

use super::{
    account_bindings::recorded_namespaces,
    members,
    resources::{is_active, remove_finalizer},
};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, ObjectRef, Plan},
    snapshot::{LeaderSnapshot, get},
};

/// The reason of Events on the ClusterSet of a leader that does not include the Namespaces of its members.
const ISOLATION_LOST: &str = "IsolationLost";

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

/// Whether members have Namespaces of their own that the configuration no longer includes, as after an upgrade with the
/// default configuration: the exports there would be withdrawn.
pub(super) fn is_isolation_lost(snapshot: &LeaderSnapshot, plan: &mut Plan) -> bool {
    if snapshot.config.isolation == Isolation::Namespace {
        return false;
    }
    let recorded = recorded_namespaces(&snapshot.service_account_bindings, &snapshot.namespace);
    if recorded.is_empty() {
        return false;
    }
    let names: Vec<_> = recorded.into_keys().collect();
    let message = format!(
        "isolation: is Common, and members have the Namespaces {}: nothing is reconciled until it is Namespace again, or \
         their keys are removed from ConfigMap {}",
        names.join(", "),
        names::SERVICE_ACCOUNT_BINDINGS
    );
    if let Some(set) = members::current_cluster_set(snapshot) {
        plan.warning_event(ApiServer::Local, set, ISOLATION_LOST, message.as_str());
    }
    let subject = format!("Namespace {}", snapshot.namespace);
    plan.issue(IssueCode::IsolationLost, subject, message);
    true
}

/// Whether the leader has accepted the announce before, and that in the member's own Namespace since: the former
/// membership would return with its exports when the member leaves. Its account may not be able to end it.
fn has_moved(snapshot: &LeaderSnapshot, announce: &MemberClusterAnnounce) -> bool {
    let home = snapshot.member_namespaces.home(&announce.cluster_id);
    let current = home.and_then(|(home, _)| get(&snapshot.announces, home, &announce.name_any()));
    members::is_admitted(announce) && current.is_some_and(|current| members::is_admitted(current))
}

fn reject(announce: &MemberClusterAnnounce, reason: &str, plan: &mut Plan) {
    // With the Namespace: the announce of the cluster in its own has the same name.
    let subject = ObjectRef::new(ApiServer::Local, announce).to_string();
    members::report_rejection(announce, subject, reason, plan);
    let changes = names::ANNOTATION_REJECTED_REASON.changes(announce, Some(reason));
    let annotations: Map<_, _> = changes
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect();
    if !annotations.is_empty() {
        let patch = json!({ "metadata": { "annotations": Value::Object(annotations) } });
        plan.patch(ApiServer::Local, announce, patch);
    }
}
