//! Join, heartbeat, leave.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use kube::ResourceExt;
use mc_api::cluster_claim::ClusterClaim;

use super::{
    super::{
        connection_config::{Credentials, connection_config, is_obsolete},
        not_ready_reason::NotReadyReason,
    },
    *,
};
use crate::plan::{Kind, WriteOp};

type Break = Box<dyn Fn(&mut MemberSnapshot)>;

#[test]
fn an_accepted_member_is_ready() {
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
fn a_new_member_announces_itself_and_sends_heartbeats() {
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
fn the_cause_of_unreadiness_is_reported_with_field_and_value() {
    let down = |w: &mut MemberSnapshot| {
        w.connection = LeaderConnectionState::Down {
            error: "connection refused".to_owned(),
        }
    };
    let reject = |w: &mut MemberSnapshot| {
        let mut rejected = announce("set");
        let reason = "ClusterSet name \"set\" is not that of the leader's ClusterSet, \"other\"";
        rejected
            .annotations_mut()
            .extend(names::ANNOTATION_REJECTED_REASON.entries(reason));
        insert(&mut leader(w).announces, rejected);
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
            Box::new(reject),
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
        assert_issue(&plan(&snapshot), message);
        settle(&mut snapshot);
        let (status, found, text) = ready(&snapshot);
        assert_eq!((status.as_str(), found.as_str()), ("False", reason), "{text}");
        assert!(text.contains(message), "{text}");
        // Recovery.
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
fn trailing_white_space_of_a_token_is_ignored() {
    let snapshot = snapshot();
    let spec = connection_config(snapshot.cluster_sets.values().next().unwrap(), &snapshot.secret).unwrap();
    assert!(spec.credentials == Credentials::Token("t".to_owned()));
    let mut bad = cluster_set("set");
    bad.spec.cluster_id = "East_1".to_owned();
    let error = connection_config(&bad, &snapshot.secret).err().unwrap();
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
fn a_bootstrap_token_states_the_account_of_the_short_lived_ones() {
    let with_account = |account: &str| {
        let mut snapshot = snapshot();
        let ca = "-----BEGIN CERTIFICATE-----";
        snapshot.secret = secret(&[("ca.crt", ca), ("token", "t"), ("serviceAccount", account)]);
        snapshot
    };
    let mut snapshot = with_account("member-east\n");
    let spec = connection_config(snapshot.cluster_sets.values().next().unwrap(), &snapshot.secret).unwrap();
    let expected = Credentials::Bootstrap {
        token: "t".to_owned(),
        account: "member-east".to_owned(),
    };
    assert!(spec.credentials == expected);
    settle(&mut snapshot);
    assert_eq!(stated_account(&snapshot).as_deref(), Some("member-east"));
    for bad in ["", " ", "member_east", "a/b", "-east", &"a".repeat(244)] {
        let error = connection_config(
            snapshot.cluster_sets.values().next().unwrap(),
            &with_account(bad).secret,
        );
        let error = error.err().unwrap().to_string();
        assert!(error.contains("serviceAccount"), "{bad:?}: {error}");
    }
}

#[test]
fn a_restarted_member_writes_nothing_before_its_secret_is_read() {
    let mut snapshot = snapshot();
    settle(&mut snapshot);
    (snapshot.connection, snapshot.leader, snapshot.secret) =
        (LeaderConnectionState::Idle, None, SecretState::Pending);
    assert_eq!(plan(&snapshot).writes, []);
}

#[test]
fn nothing_is_written_for_a_membership_with_the_credentials_of_another() {
    let snapshot = snapshot();
    let set = snapshot.cluster_sets.values().next().unwrap();
    let config = connection_config(set, &snapshot.secret).unwrap();
    assert!(!is_obsolete(&config, set));
    for field in ["namespace", "clusterID"] {
        let mut other = serde_json::to_value(set.as_ref()).unwrap();
        other["spec"][field] = json!("other");
        let other = object(other);
        // Until the Secret of the changed ClusterSet is read.
        assert!(connection_config(&other, &SecretState::Pending).is_err());
        assert!(is_obsolete(&config, &other), "{field}");
    }
}

#[test]
fn an_unreachable_leader_causes_no_deletion() {
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
    // Only the announce has been listed.
    let partial = RemoteObjects {
        synced: false,
        announces: leader(&mut snapshot).announces.clone(),
        ..RemoteObjects::default()
    };
    for view in [None, Some(RemoteObjects::default()), Some(partial)] {
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
fn leaving_deletes_only_own_objects() {
    let mut snapshot = snapshot();
    insert(&mut snapshot.nodes, candidate("node-1", true, "172.18.0.2"));
    insert(&mut snapshot.services, web());
    // A name like that of an import, without the annotation.
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
    leave(&mut snapshot);
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

/// The `ClusterSet` of an older guide, with `id` in its claim.
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
fn a_member_without_an_id_uses_its_claim() {
    let mut snapshot = snapshot();
    older(&mut snapshot, "east");
    settle(&mut snapshot);
    let set = snapshot.cluster_sets.values().next().unwrap();
    assert_eq!(set.spec.cluster_id, "east");
    assert_eq!(ready(&snapshot).0, "True");
    assert_eq!(plan(&snapshot).issues, []);
}

#[test]
fn a_member_without_a_valid_id_is_reported_and_not_announced() {
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
        assert_issue(&plan(&snapshot), message);
        settle(&mut snapshot);
        let (status, reason, text) = ready(&snapshot);
        assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidClusterSet"));
        assert!(text.contains(message), "{text}");
        // The announce of an earlier connection stays.
        let names: Vec<_> = leader(&mut snapshot)
            .announces
            .values()
            .map(|a| a.name_any())
            .collect();
        assert_eq!(names, ["member-announce-from-east"]);
        // A corrected claim is sufficient.
        let status = snapshot.cluster_sets.values().next().unwrap().status.clone();
        older(&mut snapshot, "east");
        let corrected = snapshot.cluster_sets.values().next().unwrap().as_ref().clone();
        insert(&mut snapshot.cluster_sets, ClusterSet { status, ..corrected });
        settle(&mut snapshot);
        assert_eq!(ready(&snapshot).0, "True");
    }
}

#[test]
fn nothing_is_reported_while_claims_are_pending() {
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

/// The token of `account` in the Namespace of the leader (the signature does not count).
fn token(account: &str) -> String {
    let claims = json!({ "sub": format!("system:serviceaccount:{LEADER_NS}:{account}") });
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

/// The account on the announce of this member.
fn stated_account(snapshot: &MemberSnapshot) -> Option<String> {
    let announce = snapshot.leader.as_ref()?.announces.values().next()?;
    announce
        .annotations()
        .get(names::ANNOTATION_SERVICE_ACCOUNT)
        .cloned()
}

#[test]
fn the_announce_names_the_account_of_the_token() {
    let with_token = |snapshot: &mut MemberSnapshot, token: &str| {
        snapshot.secret = secret(&[("ca.crt", "-----BEGIN CERTIFICATE-----\n"), ("token", token)]);
    };
    let mut snapshot = snapshot();
    // A new announce.
    leader(&mut snapshot).announces = ObjectMap::default();
    with_token(&mut snapshot, &token("member-east"));
    settle(&mut snapshot);
    assert_eq!(stated_account(&snapshot).as_deref(), Some("member-east"));
    // An existing one, at once.
    with_token(&mut snapshot, &token("member-east-2"));
    settle(&mut snapshot);
    assert_eq!(stated_account(&snapshot).as_deref(), Some("member-east-2"));
    // An unreadable Secret changes nothing, a token of another kind of user does.
    snapshot.secret = SecretState::Missing;
    assert!(
        plan(&snapshot)
            .writes
            .iter()
            .all(|w| w.target.kind != Kind::MemberClusterAnnounce)
    );
    with_token(&mut snapshot, "opaque");
    settle(&mut snapshot);
    assert_eq!(stated_account(&snapshot), None);
}
