//! Replicated `ClusterNetworkPolicy`s: `antrea-mc-<name>`, where the Tier they name exists.
//!
//! Changes by other writers (defaults, names of rules, fields unknown to this cluster's API) are kept: a policy is
//! written again when the leader's spec changes, or when a local field contradicts it.

use std::collections::BTreeSet;

use kube::{ResourceExt, core::ObjectMeta};
use mc_api::{
    label_identity::digest,
    names,
    network_policy::{ClusterNetworkPolicy, Tier, tier, without_nulls},
    resource_import::ResourceImport,
    validation,
};
use serde_json::{Map, Value, json};

use super::{ActiveMembership, import_owner, is_replicated, label_identities::offered_policies};
use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, ObjectRef, Plan},
    snapshot::{MemberSnapshot, ObjectMap, OptionalKind, get},
};

/// The reason of Events about these imports.
pub const IMPORT_FAILED: &str = "ACNPImportFailed";

/// The fields of all versions of the API.
const SHARED_FIELDS: [&str; 5] = ["appliedTo", "egress", "ingress", "priority", "tier"];

/// Keeps all replicated policies and deletes the others of this controller.
pub fn plan(snapshot: &MemberSnapshot, membership: &ActiveMembership<'_>, plan: &mut Plan) {
    let local = match &snapshot.policies {
        OptionalKind::Present(local) => local,
        OptionalKind::Pending => return,
        OptionalKind::Absent => {
            let count = offered_policies(membership).count();
            if count > 0 {
                plan.issue(
                    IssueCode::PolicyKindMissing,
                    "clusternetworkpolicies.crd.antrea.io",
                    format!(
                        "this cluster's API server does not serve the kind: {count} replicated policies are not imported"
                    ),
                );
            }
            return;
        }
    };
    let mut kept = BTreeSet::new();
    for import in offered_policies(membership) {
        let name = names::imported_policy(&import.spec.name);
        let valid = validation::dns_subdomain(&name, 253)
            .map_err(|e| format!("spec.name: {e}"))
            .and_then(|_| desired_spec(import));
        // An invalid import is no withdrawal: the local policy is kept.
        let first = kept.insert(name.clone());
        match valid {
            Err(why) => plan.issue(
                IssueCode::PolicyNotImported,
                subject(import),
                format!("not imported: {why}"),
            ),
            Ok(_) if !first => plan.issue(
                IssueCode::PolicyNotImported,
                subject(import),
                format!("not imported: another import has the same policy name {name:?}"),
            ),
            Ok(spec) => apply_policy(snapshot, membership, import, local, &name, &spec, plan),
        }
    }
    for old in local.values().filter(|o| is_own_policy(snapshot, o)) {
        if !kept.contains(&old.name_any()) {
            plan.delete(ApiServer::Local, old.as_ref());
        }
    }
}

/// Deletes all replicated policies: there is no membership.
pub fn withdraw(snapshot: &MemberSnapshot, plan: &mut Plan) {
    for old in snapshot.policies.objects().into_iter().flat_map(|o| o.values()) {
        if is_own_policy(snapshot, old) {
            plan.delete(ApiServer::Local, old.as_ref());
        }
    }
}

/// Whether a policy was imported from the leader, and not by another member controller.
pub(super) fn is_own_policy(snapshot: &MemberSnapshot, policy: &ClusterNetworkPolicy) -> bool {
    is_replicated(policy) && import_owner::other_owner(snapshot, policy).is_none()
}

/// The desired spec.
fn desired_spec(import: &ResourceImport) -> Result<Value, String> {
    if names::policy_import(&import.spec.name) != import.name_any() {
        return Err(format!("spec.name {:?} does not fit its name", import.spec.name));
    }
    match &import.spec.cluster_network_policy {
        Some(policy @ Value::Object(_)) => Ok(without_nulls(policy)),
        _ => Err("spec.clusternetworkpolicy is missing".to_owned()),
    }
}

fn apply_policy(
    snapshot: &MemberSnapshot,
    membership: &ActiveMembership<'_>,
    import: &ResourceImport,
    local: &ObjectMap<ClusterNetworkPolicy>,
    name: &str,
    spec: &Value,
    plan: &mut Plan,
) {
    let cluster = membership.cluster_id;
    let old = get(local, "", name).map(AsRef::as_ref);
    if old.is_some_and(|o| !is_own_policy(snapshot, o)) {
        let message = format!(
            "Unable to import Antrea ClusterNetworkPolicy which conflicts with existing one in cluster {cluster}"
        );
        return report_failure(import, message, plan);
    }
    let tier = tier(spec);
    match tier_exists(snapshot, tier) {
        None => return,
        Some(Err(())) => {
            return report_failure(
                import,
                format!("Failed to get Tier {tier} in member cluster {cluster}"),
                plan,
            );
        }
        Some(Ok(false)) => {
            report_failure(
                import,
                format!("ACNP Tier {tier} does not exist in importing cluster {cluster}"),
                plan,
            );
            if let Some(old) = old {
                plan.delete(ApiServer::Local, old);
                let action =
                    "delete imported Antrea ClusterNetworkPolicy that no longer has a valid Tier for";
                report_persistent_failure(
                    snapshot,
                    old,
                    import,
                    &format!("{action} cluster {cluster}"),
                    plan,
                );
            }
            return;
        }
        Some(Ok(true)) => {}
    }
    let mut new = policy(name, spec);
    import_owner::mark(snapshot, &mut new);
    let Some(old) = old else {
        plan.create(ApiServer::Local, &new);
        let action = format!("create imported Antrea ClusterNetworkPolicy in cluster {cluster}");
        return report_persistent_failure(snapshot, &new, import, &action, plan);
    };
    if old.metadata.deletion_timestamp.is_some()
        || import_owner::is_marked(snapshot, old) && !differs(old, &new)
    {
        return;
    }
    let mut annotations = names::ANNOTATION_APPLIED_SPEC_HASH.entries(&fingerprint(spec));
    annotations.insert(
        names::ANNOTATION_IMPORT_OWNER.to_owned(),
        snapshot.namespace.clone(),
    );
    let patch = json!({
        "metadata": { "annotations": annotations },
        "spec": merge_patch(&old.spec, spec),
    });
    plan.patch(ApiServer::Local, old, patch);
    let action = format!("update imported Antrea ClusterNetworkPolicy in cluster {cluster}");
    report_persistent_failure(snapshot, old, import, &action, plan);
}

/// Whether a Tier exists: `None` while unknown, `Err` if the API server does not serve the kind.
fn tier_exists(snapshot: &MemberSnapshot, name: &str) -> Option<Result<bool, ()>> {
    match &snapshot.tiers {
        OptionalKind::Pending => None,
        OptionalKind::Absent => Some(Err(())),
        OptionalKind::Present(tiers) => {
            let is_active = |t: &Tier| t.metadata.deletion_timestamp.is_none();
            Some(Ok(get(tiers, "", name).is_some_and(|t| is_active(t))))
        }
    }
}

fn policy(name: &str, spec: &Value) -> ClusterNetworkPolicy {
    let mut annotations = names::ANNOTATION_APPLIED_SPEC_HASH.entries(&fingerprint(spec));
    annotations.insert(names::ANNOTATION_IMPORTED_POLICY.to_owned(), "true".to_owned());
    ClusterNetworkPolicy {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        },
        spec: spec.clone(),
        ..ClusterNetworkPolicy::default()
    }
}

/// Whether the leader's spec has changed, or a local field contradicts it.
fn differs(old: &ClusterNetworkPolicy, new: &ClusterNetworkPolicy) -> bool {
    let applied = |p: &ClusterNetworkPolicy| names::ANNOTATION_APPLIED_SPEC_HASH.get(p).map(str::to_owned);
    let missing = |field: &&str| new.spec.get(field).is_some() && old.spec.get(field).is_none();
    let added = |field: &&str| {
        // The API server sets a default Tier.
        *field != "tier" && new.spec.get(field).is_none() && old.spec.get(field).is_some_and(|v| !is_empty(v))
    };
    applied(old) != applied(new)
        || SHARED_FIELDS.iter().any(|f| missing(f) || added(f))
        || contradicts(&old.spec, &new.spec)
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// Whether two values differ in a field that both have.
fn contradicts(old: &Value, new: &Value) -> bool {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let both = new.iter().filter_map(|(key, new)| Some((old.get(key)?, new)));
            both.into_iter().any(|(old, new)| contradicts(old, new))
        }
        (Value::Array(old), Value::Array(new)) => {
            old.len() != new.len() || old.iter().zip(new).any(|(old, new)| contradicts(old, new))
        }
        (old, new) => old != new,
    }
}

/// The JSON merge patch (RFC 7386) from `old` to `new`.
fn merge_patch(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return new.clone();
    };
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    let mut patch: Map<_, _> = gone.map(|key| (key.clone(), Value::Null)).collect();
    for (key, new) in new {
        match old.get(key) {
            Some(old) if old == new => {}
            Some(old) => {
                patch.insert(key.clone(), merge_patch(old, new));
            }
            None => {
                patch.insert(key.clone(), new.clone());
            }
        }
    }
    Value::Object(patch)
}

/// A short hash, equal for equal specs: `serde_json` sorts the keys of objects.
fn fingerprint(spec: &Value) -> String {
    digest(&spec.to_string()).chars().take(16).collect()
}

/// Reports a write that the API server rejected more than once.
fn report_persistent_failure(
    snapshot: &MemberSnapshot,
    policy: &ClusterNetworkPolicy,
    import: &ResourceImport,
    action: &str,
    plan: &mut Plan,
) {
    if let Some(why) = snapshot
        .persistent_failures
        .get(&ObjectRef::new(ApiServer::Local, policy))
    {
        plan.issue(
            IssueCode::PolicyNotImported,
            subject(import),
            format!("not imported: {why}"),
        );
        warn_at_leader(import, format!("Failed to {action}"), plan);
    }
}

/// Reports a failure in the log and in the leader cluster.
fn report_failure(import: &ResourceImport, message: String, plan: &mut Plan) {
    plan.issue(IssueCode::PolicyNotImported, subject(import), message.clone());
    warn_at_leader(import, message, plan);
}

fn warn_at_leader(import: &ResourceImport, message: String, plan: &mut Plan) {
    plan.warning_event(ApiServer::Leader, import, IMPORT_FAILED, message);
}

fn subject(import: &ResourceImport) -> String {
    format!("ResourceImport {}", import.name_any())
}
