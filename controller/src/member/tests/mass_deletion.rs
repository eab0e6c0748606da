//! The brake on mass deletion.

use std::ops::Range;

use mc_api::label_identity::{LabelIdentity, digest, object_name};

use super::*;
use crate::{
    member::mass_deletion::{HELD, MAX_UNBRAKED},
    plan::Kind,
};

/// More imports than are deleted without a permission.
const MANY: usize = MAX_UNBRAKED + 5;

fn name(number: usize) -> String {
    format!("web-{number}")
}

/// A member with `count` imported Services, on a new connection to a leader without imports.
fn member(count: usize) -> MemberSnapshot {
    let mut snapshot = snapshot();
    offer(&mut snapshot, 0..count);
    settle(&mut snapshot);
    assert_eq!(snapshot.services.len(), count);
    lose_all(&mut snapshot);
    leader(&mut snapshot).listed_imports = Arc::default();
    snapshot
}

fn lose_all(snapshot: &mut MemberSnapshot) {
    leader(snapshot).imports = ObjectMap::default();
}

/// Adds imports to the leader's list.
fn offer(snapshot: &mut MemberSnapshot, numbers: Range<usize>) {
    for number in numbers {
        insert(
            &mut leader(snapshot).imports,
            import_service("shop", &name(number)),
        );
    }
}

/// The Services that are left after all writes.
fn left(mut snapshot: MemberSnapshot) -> usize {
    settle(&mut snapshot);
    assert_eq!(snapshot.services.len(), snapshot.service_imports.len());
    snapshot.services.len()
}

#[test]
fn imports_that_a_new_list_lacks_are_kept() {
    let snapshot = member(MANY);
    let held = plan(&snapshot);
    let targets: Vec<_> = held.writes.iter().map(|w| w.target.kind).collect();
    assert_eq!(targets, [Kind::ClusterSet], "only the condition");
    let objects = 2 * MANY;
    let message = format!(
        "{objects} objects are kept although the leader's list lacks their imports ({MANY} of {MANY})"
    );
    assert_issue(&held, &format!("ClusterSet set: {message}"));
    let [event] = held.warning_events.as_slice() else {
        panic!("{:?}", held.warning_events)
    };
    assert_eq!(
        (event.object.kind, event.reason.as_str()),
        (Kind::ClusterSet, "AbsentFromLeader")
    );
    assert!(event.message.starts_with(&message), "{}", event.message);
    assert!(event.message.contains("mc-gateway.io/mass-deletion-until"));
}

#[test]
fn imports_whose_deletion_was_seen_are_deleted_in_any_number() {
    let mut snapshot = member(MANY);
    offer(&mut snapshot, 0..MANY);
    list_imports(&mut snapshot);
    lose_all(&mut snapshot);
    assert_eq!(left(snapshot), 0);
}

#[test]
fn a_few_missing_imports_are_deleted() {
    let mut snapshot = member(MANY);
    offer(&mut snapshot, MAX_UNBRAKED..MANY);
    assert_eq!(left(snapshot.clone()), MANY - MAX_UNBRAKED);
    lose_all(&mut snapshot);
    offer(&mut snapshot, MAX_UNBRAKED + 1..MANY);
    assert_eq!(left(snapshot), MANY, "one more");
}

#[test]
fn a_tenth_of_many_imports_is_deleted() {
    let many = 10 * MANY;
    let mut snapshot = member(many);
    offer(&mut snapshot, MANY..many);
    assert_eq!(left(snapshot.clone()), many - MANY);
    lose_all(&mut snapshot);
    offer(&mut snapshot, MANY + 1..many);
    assert_eq!(left(snapshot), many, "one more");
}

#[test]
fn held_deletions_do_not_hold_others() {
    let mut snapshot = member(MANY + 1);
    offer(&mut snapshot, 0..1);
    list_imports(&mut snapshot);
    lose_all(&mut snapshot);
    assert_eq!(left(snapshot), MANY);
}

/// Found by `sim`: the import of a Service's endpoints returns before that of the Service.
#[test]
fn a_service_whose_endpoints_return_first_is_kept() {
    let mut snapshot = member(MANY);
    settle(&mut snapshot);
    for number in 0..MANY {
        let endpoints = import_endpoints("shop", &name(number), &[("west", vec!["10.30.0.9".to_owned()])]);
        insert(&mut leader(&mut snapshot).imports, endpoints);
    }
    list_imports(&mut snapshot);
    assert_eq!(left(snapshot), MANY);
}

/// Once fewer are missing than are deleted without a permission, the others would be deleted.
#[test]
fn imports_that_return_one_by_one_are_unchanged() {
    let mut snapshot = member(MANY);
    let before = snapshot.services.clone();
    for number in 0..MANY {
        settle(&mut snapshot);
        assert!(is_held(&snapshot), "{number} have returned");
        offer(&mut snapshot, number..number + 1);
        // A restarted controller.
        leader(&mut snapshot).listed_imports = Arc::default();
    }
    settle(&mut snapshot);
    assert!(!is_held(&snapshot));
    assert_eq!(snapshot.services, before);
}

/// The deletion guard removes the same deletions from the plan, so that none is missing then.
#[test]
fn a_relist_does_not_release_held_deletions() {
    let mut snapshot = member(MANY);
    settle(&mut snapshot);
    offer(&mut snapshot, 0..MANY - MAX_UNBRAKED);
    let until = snapshot.now + SignedDuration::from_secs(5);
    leader(&mut snapshot).suppress_deletions_until = Some(until);
    settle(&mut snapshot);
    assert!(is_held(&snapshot));
    leader(&mut snapshot).suppress_deletions_until = None;
    assert_eq!(left(snapshot), MANY);
}

fn is_held(snapshot: &MemberSnapshot) -> bool {
    let set = snapshot.cluster_sets.values().next().unwrap();
    let status = set.status.as_ref().unwrap();
    assert_eq!(status.conditions[0].type_, "Ready");
    status.conditions.iter().any(|c| c.type_ == HELD)
}

#[test]
fn imports_that_return_are_unchanged() {
    let mut snapshot = member(MANY);
    let before = snapshot.services.clone();
    settle(&mut snapshot);
    offer(&mut snapshot, 0..MANY);
    settle(&mut snapshot);
    assert_eq!(snapshot.services, before);
    assert!(!is_held(&snapshot));
    assert_eq!(plan(&snapshot).warning_events, []);
}

#[test]
fn an_administrator_permits_a_mass_deletion_for_a_time() {
    let mut snapshot = member(MANY);
    let permit = |snapshot: &mut MemberSnapshot, until: &str| {
        let mut set = cluster_set("set");
        let key = names::ANNOTATION_MASS_DELETION_UNTIL.to_owned();
        set.annotations_mut().insert(key, until.to_owned());
        insert(&mut snapshot.cluster_sets, set);
    };
    permit(&mut snapshot, "tomorrow");
    assert_issue(
        &plan(&snapshot),
        "ClusterSet set: annotation \"mc-gateway.io/mass-deletion-until\": \"tomorrow\": ",
    );
    assert_eq!(left(snapshot.clone()), MANY);
    permit(&mut snapshot, NOW);
    assert_eq!(left(snapshot.clone()), MANY, "the time has passed");
    advance(&mut snapshot, -1);
    assert_eq!(left(snapshot), 0);
}

/// A member with `count` imported label identities, on a new connection to a leader that offers those imports.
fn with_identities(count: u32, offered: &[(&str, i64)]) -> MemberSnapshot {
    let mut snapshot = snapshot();
    snapshot.config.stretched_network_policy = true;
    let identities = present(&mut snapshot.label_identities);
    for number in 1..=count {
        let label = format!("ns:kubernetes.io/metadata.name=shop&pod:app=web-{number}");
        let name = object_name(&digest(&label)).to_owned();
        let identity: LabelIdentity = object(json!({
            "metadata": { "name": name, "labels": { names::LABEL_APP_MANAGED_BY: names::MANAGED_BY } },
            "spec": { "label": label, "id": number },
        }));
        insert(identities, identity);
    }
    for (label, id) in offered {
        let import = json!({
            "metadata": { "name": object_name(&digest(label)), "namespace": LEADER_NS },
            "spec": { "kind": "LabelIdentity", "labelIdentity": { "label": label, "id": id } },
        });
        insert(&mut leader(&mut snapshot).imports, object(import));
    }
    snapshot
}

/// A plan has the deletions of 256 identities: 5,000 missing ones were deleted in batches below a tenth of all.
#[test]
fn identities_beyond_a_batch_count() {
    let mut snapshot = with_identities(3_000, &[]);
    settle(&mut snapshot);
    assert_eq!(present(&mut snapshot.label_identities).len(), 3_000);
}

/// A new leader numbers labels anew: two with one number would have the same rules.
#[test]
fn an_identity_whose_number_has_another_label_is_deleted() {
    let label = "ns:kubernetes.io/metadata.name=shop&pod:app=new";
    let mut snapshot = with_identities(300, &[(label, 7)]);
    settle(&mut snapshot);
    let identities = present(&mut snapshot.label_identities);
    assert_eq!(identities.len(), 300, "one is replaced");
    let of_number: Vec<_> = identities
        .values()
        .filter(|identity| identity.spec.id == 7)
        .map(|identity| identity.spec.label.clone())
        .collect();
    assert_eq!(of_number, [label]);
}

/// Found by reading: they counted as missing, although nothing deletes them.
#[test]
fn identities_with_unreadable_imports_do_not_count() {
    let mut snapshot = with_identities(30, &[]);
    let names: Vec<_> = present(&mut snapshot.label_identities)
        .keys()
        .map(|key| key.name.clone())
        .collect();
    let unreadable = names
        .iter()
        .take(25)
        .map(|name| NamespacedName::new(LEADER_NS, name.as_str()));
    leader(&mut snapshot).unreadable_imports = unreadable.collect();
    settle(&mut snapshot);
    assert_eq!(present(&mut snapshot.label_identities).len(), 25);
    assert!(!is_held(&snapshot));
}
