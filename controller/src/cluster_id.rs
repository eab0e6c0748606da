//! Cluster ID resolution: `spec.clusterID` of the `ClusterSet`; if it is empty, as older guides leave it, the
//! `ClusterClaim` `id.k8s.io`, which is then written to `spec.clusterID`.
//!
//! Pure, the same for leader and members. `spec.clusterID` is immutable once set: no claim changes it.

use kube::ResourceExt;
use mc_api::{
    cluster_claim::{CLUSTER_ID, CLUSTER_SET_ID, ClusterClaim},
    cluster_set::ClusterSet,
    validation::{self, ValidationError},
};
use serde_json::json;

use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, Plan},
    snapshot::OptionalKind,
};

/// The cluster ID cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterIdError {
    /// The `ClusterClaim`s are not listed yet.
    #[error("spec.clusterID: is empty; reading the ClusterClaims of Namespace {namespace:?}")]
    Pending {
        /// The Namespace of the ClusterSet.
        namespace: String,
    },
    /// There is no claim.
    #[error(
        "spec.clusterID: is empty, and Namespace {namespace:?} has no ClusterClaim {:?}",
        CLUSTER_ID
    )]
    Unclaimed {
        /// The Namespace of the ClusterSet.
        namespace: String,
    },
    /// Two claims differ.
    #[error(
        "spec.clusterID: is empty, and two ClusterClaims {property:?} differ: {first} has {one:?}, {second} has {other:?}"
    )]
    Contradiction {
        /// The property.
        property: &'static str,
        /// Namespace and name of a claim.
        first: String,
        /// Its value.
        one: String,
        /// Namespace and name of the other claim.
        second: String,
        /// Its value.
        other: String,
    },
    /// The value is not a cluster ID.
    #[error("ClusterClaim {claim}: value: {cause}")]
    Value {
        /// Namespace and name of the claim.
        claim: String,
        /// The validation error.
        cause: ValidationError,
    },
    /// The claim names another ClusterSet.
    #[error("ClusterClaim {claim}: value: {value:?} is not the name of the ClusterSet, {set:?}")]
    OtherSet {
        /// Namespace and name of the claim.
        claim: String,
        /// Its value.
        value: String,
        /// The name of the ClusterSet.
        set: String,
    },
    /// The ID is known and not yet written to `spec.clusterID`.
    #[error("ClusterClaim {claim} has {id:?}; writing it to spec.clusterID")]
    Unwritten {
        /// Namespace and name of the claim.
        claim: String,
        /// Its value.
        id: String,
    },
}

/// A claim of the property in the Namespace of the ClusterSet.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClaimedValue {
    object: String,
    value: String,
}

// === impl ClusterIdError ===

impl ClusterIdError {
    /// Whether the error resolves without intervention.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Pending { .. } | Self::Unwritten { .. })
    }
}

/// The reason why this `ClusterSet` has no cluster ID, or `None` if it has one.
#[must_use]
pub fn error(set: &ClusterSet, claims: &OptionalKind<ClusterClaim>) -> Option<ClusterIdError> {
    if !set.spec.cluster_id.is_empty() {
        return None;
    }
    Some(match claimed(set, claims) {
        Ok(ClaimedValue {
            object: claim,
            value: id,
        }) => ClusterIdError::Unwritten { claim, id },
        Err(error) => error,
    })
}

/// Writes a claimed ID to `spec.clusterID`; reports claims that differ from it.
pub fn plan(set: &ClusterSet, claims: &OptionalKind<ClusterClaim>, plan: &mut Plan) {
    if let Some(ClusterIdError::Unwritten { id, .. }) = error(set, claims) {
        return plan.patch(ApiServer::Local, set, json!({ "spec": { "clusterID": id } }));
    }
    if set.spec.cluster_id.is_empty() {
        return;
    }
    let name = set.name_any();
    for (property, field, expected) in [
        (CLUSTER_ID, "spec.clusterID", &set.spec.cluster_id),
        (CLUSTER_SET_ID, "metadata.name", &name),
    ] {
        for claim in claims_of(set, claims, property)
            .into_iter()
            .filter(|c| c.value != *expected)
        {
            plan.issue(
                IssueCode::ClaimMismatch,
                format!("ClusterClaim {}", claim.object),
                format!(
                    "value: {:?} is not {field} of ClusterSet {name:?}, {expected:?}, which is used",
                    claim.value
                ),
            );
        }
    }
}

fn claimed(set: &ClusterSet, claims: &OptionalKind<ClusterClaim>) -> Result<ClaimedValue, ClusterIdError> {
    let namespace = set.namespace().unwrap_or_default();
    if let OptionalKind::Pending = claims {
        return Err(ClusterIdError::Pending { namespace });
    }
    let id = unique_claim(set, claims, CLUSTER_ID)?.ok_or(ClusterIdError::Unclaimed { namespace })?;
    if let Err(cause) = validation::dns_label(&id.value, 63) {
        return Err(ClusterIdError::Value {
            claim: id.object,
            cause,
        });
    }
    let name = set.name_any();
    match unique_claim(set, claims, CLUSTER_SET_ID)? {
        Some(claim) if claim.value != name => Err(ClusterIdError::OtherSet {
            claim: claim.object,
            value: claim.value,
            set: name,
        }),
        _ => Ok(id),
    }
}

/// The value of a property, stated by one claim or by several equal ones.
fn unique_claim(
    set: &ClusterSet,
    claims: &OptionalKind<ClusterClaim>,
    property: &'static str,
) -> Result<Option<ClaimedValue>, ClusterIdError> {
    let mut all = claims_of(set, claims, property).into_iter();
    let Some(first) = all.next() else {
        return Ok(None);
    };
    match all.find(|c| c.value != first.value) {
        None => Ok(Some(first)),
        Some(second) => Err(ClusterIdError::Contradiction {
            property,
            first: first.object,
            one: first.value,
            second: second.object,
            other: second.value,
        }),
    }
}

/// The claims of a property in the Namespace of the `ClusterSet`.
fn claims_of(set: &ClusterSet, claims: &OptionalKind<ClusterClaim>, property: &str) -> Vec<ClaimedValue> {
    let namespace = set.namespace().unwrap_or_default();
    let all = claims.objects().into_iter().flat_map(|o| o.values());
    all.filter(|c| c.metadata.deletion_timestamp.is_none() && c.namespace().as_ref() == Some(&namespace))
        .filter(|c| c.has_property(property))
        .map(|c| ClaimedValue {
            object: format!("{namespace}/{}", c.name_any()),
            value: c.value.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::{
        plan::WriteOp,
        snapshot::{
            ObjectMap,
            fake::{apply_write, insert, object},
        },
    };

    const NS: &str = "kube-system";

    fn set(id: &str) -> ClusterSet {
        object(json!({
            "apiVersion": "multicluster.crd.antrea.io/v1alpha2", "kind": "ClusterSet",
            "metadata": { "name": "set", "namespace": NS, "resourceVersion": "7" },
            "spec": { "clusterID": id, "leaders": [{ "clusterID": "north" }] },
        }))
    }

    fn claim(name: &str, property: Option<&str>, value: &str) -> ClusterClaim {
        let mut claim = json!({ "metadata": { "name": name, "namespace": NS }, "value": value });
        if let Some(property) = property {
            claim["name"] = json!(property);
        }
        object(claim)
    }

    fn present(claims: Vec<ClusterClaim>) -> OptionalKind<ClusterClaim> {
        let mut objects = ObjectMap::default();
        for claim in claims {
            insert(&mut objects, claim);
        }
        OptionalKind::Present(objects)
    }

    fn written(set: &ClusterSet, claims: &OptionalKind<ClusterClaim>) -> Option<Value> {
        let mut out = Plan::default();
        plan(set, claims, &mut out);
        out.writes.into_iter().next().map(|action| match action.op {
            WriteOp::Patch(patch) => patch.value(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn both_versions_of_claims_give_the_id() {
        let older = vec![
            claim("east-membercluster-id", Some("id.k8s.io"), "east"),
            claim("clusterset-id", Some("clusterSet.k8s.io"), "set"),
        ];
        let newer = vec![
            claim("id.k8s.io", None, "east"),
            claim("clusterset.k8s.io", None, "set"),
        ];
        let both = [older.clone(), newer.clone()].concat();
        for claims in [older, newer, both] {
            let claims = present(claims);
            let patch = written(&set(""), &claims).unwrap();
            assert_eq!(patch["spec"], json!({ "clusterID": "east" }));
            assert_eq!(patch["metadata"]["resourceVersion"], "7", "as it was read");
            let mut sets = ObjectMap::default();
            insert(&mut sets, set(""));
            let mut out = Plan::default();
            plan(&set(""), &claims, &mut out);
            apply_write(&mut sets, &out.writes[0]);
            let now = sets.values().next().unwrap();
            assert_eq!(now.spec.cluster_id, "east");
            assert_eq!(error(now, &claims), None);
            assert_eq!(written(now, &claims), None, "once");
        }
    }

    #[test]
    fn errors_name_field_and_value() {
        let mut elsewhere = claim("id.k8s.io", None, "east");
        elsewhere.metadata.namespace = Some("default".to_owned());
        let mut deleting = claim("id.k8s.io", None, "east");
        deleting.metadata.deletion_timestamp = Some(crate::snapshot::api_time(jiff::Timestamp::UNIX_EPOCH));
        let id = || claim("id.k8s.io", None, "east");
        let none =
            "spec.clusterID: is empty, and Namespace \"kube-system\" has no ClusterClaim \"id.k8s.io\"";
        let cases = [
            (OptionalKind::Absent, none.to_owned()),
            (present(vec![]), none.to_owned()),
            (present(vec![elsewhere]), none.to_owned()),
            (present(vec![deleting]), none.to_owned()),
            (present(vec![claim("clusterset.k8s.io", None, "set")]), none.to_owned()),
            (present(vec![claim("other", Some("network.k8s.io"), "x")]), none.to_owned()),
            (
                present(vec![id(), claim("b", Some("id.k8s.io"), "west")]),
                "spec.clusterID: is empty, and two ClusterClaims \"id.k8s.io\" differ: kube-system/b has \"west\", kube-system/id.k8s.io has \"east\"".to_owned(),
            ),
            (
                present(vec![claim("id.k8s.io", None, "East_1")]),
                "ClusterClaim kube-system/id.k8s.io: value: \"East_1\" is not a DNS label (lower-case letters, digits and '-', at most 63 characters)".to_owned(),
            ),
            (
                present(vec![claim("id.k8s.io", None, "")]),
                "ClusterClaim kube-system/id.k8s.io: value: \"\" is not a DNS label (lower-case letters, digits and '-', at most 63 characters)".to_owned(),
            ),
            (
                present(vec![id(), claim("clusterset.k8s.io", None, "other")]),
                "ClusterClaim kube-system/clusterset.k8s.io: value: \"other\" is not the name of the ClusterSet, \"set\"".to_owned(),
            ),
        ];
        for (claims, message) in cases {
            let found = error(&set(""), &claims).unwrap();
            assert_eq!(found.to_string(), message);
            assert!(!found.is_transient(), "{message}");
            assert_eq!(written(&set(""), &claims), None, "{message}");
        }
        let pending = error(&set(""), &OptionalKind::Pending).unwrap();
        assert!(pending.is_transient() && written(&set(""), &OptionalKind::Pending).is_none());
    }

    #[test]
    fn claims_do_not_change_a_cluster_id() {
        let claims = present(vec![
            claim("id.k8s.io", None, "west"),
            claim("clusterset.k8s.io", None, "other"),
        ]);
        assert_eq!(error(&set("east"), &claims), None);
        let mut out = Plan::default();
        plan(&set("east"), &claims, &mut out);
        assert_eq!(out.writes, []);
        let reported: Vec<_> = out
            .issues
            .iter()
            .map(|n| format!("{}: {}", n.subject, n.message))
            .collect();
        assert_eq!(
            reported,
            [
                "ClusterClaim kube-system/id.k8s.io: value: \"west\" is not spec.clusterID of ClusterSet \"set\", \"east\", which is used",
                "ClusterClaim kube-system/clusterset.k8s.io: value: \"other\" is not metadata.name of ClusterSet \"set\", \"set\", which is used",
            ]
        );
        for quiet in [
            OptionalKind::Pending,
            OptionalKind::Absent,
            present(vec![claim("id.k8s.io", None, "east")]),
        ] {
            let mut out = Plan::default();
            plan(&set("east"), &quiet, &mut out);
            assert_eq!(out, Plan::default());
        }
    }

    proptest! {
        /// For any claims: an ID is written only if there is none, only a valid and claimed one, and never one of two.
        #[test]
        fn an_id_is_written_once_and_only_as_claimed(
            id in prop_oneof![Just(""), Just("east")],
            claims in prop::collection::vec(("[ab]", prop_oneof![Just(""), Just("id.k8s.io"), Just("clusterSet.k8s.io")],
                prop_oneof![Just("east"), Just("west"), Just("set"), Just("-"), Just("")]), 0..4),
        ) {
            let all: Vec<_> = claims.iter().map(|(name, property, value)| claim(name, Some(property), value)).collect();
            let claims = present(all);
            let patch = written(&set(id), &claims);
            if let Some(patch) = patch {
                let wanted = patch["spec"]["clusterID"].as_str().unwrap().to_owned();
                prop_assert!(id.is_empty() && validation::dns_label(&wanted, 63).is_ok());
                let OptionalKind::Present(objects) = &claims else { unreachable!() };
                let ids: Vec<&Arc<ClusterClaim>> = objects.values().filter(|c| c.has_property(CLUSTER_ID)).collect();
                prop_assert!(!ids.is_empty() && ids.iter().all(|c| c.value == wanted));
            }
        }
    }
}
