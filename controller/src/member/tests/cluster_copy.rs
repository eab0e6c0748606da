//! Two clusters with one ID: the announce is that of another Namespace `kube-system`.

use std::time::Duration;

use super::*;
use crate::{
    member::{
        cluster_copy::{AnnounceObserver, AnnounceOwner, ClusterIdentity},
        instance::{InstanceTracker, TAKEOVER_DELAY, name},
        is_active,
    },
    plan::{ApiServer, Kind, WriteOp},
};

const UID: &str = "mc-gateway.io/cluster-uid";

/// A member with an export and an import.
fn member() -> MemberSnapshot {
    let mut snapshot = exporting();
    insert(
        &mut snapshot.namespaces,
        object::<Namespace>(json!({ "metadata": { "name": "kube-system", "uid": "own" } })),
    );
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "api"));
    settle(&mut snapshot);
    snapshot
}

/// The announce in the leader cluster.
fn announced(snapshot: &mut MemberSnapshot) -> MemberClusterAnnounce {
    leader(snapshot)
        .announces
        .values()
        .next()
        .unwrap()
        .as_ref()
        .clone()
}

fn announced_uid(snapshot: &mut MemberSnapshot) -> Option<String> {
    announced(snapshot).annotations().get(UID).cloned()
}

/// The announce as another cluster writes it.
fn written_by(snapshot: &mut MemberSnapshot, uid: &str) {
    let mut announce = announced(snapshot);
    announce.annotations_mut().insert(UID.to_owned(), uid.to_owned());
    insert(&mut leader(snapshot).announces, announce);
}

#[test]
fn the_announce_has_the_uid_of_the_cluster() {
    let mut snapshot = member();
    assert_eq!(announced_uid(&mut snapshot).as_deref(), Some("own"));
    // Also that of an earlier version, at once.
    let mut earlier = announced(&mut snapshot);
    earlier.annotations_mut().remove(UID);
    insert(&mut leader(&mut snapshot).announces, earlier);
    settle(&mut snapshot);
    assert_eq!(announced_uid(&mut snapshot).as_deref(), Some("own"));
}

#[test]
fn a_copy_writes_nothing_to_the_leader_and_keeps_its_imports() {
    let mut snapshot = member();
    written_by(&mut snapshot, "original");
    // The original exports and imports other Services.
    snapshot.service_exports = ObjectMap::default();
    leader(&mut snapshot).imports = ObjectMap::default();
    let before = (
        leader(&mut snapshot).exports.clone(),
        leader(&mut snapshot).announces.clone(),
        snapshot.services.clone(),
    );
    settle(&mut snapshot);
    let after = (
        leader(&mut snapshot).exports.clone(),
        leader(&mut snapshot).announces.clone(),
        snapshot.services.clone(),
    );
    assert_eq!(after, before);
    let (status, reason, message) = ready(&snapshot);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ClonedCluster"));
    assert!(
        message.contains("\"east\"") && message.contains("\"original\""),
        "{message}"
    );
    assert!(plan(&snapshot).next_requeue.is_some(), "for the takeover");
}

#[test]
fn a_copy_of_etcd_writes_nothing_to_the_leader() {
    let mut snapshot = member();
    snapshot.instance.other = Some("original".to_owned());
    snapshot.service_exports = ObjectMap::default();
    leader(&mut snapshot).imports = ObjectMap::default();
    let before = (leader(&mut snapshot).exports.clone(), snapshot.services.clone());
    settle(&mut snapshot);
    assert_eq!(
        (leader(&mut snapshot).exports.clone(), snapshot.services.clone()),
        before
    );
    assert_eq!(announced_instance(&mut snapshot).as_deref(), Some("run"));
    let (status, reason, message) = ready(&snapshot);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "ClonedCluster"));
    assert!(message.contains("two member controllers"), "{message}");
    snapshot.announce_unchanged_for = TAKEOVER_DELAY;
    settle(&mut snapshot);
    assert_eq!(exported_services(&mut snapshot), 0);
}

fn exported_services(snapshot: &mut MemberSnapshot) -> usize {
    let exports = leader(snapshot).exports.values();
    let exports = exports.filter(|export| export.metadata.deletion_timestamp.is_none());
    exports.filter(|export| export.spec.kind == "Service").count()
}

fn announced_instance(snapshot: &mut MemberSnapshot) -> Option<String> {
    let announce = announced(snapshot);
    let statement = announce.annotations().get(names::ANNOTATION_INSTANCE)?;
    Some(name(statement).to_owned())
}

#[test]
fn a_run_in_the_place_of_another_waits_with_its_exports() {
    let mut snapshot = member();
    snapshot.instance = Instance {
        own: "next".to_owned(),
        other: None,
        writes_in: Some(Duration::from_secs(2)),
        deletes_in: Some(Duration::from_secs(15)),
    };
    snapshot.service_exports = ObjectMap::default();
    assert!(!is_active(&snapshot));
    let first = plan(&snapshot);
    let to_leader = first
        .writes
        .iter()
        .filter(|write| write.target.side == ApiServer::Leader);
    assert!(
        to_leader
            .clone()
            .all(|write| write.target.kind == Kind::MemberClusterAnnounce)
    );
    assert_eq!(to_leader.count(), 1);
    let end = snapshot.now.checked_add(Duration::from_secs(2)).ok();
    assert!(first.next_requeue <= end, "{:?}", first.next_requeue);
    // Without an answer of the leader the time can pass: no reconciliation follows at once.
    snapshot.instance.writes_in = Some(Duration::ZERO);
    let requeue = plan(&snapshot).next_requeue;
    assert!(requeue.is_none_or(|at| at > snapshot.now));
    settle(&mut snapshot);
    assert_eq!(announced_instance(&mut snapshot).as_deref(), Some("next"));
    assert_eq!(exported_services(&mut snapshot), 1);
    snapshot.instance.writes_in = None;
    assert!(is_active(&snapshot));
    settle(&mut snapshot);
    assert_eq!(exported_services(&mut snapshot), 0);
}

#[test]
fn inherited_exports_are_deleted_once_the_instance_is_settled_and_others_at_once() {
    let deletions = |plan: &Plan| {
        let is_deletion = |write: &&Write| matches!(write.op, WriteOp::Delete { .. });
        plan.writes.iter().filter(is_deletion).count()
    };
    let mut snapshot = member();
    snapshot.instance.deletes_in = Some(Duration::from_secs(12));
    let exports = std::mem::take(&mut snapshot.service_exports);
    let unwanted = plan(&snapshot);
    assert!(deletions(&unwanted) > 0);
    let held = |tracker: &mut InstanceTracker, seconds: u64| {
        let mut plan = unwanted.clone();
        tracker.hold_deletions(&snapshot, &mut plan, Duration::from_secs(seconds));
        assert_eq!(
            plan.writes.len(),
            unwanted.writes.len() - deletions(&unwanted) + deletions(&plan)
        );
        (deletions(&plan), plan.next_requeue)
    };
    let mut inherited = InstanceTracker::new("run".to_owned());
    let end = snapshot.now.checked_add(Duration::from_secs(12)).ok();
    let (count, requeue) = held(&mut inherited, 100);
    assert_eq!(count, 0);
    assert!(requeue <= end, "{requeue:?}");
    assert_eq!(held(&mut inherited, 110).0, 0);
    // A user withdraws the export 1 s after the first plan of the run, which wanted it.
    let mut wanted = InstanceTracker::new("run".to_owned());
    let mut with_exports = snapshot.clone();
    with_exports.service_exports = exports;
    let mut first = plan(&with_exports);
    wanted.hold_deletions(&with_exports, &mut first, Duration::from_secs(100));
    assert_eq!(held(&mut wanted, 101).0, deletions(&unwanted));
    // Or at once, after the run has written it.
    let mut writer = InstanceTracker::new("run".to_owned());
    leader(&mut with_exports).exports = ObjectMap::default();
    let mut first = plan(&with_exports);
    writer.hold_deletions(&with_exports, &mut first, Duration::from_secs(100));
    assert_eq!(held(&mut writer, 100).0, deletions(&unwanted));
}

#[test]
fn a_cluster_takes_the_place_of_one_without_heartbeats() {
    let mut snapshot = member();
    written_by(&mut snapshot, "former");
    snapshot.announce_unchanged_for = TAKEOVER_DELAY.saturating_sub(Duration::from_millis(1));
    let to_leader = |writes: &[Write]| writes.iter().any(|w| w.target.side == ApiServer::Leader);
    assert!(!to_leader(&plan(&snapshot).writes));
    snapshot.announce_unchanged_for = TAKEOVER_DELAY;
    let writes = plan(&snapshot).writes;
    assert!(
        writes
            .iter()
            .any(|w| w.target.kind == Kind::MemberClusterAnnounce),
        "{writes:?}"
    );
    settle(&mut snapshot);
    assert_eq!(announced_uid(&mut snapshot).as_deref(), Some("own"));
    assert_eq!(ready(&snapshot).0, "True");
}

#[test]
fn a_cluster_of_unknown_uid_is_no_copy() {
    let mut snapshot = member();
    snapshot.namespaces = ObjectMap::default();
    written_by(&mut snapshot, "other");
    settle(&mut snapshot);
    assert_eq!(ready(&snapshot).0, "True");
}

#[test]
fn a_copy_deregisters_nothing_of_its_original_and_a_restarted_run_its_own_announce() {
    let own = ClusterIdentity {
        uid: Some("own".to_owned()),
        instance: "next".to_owned(),
    };
    let announced = |uid: &str, statement: Option<&str>| {
        let mut announce = announce("set");
        let annotations = announce.annotations_mut();
        annotations.insert(UID.to_owned(), uid.to_owned());
        annotations.extend(statement.map(|text| (names::ANNOTATION_INSTANCE.to_owned(), text.to_owned())));
        announce
    };
    let owner = |observer: &mut AnnounceObserver, announce: &MemberClusterAnnounce, seconds: u64| {
        observer.owner(&own, announce, Duration::from_secs(seconds))
    };
    for (uid, statement, expected) in [
        ("original", None, AnnounceOwner::Other),
        ("original", Some("next/1"), AnnounceOwner::Other),
        ("own", None, AnnounceOwner::Own),
        ("own", Some("next/1"), AnnounceOwner::Own),
        ("own", Some("run/1"), AnnounceOwner::Unknown),
    ] {
        let announce = announced(uid, statement);
        let seen = owner(&mut AnnounceObserver::default(), &announce, 0);
        assert_eq!(seen, expected, "{uid} {statement:?}");
    }
    // The former run of this cluster writes no more.
    let former = announced("own", Some("run/1"));
    let mut observer = AnnounceObserver::default();
    assert_eq!(owner(&mut observer, &former, 5), AnnounceOwner::Unknown);
    assert_eq!(owner(&mut observer, &former, 24), AnnounceOwner::Unknown);
    assert_eq!(owner(&mut observer, &former, 25), AnnounceOwner::Own);
    // The original does, also after a restart of its controller.
    let mut observer = AnnounceObserver::default();
    assert_eq!(owner(&mut observer, &former, 5), AnnounceOwner::Unknown);
    for later in ["run/2", "restarted/3"] {
        let announce = announced("own", Some(later));
        assert_eq!(
            owner(&mut observer, &announce, 20),
            AnnounceOwner::Other,
            "{later}"
        );
    }
}
