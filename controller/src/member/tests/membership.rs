//! Joining, staying, leaving.

use kube::ResourceExt;

use super::{
    super::membership::{self, Problem},
    *,
};
use crate::{api::cluster_claim::ClusterClaim, plan::Op};

type Break = Box<dyn Fn(&mut MemberWorld)>;

#[test]
fn a_good_member_is_ready_and_quiet() {
    let mut world = world();
    settle(&mut world);
    assert_eq!(ready(&world).0, "True");
    let status = world
        .cluster_sets
        .values()
        .next()
        .unwrap()
        .status
        .clone()
        .unwrap();
    assert_eq!((status.total_clusters, status.ready_clusters), (1, 1));
    assert_eq!(status.cluster_statuses[0].cluster_id, "north");
    assert!(plan(&world).wake_at.is_some(), "for the next heartbeat");
}

#[test]
fn a_new_member_announces_itself_and_its_heart_beats() {
    let mut world = world();
    leader(&mut world).announces = Objects::default();
    settle(&mut world);
    assert_eq!(ready(&world).1, "NotAccepted");
    let announce = leader(&mut world).announces.values().next().unwrap().clone();
    assert_eq!(
        (announce.cluster_id.as_str(), announce.cluster_set_id.as_str()),
        ("east", "set")
    );
    world.now = "2026-01-01T12:00:10Z".parse().unwrap();
    settle(&mut world);
    let announce = leader(&mut world).announces.values().next().unwrap().clone();
    assert_eq!(announce.annotations()["touch-ts"], "2026-01-01T12:00:10Z");
}

#[test]
fn what_keeps_a_member_from_being_ready_is_said_with_field_and_value() {
    let down = |w: &mut MemberWorld| {
        w.link = Link::Down {
            error: "connection refused".to_owned(),
        }
    };
    let refuse = |w: &mut MemberWorld| {
        let mut refused = announce("set");
        let why = "ClusterSet name \"set\" is not that of the leader's ClusterSet, \"other\"";
        refused
            .annotations_mut()
            .insert(names::ANNOTATION_REFUSED.to_owned(), why.to_owned());
        insert(&mut leader(w).announces, refused);
    };
    let server = |w: &mut MemberWorld, server: &str| {
        let mut set = cluster_set("set");
        set.spec.leaders[0].server = server.to_owned();
        insert(&mut w.cluster_sets, set);
    };
    let pem = ("ca.crt", "-----BEGIN CERTIFICATE-----");
    let cases: Vec<(Break, &str, &str)> = vec![
        (
            Box::new(|w| w.secret = SecretSeen::Missing),
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
        let mut world = world();
        break_it(&mut world);
        says(&plan(&world), message);
        settle(&mut world);
        let (status, found, text) = ready(&world);
        assert_eq!((status.as_str(), found.as_str()), ("False", reason), "{text}");
        assert!(text.contains(message), "{text}");
        // And back.
        let good = self::world();
        (world.secret, world.link, world.leader) = (good.secret, good.link, good.leader);
        let status = world.cluster_sets.values().next().unwrap().status.clone();
        insert(
            &mut world.cluster_sets,
            ClusterSet {
                status,
                ..cluster_set("set")
            },
        );
        settle(&mut world);
        assert_eq!(ready(&world).0, "True");
        assert_eq!(plan(&world).notices, []);
    }
}

#[test]
fn trailing_white_space_of_a_token_is_no_part_of_it() {
    let world = world();
    let spec = membership::link_spec(world.cluster_sets.values().next().unwrap(), &world.secret).unwrap();
    assert_eq!(spec.token, "t");
    let mut bad = cluster_set("set");
    bad.spec.cluster_id = "East_1".to_owned();
    let error = membership::link_spec(&bad, &world.secret).err().unwrap();
    assert!(
        matches!(
            error,
            Problem::Field {
                field: "spec.clusterID",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_restart_says_nothing_until_it_knows() {
    let mut world = world();
    settle(&mut world);
    (world.link, world.leader, world.secret) = (Link::Idle, None, SecretSeen::Pending);
    assert_eq!(plan(&world).actions, []);
}

#[test]
fn the_silence_of_the_leader_removes_nothing() {
    let mut world = world();
    insert(&mut leader(&mut world).imports, import_service("shop", "web"));
    insert(
        &mut leader(&mut world).imports,
        import_endpoints("shop", "web", &[("west", vec!["10.30.0.9".into()])]),
    );
    insert(
        &mut leader(&mut world).imports,
        import_info("west", "10.30.0.0/16", &["172.18.0.9"]),
    );
    settle(&mut world);
    // The announce alone has been read so far.
    let half = LeaderView {
        synced: false,
        announces: leader(&mut world).announces.clone(),
        ..LeaderView::default()
    };
    for view in [None, Some(LeaderView::default()), Some(half)] {
        let mut world = world.clone();
        world.leader = view;
        world.link = Link::Down {
            error: "timeout".to_owned(),
        };
        let deletes = plan(&world)
            .actions
            .iter()
            .filter(|a| matches!(a.op, Op::Delete { .. }))
            .count();
        assert_eq!(deletes, 0);
    }
}

#[test]
fn leaving_removes_what_we_made_and_nothing_else() {
    let mut world = world();
    insert(&mut world.nodes, candidate("node-1", true, "172.18.0.2"));
    insert(&mut world.services, web());
    // Called like ours, and nobody said that it was imported.
    let own = json!({ "clusterIP": "10.20.0.9", "ports": [{ "port": 1 }] });
    insert(&mut world.services, service("antrea-mc-own", &own));
    insert(&mut world.slices, slice(&[("10.11.0.5", true)]));
    insert(&mut leader(&mut world).imports, import_service("shop", "api"));
    insert(
        &mut leader(&mut world).imports,
        import_endpoints("shop", "api", &[("west", vec!["10.30.0.9".into()])]),
    );
    insert(
        &mut leader(&mut world).imports,
        import_info("west", "10.30.0.0/16", &["172.18.0.9"]),
    );
    settle(&mut world);
    assert_eq!(
        (
            world.services.len(),
            world.slices.len(),
            world.service_imports.len()
        ),
        (3, 2, 1)
    );
    assert_eq!((world.gateways.len(), world.cluster_infos.len()), (1, 1));
    world.cluster_sets = Objects::default();
    world.leader = None;
    settle(&mut world);
    assert_eq!(
        (
            world.services.len(),
            world.slices.len(),
            world.service_imports.len()
        ),
        (2, 1, 0)
    );
    assert_eq!((world.gateways.len(), world.cluster_infos.len()), (0, 0));
}

/// The `ClusterSet` of an older guide, and what it claims the ID to be.
fn older(world: &mut MemberWorld, id: &str) {
    let mut set = cluster_set("set");
    set.spec.cluster_id = String::new();
    insert(&mut world.cluster_sets, set);
    let mut claims = Objects::default();
    for (name, property, value) in [
        ("east-membercluster-id", "id.k8s.io", id),
        ("clusterset-id", "clusterSet.k8s.io", "set"),
    ] {
        let claim =
            json!({ "metadata": { "name": name, "namespace": NS }, "name": property, "value": value });
        insert(&mut claims, object::<ClusterClaim>(claim));
    }
    world.claims = Optional::Present(claims);
}

#[test]
fn a_member_of_an_older_guide_is_named_by_its_claim() {
    let mut world = world();
    older(&mut world, "east");
    settle(&mut world);
    let set = world.cluster_sets.values().next().unwrap();
    assert_eq!(set.spec.cluster_id, "east");
    assert_eq!(ready(&world).0, "True");
    assert_eq!(plan(&world).notices, []);
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
        let mut world = world();
        older(&mut world, id);
        says(&plan(&world), message);
        settle(&mut world);
        let (status, reason, text) = ready(&world);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidClusterSet"));
        assert!(text.contains(message), "{text}");
        // A connection of before may still be there.
        let names: Vec<_> = leader(&mut world)
            .announces
            .values()
            .map(|a| a.name_any())
            .collect();
        assert_eq!(names, ["member-announce-from-east"]);
        // Correcting it is enough.
        let status = world.cluster_sets.values().next().unwrap().status.clone();
        older(&mut world, "east");
        let corrected = world.cluster_sets.values().next().unwrap().as_ref().clone();
        insert(&mut world.cluster_sets, ClusterSet { status, ..corrected });
        settle(&mut world);
        assert_eq!(ready(&world).0, "True");
    }
}

#[test]
fn nothing_is_said_while_claims_are_being_read() {
    let mut world = world();
    settle(&mut world);
    let status = world.cluster_sets.values().next().unwrap().status.clone();
    older(&mut world, "east");
    let set = world.cluster_sets.values().next().unwrap().as_ref().clone();
    insert(&mut world.cluster_sets, ClusterSet { status, ..set });
    world.claims = Optional::Pending;
    let plan = plan(&world);
    assert_eq!((plan.actions, plan.notices), (vec![], vec![]));
}
