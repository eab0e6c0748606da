//! Two clusters with one ID: the announce is that of another Namespace `kube-system`.

use std::time::Duration;

use super::*;
use crate::{
    member::cluster_copy::TAKEOVER_DELAY,
    plan::{ApiServer, Kind},
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
