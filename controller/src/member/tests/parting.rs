//! The record of memberships, and goodbyes.

use kube::ResourceExt;

use super::*;
use crate::{
    member::parting::{Goodbye, Membership, Record, Way},
    plan::{Kind, Op},
    world::fake::delete,
};

fn membership(set: &str) -> Membership {
    Membership {
        cluster_set: set.to_owned(),
        cluster_id: "east".to_owned(),
        namespace: LEADER_NS.to_owned(),
    }
}

/// A member "east" whose `ClusterSet` "set" was deleted.
fn left() -> MemberWorld {
    let mut world = world();
    settle(&mut world);
    delete(&mut world.cluster_sets, &(NS.to_owned(), "set".to_owned()));
    world
}

fn recorded(world: &MemberWorld) -> Vec<Membership> {
    Record::of(world).ways.into_keys().collect()
}

#[test]
fn a_membership_is_recorded_before_it_is_announced() {
    let mut world = world();
    leader(&mut world).announces = Objects::default();
    let first = step(&mut world);
    let writes = |actions: &[Action], kind| actions.iter().any(|a| a.target.kind == kind);
    assert!(writes(&first, Kind::ConfigMap));
    assert!(!writes(&first, Kind::MemberClusterAnnounce));
    assert!(writes(&step(&mut world), Kind::MemberClusterAnnounce));
    settle(&mut world);
    let way = Way {
        server: "https://172.18.0.1:6443".to_owned(),
        secret: "member-east-token".to_owned(),
    };
    assert_eq!(Record::of(&world).ways, [(membership("set"), way)].into());
}

#[test]
fn a_membership_that_ended_is_on_record_until_the_leader_knows() {
    let mut world = left();
    settle(&mut world);
    assert_eq!(recorded(&world), [membership("set")]);
    let why = Goodbye::Outstanding("no answer".to_owned());
    world.goodbyes.insert(membership("set"), why);
    says(
        &plan(&world),
        "ClusterSet set: the leader was not told yet that cluster \"east\" left: no answer; to give up, delete \
         ConfigMap kube-system/mc-gateway-memberships",
    );
    settle(&mut world);
    assert_eq!(recorded(&world), [membership("set")]);
    world.goodbyes.insert(membership("set"), Goodbye::Said);
    settle(&mut world);
    assert!(world.memberships.is_empty(), "the last takes the record along");
}

#[test]
fn who_joins_another_set_still_has_to_leave_the_first() {
    let mut world = left();
    insert(&mut world.cluster_sets, cluster_set("other"));
    settle(&mut world);
    assert_eq!(recorded(&world), [membership("other"), membership("set")]);
    world.goodbyes.insert(membership("set"), Goodbye::Said);
    settle(&mut world);
    assert_eq!(recorded(&world), [membership("other")]);
}

#[test]
fn who_comes_back_has_not_left() {
    let mut world = left();
    world.goodbyes.insert(membership("set"), Goodbye::Said);
    let mut set = cluster_set("set");
    set.spec.cluster_id = String::new();
    insert(&mut world.cluster_sets, set);
    let _ = step(&mut world);
    assert_eq!(recorded(&world), [membership("set")], "whose ID is not known yet");
    insert(&mut world.cluster_sets, cluster_set("set"));
    settle(&mut world);
    assert_eq!(recorded(&world), [membership("set")]);
}

#[test]
fn what_cannot_be_read_stays_and_is_told() {
    let world = left();
    let way = r#"{"server":"https://a","secret":"b"}"#;
    for (key, text, why) in [
        ("set_east", way, "the key is not SET_ID_NAMESPACE"),
        ("a_b_c_d", way, "the key is not SET_ID_NAMESPACE"),
        ("set_east_there", "{", "EOF while parsing"),
        (
            "set_east_there",
            r#"{"server":"https://a"}"#,
            "missing field `secret`",
        ),
    ] {
        let mut record = world.memberships.values().next().unwrap().as_ref().clone();
        assert_eq!(record.name_any(), names::MEMBERSHIPS);
        record
            .data
            .get_or_insert_default()
            .insert(key.to_owned(), text.to_owned());
        let mut world = world.clone();
        insert(&mut world.memberships, record);
        says(
            &plan(&world),
            &format!("ConfigMap kube-system/mc-gateway-memberships: data[{key:?}]: {why}"),
        );
        world.goodbyes.insert(membership("set"), Goodbye::Said);
        let Some(Op::Apply(body)) = step(&mut world)
            .into_iter()
            .find_map(|a| (a.target.kind == Kind::ConfigMap).then_some(a.op))
        else {
            panic!("the other goes")
        };
        assert_eq!(body.value()["data"], json!({ key: text }));
    }
}
