//! The membership record and deregistration.

use kube::ResourceExt;

use super::*;
use crate::{
    member::membership_record::{LeaderEndpoint, MembershipRecord},
    plan::{Kind, WriteOp},
    snapshot::{DeregistrationState, Membership},
};

fn membership(set: &str) -> Membership {
    Membership {
        cluster_set: set.to_owned(),
        cluster_id: "east".to_owned(),
        namespace: LEADER_NS.to_owned(),
    }
}

/// A member "east" whose `ClusterSet` "set" was deleted a while ago.
fn left() -> MemberSnapshot {
    let mut snapshot = snapshot();
    settle(&mut snapshot);
    leave(&mut snapshot);
    snapshot
}

fn recorded(snapshot: &MemberSnapshot) -> Vec<Membership> {
    MembershipRecord::from_snapshot(snapshot)
        .endpoints
        .into_keys()
        .collect()
}

#[test]
fn a_membership_is_recorded_before_it_is_announced() {
    let mut snapshot = snapshot();
    leader(&mut snapshot).announces = ObjectMap::default();
    let first = reconcile(&mut snapshot);
    let writes = |writes: &[Write], kind| writes.iter().any(|a| a.target.kind == kind);
    assert!(writes(&first, Kind::ConfigMap));
    assert!(!writes(&first, Kind::MemberClusterAnnounce));
    assert!(writes(&reconcile(&mut snapshot), Kind::MemberClusterAnnounce));
    settle(&mut snapshot);
    let endpoint = LeaderEndpoint {
        server: "https://172.18.0.1:6443".to_owned(),
        secret: "member-east-token".to_owned(),
        settled_announce: None,
    };
    assert_eq!(
        MembershipRecord::from_snapshot(&snapshot).endpoints,
        [(membership("set"), endpoint)].into()
    );
}

#[test]
fn an_ended_membership_is_recorded_until_deregistration_is_confirmed() {
    let mut snapshot = left();
    settle(&mut snapshot);
    assert_eq!(recorded(&snapshot), [membership("set")]);
    let failing = DeregistrationState::Failing("no answer".to_owned());
    snapshot.deregistrations.insert(membership("set"), failing);
    assert_issue(
        &plan(&snapshot),
        "ClusterSet set: cluster \"east\" is not deregistered from the leader: no answer; to give up, delete \
         ConfigMap kube-system/mc-gateway-memberships",
    );
    settle(&mut snapshot);
    assert_eq!(recorded(&snapshot), [membership("set")]);
    snapshot
        .deregistrations
        .insert(membership("set"), DeregistrationState::Confirmed);
    settle(&mut snapshot);
    assert!(
        snapshot.memberships.is_empty(),
        "the record is deleted with its last entry"
    );
}

#[test]
fn a_member_that_joins_another_set_deregisters_from_the_first() {
    let mut snapshot = left();
    insert(&mut snapshot.cluster_sets, cluster_set("other"));
    settle(&mut snapshot);
    assert_eq!(recorded(&snapshot), [membership("other"), membership("set")]);
    snapshot
        .deregistrations
        .insert(membership("set"), DeregistrationState::Confirmed);
    settle(&mut snapshot);
    assert_eq!(recorded(&snapshot), [membership("other")]);
}

#[test]
fn a_member_that_rejoins_is_not_deregistered() {
    let mut snapshot = left();
    snapshot
        .deregistrations
        .insert(membership("set"), DeregistrationState::Confirmed);
    let mut set = cluster_set("set");
    set.spec.cluster_id = String::new();
    insert(&mut snapshot.cluster_sets, set);
    let _ = reconcile(&mut snapshot);
    assert_eq!(
        recorded(&snapshot),
        [membership("set")],
        "the cluster ID is unknown"
    );
    insert(&mut snapshot.cluster_sets, cluster_set("set"));
    settle(&mut snapshot);
    assert_eq!(recorded(&snapshot), [membership("set")]);
}

/// Simulation, seed 2314: the record changed in the plan that imported, so that the leader stayed new.
#[test]
fn a_member_without_imports_settles_while_its_record_changes() {
    let mut snapshot = left();
    settle(&mut snapshot);
    let absent_since = |snapshot: &MemberSnapshot| {
        let record = snapshot.memberships.values().next().unwrap();
        record
            .annotations()
            .get(names::ANNOTATION_WITHOUT_CLUSTER_SET_SINCE)
            .cloned()
    };
    assert!(absent_since(&snapshot).is_some());
    insert(&mut snapshot.cluster_sets, cluster_set("set"));
    join(&mut snapshot, "joined");
    insert(
        &mut leader(&mut snapshot).imports,
        import_info("west", "10.30.0.0/16", &["172.18.0.9"]),
    );
    reconcile(&mut snapshot);
    assert_eq!(snapshot.cluster_infos.len(), 1);
    let record = MembershipRecord::from_snapshot(&snapshot);
    assert_eq!(absent_since(&snapshot), None);
    let endpoint = &record.endpoints[&membership("set")];
    assert_eq!(endpoint.settled_announce.as_deref(), Some("joined"));
}

#[test]
fn malformed_entries_are_kept_and_reported() {
    let snapshot = left();
    let endpoint = r#"{"server":"https://a","secret":"b"}"#;
    for (key, text, reason) in [
        ("set_east", endpoint, "the key is not SET_ID_NAMESPACE"),
        ("a_b_c_d", endpoint, "the key is not SET_ID_NAMESPACE"),
        ("set_east_there", "{", "EOF while parsing"),
        (
            "set_east_there",
            r#"{"server":"https://a"}"#,
            "missing field `secret`",
        ),
    ] {
        let mut record = snapshot.memberships.values().next().unwrap().as_ref().clone();
        assert_eq!(record.name_any(), names::MEMBERSHIP_RECORDS);
        record
            .data
            .get_or_insert_default()
            .insert(key.to_owned(), text.to_owned());
        let mut snapshot = snapshot.clone();
        insert(&mut snapshot.memberships, record);
        assert_issue(
            &plan(&snapshot),
            &format!("ConfigMap kube-system/mc-gateway-memberships: data[{key:?}]: {reason}"),
        );
        snapshot
            .deregistrations
            .insert(membership("set"), DeregistrationState::Confirmed);
        let Some(WriteOp::Apply(body)) = reconcile(&mut snapshot)
            .into_iter()
            .find_map(|a| (a.target.kind == Kind::ConfigMap).then_some(a.op))
        else {
            panic!("the confirmed entry is kept")
        };
        assert_eq!(body.value()["data"], json!({ key: text }));
    }
}
