//! Pods behind Services that are left to the service proxy.

use std::collections::BTreeSet;

use mc_api::network_policy::EnforcementAction;
use serde_json::json;

use super::super::{Mode, ProxiedEndpoints, protected_pods};
use super::*;

const DB: &str = "10.1.0.1";
const WEB: &str = "10.1.0.2";
const UNKNOWN: &str = "10.1.0.9";
const NODE: &str = "192.0.2.1";

/// The protected addresses of four endpoints, and whether there is any such Pod.
fn protected(policies: Vec<Policy>, mode: Mode) -> (Vec<String>, bool) {
    let set = PolicySet {
        policies,
        local_pods: vec![pod("shop", "web", WEB, &[("app", "web")])],
        cluster_pods: vec![
            pod("shop", "web", WEB, &[("app", "web")]),
            pod("shop", "db", DB, &[("app", "db")]),
        ],
        mode,
        ..PolicySet::default()
    };
    let endpoints = ProxiedEndpoints {
        addrs: [DB, WEB, UNKNOWN, NODE].map(|addr| addr.parse().unwrap()).into(),
        pod_cidrs: BTreeSet::from(["10.1.0.0/16".parse().unwrap()]),
    };
    let found = protected_pods(&set, &endpoints);
    (found.addrs.iter().map(ToString::to_string).collect(), found.any)
}

fn of(app: &str, direction: &str, rules: &Value) -> Policy {
    let spec = json!({
        "priority": 1, "appliedTo": [{ "podSelector": { "matchLabels": { "app": app } } }],
        direction: rules,
    });
    policy(None, "p", &spec)
}

#[test]
fn a_pod_that_a_rule_for_ingress_may_deny_packets_is_protected() {
    for rule in [
        json!({ "action": "Drop" }),
        json!({ "action": "Reject", "ports": [{ "port": 1 }] }),
        json!({ "action": "Drop", "from": [{ "scope": "ClusterSet", "podSelector": {} }] }),
    ] {
        let found = protected(vec![of("db", "ingress", &json!([rule.clone()]))], Mode::All);
        let unknown = [DB, UNKNOWN].map(str::to_owned).to_vec();
        assert_eq!(
            found,
            (unknown, true),
            "{rule}: a Pod of the cluster, one that is not known"
        );
        let found = protected(vec![of("web", "ingress", &json!([rule]))], Mode::All);
        assert_eq!(found, ([WEB, UNKNOWN].map(str::to_owned).to_vec(), true));
    }
}

#[test]
fn rules_that_deny_no_packet_from_other_clusters_protect_nothing() {
    let mut audited = of("db", "ingress", &json!([{ "action": "Drop" }]));
    audited.enforcement = EnforcementAction::Audit;
    for policies in [
        vec![],
        vec![of("db", "ingress", &json!([{ "action": "Allow" }]))],
        vec![of("db", "egress", &json!([{ "action": "Drop" }]))],
        vec![audited],
    ] {
        assert_eq!(
            protected(policies.clone(), Mode::All),
            (vec![], false),
            "{policies:?}"
        );
    }
    // Antrea enforces it, on the address of the gateway.
    let unscoped = of("db", "ingress", &json!([{ "action": "Drop" }]));
    assert_eq!(protected(vec![unscoped], Mode::ClusterSetOnly), (vec![], false));
}
