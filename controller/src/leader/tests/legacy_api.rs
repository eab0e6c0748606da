//! A leader configured as in older guides: `ClusterClaim`s, `spec.members` with `ServiceAccount`s.

use mc_api::{cluster_claim::ClusterClaim, cluster_set::ClusterSet, names};
use serde_json::{Value, json};

use super::{NS, account, announce, bound, leader_snapshot, make_plan, settle, without_members};
use crate::{
    plan::Plan,
    snapshot::{
        LeaderSnapshot, ObjectMap, OptionalKind,
        fake::{insert, object},
    },
};

/// A `ClusterSet` of the older version, converted to the newer one by an API server.
fn older(members: &Value) -> ClusterSet {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha2", "kind": "ClusterSet",
        "metadata": { "name": "set", "namespace": NS },
        "spec": { "leaders": [{ "clusterID": "north" }], "members": members, "namespace": NS },
    }))
}

fn claim(name: &str, property: &str, value: &str) -> ClusterClaim {
    object(json!({ "metadata": { "name": name, "namespace": NS }, "name": property, "value": value }))
}

fn claims(id: &str) -> OptionalKind<ClusterClaim> {
    let mut claims = ObjectMap::default();
    insert(&mut claims, claim("leadercluster-id", "id.k8s.io", id));
    insert(&mut claims, claim("clusterset-id", "clusterSet.k8s.io", "set"));
    OptionalKind::Present(claims)
}

fn set_of(snapshot: &LeaderSnapshot) -> ClusterSet {
    snapshot.cluster_sets.values().next().unwrap().as_ref().clone()
}

fn issue_messages(plan: &Plan) -> Vec<&str> {
    plan.issues.iter().map(|n| n.message.as_str()).collect()
}

#[test]
fn the_leaders_id_is_taken_from_its_claim() {
    let mut snapshot = without_members();
    snapshot.cluster_claims = claims("north");
    insert(
        &mut snapshot.cluster_sets,
        older(&json!([{ "clusterID": "east" }])),
    );
    insert(&mut snapshot.announces, announce("east", "set", "north"));
    settle(&mut snapshot);
    let set = set_of(&snapshot);
    assert_eq!(set.spec.cluster_id, "north");
    let status = set.status.unwrap();
    assert_eq!(
        (status.total_clusters, status.conditions[0].status.as_str()),
        (1, "True")
    );
    assert_eq!(make_plan(&mut snapshot).issues, []);
}

#[test]
fn a_leader_without_a_valid_id_is_reported_and_keeps_its_members() {
    let none =
        "spec.clusterID: is empty, and Namespace \"antrea-multicluster\" has no ClusterClaim \"id.k8s.io\"";
    let other = "spec.clusterID: \"south\" is not spec.leaders[0].clusterID, \"north\"";
    for (claims, message) in [(OptionalKind::Absent, none), (claims("south"), other)] {
        let mut snapshot = without_members();
        snapshot.cluster_claims = claims;
        insert(&mut snapshot.cluster_sets, older(&json!([])));
        insert(&mut snapshot.announces, announce("east", "set", "north"));
        settle(&mut snapshot);
        let status = set_of(&snapshot).status.unwrap();
        let ready = &status.conditions[0];
        assert_eq!(
            (
                ready.status.as_str(),
                ready.reason.as_str(),
                ready.message.as_str()
            ),
            ("False", "InvalidClusterSet", message)
        );
        assert_eq!((status.total_clusters, status.ready_clusters), (1, 1));
        assert_eq!(issue_messages(&make_plan(&mut snapshot)), [message]);
    }
}

#[test]
fn service_accounts_of_spec_members_are_bound_like_annotated_ones() {
    let mut snapshot = leader_snapshot();
    snapshot.cluster_claims = claims("north");
    let members = json!([
        { "clusterID": "east", "serviceAccount": "member-east-access-sa" },
        { "clusterID": "west", "serviceAccount": "annotated" },
        { "clusterID": "Bad_1", "serviceAccount": "bad" },
        { "clusterID": "a", "serviceAccount": "shared" },
        { "clusterID": "b", "serviceAccount": "shared" },
        { "clusterID": "gone", "serviceAccount": "no-such-account" },
        { "clusterID": "unnamed" },
    ]);
    insert(&mut snapshot.cluster_sets, older(&members));
    for name in ["member-east-access-sa", "bad", "shared", "default"] {
        account(&mut snapshot, name, None);
    }
    account(
        &mut snapshot,
        "annotated",
        Some((names::ANNOTATION_CLUSTER_ID, "south")),
    );
    settle(&mut snapshot);
    assert_eq!(
        bound(&snapshot),
        json!({ "member-east-access-sa": "east", "annotated": "south" })
    );
    let plan = make_plan(&mut snapshot);
    let messages = issue_messages(&plan).join("\n");
    for message in [
        "annotation multicluster.antrea.io/cluster-id: \"south\" differs from \"west\" of spec.members; the annotation is used",
        "spec.members[2].clusterID: \"Bad_1\" is not a DNS label",
        "spec.members: several have the ServiceAccount \"shared\"; it is bound to none of them",
    ] {
        assert!(messages.contains(message), "{message:?} not in {messages}");
    }
}
