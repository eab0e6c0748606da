//! Replicated `ClusterNetworkPolicy`s: `antrea-mc-<name>`, where the Tier they name exists.
//!
//! What others make of a policy (defaults, names of rules, fields this cluster's API does not know) is left as it is:
//! a policy is written again when the leader says something new, or when somebody contradicts what it says.

use std::collections::BTreeSet;

use kube::{ResourceExt, core::ObjectMeta};
use serde_json::{Map, Value, json};

use super::{Session, labels::offered_policies};
use crate::{
    api::{
        label_identity::digest,
        names,
        network_policy::{ClusterNetworkPolicy, Tier, tier, without_nulls},
        resource_import::ResourceImport,
        validation,
    },
    plan::{Plan, Side, Target},
    world::{MemberWorld, Objects, Optional, get},
};

/// The reason of every event about these imports.
pub const IMPORT_FAILED: &str = "ACNPImportFailed";

/// What a policy has whatever version of the API reads it.
const FIELDS: [&str; 5] = ["appliedTo", "egress", "ingress", "priority", "tier"];

/// Every replicated policy is here, and none that was replicated once.
pub fn plan(world: &MemberWorld, session: &Session<'_>, plan: &mut Plan) {
    let local = match &world.policies {
        Optional::Present(local) => local,
        Optional::Pending => return,
        Optional::Absent => {
            let count = offered_policies(session).count();
            if count > 0 {
                plan.notice(
                    "clusternetworkpolicies.crd.antrea.io",
                    format!(
                        "this cluster does not know the kind: {count} replicated policies are not imported"
                    ),
                );
            }
            return;
        }
    };
    let mut kept = BTreeSet::new();
    for import in offered_policies(session) {
        let name = names::imported_policy(&import.spec.name);
        let good = validation::dns_subdomain(&name, 253)
            .map_err(|e| format!("spec.name: {e}"))
            .and_then(|_| spec(import));
        // One that says nothing changes nothing; the leader has not taken it back.
        let first = kept.insert(name.clone());
        match good {
            Err(why) => plan.notice(subject(import), format!("not imported: {why}")),
            Ok(_) if !first => plan.notice(
                subject(import),
                format!("not imported: another import is policy {name:?}, too"),
            ),
            Ok(spec) => put(world, session, import, local, &name, &spec, plan),
        }
    }
    for old in local.values().filter(|o| is_imported(o)) {
        if !kept.contains(&old.name_any()) {
            plan.delete(Side::Local, old.as_ref());
        }
    }
}

/// No membership, no policies of others.
pub fn withdraw(world: &MemberWorld, plan: &mut Plan) {
    for old in world.policies.objects().into_iter().flat_map(|o| o.values()) {
        if is_imported(old) {
            plan.delete(Side::Local, old.as_ref());
        }
    }
}

/// What the policy is to say.
fn spec(import: &ResourceImport) -> Result<Value, String> {
    if names::policy_import(&import.spec.name) != import.name_any() {
        return Err(format!("spec.name {:?} does not fit its name", import.spec.name));
    }
    match &import.spec.cluster_network_policy {
        Some(policy @ Value::Object(_)) => Ok(without_nulls(policy)),
        _ => Err("spec.clusternetworkpolicy is missing".to_owned()),
    }
}

fn put(
    world: &MemberWorld,
    session: &Session<'_>,
    import: &ResourceImport,
    local: &Objects<ClusterNetworkPolicy>,
    name: &str,
    spec: &Value,
    plan: &mut Plan,
) {
    let cluster = session.cluster_id;
    let old = get(local, "", name).map(AsRef::as_ref);
    if old.is_some_and(|o| !is_imported(o)) {
        let message = format!(
            "Unable to import Antrea ClusterNetworkPolicy which conflicts with existing one in cluster {cluster}"
        );
        return fail(import, message, plan);
    }
    let tier = tier(spec);
    match exists(world, tier) {
        None => return,
        Some(Err(())) => {
            return fail(
                import,
                format!("Failed to get Tier {tier} in member cluster {cluster}"),
                plan,
            );
        }
        Some(Ok(false)) => {
            fail(
                import,
                format!("ACNP Tier {tier} does not exist in importing cluster {cluster}"),
                plan,
            );
            if let Some(old) = old {
                plan.delete(Side::Local, old);
                let action =
                    "delete imported Antrea ClusterNetworkPolicy that no longer has a valid Tier for";
                failing(world, old, import, &format!("{action} cluster {cluster}"), plan);
            }
            return;
        }
        Some(Ok(true)) => {}
    }
    let new = policy(name, spec);
    let Some(old) = old else {
        plan.create(Side::Local, &new);
        let action = format!("create imported Antrea ClusterNetworkPolicy in cluster {cluster}");
        return failing(world, &new, import, &action, plan);
    };
    if old.metadata.deletion_timestamp.is_some() || !differs(old, &new) {
        return;
    }
    let patch = json!({
        "metadata": { "annotations": { names::ANNOTATION_APPLIED: fingerprint(spec) } },
        "spec": difference(&old.spec, spec),
    });
    plan.patch(Side::Local, old, patch);
    let action = format!("update imported Antrea ClusterNetworkPolicy in cluster {cluster}");
    failing(world, old, import, &action, plan);
}

/// Whether there is such a Tier: `None` where that is not known yet, `Err` where there are no Tiers at all.
fn exists(world: &MemberWorld, name: &str) -> Option<Result<bool, ()>> {
    match &world.tiers {
        Optional::Pending => None,
        Optional::Absent => Some(Err(())),
        Optional::Present(tiers) => {
            let standing = |t: &Tier| t.metadata.deletion_timestamp.is_none();
            Some(Ok(get(tiers, "", name).is_some_and(|t| standing(t))))
        }
    }
}

fn policy(name: &str, spec: &Value) -> ClusterNetworkPolicy {
    let annotations = [
        (names::ANNOTATION_IMPORTED_POLICY, "true".to_owned()),
        (names::ANNOTATION_APPLIED, fingerprint(spec)),
    ];
    ClusterNetworkPolicy {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: Some(annotations.map(|(k, v)| (k.to_owned(), v)).into()),
            ..ObjectMeta::default()
        },
        spec: spec.clone(),
        ..ClusterNetworkPolicy::default()
    }
}

/// Whether the leader says something new, or somebody here something else.
fn differs(old: &ClusterNetworkPolicy, new: &ClusterNetworkPolicy) -> bool {
    let applied = |p: &ClusterNetworkPolicy| p.annotations().get(names::ANNOTATION_APPLIED).cloned();
    let missing = |field: &&str| new.spec.get(field).is_some() && old.spec.get(field).is_none();
    let added = |field: &&str| {
        // Whoever is asked for no Tier names one.
        *field != "tier" && new.spec.get(field).is_none() && old.spec.get(field).is_some_and(|v| !empty(v))
    };
    applied(old) != applied(new)
        || FIELDS.iter().any(|f| missing(f) || added(f))
        || contradicts(&old.spec, &new.spec)
}

fn empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// Whether two values disagree in anything both state.
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

/// The JSON merge patch (RFC 7386) that makes `old` to `new`.
fn difference(old: &Value, new: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return new.clone();
    };
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    let mut patch: Map<_, _> = gone.map(|key| (key.clone(), Value::Null)).collect();
    for (key, new) in new {
        match old.get(key) {
            Some(old) if old == new => {}
            Some(old) => {
                patch.insert(key.clone(), difference(old, new));
            }
            None => {
                patch.insert(key.clone(), new.clone());
            }
        }
    }
    Value::Object(patch)
}

/// Short, and the same for the same spec: JSON objects have their keys sorted here.
fn fingerprint(spec: &Value) -> String {
    digest(&spec.to_string()).chars().take(16).collect()
}

fn is_imported(policy: &ClusterNetworkPolicy) -> bool {
    policy
        .annotations()
        .contains_key(names::ANNOTATION_IMPORTED_POLICY)
}

/// The API server has refused this more than once.
fn failing(
    world: &MemberWorld,
    policy: &ClusterNetworkPolicy,
    import: &ResourceImport,
    action: &str,
    plan: &mut Plan,
) {
    if let Some(why) = world.failing.get(&Target::of(Side::Local, policy)) {
        plan.notice(subject(import), format!("not imported: {why}"));
        remark(import, format!("Failed to {action}"), plan);
    }
}

/// Says so here and in the leader cluster.
fn fail(import: &ResourceImport, message: String, plan: &mut Plan) {
    plan.notice(subject(import), message.clone());
    remark(import, message, plan);
}

fn remark(import: &ResourceImport, message: String, plan: &mut Plan) {
    plan.remark(Side::Leader, import, IMPORT_FAILED, message);
}

fn subject(import: &ResourceImport) -> String {
    format!("ResourceImport {}", import.name_any())
}
