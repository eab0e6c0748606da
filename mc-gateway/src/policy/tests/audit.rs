//! Audited policies.

use mc_api::network_policy::EnforcementAction;
use serde_json::json;

use super::super::Mode;
use super::super::model::HOST_IDENTITY;
use super::*;

const DB: &str = "10.1.0.2";

fn policies(policies: Vec<Policy>, mode: Mode) -> PolicySet {
    PolicySet {
        policies,
        local_pods: vec![pod("shop", "db", DB, &[("app", "db")])],
        identities: vec![identity(1, "shop", &[], &[("app", "client")])],
        mode,
        ..PolicySet::default()
    }
}

/// While a rule with peers by labels is audited, senders that it would have dropped as unknown pass, and it counts
/// them behind all other rules.
#[test]
fn an_audited_rule_with_peers_by_labels_names_unknown_senders() {
    let peers = |action: &str| {
        json!({
            "appliedTo": [{ "podSelector": { "matchLabels": { "app": "db" } } }],
            "priority": 1, "tier": "application",
            "ingress": [{ "action": action, "from": [
                { "scope": "ClusterSet", "podSelector": { "matchLabels": { "app": "client" } } },
            ] }],
        })
    };
    let mut audited = policy(None, "audited", &peers("Allow"));
    audited.enforcement = EnforcementAction::Audit;
    let named = |set: &PolicySet, identity| {
        let verdict = verdict(set, &packet(DB, identity));
        (letter(&verdict), verdict.audited.map(|rule| rule.path()))
    };
    let unknown = Some("spec.ingress[0] unknown senders".to_owned());
    for mode in [Mode::All, Mode::ClusterSetOnly] {
        let set = policies(vec![audited.clone()], mode);
        assert_eq!(named(&set, 99), ('.', unknown.clone()));
        assert_eq!(named(&set, HOST_IDENTITY), ('.', None));
        // An enforced rule with peers by labels drops them as well.
        let enforced = policy(None, "enforced", &peers("Drop"));
        let set = policies(vec![audited.clone(), enforced], mode);
        assert_eq!(named(&set, 99), ('U', unknown.clone()));
    }
    // A later rule for every peer decides.
    let mut closing = peers("Allow");
    let rules = closing["ingress"].as_array_mut().unwrap();
    rules.push(json!({ "action": "Pass" }));
    let set = policies(vec![audited, policy(None, "closing", &closing)], Mode::All);
    assert_eq!(named(&set, 99), ('P', None));
}
