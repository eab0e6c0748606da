//! Policies at the limits of their objects and of the maps: others are unaffected.

use mc_api::node_policy_status::PolicyReport;
use mc_gateway_common::abi::policy::{MAX_ADDRESS_CLASSES, NO_RULES, POD_CLOSED, PolicyPod};
use serde_json::{Value, json};

use super::identities::pod;
use super::policies::{enforced, exported, large, policy, web_policy, with_policy};
use super::*;
use crate::cidr::to_abi_addr;
use crate::desired::node_policies::NodePolicies;
use crate::policy::Mode;
use crate::policy_objects;

/// The Pods of node b by their labels.
const WEB: &str = "10.1.1.5";
const DB: &str = "10.1.1.6";

fn add(objects: &mut Objects, name: &str, created: &str, spec: Value) {
    let mut parsed = policy_objects::Parsed::clone(&policy(name, spec));
    parsed.object.created = Some(created.to_owned());
    objects.policies.policies.push(parsed.into());
}

fn row(policies: &NodePolicies, addr: &str) -> Option<PolicyPod> {
    let addr = to_abi_addr(addr.parse().expect("an address"));
    policies.tables.pods.get(&addr).copied()
}

fn is_closed(policies: &NodePolicies, addr: &str) -> bool {
    row(policies, addr).is_some_and(|pod| pod.flags & POD_CLOSED != 0)
}

fn report<'a>(policies: &'a NodePolicies, name: &str) -> &'a PolicyReport {
    let report = policies.report.as_ref().expect("a report");
    let mut of_name = report.policies.iter().filter(|policy| policy.name == name);
    of_name.next().expect("a report of the policy")
}

#[test]
fn a_policy_that_does_not_fit_the_maps_closes_its_own_pods_alone() {
    let mut objects = with_policy(web_policy());
    let spec = large(&mut objects, &json!({"matchLabels": {"app": "db"}}));
    let without = enforced("b", &objects, Some(Mode::All)).0;
    for created in ["2026-01-01T00:00:00Z", "2026-12-01T00:00:00Z"] {
        let mut objects = objects.clone();
        objects.policies.policies.clear();
        add(&mut objects, "web", "2026-06-01T00:00:00Z", web_policy());
        add(&mut objects, "large", created, spec.clone());
        let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
        let [error] = &rejected[..] else {
            panic!("{rejected:?}")
        };
        assert!(
            error.starts_with("ClusterNetworkPolicy large: map mc_policy_rules: \"5")
                && error.ends_with(
                    "entries of all policies exceed the capacity of 524288: packets of the Pods that the policy selects \
                     are dropped"
                ),
            "{error}"
        );
        assert!(is_closed(&policies, DB), "{:?}", row(&policies, DB));
        assert_eq!(row(&policies, DB).expect("a row").set, NO_RULES);
        assert_eq!(row(&policies, WEB), row(&without, WEB), "rules and flags of web");
        assert_eq!(policies.tables.rules, without.tables.rules);
        assert!(policies.tables.unselected.is_empty());
        assert_eq!(
            (
                report(&policies, "web").errors.len(),
                report(&policies, "large").errors.len()
            ),
            (0, 1)
        );
        assert!(policies.guards_pods());
    }
}

/// Alone it leaves no rules, and the other Pods of the Node are known as such without rules.
#[test]
fn a_policy_that_exceeds_the_maps_alone_opens_nothing() {
    let mut objects = with_policy(web_policy());
    let spec = large(&mut objects, &json!({"matchLabels": {"app": "db"}}));
    objects.policies.policies.clear();
    add(&mut objects, "large", "2026-01-01T00:00:00Z", spec);
    let (policies, _) = enforced("b", &objects, Some(Mode::All));
    assert!(is_closed(&policies, DB) && row(&policies, WEB).is_none());
    let web = to_abi_addr(WEB.parse().expect("an address"));
    assert_eq!(policies.tables.unselected, [web].into());
    assert!(policies.tables.drops());
}

/// The newer one of two policies that fit alone is left out, with both directions of its rules.
#[test]
fn of_two_policies_that_do_not_fit_together_the_older_one_is_enforced() {
    let half = |app: &str, subnet: u32| {
        let blocks: Vec<_> = (0..=MAX_ADDRESS_CLASSES / 4)
            .map(|n| json!({"ipBlock": {"cidr": format!("172.{}.{}.{}/32", subnet + n / 65_536, n / 256 % 256, n % 256)}}))
            .collect();
        json!({
            "priority": 2, "appliedTo": [{"podSelector": {"matchLabels": {"app": app}}}],
            "ingress": [{"action": "Drop", "from": blocks}],
            "egress": [{"action": "Drop", "ports": [{"protocol": "TCP", "port": 25}]}],
        })
    };
    let years = ["2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"];
    for (web, db) in [(years[0], years[1]), (years[1], years[0])] {
        let mut objects = with_policy(web_policy());
        objects.policies.policies.clear();
        add(&mut objects, "db", db, half("db", 16));
        add(&mut objects, "web", web, half("web", 24));
        let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
        let (open, closed, name) = if web < db {
            (WEB, DB, "db")
        } else {
            (DB, WEB, "web")
        };
        assert_eq!(rejected.len(), 1, "{rejected:?}");
        assert!(
            rejected[0].starts_with(&format!("ClusterNetworkPolicy {name}: map mc_addr_classes: ")),
            "{rejected:?}"
        );
        assert!(is_closed(&policies, closed) && !is_closed(&policies, open));
        assert_ne!(row(&policies, open).expect("a row").set, NO_RULES);
        let closed = to_abi_addr(closed.parse().expect("an address"));
        assert_ne!(policies.tables.egress_pods[&closed].flags & POD_CLOSED, 0);
    }
}

/// The identities of the other clusters alone exceed a map: no policy fits, and no entry of them remains.
#[test]
fn identities_that_do_not_fit_close_all_selected_pods() {
    let mut objects = with_policy(web_policy());
    let clusters: Vec<_> = (0..13).map(|n| format!("c{n}")).collect();
    objects.remotes.extend((0..13).map(|n: u8| {
        remote(
            &format!("c{n}"),
            None,
            &format!("192.0.2.{}", 100 + n),
            &format!("10.{}.0.0/16", 100 + n),
            &[],
        )
    }));
    let known = &mut objects.identities.as_mut().expect("identities").identities;
    let of_bits = |bits: u32| {
        let is_in = |at: &usize| bits >> at & 1 == 1;
        (0..13)
            .filter(is_in)
            .map(|at| clusters[at].as_str())
            .collect::<Vec<_>>()
    };
    known.extend(
        (0..1 << 13)
            .filter(|bits: &u32| bits.count_ones() == 6)
            .map(|bits| {
                let label = format!("ns:kubernetes.io/metadata.name=shop&pod:app=b{bits}");
                exported(&label, 1000 + bits, &of_bits(bits))
            }),
    );
    let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
    assert!(
        rejected
            .iter()
            .any(|error| error.starts_with("ClusterNetworkPolicy web: map mc_exporters: ")),
        "{rejected:?}"
    );
    assert!(is_closed(&policies, WEB) && row(&policies, DB).is_none());
    assert!(policies.tables.exporters.is_empty() && policies.tables.identities.is_empty());
}

#[test]
fn selectors_may_match_100_000_pods() {
    let mut objects = with_policy(web_policy());
    objects.pods.extend((0..100_000_u32).map(|n| {
        let ip = format!("10.{}.{}.{}", 16 + n / 65_536, n / 256 % 256, n % 256);
        pod(&format!("web-{n}"), "a", &ip, "app=web")
    }));
    // As the Pods to which a policy applies they need no entries.
    let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
    assert!(rejected.is_empty(), "{rejected:?}");
    assert_eq!(policies.tables.pods.len(), 1);

    // As peers they exceed the map: only the policy that has them is left out.
    let spec = json!({
        "priority": 1, "appliedTo": [{"podSelector": {"matchLabels": {"app": "db"}}}],
        "ingress": [{"action": "Allow", "from": [{"podSelector": {}}]}, {"action": "Drop"}],
    });
    add(&mut objects, "all", "2026-01-01T00:00:00Z", spec);
    let (with_all, rejected) = enforced("b", &objects, Some(Mode::All));
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    assert!(
        rejected[0].starts_with("ClusterNetworkPolicy all: map mc_addr_classes: \"100002\" "),
        "{rejected:?}"
    );
    assert_eq!(row(&with_all, WEB), row(&policies, WEB));
    assert!(is_closed(&with_all, DB));
}

/// Every character of a key and a value (`Labels and Selectors` in the documentation of Kubernetes), at full length.
#[test]
fn labels_may_have_every_legal_character() {
    const KEY: &str = "a0.example-1.com/AZaz09-_.b";
    let value = format!("Az0-_.{}9", "x".repeat(56));
    let selector = json!({"matchLabels": {KEY: value}});
    let spec = json!({
        "priority": 1, "appliedTo": [{"podSelector": selector}],
        "ingress": [{"action": "Allow", "from": [{"scope": "ClusterSet", "podSelector": selector}]}, {"action": "Drop"}],
    });
    let mut objects = with_policy(spec);
    let label = format!("ns:kubernetes.io/metadata.name=shop&pod:{KEY}={value}");
    let known = &mut objects.identities.as_mut().expect("identities").identities;
    known.push(exported(&label, 77, &["west"]));
    objects
        .pods
        .push(pod("all", "b", "10.1.1.7", &format!("{KEY}={value}")));
    let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
    assert!(rejected.is_empty(), "{rejected:?}");
    assert!(row(&policies, "10.1.1.7").is_some() && row(&policies, WEB).is_none());
    let class = policies.tables.identities[&77].class;
    assert_ne!(class, policies.tables.identities[&7].class, "other labels");
}

/// A Namespace that is deleted takes its Pods with it; those of others are not selected instead.
#[test]
fn a_policy_for_a_deleted_namespace_selects_no_pod() {
    let mut objects = with_policy(web_policy());
    let (before, _) = enforced("b", &objects, Some(Mode::All));
    let gone = json!({"matchLabels": {"kubernetes.io/metadata.name": "gone"}});
    let rules = json!([{"action": "Drop", "from": [{"namespaceSelector": gone}]}, {"action": "Drop"}]);
    let spec = json!({"priority": 1, "appliedTo": [{"namespaceSelector": gone}], "ingress": rules});
    add(&mut objects, "gone", "2026-01-01T00:00:00Z", spec);
    let (policies, rejected) = enforced("b", &objects, Some(Mode::All));
    assert!(rejected.is_empty(), "{rejected:?}");
    assert_eq!(policies.tables, before.tables);

    // The Namespace of the selected Pods is deleted while they end: its name remains a label.
    let named = json!({"matchLabels": {"kubernetes.io/metadata.name": "shop"}});
    let spec = json!({
        "priority": 1, "appliedTo": [{"namespaceSelector": named}], "ingress": [{"action": "Drop"}],
    });
    add(&mut objects, "shop", "2026-01-01T00:00:00Z", spec);
    objects
        .identities
        .as_mut()
        .expect("identities")
        .namespaces
        .clear();
    let (policies, _) = enforced("b", &objects, Some(Mode::All));
    assert!(row(&policies, WEB).is_some() && row(&policies, DB).is_some());
}
