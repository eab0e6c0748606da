//! Several gateways: activity, weights and drain.

use jiff::Timestamp;
use mc_api::config::GatewayMode;
use proptest::prelude::*;

use super::*;
use crate::plan::WriteOp;

/// A candidate by number.
fn candidate_node(n: u8) -> Node {
    candidate(&format!("node-{n:02}"), true, &ip(n))
}

fn ip(n: u8) -> String {
    format!("172.18.0.{n}")
}

fn cordoned(mut node: Node) -> Node {
    node.spec.get_or_insert_default().unschedulable = Some(true);
    node
}

fn with(mut node: Node, annotation: &str, value: &str) -> Node {
    node.annotations_mut()
        .insert(annotation.to_owned(), value.to_owned());
    node
}

fn not_ready(n: u8) -> Node {
    candidate(&format!("node-{n:02}"), false, &ip(n))
}

fn plain(n: u8) -> Node {
    node(&format!("node-{n:02}"), true, &[], &[("InternalIP", &ip(n))])
}

/// A member whose Nodes with these numbers are gateways.
fn with_gateways(numbers: impl IntoIterator<Item = u8>) -> MemberSnapshot {
    let mut snapshot = snapshot();
    for n in numbers {
        insert(&mut snapshot.nodes, candidate_node(n));
    }
    settle(&mut snapshot);
    snapshot
}

/// Address of the primary gateway, by the rule of the agents.
fn primary(snapshot: &MemberSnapshot) -> Option<String> {
    let first = snapshot.gateways.values().min_by_key(|g| {
        let created = g.creation_timestamp();
        let late = (g.weight() == 0, !g.is_marked_primary(), created.is_none());
        (late, created, g.name_any())
    });
    first.map(|g| g.gateway_ip.clone())
}

fn weights(expected: &[(u8, u32)]) -> Vec<(String, u32)> {
    expected.iter().map(|(n, weight)| (ip(*n), *weight)).collect()
}

fn requeue_at(snapshot: &MemberSnapshot) -> Timestamp {
    // Without the requeue for the next heartbeat.
    let mut unsynced = snapshot.clone();
    leader(&mut unsynced).synced = false;
    plan(&unsynced).next_requeue.unwrap()
}

#[test]
fn every_ready_candidate_is_gateway_and_announced() {
    let snapshot = with_gateways([2, 1, 3]);
    assert_eq!(gateway_names(&snapshot), ["node-01", "node-02", "node-03"]);
    assert_eq!(announced(&snapshot), weights(&[(1, 1), (2, 1), (3, 1)]));
    let written = export(&snapshot, "east-clusterinfo").unwrap();
    let written = serde_json::to_string(&written.spec).unwrap();
    assert!(
        !written.contains("weight"),
        "the format of other implementations: {written}"
    );
}

#[test]
fn the_primary_gateway_changes_only_if_it_is_inactive() {
    let mut snapshot = with_gateways([5]);
    insert(&mut snapshot.nodes, candidate_node(1));
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(5, 1), (1, 1)]));
    insert(&mut snapshot.nodes, cordoned(candidate_node(5)));
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(1, 1), (5, 0)]));
    insert(&mut snapshot.nodes, candidate_node(5));
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(1, 1), (5, 1)]));
    let marked = |snapshot: &MemberSnapshot| {
        snapshot
            .gateways
            .values()
            .filter(|g| g.is_marked_primary())
            .count()
    };
    assert_eq!(primary(&snapshot), Some(ip(1)));
    // A drained gateway loses the mark.
    insert(&mut snapshot.nodes, cordoned(candidate_node(1)));
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(5, 1), (1, 0)]));
    insert(&mut snapshot.nodes, candidate_node(1));
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(5, 1), (1, 1)]));
    assert_eq!((primary(&snapshot), marked(&snapshot)), (Some(ip(5)), 1));
}

#[test]
fn a_shared_address_is_announced_once() {
    let mut snapshot = snapshot();
    for n in [1, 2] {
        insert(
            &mut snapshot.nodes,
            with(candidate_node(n), names::ANNOTATION_GATEWAY_IP, "203.0.113.9"),
        );
    }
    settle(&mut snapshot);
    insert(&mut snapshot.nodes, plain(1));
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), [("203.0.113.9".to_owned(), 1)]);
}

#[test]
fn a_gateway_is_drained_announced_and_removed_after_the_period() {
    type Change = (&'static str, fn(&mut MemberSnapshot));
    let changes: [Change; 5] = [
        ("is not Ready", |w| insert(&mut w.nodes, not_ready(1))),
        ("is cordoned", |w| {
            insert(&mut w.nodes, cordoned(candidate_node(1)));
        }),
        ("is cordoned and not Ready", |w| {
            insert(&mut w.nodes, cordoned(not_ready(1)));
        }),
        ("is no longer eligible", |w| {
            insert(&mut w.nodes, plain(1));
        }),
        ("is no longer eligible", |w| {
            Arc::make_mut(&mut w.nodes).remove(&NamespacedName::new("", "node-01".to_owned()));
        }),
    ];
    for (reason, change) in changes {
        let mut snapshot = with_gateways([1, 2]);
        let start = snapshot.now;
        change(&mut snapshot);
        let end = start.checked_add(SignedDuration::from_secs(30)).unwrap();
        settle(&mut snapshot);
        assert_issue(
            &plan(&snapshot),
            &format!("Gateway node-01: its Node {reason}: no new flows, removed at {end}"),
        );
        assert_eq!(announced(&snapshot), weights(&[(2, 1), (1, 0)]), "{reason}");
        assert_eq!(requeue_at(&snapshot), end, "{reason}");
        advance(&mut snapshot, 29);
        settle(&mut snapshot);
        assert_eq!(announced(&snapshot), weights(&[(2, 1), (1, 0)]), "{reason}");
        assert_eq!(requeue_at(&snapshot), end, "{reason}: the period began once");
        advance(&mut snapshot, 1);
        settle(&mut snapshot);
        assert_eq!(announced(&snapshot), weights(&[(2, 1)]), "{reason}");
        assert_eq!(gateway_names(&snapshot), ["node-02"], "{reason}");
        insert(&mut snapshot.nodes, candidate_node(1));
        settle(&mut snapshot);
        assert_eq!(
            announced(&snapshot),
            weights(&[(2, 1), (1, 1)]),
            "{reason}: recovered"
        );
    }
}

#[test]
fn recovery_within_the_period_ends_the_drain() {
    let mut snapshot = with_gateways([1, 2]);
    insert(&mut snapshot.nodes, not_ready(1));
    settle(&mut snapshot);
    advance(&mut snapshot, 29);
    insert(&mut snapshot.nodes, candidate_node(1));
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(2, 1), (1, 1)]));
    let gateway = snapshot.gateways.values().next().unwrap();
    assert!(
        gateway.annotations().is_empty() && gateway.weight.is_none(),
        "{gateway:?}"
    );
    advance(&mut snapshot, 3600);
    insert(&mut snapshot.nodes, not_ready(1));
    settle(&mut snapshot);
    assert_eq!(
        announced(&snapshot),
        weights(&[(2, 1), (1, 0)]),
        "a drain with a full period"
    );
}

#[test]
fn a_drain_survives_a_restart_and_a_clock_set_back() {
    let mut snapshot = with_gateways([1, 2]);
    insert(&mut snapshot.nodes, cordoned(candidate_node(1)));
    settle(&mut snapshot);
    let since = snapshot.now;
    advance(&mut snapshot, -600);
    settle(&mut snapshot);
    assert_eq!(
        requeue_at(&snapshot),
        snapshot.now.checked_add(SignedDuration::from_secs(30)).unwrap()
    );
    assert!(snapshot.now < since);
    advance(&mut snapshot, 30);
    settle(&mut snapshot);
    assert_eq!(gateway_names(&snapshot), ["node-02"]);
}

#[test]
fn a_malformed_start_restarts_the_drain() {
    let mut snapshot = with_gateways([1, 2]);
    insert(&mut snapshot.nodes, cordoned(candidate_node(1)));
    settle(&mut snapshot);
    let mut broken = snapshot.gateways.values().next().unwrap().as_ref().clone();
    broken
        .annotations_mut()
        .insert(names::ANNOTATION_DRAINING_SINCE.to_owned(), "soon".to_owned());
    insert(&mut snapshot.gateways, broken);
    advance(&mut snapshot, 60);
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(2, 1), (1, 0)]));
}

#[test]
fn the_last_gateway_is_not_drained_by_a_cordon() {
    let mut snapshot = with_gateways([1, 2, 3]);
    for n in [2, 1, 3] {
        insert(&mut snapshot.nodes, cordoned(candidate_node(n)));
        settle(&mut snapshot);
        advance(&mut snapshot, 1);
    }
    assert_eq!(announced(&snapshot), weights(&[(3, 1), (1, 0), (2, 0)]));
    advance(&mut snapshot, 3600);
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(3, 1)]));
    insert(&mut snapshot.nodes, candidate_node(1));
    settle(&mut snapshot);
    assert_eq!(
        announced(&snapshot),
        weights(&[(1, 1), (3, 0)]),
        "a candidate that is not cordoned replaces it"
    );
}

#[test]
fn one_of_several_gateways_cordoned_at_once_stays() {
    let mut snapshot = with_gateways([1, 2, 3]);
    for n in [1, 2, 3] {
        insert(&mut snapshot.nodes, cordoned(candidate_node(n)));
    }
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(1, 1), (2, 0), (3, 0)]));
}

#[test]
fn a_cordoned_node_becomes_gateway_only_without_another_candidate() {
    let mut snapshot = snapshot();
    insert(&mut snapshot.nodes, cordoned(candidate_node(1)));
    insert(&mut snapshot.nodes, not_ready(2));
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(1, 1)]));
    insert(&mut snapshot.nodes, candidate_node(2));
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(2, 1), (1, 0)]));
}

#[test]
fn gateways_stay_while_no_node_is_ready() {
    let mut snapshot = with_gateways([1, 2, 3]);
    for n in [1, 2, 3] {
        insert(&mut snapshot.nodes, not_ready(n));
        settle(&mut snapshot);
        advance(&mut snapshot, 5);
    }
    advance(&mut snapshot, 3600);
    settle(&mut snapshot);
    assert_eq!(gateway_names(&snapshot), ["node-01", "node-02", "node-03"]);
    assert!(
        announced(&snapshot).iter().all(|(_, weight)| *weight == 1),
        "{:?}",
        announced(&snapshot)
    );
    insert(&mut snapshot.nodes, candidate_node(2));
    settle(&mut snapshot);
    assert_eq!(
        announced(&snapshot)[0],
        (ip(2), 1),
        "the ready Node is announced first"
    );
    assert_eq!(announced(&snapshot).len(), 3);
}

#[test]
fn the_last_gateway_is_removed_if_it_is_not_eligible() {
    let mut snapshot = with_gateways([1]);
    insert(&mut snapshot.nodes, plain(1));
    settle(&mut snapshot);
    assert_eq!(
        announced(&snapshot),
        weights(&[(1, 0)]),
        "drained, so that another Node can be annotated"
    );
    advance(&mut snapshot, 30);
    settle(&mut snapshot);
    assert!(snapshot.gateways.is_empty());
}

#[test]
fn an_invalid_address_drains_the_gateway() {
    let mut snapshot = with_gateways([1, 2]);
    insert(
        &mut snapshot.nodes,
        with(candidate_node(1), names::ANNOTATION_GATEWAY_IP, "x"),
    );
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(2, 1), (1, 0)]));
}

#[test]
fn weights_are_those_of_the_annotation() {
    for (value, wanted, message) in [
        ("1", 1, None),
        ("255", 255, None),
        ("0", 1, Some("\"0\" is not a weight from 1 to 255; 1 is used")),
        (
            "256",
            1,
            Some("annotation mc-gateway.io/gateway-weight: \"256\" is not a weight"),
        ),
        ("+7", 1, Some("\"+7\"")),
        ("-1", 1, Some("\"-1\"")),
        (
            "ten",
            1,
            Some("Node node-01: annotation mc-gateway.io/gateway-weight: \"ten\""),
        ),
        ("", 1, Some("\"\"")),
    ] {
        let mut snapshot = with_gateways([2]);
        insert(
            &mut snapshot.nodes,
            with(candidate_node(1), names::ANNOTATION_GATEWAY_WEIGHT, value),
        );
        if let Some(message) = message {
            assert_issue(&plan(&snapshot), message);
        } else {
            assert!(plan(&snapshot).issues.is_empty(), "{value}");
        }
        settle(&mut snapshot);
        assert_eq!(announced(&snapshot), weights(&[(2, 1), (1, wanted)]), "{value}");
        insert(&mut snapshot.nodes, candidate_node(1));
        settle(&mut snapshot);
        assert_eq!(
            announced(&snapshot),
            weights(&[(2, 1), (1, 1)]),
            "{value}: annotation removed"
        );
    }
}

#[test]
fn nodes_beyond_the_limit_are_pending_and_reported() {
    let mut snapshot = with_gateways(3..=18);
    assert_eq!(snapshot.gateways.len(), 16);
    insert(&mut snapshot.nodes, candidate_node(1));
    insert(&mut snapshot.nodes, candidate_node(2));
    settle(&mut snapshot);
    assert!(
        !gateway_names(&snapshot).contains(&"node-01".to_owned()),
        "a gateway is not replaced"
    );
    assert_issue(
        &plan(&snapshot),
        "Node node-01: not used: 16 other Nodes are gateways",
    );
    assert_issue(&plan(&snapshot), "Node node-02: not used");
    insert(&mut snapshot.nodes, cordoned(candidate_node(9)));
    settle(&mut snapshot);
    assert_eq!(
        announced(&snapshot).len(),
        16,
        "a drained gateway yields its place"
    );
    assert_eq!(announced(&snapshot).last(), Some(&(ip(1), 1)));
}

#[test]
fn a_change_of_mode_keeps_a_gateway_active() {
    let mut snapshot = with_gateways([1, 2]);
    snapshot.config.gateway_mode = GatewayMode::ActiveStandby;
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(1, 1), (2, 0)]));
    assert_issue(
        &plan(&snapshot),
        "Gateway node-02: another Node is gateway instead: no new flows",
    );
    advance(&mut snapshot, 30);
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(1, 1)]));
    snapshot.config.gateway_mode = GatewayMode::ActiveActive;
    settle(&mut snapshot);
    assert_eq!(announced(&snapshot), weights(&[(1, 1), (2, 1)]));
}

/// A change of a Node.
#[derive(Clone, Copy, Debug)]
enum Event {
    Plain,
    Serving,
    Cordoned,
    NotReady,
    Leaving,
    Gone,
    Bad,
}

fn apply_event(snapshot: &mut MemberSnapshot, n: u8, event: Event) {
    let node = match event {
        Event::Plain => plain(n),
        Event::Serving => candidate_node(n),
        Event::Cordoned => cordoned(candidate_node(n)),
        Event::NotReady => not_ready(n),
        Event::Leaving => cordoned(not_ready(n)),
        Event::Bad => with(candidate_node(n), names::ANNOTATION_GATEWAY_IP, "bad"),
        Event::Gone => {
            Arc::make_mut(&mut snapshot.nodes).remove(&NamespacedName::new("", format!("node-{n:02}")));
            return;
        }
    };
    insert(&mut snapshot.nodes, node);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any changes of 20 Nodes, in both modes and at any pace.
    #[test]
    fn gateways_stay_active_and_within_the_limit(
        standby: bool,
        changes in proptest::collection::vec(
            (1u8..=20, prop_oneof![
                4 => Just(Event::Serving),
                1 => Just(Event::Plain),
                1 => Just(Event::Cordoned),
                1 => Just(Event::NotReady),
                1 => Just(Event::Leaving),
                1 => Just(Event::Gone),
                1 => Just(Event::Bad),
            ], 0i64..20),
            1..60,
        ),
    ) {
        let mut snapshot = snapshot();
        if standby {
            snapshot.config.gateway_mode = GatewayMode::ActiveStandby;
        }
        let mut states = BTreeMap::new();
        for (n, event, seconds) in changes {
            apply_event(&mut snapshot, n, event);
            states.insert(n, event);
            let before = announced(&snapshot);
            let removed: Vec<_> = plan(&snapshot).writes.into_iter()
                .filter(|a| a.target.kind == crate::plan::Kind::Gateway && matches!(a.op, WriteOp::Delete { .. }))
                .map(|a| a.target.name)
                .collect();
            // A gateway is drained before it is removed, unless its place is needed.
            for name in removed {
                let was = snapshot.gateways.values().find(|g| g.name_any() == name).unwrap();
                prop_assert!(was.weight() == 0 || snapshot.gateways.len() >= 16, "{name} removed at once");
            }
            settle(&mut snapshot);
            // The leader completes deletions.
            Arc::make_mut(&mut leader(&mut snapshot).exports).retain(|_, e| e.metadata.deletion_timestamp.is_none());
            settle(&mut snapshot);
            let after = announced(&snapshot);
            prop_assert_eq!(after.first().map(|(ip, _)| ip.clone()), primary(&snapshot), "{:?}", after);
            let serving: Vec<_> = states.iter()
                .filter(|(_, e)| matches!(e, Event::Serving))
                .map(|(n, _)| ip(*n))
                .collect();
            let active: Vec<_> = after.iter().filter(|(_, w)| *w > 0).map(|(ip, _)| ip.clone()).collect();
            prop_assert!(after.len() <= 16 && after.len() == snapshot.gateways.len(), "{after:?}");
            prop_assert!(after.is_sorted_by_key(|(_, weight)| *weight == 0), "{after:?}");
            if !serving.is_empty() {
                let wanted = if standby { 1 } else { serving.len().min(16) };
                prop_assert_eq!(active.len(), wanted);
                prop_assert!(active.iter().all(|ip| serving.contains(ip)), "{active:?} of {serving:?}");
            }
            let has_candidate = states.values().any(|e| matches!(e, Event::Serving | Event::Cordoned));
            prop_assert!(!(has_candidate && active.is_empty()), "a candidate is inactive");
            // An active primary gateway stays primary.
            if let Some((first, _)) = before.iter().find(|(_, w)| *w > 0)
                && active.contains(first)
            {
                prop_assert_eq!(&after[0].0, first);
            }
            advance(&mut snapshot, seconds);
        }
        // All drains end.
        settle(&mut snapshot);
        advance(&mut snapshot, 30);
        settle(&mut snapshot);
        if states.values().any(|e| matches!(e, Event::Serving | Event::Cordoned)) {
            prop_assert!(announced(&snapshot).iter().all(|(_, weight)| *weight > 0));
        }
    }
}
