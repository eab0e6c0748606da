//! Objects that another version of a controller has written and this one cannot decode.

use super::*;

/// A member with two imported Services and the network of another cluster.
fn importing() -> MemberSnapshot {
    let mut snapshot = snapshot();
    for name in ["web", "api"] {
        insert(&mut leader(&mut snapshot).imports, import_service("shop", name));
        let ips = vec!["10.30.0.9".to_owned()];
        insert(
            &mut leader(&mut snapshot).imports,
            import_endpoints("shop", name, &[("west", ips)]),
        );
    }
    let info = import_info("west", "10.30.0.0/16", &["172.18.0.9"]);
    insert(&mut leader(&mut snapshot).imports, info);
    settle(&mut snapshot);
    assert_eq!(
        imported(&snapshot),
        (vec!["antrea-mc-api", "antrea-mc-web"], 2, 2, 1)
    );
    snapshot
}

/// Names of the Services, numbers of slices, `ServiceImport`s and networks.
fn imported(snapshot: &MemberSnapshot) -> (Vec<&str>, usize, usize, usize) {
    (
        snapshot.services.keys().map(|name| name.name.as_str()).collect(),
        snapshot.endpoint_slices.len(),
        snapshot.service_imports.len(),
        snapshot.cluster_infos.len(),
    )
}

/// The controller starts and cannot decode these `ResourceImport`s; the others are gone.
fn with_unreadable(names: &[String]) -> MemberSnapshot {
    let mut snapshot = importing();
    let leader = leader(&mut snapshot);
    leader.imports = ObjectMap::default();
    let names = names
        .iter()
        .map(|name| NamespacedName::new(LEADER_NS, name.as_str()));
    leader.unreadable_imports = names.collect();
    settle(&mut snapshot);
    snapshot
}

#[test]
fn imports_that_cannot_be_decoded_are_kept() {
    let both = [
        names::service_import("shop", "web"),
        names::endpoints_import("shop", "web"),
    ];
    let kept = with_unreadable(&both);
    assert_eq!(imported(&kept), (vec!["antrea-mc-web"], 1, 1, 0));
    assert_issue(&plan(&kept), "ResourceImport shop-web-service: cannot be decoded");
    let network = with_unreadable(&[names::cluster_info("west")]);
    assert_eq!(imported(&network), (vec![], 0, 0, 1));
    let none = with_unreadable(&[]);
    assert_eq!(imported(&none), (vec![], 0, 0, 0));
}

#[test]
fn endpoints_that_cannot_be_decoded_are_kept() {
    let mut snapshot = importing();
    let name = NamespacedName::new(LEADER_NS, names::endpoints_import("shop", "web"));
    Arc::make_mut(&mut leader(&mut snapshot).imports).remove(&name);
    leader(&mut snapshot).unreadable_imports = BTreeSet::from([name]);
    settle(&mut snapshot);
    assert_eq!(
        imported(&snapshot),
        (vec!["antrea-mc-api", "antrea-mc-web"], 2, 2, 1)
    );
}

#[test]
fn a_cluster_set_that_cannot_be_decoded_ends_no_membership() {
    let mut snapshot = importing();
    let name = snapshot.cluster_sets.keys().next().cloned().unwrap();
    snapshot.cluster_sets = ObjectMap::default();
    snapshot.unreadable_cluster_sets = BTreeSet::from([name]);
    // The controller has no connection without the spec.
    snapshot.leader = None;
    let held = plan(&snapshot);
    assert_eq!(held.writes, []);
    assert_issue(&held, "ClusterSet set: cannot be decoded");
    // Deleted, it ends the membership.
    snapshot.unreadable_cluster_sets.clear();
    leave(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(imported(&snapshot), (vec![], 0, 0, 0));
}
