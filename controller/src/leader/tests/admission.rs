//! Exports of clusters that are no members (finding S3).

use std::sync::Arc;

use super::{
    label_identities::{export_of, label, stretched},
    *,
};

/// All kinds of exports of a cluster.
fn export_all(snapshot: &mut LeaderSnapshot, cluster: &str, ip: &str) {
    insert(&mut snapshot.exports, service(cluster, "shop", cluster, 80, NOW));
    insert(&mut snapshot.exports, endpoints(cluster, "shop", cluster, ip));
    insert(&mut snapshot.exports, cluster_info(cluster));
    insert(&mut snapshot.exports, export_of(cluster, &label(cluster.len())));
}

/// A leader that exchanges label identities, with a member `east` that exports everything.
fn one_member() -> LeaderSnapshot {
    let mut snapshot = stretched();
    snapshot.announces = Arc::default();
    insert(&mut snapshot.announces, accepted("east"));
    export_all(&mut snapshot, "east", "10.20.0.1");
    settle(&mut snapshot);
    assert_eq!(snapshot.imports.len(), 4);
    snapshot
}

fn rejection(snapshot: &LeaderSnapshot, cluster: &str) -> Option<String> {
    let name = NamespacedName::new(NS, names::member_announce(cluster));
    let reason = names::ANNOTATION_REJECTED_REASON.get(snapshot.announces[&name].as_ref());
    reason.map(str::to_owned)
}

#[test]
fn exports_of_a_cluster_without_an_accepted_announce_are_ignored() {
    let mut snapshot = one_member();
    // Without an announce, then with a rejected one.
    export_all(&mut snapshot, "stranger", "10.30.0.1");
    settle(&mut snapshot);
    assert_eq!(snapshot.imports.len(), 4);
    insert(
        &mut snapshot.announces,
        announce("stranger", "another-set", "north"),
    );
    settle(&mut snapshot);
    assert_eq!(snapshot.imports.len(), 4);
    let issue = "cluster \"stranger\": 4 ResourceExports are ignored: the cluster has no accepted MemberClusterAnnounce";
    assert!(issues(&mut snapshot).iter().any(|found| found == issue));
    insert(&mut snapshot.announces, announce("stranger", "set", "north"));
    settle(&mut snapshot);
    assert_eq!(snapshot.imports.len(), 8);
}

/// A leader that is restored from a snapshot lacks the announces of members whose exports it has.
#[test]
fn a_missing_announce_withdraws_nothing_and_admits_nothing_new() {
    let mut snapshot = one_member();
    let before = snapshot.imports.clone();
    snapshot.announces = Arc::default();
    settle(&mut snapshot);
    assert_eq!(snapshot.imports, before);
    insert(&mut snapshot.exports, service("east", "shop", "new", 80, NOW));
    insert(&mut snapshot.exports, export_of("east", &label(0)));
    settle(&mut snapshot);
    assert_eq!(snapshot.imports, before);
    insert(&mut snapshot.announces, announce("east", "set", "north"));
    settle(&mut snapshot);
    assert_eq!(snapshot.imports.len(), 6);
}

#[test]
fn an_evicted_cluster_loses_its_exports_and_stays_out() {
    let mut snapshot = one_member();
    insert(&mut snapshot.announces, accepted("west"));
    export_all(&mut snapshot, "west", "10.40.0.1");
    settle(&mut snapshot);
    let all = snapshot.imports.len();
    evict(&mut snapshot, "south, east");
    settle(&mut snapshot);
    assert!(snapshot.exports.values().all(|e| e.spec.cluster_id == "west"));
    assert_eq!(rejection(&snapshot, "west"), None);
    let why = rejection(&snapshot, "east").unwrap();
    let expected = "the cluster is evicted (annotation mc-gateway.io/evicted-clusters of ClusterSet \"set\")";
    assert_eq!(why, expected);
    // The label of both has one import.
    assert!(all > snapshot.imports.len());
    // Its controller announces and exports again.
    insert(&mut snapshot.announces, announce("east", "set", "north"));
    export_all(&mut snapshot, "east", "10.20.0.1");
    settle(&mut snapshot);
    assert!(snapshot.exports.values().all(|e| e.spec.cluster_id == "west"));
    // The administrator readmits it.
    evict(&mut snapshot, "");
    export_all(&mut snapshot, "east", "10.20.0.1");
    settle(&mut snapshot);
    assert_eq!(rejection(&snapshot, "east"), None);
    assert_eq!(snapshot.imports.len(), all);
}

#[test]
fn an_invalid_id_in_the_eviction_is_reported() {
    let mut snapshot = one_member();
    evict(&mut snapshot, "east west");
    assert_issue(
        &mut snapshot,
        "ClusterSet set: annotation mc-gateway.io/evicted-clusters: \"east west\"",
    );
    settle(&mut snapshot);
    assert_eq!(rejection(&snapshot, "east"), None);
}
