//! `ResourceExport`s that another version of a controller has written and this one cannot decode.

use super::*;

/// A leader with the exports of `east` and `west`, settled.
fn merged() -> LeaderSnapshot {
    let mut snapshot = leader_snapshot();
    for cluster in ["east", "west"] {
        insert(&mut snapshot.announces, announce(cluster, "set", "north"));
    }
    for export in [
        service("east", "shop", "web", 80, NOW),
        endpoints("east", "shop", "web", "10.20.0.5"),
        service("west", "shop", "api", 80, NOW),
        endpoints("west", "shop", "api", "10.30.0.5"),
        cluster_info("east"),
    ] {
        insert(&mut snapshot.exports, export);
    }
    settle(&mut snapshot);
    assert_eq!(snapshot.imports.len(), 5);
    snapshot
}

#[test]
fn imports_of_an_unreadable_export_are_not_deleted() {
    let mut snapshot = merged();
    let unreadable: BTreeSet<_> = snapshot
        .exports
        .iter()
        .filter(|(_, export)| export.spec.cluster_id == "east")
        .map(|(name, _)| name.clone())
        .collect();
    assert_eq!(unreadable.len(), 3);
    // A leader that starts has never decoded them.
    snapshot.exports = ObjectMap::default();
    let mut readable = snapshot.clone();
    snapshot.unreadable_exports = unreadable;
    settle(&mut snapshot);
    let kept: Vec<_> = snapshot.imports.keys().map(|name| name.name.as_str()).collect();
    assert_eq!(
        kept,
        ["east-clusterinfo", "shop-web-endpoints", "shop-web-service"],
        "those of west are gone"
    );
    let issues = make_plan(&mut snapshot).issues;
    let reported = issues
        .iter()
        .filter(|issue| issue.message.contains("cannot be decoded"));
    assert_eq!(reported.count(), 3, "{issues:#?}");
    // Without them, all would be deleted.
    settle(&mut readable);
    assert!(readable.imports.is_empty());
}
