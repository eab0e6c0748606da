//! Joining, staying, leaving.

use kube::ResourceExt;
use mc_api::cluster_claim::ClusterClaim;

use super::{
    super::membership::{self, NotReadyReason},
    *,
};
use crate::plan::WriteOp;

type Break = Box<dyn Fn(&mut MemberSnapshot)>;

#[test]
fn a_good_member_is_ready_and_quiet() {
    let mut snapshot = snapshot();
    settle(&mut snapshot);
    assert_eq!(ready(&snapshot).0, "True");
    let status = snapshot
        .cluster_sets
        .values()
        .next()
        .unwrap()
        .status
        .clone()
        .unwrap();
    assert_eq!((status.total_clusters, status.ready_clusters), (1, 1));
    assert_eq!(status.cluster_statuses[0].cluster_id, "north");
    assert!(plan(&snapshot).next_requeue.is_some(), "for the next heartbeat");
}

#[test]
fn a_new_member_announces_itself_and_its_heart_beats() {
    let mut snapshot = snapshot();
    leader(&mut snapshot).announces = ObjectMap::default();
    settle(&mut snapshot);
    assert_eq!(ready(&snapshot).1, "NotAccepted");
    let announce = leader(&mut snapshot).announces.values().next().unwrap().clone();
    assert_eq!(
        (announce.cluster_id.as_str(), announce.cluster_set_id.as_str()),
        ("east", "set")
    );
    snapshot.now = "2026-01-01T12:00:10Z".parse().unwrap();
    settle(&mut snapshot);
    let announce = leader(&mut snapshot).announces.values().next().unwrap().clone();
    assert_eq!(announce.annotations()["touch-ts"], "2026-01-01T12:00:10Z");
}

#[test]
fn what_keeps_a_member_from_being_ready_is_said_with_field_and_value() {
    let down = |w: &mut MemberSnapshot| {
        w.connection = LeaderConnectionState::Down {
            error: "connection refused".to_owned(),
        }
    };
    let refuse = |w: &mut MemberSnapshot| {
        let mut refused = announce("set");
        let why = "ClusterSet name \"set\" is not that of the leader's ClusterSet, \"other\"";
        refused
            .annotations_mut()
            .extend(names::ANNOTATION_REJECTED_REASON.entries(why));
        insert(&mut leader(w).announces, refused);
    };
    let server = |w: &mut MemberSnapshot, server: &str| {
        let mut set = cluster_set("set");
        set.spec.leaders[0].server = server.to_owned();
        insert(&mut w.cluster_sets, set);
    };
    let pem = ("ca.crt", "-----BEGIN CERTIFICATE-----");
    let cases: Vec<(Break, &str, &str)> = vec![
        (
            Box::new(|w| w.secret = SecretState::Missing),
            "SecretNotFound",
            "spec.leaders[0].secret: Secret \"kube-system/member-east-token\" does not exist",
        ),
        (
            Box::new(move |w| w.secret = secret(&[pem])),
            "SecretIncomplete",
            "no usable key \"token\": it is absent",
        ),
        (
            Box::new(move |w| w.secret = secret(&[pem, ("token", " \n")])),
            "SecretIncomplete",
            "no usable key \"token\": it is empty",
        ),
        (
            Box::new(|w| w.secret = secret(&[("token", "t"), ("ca.crt", "x")])),
            "SecretIncomplete",
            "no usable key \"ca.crt\": not a PEM certificate",
        ),
        (
            Box::new(down),
            "Disconnected",
            "spec.leaders[0].server: \"https://172.18.0.1:6443\": connection refused",
        ),
        (
            Box::new(refuse),
            "Refused",
            "ClusterSet name \"set\" is not that of the leader's ClusterSet, \"other\"",
        ),
        (
            Box::new(move |w| server(w, "")),
            "InvalidClusterSet",
            "spec.leaders[0].server: is empty",
        ),
        (
            Box::new(move |w| server(w, "http://x")),
            "InvalidClusterSet",
            "\"http://x\" is not an https:// URL",
        ),
    ];
    for (break_it, reason, message) in cases {
        let mut snapshot = snapshot();
        break_it(&mut snapshot);
        says(&plan(&snapshot), message);
        settle(&mut snapshot);
        let (status, found, text) = ready(&snapshot);
        assert_eq!((status.as_str(), found.as_str()), ("False", reason), "{text}");
        assert!(text.contains(message), "{text}");
        // And back.
        let good = self::snapshot();
        (snapshot.secret, snapshot.connection, snapshot.leader) = (good.secret, good.connection, good.leader);
        let status = snapshot.cluster_sets.values().next().unwrap().status.clone();
        insert(
            &mut snapshot.cluster_sets,
            ClusterSet {
                status,
                ..cluster_set("set")
            },
        );
        settle(&mut snapshot);
        assert_eq!(ready(&snapshot).0, "True");
        assert_eq!(plan(&snapshot).issues, []);
    }
}

#[test]
fn trailing_white_space_of_a_token_is_no_part_of_it() {
    let snapshot = snapshot();
    let spec =
        membership::connection_config(snapshot.cluster_sets.values().next().unwrap(), &snapshot.secret)
            .unwrap();
    assert_eq!(spec.token, "t");
    let mut bad = cluster_set("set");
    bad.spec.cluster_id = "East_1".to_owned();
    let error = membership::connection_config(&bad, &snapshot.secret)
        .err()
        .unwrap();
    assert!(
        matches!(
            error,
            NotReadyReason::InvalidField {
                field: "spec.clusterID",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_restart_says_nothing_until_it_knows() {
    let mut snapshot = snapshot();
    settle(&mut snapshot);
    (snapshot.connection, snapshot.leader, snapshot.secret) =
        (LeaderConnectionState::Idle, None, SecretState::Pending);
    assert_eq!(plan(&snapshot).writes, []);
}

#[test]
fn the_silence_of_the_leader_removes_nothing() {
    let mut snapshot = snapshot();
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "web"));
    insert(
        &mut leader(&mut snapshot).imports,
        import_endpoints("shop", "web", &[("west", vec!["10.30.0.9".into()])]),
    );
    insert(
        &mut leader(&mut snapshot).imports,
        import_info("west", "10.30.0.0/16", &["172.18.0.9"]),
    );
    settle(&mut snapshot);
    // The announce alone has been read so far.
    let half = RemoteObjects {
        synced: false,
        announces: leader(&mut snapshot).announces.clone(),
        ..RemoteObjects::default()
    };
    for view in [None, Some(RemoteObjects::default()), Some(half)] {
        let mut snapshot = snapshot.clone();
        snapshot.leader = view;
        snapshot.connection = LeaderConnectionState::Down {
            error: "timeout".to_owned(),
        };
        let deletes = plan(&snapshot)
            .writes
            .iter()
            .filter(|a| matches!(a.op, WriteOp::Delete { .. }))
            .count();
        assert_eq!(deletes, 0);
    }
}

#[test]
fn leaving_removes_what_we_made_and_nothing_else() {
    let mut snapshot = snapshot();
    insert(&mut snapshot.nodes, candidate("node-1", true, "172.18.0.2"));
    insert(&mut snapshot.services, web());
    // Called like ours, and nobody said that it was imported.
    let own = json!({ "clusterIP": "10.20.0.9", "ports": [{ "port": 1 }] });
    insert(&mut snapshot.services, service("antrea-mc-own", &own));
    insert(&mut snapshot.endpoint_slices, slice(&[("10.11.0.5", true)]));
    insert(&mut leader(&mut snapshot).imports, import_service("shop", "api"));
    insert(
        &mut leader(&mut snapshot).imports,
        import_endpoints("shop", "api", &[("west", vec!["10.30.0.9".into()])]),
    );
    insert(
        &mut leader(&mut snapshot).imports,
        import_info("west", "10.30.0.0/16", &["172.18.0.9"]),
    );
    settle(&mut snapshot);
    assert_eq!(
        (
            snapshot.services.len(),
            snapshot.endpoint_slices.len(),
            snapshot.service_imports.len()
        ),
        (3, 2, 1)
    );
    assert_eq!((snapshot.gateways.len(), snapshot.cluster_infos.len()), (1, 1));
    snapshot.cluster_sets = ObjectMap::default();
    snapshot.leader = None;
    settle(&mut snapshot);
    assert_eq!(
        (
            snapshot.services.len(),
            snapshot.endpoint_slices.len(),
            snapshot.service_imports.len()
        ),
        (2, 1, 0)
    );
    assert_eq!((snapshot.gateways.len(), snapshot.cluster_infos.len()), (0, 0));
}

/// The `ClusterSet` of an older guide, and what it claims the ID to be.
fn older(snapshot: &mut MemberSnapshot, id: &str) {
    let mut set = cluster_set("set");
    set.spec.cluster_id = String::new();
    insert(&mut snapshot.cluster_sets, set);
    let mut claims = ObjectMap::default();
    for (name, property, value) in [
        ("east-membercluster-id", "id.k8s.io", id),
        ("clusterset-id", "clusterSet.k8s.io", "set"),
    ] {
        let claim =
            json!({ "metadata": { "name": name, "namespace": NS }, "name": property, "value": value });
        insert(&mut claims, object::<ClusterClaim>(claim));
    }
    snapshot.cluster_claims = OptionalKind::Present(claims);
}

#[test]
fn a_member_of_an_older_guide_is_named_by_its_claim() {
    let mut snapshot = snapshot();
    older(&mut snapshot, "east");
    settle(&mut snapshot);
    let set = snapshot.cluster_sets.values().next().unwrap();
    assert_eq!(set.spec.cluster_id, "east");
    assert_eq!(ready(&snapshot).0, "True");
    assert_eq!(plan(&snapshot).issues, []);
}

#[test]
fn a_member_nobody_names_says_so_and_announces_nothing() {
    for (id, message) in [
        (
            "East_1",
            "ClusterClaim kube-system/east-membercluster-id: value: \"East_1\" is not a DNS label",
        ),
        (
            "",
            "ClusterClaim kube-system/east-membercluster-id: value: \"\" is not a DNS label",
        ),
    ] {
        let mut snapshot = snapshot();
        older(&mut snapshot, id);
        says(&plan(&snapshot), message);
        settle(&mut snapshot);
        let (status, reason, text) = ready(&snapshot);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidClusterSet"));
        assert!(text.contains(message), "{text}");
        // A connection of before may still be there.
        let names: Vec<_> = leader(&mut snapshot)
            .announces
            .values()
            .map(|a| a.name_any())
            .collect();
        assert_eq!(names, ["member-announce-from-east"]);
        // Correcting it is enough.
        let status = snapshot.cluster_sets.values().next().unwrap().status.clone();
        older(&mut snapshot, "east");
        let corrected = snapshot.cluster_sets.values().next().unwrap().as_ref().clone();
        insert(&mut snapshot.cluster_sets, ClusterSet { status, ..corrected });
        settle(&mut snapshot);
        assert_eq!(ready(&snapshot).0, "True");
    }
}

#[test]
fn nothing_is_said_while_claims_are_being_read() {
    let mut snapshot = snapshot();
    settle(&mut snapshot);
    let status = snapshot.cluster_sets.values().next().unwrap().status.clone();
    older(&mut snapshot, "east");
    let set = snapshot.cluster_sets.values().next().unwrap().as_ref().clone();
    insert(&mut snapshot.cluster_sets, ClusterSet { status, ..set });
    snapshot.cluster_claims = OptionalKind::Pending;
    let plan = plan(&snapshot);
    assert_eq!((plan.writes, plan.issues), (vec![], vec![]));
}
