//! Rules that Antrea makes useless.

use ipnet::IpNet;
use serde_json::json;

use super::super::{Mode, shadowed};
use super::*;

/// The shadowed rules of policies, in their order, with the rules that drop packets.
fn found(policies: &[Value]) -> Vec<(String, String)> {
    let policies = policies.iter().enumerate().map(|(index, rules)| {
        let spec = json!({
            "priority": index + 1, "appliedTo": [{ "podSelector": { "matchLabels": { "app": "web" } } }], "ingress": rules,
        });
        policy(None, &format!("p{index}"), &spec)
    });
    let set = PolicySet {
        policies: policies.collect(),
        local_pods: vec![
            pod("shop", "db", "10.1.0.1", &[("app", "db")]),
            pod("shop", "web", "10.1.0.2", &[("app", "web")]),
        ],
        mode: Mode::ClusterSetOnly,
        ..PolicySet::default()
    };
    let remote: Vec<IpNet> = ["10.2.0.0/16", "10.3.0.0/16"]
        .map(|net| net.parse().unwrap())
        .into();
    let errors = shadowed(&set, &remote).into_iter().map(|error| {
        let by = error.reason.rsplit(" by ").next().unwrap().to_owned();
        (format!("{} {}", error.object, error.field), by)
    });
    errors.collect()
}

fn name(policy: u8, rule: u8) -> String {
    format!("ClusterNetworkPolicy p{policy} spec.ingress[{rule}]")
}

fn allow() -> Value {
    json!({ "action": "Allow", "ports": [{ "port": 80, "endPort": 90 }],
            "from": [{ "scope": "ClusterSet", "podSelector": { "matchLabels": { "app": "client" } } }] })
}

#[test]
fn a_later_rule_that_drops_packets_from_other_clusters_is_named() {
    for drop in [
        json!({ "action": "Drop" }),
        json!({ "action": "Reject", "ports": [{ "port": 90 }] }),
        json!({ "action": "Drop", "ports": [{ "port": "http" }] }),
        json!({ "action": "Drop", "from": [{ "ipBlock": { "cidr": "10.3.7.0/24" } }] }),
        json!({ "action": "Drop", "from": [{ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.2.0.0/16"] } }] }),
    ] {
        let expected = [(name(0, 0), name(1, 0))];
        assert_eq!(
            found(&[json!([allow()]), json!([drop.clone()])]),
            expected,
            "{drop}"
        );
        let expected = [(name(0, 0), name(0, 1))];
        assert_eq!(found(&[json!([allow(), drop.clone()])]), expected, "{drop}");
        assert_eq!(
            found(&[json!([drop.clone(), allow()])]),
            [],
            "an earlier one: {drop}"
        );
    }
}

#[test]
fn rules_that_drop_no_packet_from_other_clusters_do_not_count() {
    for other in [
        json!({ "action": "Allow" }),
        json!({ "action": "Drop", "from": [{ "podSelector": {} }] }),
        json!({ "action": "Drop", "from": [{ "scope": "ClusterSet", "podSelector": {} }] }),
        json!({ "action": "Drop", "ports": [{ "port": 91 }] }),
        json!({ "action": "Drop", "ports": [{ "protocol": "UDP", "port": 80 }] }),
        json!({ "action": "Drop", "protocols": [{ "icmp": { "icmpType": 8 } }] }),
        json!({ "action": "Drop", "from": [{ "ipBlock": { "cidr": "10.1.0.0/16" } }] }),
        json!({ "action": "Drop", "from": [{ "ipBlock": { "cidr": "10.2.0.0/15", "except": ["10.2.0.0/15"] } }] }),
    ] {
        assert_eq!(found(&[json!([allow(), other.clone()])]), [], "{other}");
    }
    let elsewhere =
        json!({ "action": "Drop", "appliedTo": [{ "podSelector": { "matchLabels": { "app": "db" } } }] });
    let own =
        json!({ "action": "Drop", "appliedTo": [{ "podSelector": { "matchLabels": { "app": "web" } } }] });
    let of = |rule: Value| {
        let mut allow = allow();
        allow["appliedTo"] = json!([{ "podSelector": { "matchLabels": { "app": "web" } } }]);
        let spec = json!({ "priority": 1, "ingress": [allow, rule] });
        let set = PolicySet {
            policies: vec![policy(None, "p", &spec)],
            local_pods: vec![
                pod("shop", "db", "10.1.0.1", &[("app", "db")]),
                pod("shop", "web", "10.1.0.2", &[("app", "web")]),
            ],
            ..PolicySet::default()
        };
        shadowed(&set, &[]).len()
    };
    assert_eq!(
        (of(elsewhere), of(own)),
        (0, 1),
        "by the Pods that both rules apply to"
    );
}

#[test]
fn a_rule_of_antrea_that_lets_packets_from_other_clusters_pass_prevents_it() {
    let drop = json!({ "action": "Drop" });
    for pass in [
        json!({ "action": "Allow" }),
        json!({ "action": "Pass" }),
        json!({ "action": "Allow", "from": [{ "ipBlock": { "cidr": "10.0.0.0/8" } }] }),
    ] {
        for rules in [
            json!([allow(), pass.clone(), drop.clone()]),
            json!([pass.clone(), allow(), drop.clone()]),
        ] {
            assert_eq!(found(std::slice::from_ref(&rules)), [], "{rules}");
        }
    }
    for too_narrow in [
        json!({ "action": "Allow", "ports": [{ "port": 80 }] }),
        json!({ "action": "Allow", "from": [{ "ipBlock": { "cidr": "10.2.0.0/16" } }] }),
        json!({ "action": "Allow", "from": [{ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.3.1.0/24"] } }] }),
    ] {
        let expected = [(name(0, 0), name(0, 2))];
        assert_eq!(
            found(&[json!([allow(), too_narrow.clone(), drop.clone()])]),
            expected,
            "{too_narrow}"
        );
    }
}
