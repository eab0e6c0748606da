//! What a cluster is called: `spec.clusterID` of its `ClusterSet`; where that is empty, as older guides leave it, the
//! `ClusterClaim` `id.k8s.io`, which is written there.
//!
//! Pure, the same for leader and members. What `spec.clusterID` says once counts for good: no claim changes the name of a
//! cluster that has one.

use kube::ResourceExt;
use serde_json::json;

use crate::{
    api::{
        cluster_claim::{CLUSTER_ID, CLUSTER_SET_ID, ClusterClaim},
        cluster_set::ClusterSet,
        validation::{self, Invalid},
    },
    plan::{Plan, Side},
    world::Optional,
};

/// Why it is not known what a cluster is called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// The claims are being read.
    #[error("spec.clusterID: is empty; reading the ClusterClaims of Namespace {namespace:?}")]
    Pending {
        /// Where.
        namespace: String,
    },
    /// Nobody says it.
    #[error(
        "spec.clusterID: is empty, and Namespace {namespace:?} has no ClusterClaim {:?}",
        CLUSTER_ID
    )]
    Unclaimed {
        /// Where it is looked for.
        namespace: String,
    },
    /// Two say different things.
    #[error(
        "spec.clusterID: is empty, and two ClusterClaims {property:?} contradict each other: {first} says {one:?}, {second} says {other:?}"
    )]
    Contradiction {
        /// What is claimed.
        property: &'static str,
        /// Namespace and name of a claim.
        first: String,
        /// Its value.
        one: String,
        /// Namespace and name of another.
        second: String,
        /// Its value.
        other: String,
    },
    /// What is claimed is no ID.
    #[error("ClusterClaim {claim}: value: {cause}")]
    Value {
        /// Namespace and name of the claim.
        claim: String,
        /// What is wrong with it.
        cause: Invalid,
    },
    /// The claims are about another set.
    #[error("ClusterClaim {claim}: value: {value:?} is not the name of the ClusterSet, {set:?}")]
    OtherSet {
        /// Namespace and name of the claim.
        claim: String,
        /// Its value.
        value: String,
        /// The name of the set.
        set: String,
    },
    /// It is known, and `spec.clusterID` does not say it yet.
    #[error("ClusterClaim {claim} says {id:?}; writing that to spec.clusterID")]
    Unwritten {
        /// Namespace and name of the claim.
        claim: String,
        /// Its value.
        id: String,
    },
}

/// A claim that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    at: String,
    value: String,
}

// === impl Unknown ===

impl Unknown {
    /// Whether it passes by itself.
    #[must_use]
    pub fn transient(&self) -> bool {
        matches!(self, Self::Pending { .. } | Self::Unwritten { .. })
    }
}

/// Why it is not known what the cluster of this `ClusterSet` is called, if so.
#[must_use]
pub fn unknown(set: &ClusterSet, claims: &Optional<ClusterClaim>) -> Option<Unknown> {
    if !set.spec.cluster_id.is_empty() {
        return None;
    }
    Some(match claimed(set, claims) {
        Ok(Claim { at: claim, value: id }) => Unknown::Unwritten { claim, id },
        Err(unknown) => unknown,
    })
}

/// Writes the ID where only a claim says it; tells of claims that say something else.
pub fn plan(set: &ClusterSet, claims: &Optional<ClusterClaim>, plan: &mut Plan) {
    if let Some(Unknown::Unwritten { id, .. }) = unknown(set, claims) {
        return plan.patch(Side::Local, set, json!({ "spec": { "clusterID": id } }));
    }
    if set.spec.cluster_id.is_empty() {
        return;
    }
    let name = set.name_any();
    for (property, field, said) in [
        (CLUSTER_ID, "spec.clusterID", &set.spec.cluster_id),
        (CLUSTER_SET_ID, "metadata.name", &name),
    ] {
        for claim in of(set, claims, property).into_iter().filter(|c| c.value != *said) {
            plan.notice(
                format!("ClusterClaim {}", claim.at),
                format!(
                    "value: {:?} is not {field} of ClusterSet {name:?}, {said:?}, which counts",
                    claim.value
                ),
            );
        }
    }
}

fn claimed(set: &ClusterSet, claims: &Optional<ClusterClaim>) -> Result<Claim, Unknown> {
    let namespace = set.namespace().unwrap_or_default();
    if let Optional::Pending = claims {
        return Err(Unknown::Pending { namespace });
    }
    let id = only(set, claims, CLUSTER_ID)?.ok_or(Unknown::Unclaimed { namespace })?;
    if let Err(cause) = validation::dns_label(&id.value, 63) {
        return Err(Unknown::Value { claim: id.at, cause });
    }
    let name = set.name_any();
    match only(set, claims, CLUSTER_SET_ID)? {
        Some(claim) if claim.value != name => Err(Unknown::OtherSet {
            claim: claim.at,
            value: claim.value,
            set: name,
        }),
        _ => Ok(id),
    }
}

/// What is claimed of a property, by one or by several that agree.
fn only(
    set: &ClusterSet,
    claims: &Optional<ClusterClaim>,
    property: &'static str,
) -> Result<Option<Claim>, Unknown> {
    let mut all = of(set, claims, property).into_iter();
    let Some(first) = all.next() else {
        return Ok(None);
    };
    match all.find(|c| c.value != first.value) {
        None => Ok(Some(first)),
        Some(second) => Err(Unknown::Contradiction {
            property,
            first: first.at,
            one: first.value,
            second: second.at,
            other: second.value,
        }),
    }
}

/// The claims of a property next to the `ClusterSet`.
fn of(set: &ClusterSet, claims: &Optional<ClusterClaim>, property: &str) -> Vec<Claim> {
    let namespace = set.namespace().unwrap_or_default();
    let all = claims.objects().into_iter().flat_map(|o| o.values());
    all.filter(|c| c.metadata.deletion_timestamp.is_none() && c.namespace().as_ref() == Some(&namespace))
        .filter(|c| c.is(property))
        .map(|c| Claim {
            at: format!("{namespace}/{}", c.name_any()),
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
        plan::Op,
        world::{
            Objects,
            fake::{carry_out, insert, object},
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

    fn present(claims: Vec<ClusterClaim>) -> Optional<ClusterClaim> {
        let mut objects = Objects::default();
        for claim in claims {
            insert(&mut objects, claim);
        }
        Optional::Present(objects)
    }

    fn written(set: &ClusterSet, claims: &Optional<ClusterClaim>) -> Option<Value> {
        let mut out = Plan::default();
        plan(set, claims, &mut out);
        out.actions.into_iter().next().map(|action| match action.op {
            Op::Patch(patch) => patch.value(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn both_older_forms_of_claims_give_the_id() {
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
            let mut sets = Objects::default();
            insert(&mut sets, set(""));
            let mut out = Plan::default();
            plan(&set(""), &claims, &mut out);
            carry_out(&mut sets, &out.actions[0]);
            let now = sets.values().next().unwrap();
            assert_eq!(now.spec.cluster_id, "east");
            assert_eq!(unknown(now, &claims), None);
            assert_eq!(written(now, &claims), None, "once");
        }
    }

    #[test]
    fn what_gives_no_id_is_said_with_field_and_value() {
        let mut elsewhere = claim("id.k8s.io", None, "east");
        elsewhere.metadata.namespace = Some("default".to_owned());
        let mut going = claim("id.k8s.io", None, "east");
        going.metadata.deletion_timestamp = Some(crate::world::time(jiff::Timestamp::UNIX_EPOCH));
        let id = || claim("id.k8s.io", None, "east");
        let none =
            "spec.clusterID: is empty, and Namespace \"kube-system\" has no ClusterClaim \"id.k8s.io\"";
        let cases = [
            (Optional::Absent, none.to_owned()),
            (present(vec![]), none.to_owned()),
            (present(vec![elsewhere]), none.to_owned()),
            (present(vec![going]), none.to_owned()),
            (present(vec![claim("clusterset.k8s.io", None, "set")]), none.to_owned()),
            (present(vec![claim("other", Some("network.k8s.io"), "x")]), none.to_owned()),
            (
                present(vec![id(), claim("b", Some("id.k8s.io"), "west")]),
                "spec.clusterID: is empty, and two ClusterClaims \"id.k8s.io\" contradict each other: kube-system/b says \"west\", kube-system/id.k8s.io says \"east\"".to_owned(),
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
            let found = unknown(&set(""), &claims).unwrap();
            assert_eq!(found.to_string(), message);
            assert!(!found.transient(), "{message}");
            assert_eq!(written(&set(""), &claims), None, "{message}");
        }
        let pending = unknown(&set(""), &Optional::Pending).unwrap();
        assert!(pending.transient() && written(&set(""), &Optional::Pending).is_none());
    }

    #[test]
    fn claims_do_not_change_what_a_cluster_is_called() {
        let claims = present(vec![
            claim("id.k8s.io", None, "west"),
            claim("clusterset.k8s.io", None, "other"),
        ]);
        assert_eq!(unknown(&set("east"), &claims), None);
        let mut out = Plan::default();
        plan(&set("east"), &claims, &mut out);
        assert_eq!(out.actions, []);
        let told: Vec<_> = out
            .notices
            .iter()
            .map(|n| format!("{}: {}", n.subject, n.message))
            .collect();
        assert_eq!(
            told,
            [
                "ClusterClaim kube-system/id.k8s.io: value: \"west\" is not spec.clusterID of ClusterSet \"set\", \"east\", which counts",
                "ClusterClaim kube-system/clusterset.k8s.io: value: \"other\" is not metadata.name of ClusterSet \"set\", \"set\", which counts",
            ]
        );
        for quiet in [
            Optional::Pending,
            Optional::Absent,
            present(vec![claim("id.k8s.io", None, "east")]),
        ] {
            let mut out = Plan::default();
            plan(&set("east"), &quiet, &mut out);
            assert_eq!(out, Plan::default());
        }
    }

    proptest! {
        /// Whatever is claimed: an ID is written only where there is none, only one that a cluster may have and that
        /// somebody claims, and never one of two.
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
                let Optional::Present(objects) = &claims else { unreachable!() };
                let ids: Vec<&Arc<ClusterClaim>> = objects.values().filter(|c| c.is(CLUSTER_ID)).collect();
                prop_assert!(!ids.is_empty() && ids.iter().all(|c| c.value == wanted));
            }
        }
    }
}
