//! A new leader, which lacks imports until their exporters have joined it.

use jiff::Timestamp;
use mc_api::network_policy::Tier;

use super::*;
use crate::{
    member::{
        awaited_exporters::{MAX_WAIT, WATCH_DELAY},
        mass_deletion::HELD,
    },
    plan::Kind,
    snapshot::CompleteExports,
};

/// Offers Service `web` of these clusters, and their networks.
fn offer(snapshot: &mut MemberSnapshot, clusters: &[&str]) {
    let networks = [("west", "10.30.0.0/16"), ("south", "10.40.0.0/16")];
    let networks = || networks.into_iter().filter(|(id, _)| clusters.contains(id));
    let imports = &mut leader(snapshot).imports;
    for (id, cidr) in networks() {
        insert(imports, import_info(id, cidr, &["172.18.0.9"]));
    }
    insert(imports, import_service("shop", "web"));
    let addresses: Vec<_> = networks()
        .map(|(id, cidr)| (id, vec![cidr.replace(".0.0/16", ".0.9")]))
        .collect();
    insert(imports, import_endpoints("shop", "web", &addresses));
}

/// A member with Service `web` of those clusters that has just joined a new leader without exports.
fn joined_anew(clusters: &[&str]) -> MemberSnapshot {
    let mut snapshot = snapshot();
    join(&mut snapshot, "former");
    offer(&mut snapshot, clusters);
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (1, clusters.len(), clusters.len()));
    leader(&mut snapshot).imports = ObjectMap::default();
    leader(&mut snapshot).exports = ObjectMap::default();
    restart(&mut snapshot);
    advance(&mut snapshot, 3600);
    join(&mut snapshot, "new");
    snapshot
}

/// A new connection.
fn restart(snapshot: &mut MemberSnapshot) {
    leader(snapshot).listed_imports = Arc::default();
    leader(snapshot).complete_exports = Arc::default();
}

/// The connection reads that the leader has all exports of a cluster.
fn complete(snapshot: &mut MemberSnapshot, cluster: &str) {
    let announces = leader(snapshot).announces.clone();
    let own = announces.values().next().and_then(|announce| announce.uid());
    let announce = own.filter(|_| cluster == "east").unwrap_or_default();
    let exports = CompleteExports {
        announce,
        since: snapshot.now,
    };
    Arc::make_mut(&mut leader(snapshot).complete_exports).insert(cluster.to_owned(), exports);
}

/// Services, slices and networks.
fn imports(snapshot: &MemberSnapshot) -> (usize, usize, usize) {
    let [services, slices] = [snapshot.services.len(), snapshot.endpoint_slices.len()];
    assert_eq!(services, snapshot.service_imports.len());
    (services, slices, snapshot.cluster_infos.len())
}

fn held(snapshot: &MemberSnapshot) -> Option<Condition> {
    let set = snapshot.cluster_sets.values().next().unwrap();
    let conditions = set.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().find(|c| c.type_ == HELD).cloned()
}

fn until(snapshot: &MemberSnapshot) -> Timestamp {
    snapshot.now.checked_add(MAX_WAIT).unwrap()
}

/// C1 of the review of the control plane: the first member that joined a new leader deleted all of its imports.
#[test]
fn imports_are_kept_until_their_exporter_has_joined_the_new_leader() {
    let mut snapshot = joined_anew(&["west"]);
    let end = until(&snapshot);
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (1, 1, 1));
    let condition = held(&snapshot).unwrap();
    assert_eq!(condition.reason, "ExportersAwaited");
    let message = format!(
        "4 objects are kept although the leader's list lacks their imports: this cluster has joined it anew, and not \
         all exports of the clusters west have arrived there. They are kept until then, at most until {end}"
    );
    assert!(condition.message.starts_with(&message), "{}", condition.message);
    assert_issue(&plan(&snapshot), &message);
    assert_eq!(
        plan(&snapshot).next_requeue,
        Some(snapshot.now + SignedDuration::from_secs(10))
    );

    let before = snapshot.services.clone();
    offer(&mut snapshot, &["west"]);
    settle(&mut snapshot);
    assert_eq!((&snapshot.services, held(&snapshot)), (&before, None));
}

#[test]
fn a_restarted_controller_keeps_them_too() {
    let mut snapshot = joined_anew(&["west"]);
    settle(&mut snapshot);
    restart(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (1, 1, 1));
}

#[test]
fn a_service_that_its_exporter_has_withdrawn_meanwhile_is_deleted() {
    let mut snapshot = joined_anew(&["west"]);
    complete(&mut snapshot, "west");
    complete(&mut snapshot, "south");
    settle(&mut snapshot);
    assert_eq!(
        imports(&snapshot),
        (1, 1, 1),
        "its imports may still be on their way"
    );
    assert!(plan(&snapshot).next_requeue.is_some());
    advance(&mut snapshot, WATCH_DELAY.as_secs());
    settle(&mut snapshot);
    assert_eq!((imports(&snapshot), held(&snapshot)), ((0, 0, 0), None));
}

#[test]
fn endpoints_of_an_absent_exporter_are_kept_beside_those_of_another() {
    let mut snapshot = joined_anew(&["west", "south"]);
    offer(&mut snapshot, &["west"]);
    complete(&mut snapshot, "west");
    advance(&mut snapshot, WATCH_DELAY.as_secs());
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (1, 2, 2));
    assert!(
        held(&snapshot)
            .unwrap()
            .message
            .contains("of the clusters south have")
    );
    complete(&mut snapshot, "south");
    advance(&mut snapshot, WATCH_DELAY.as_secs());
    settle(&mut snapshot);
    assert_eq!((imports(&snapshot), held(&snapshot)), ((1, 1, 1), None));
}

/// The clusters of a flat network announce none.
#[test]
fn endpoints_alone_are_awaited_too() {
    let mut snapshot = joined_anew(&["west", "south"]);
    offer(&mut snapshot, &["west"]);
    let network = import_info("south", "10.40.0.0/16", &["172.18.0.9"]);
    insert(&mut leader(&mut snapshot).imports, network);
    for cluster in ["east", "west"] {
        complete(&mut snapshot, cluster);
    }
    advance(&mut snapshot, WATCH_DELAY.as_secs());
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (1, 2, 2));
    restart(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (1, 2, 2), "the leader is new");
}

/// Endpoints that this connection has seen were withdrawn, although another import is awaited.
#[test]
fn endpoints_that_were_offered_are_withdrawn_at_once() {
    let mut snapshot = joined_anew(&["west", "south"]);
    offer(&mut snapshot, &["west", "south"]);
    let south = NamespacedName::new(LEADER_NS, names::cluster_info("south"));
    let network = leader(&mut snapshot).imports[&south].clone();
    Arc::make_mut(&mut leader(&mut snapshot).imports).remove(&south);
    settle(&mut snapshot);
    assert!(held(&snapshot).is_some(), "the network of south");
    let endpoints = import_endpoints("shop", "web", &[("south", vec!["10.40.0.9".to_owned()])]);
    insert(&mut leader(&mut snapshot).imports, endpoints);
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (1, 1, 2));
    insert(&mut leader(&mut snapshot).imports, network.as_ref().clone());
    settle(&mut snapshot);
    assert_eq!(held(&snapshot), None);
}

#[test]
fn many_services_that_their_exporter_has_withdrawn_are_deleted() {
    let mut snapshot = snapshot();
    join(&mut snapshot, "former");
    for number in 0..30 {
        let name = format!("web-{number}");
        insert(&mut leader(&mut snapshot).imports, import_service("shop", &name));
        let endpoints = import_endpoints("shop", &name, &[("west", vec!["10.30.0.9".to_owned()])]);
        insert(&mut leader(&mut snapshot).imports, endpoints);
    }
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (30, 30, 0));
    leader(&mut snapshot).imports = ObjectMap::default();
    restart(&mut snapshot);
    join(&mut snapshot, "new");
    settle(&mut snapshot);
    assert_eq!(held(&snapshot).unwrap().reason, "AbsentFromLeader");
    complete(&mut snapshot, "west");
    advance(&mut snapshot, WATCH_DELAY.as_secs());
    settle(&mut snapshot);
    assert_eq!((imports(&snapshot), held(&snapshot)), ((0, 0, 0), None));
}

#[test]
fn imports_of_a_cluster_set_that_the_cluster_has_left_are_not_awaited() {
    let mut snapshot = joined_anew(&["west"]);
    let record = NamespacedName::new(NS, names::MEMBERSHIP_RECORDS);
    let mut records = snapshot.memberships[&record].as_ref().clone();
    let data = records.data.as_mut().unwrap();
    let endpoint = data.values().next().unwrap().clone();
    data.insert("former_east_antrea-multicluster".to_owned(), endpoint);
    insert(&mut snapshot.memberships, records);
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (0, 0, 0));
}

/// A cluster without imports has none to lose, but an incomplete list can have some.
#[test]
fn a_leader_stays_new_while_a_list_is_incomplete() {
    let mut snapshot = snapshot();
    snapshot.policies = OptionalKind::Pending;
    join(&mut snapshot, "new");
    settle(&mut snapshot);
    let settled = |snapshot: &MemberSnapshot| {
        let record = snapshot.memberships.values().next().unwrap();
        record
            .data
            .as_ref()
            .unwrap()
            .values()
            .any(|text| text.contains("new"))
    };
    assert!(!settled(&snapshot));
    snapshot.policies = OptionalKind::Absent;
    settle(&mut snapshot);
    assert!(settled(&snapshot));
}

#[test]
fn a_leader_is_new_until_it_has_offered_all_imports() {
    let mut snapshot = joined_anew(&["west"]);
    complete(&mut snapshot, "east");
    advance(&mut snapshot, WATCH_DELAY.as_secs());
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (1, 1, 1));
    offer(&mut snapshot, &["west"]);
    settle(&mut snapshot);
    leader(&mut snapshot).imports = ObjectMap::default();
    restart(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(
        imports(&snapshot),
        (0, 0, 0),
        "withdrawn while the controller restarted"
    );
}

/// Found by `sim`: the announce of a new leader was read before its list of imports.
#[test]
fn the_imports_of_the_former_leader_do_not_end_the_wait() {
    let mut snapshot = joined_anew(&["west"]);
    offer(&mut snapshot, &["west"]);
    settle(&mut snapshot);
    leader(&mut snapshot).imports = ObjectMap::default();
    restart(&mut snapshot);
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (1, 1, 1));
}

#[test]
fn an_exporter_that_never_joins_is_awaited_for_a_day() {
    let mut snapshot = joined_anew(&["west"]);
    settle(&mut snapshot);
    advance(&mut snapshot, MAX_WAIT.as_secs() - 1);
    settle(&mut snapshot);
    assert_eq!(imports(&snapshot), (1, 1, 1));
    advance(&mut snapshot, 1);
    // Deletions that fail do not begin another wait.
    let mut writes = plan(&snapshot).writes;
    writes.retain(|write| write.target.kind != Kind::Service);
    apply_writes(&mut snapshot, &writes);
    assert_eq!(snapshot.services.len(), 1);
    settle(&mut snapshot);
    assert_eq!((imports(&snapshot), held(&snapshot)), ((0, 0, 0), None));
}

#[test]
fn an_administrator_ends_the_wait() {
    let mut snapshot = joined_anew(&["west"]);
    settle(&mut snapshot);
    let mut set = cluster_set("set");
    let key = names::ANNOTATION_MASS_DELETION_UNTIL.to_owned();
    set.annotations_mut().insert(key, until(&snapshot).to_string());
    insert(&mut snapshot.cluster_sets, set);
    settle(&mut snapshot);
    assert_eq!((imports(&snapshot), held(&snapshot)), ((0, 0, 0), None));
}

/// Administrators of the leader cluster export them; a new leader has none until then.
#[test]
fn policies_are_kept_for_a_day_although_all_have_joined() {
    let mut snapshot = snapshot();
    snapshot.policies = OptionalKind::Present(ObjectMap::default());
    snapshot.tiers = OptionalKind::Present(ObjectMap::default());
    insert(
        present(&mut snapshot.tiers),
        object::<Tier>(json!({ "metadata": { "name": "securityops" } })),
    );
    join(&mut snapshot, "former");
    let import = object(json!({
        "metadata": { "name": names::policy_import("closed"), "namespace": LEADER_NS },
        "spec": { "kind": "AntreaClusterNetworkPolicy", "name": "closed", "clusternetworkpolicy": {
            "priority": 1, "tier": "securityops", "appliedTo": [{ "namespaceSelector": {} }], "ingress": [{ "action": "Drop" }],
        } },
    }));
    insert(&mut leader(&mut snapshot).imports, import);
    let policies = |snapshot: &MemberSnapshot| snapshot.policies.objects().unwrap().len();
    settle(&mut snapshot);
    assert_eq!(policies(&snapshot), 1);
    leader(&mut snapshot).imports = ObjectMap::default();
    restart(&mut snapshot);
    join(&mut snapshot, "new");
    complete(&mut snapshot, "west");
    advance(&mut snapshot, WATCH_DELAY.as_secs());
    settle(&mut snapshot);
    assert_eq!(policies(&snapshot), 1);
    advance(&mut snapshot, MAX_WAIT.as_secs());
    settle(&mut snapshot);
    assert_eq!(policies(&snapshot), 0);
}
