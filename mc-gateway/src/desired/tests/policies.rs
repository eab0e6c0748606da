//! Network policies on packets to the Pods of a node.

use mc_gateway_common::abi::IDENTITY_HOST;
use mc_gateway_common::abi::policy::{
    ANY_CLUSTER, DIMENSION_ADDRESS, DIMENSION_IDENTITY, POD_DROPS_UNKNOWN, RULE_ALLOW, RULE_DROP,
};
use mc_gateway_common::packet::ip;
use serde_json::json;

use super::identities::{DB, WEB, identity, pod, with_identities};
use super::*;
use crate::cidr::to_abi_addr;
use crate::desired::policies::NodePolicies;
use crate::identity_objects::IdentityInfo;
use crate::policy_objects;

fn policy(
    name: &str,
    spec: serde_json::Value,
) -> Arc<policy_objects::Parsed<mc_api::network_policy::Policy>> {
    let object = mc_api::network_policy::ClusterNetworkPolicy {
        metadata: kube::core::ObjectMeta {
            name: Some(name.into()),
            ..Default::default()
        },
        spec,
        ..Default::default()
    };
    policy_objects::cluster_network_policy(&object)
}

/// Web on node b may be reached by db of any cluster, and by nothing else.
fn web_policy() -> serde_json::Value {
    json!({
        "priority": 1, "tier": "securityops",
        "appliedTo": [{"podSelector": {"matchLabels": {"app": "web"}}}],
        "ingress": [
            {"action": "Allow", "from": [{"scope": "ClusterSet", "podSelector": {"matchLabels": {"app": "db"}}}],
             "ports": [{"protocol": "TCP", "port": 80}]},
            {"action": "Drop"},
        ],
    })
}

fn exported(label: &str, id: u32, clusters: &[&str]) -> Arc<IdentityInfo> {
    let mut info = IdentityInfo::clone(&identity(label, id));
    info.clusters = Some(clusters.iter().map(ToString::to_string).collect());
    info.into()
}

fn with_policy(spec: serde_json::Value) -> Objects {
    let identities = vec![exported(WEB, 7, &["east"]), exported(DB, 9, &["east", "west"])];
    let pods = vec![
        pod("db", "b", "10.1.1.6", "app=db"),
        pod("web", "b", "10.1.1.5", "app=web"),
    ];
    let mut objects = with_identities(identities, pods);
    objects.policies.policies = vec![policy("web", spec)];
    objects
}

fn enforced(node: &str, objects: &Objects, enforcement: PolicyEnforcement) -> (NodePolicies, Vec<String>) {
    let me = LocalNode {
        node_name: node.into(),
        cluster_id: Some("east".into()),
        policy_enforcement: enforcement,
        ..LocalNode::default()
    };
    let (desired, rejected) = first(objects, &me).unwrap();
    (
        desired.policies,
        rejected.iter().map(ToString::to_string).collect(),
    )
}

#[test]
fn a_node_has_the_rules_of_its_own_pods() {
    let objects = with_policy(web_policy());
    let (policies, rejected) = enforced("b", &objects, PolicyEnforcement::All);
    assert!(rejected.is_empty(), "{rejected:?}");
    let tables = &policies.tables;
    let web = to_abi_addr("10.1.1.5".parse().unwrap());
    assert_eq!(tables.pods.keys().collect::<Vec<_>>(), [&web]);
    assert_eq!(tables.pods[&web].flags, POD_DROPS_UNKNOWN);
    assert_eq!(policies.pods.len(), 2, "every Pod of the node is known");
    let class = tables.identities[&(ANY_CLUSTER, 9)];
    let allowed = tables.rules.iter().filter(|(_, rule)| rule.action == RULE_ALLOW);
    let allowed: BTreeSet<_> = allowed
        .map(|(key, _)| (key.dimension, key.class, key.proto, key.port, key.bits))
        .collect();
    // Pods with that label in other clusters, and in the own one.
    let local = tables.address_classes[&(128, to_abi_addr("10.1.1.6".parse().unwrap()))];
    assert_eq!(
        allowed,
        BTreeSet::from([
            (DIMENSION_IDENTITY, class, ip::TCP, 80, 16),
            (DIMENSION_ADDRESS, local, ip::TCP, 80, 16)
        ])
    );
    assert!(tables.rules.values().any(|rule| rule.action == RULE_DROP));
    let (elsewhere, _) = enforced("a", &objects, PolicyEnforcement::All);
    assert!(elsewhere.tables.is_empty(), "no Pod is selected there");
}

#[test]
fn an_identity_is_that_of_the_clusters_that_export_it() {
    let mut objects = with_policy(web_policy());
    let (policies, _) = enforced("b", &objects, PolicyEnforcement::All);
    let identities = &policies.tables.identities;
    let west = id("west");
    assert!(identities.contains_key(&(west, 9)) && identities.contains_key(&(west, IDENTITY_HOST)));
    assert!(!identities.contains_key(&(west, 7)), "west does not export it");
    assert!(identities.contains_key(&(ANY_CLUSTER, 7)));
    // An Antrea leader does not name the clusters.
    let known = objects.identities.as_mut().unwrap();
    known.identities = vec![identity(WEB, 7), identity(DB, 9)];
    let (policies, _) = enforced("b", &objects, PolicyEnforcement::All);
    assert!(policies.tables.identities.contains_key(&(west, 7)));
    // A cluster that exports nothing has no hosts either.
    let known = objects.identities.as_mut().unwrap();
    known.identities = vec![exported(WEB, 7, &["east"]), exported(DB, 9, &[])];
    let (policies, _) = enforced("b", &objects, PolicyEnforcement::All);
    assert!(!policies.tables.identities.contains_key(&(west, IDENTITY_HOST)));
}

#[test]
fn policies_are_enforced_as_configured() {
    let objects = with_policy(web_policy());
    let (off, rejected) = enforced("b", &objects, PolicyEnforcement::Off);
    assert_eq!((off, rejected), (NodePolicies::default(), vec![]));
    let (stretched, _) = enforced("b", &objects, PolicyEnforcement::ClusterSetOnly);
    let actions: BTreeSet<u32> = stretched.tables.rules.values().map(|rule| rule.action).collect();
    assert_eq!(actions, BTreeSet::from([RULE_ALLOW]), "Antrea drops the rest");
}

#[test]
fn an_invalid_field_is_reported_and_other_policies_are_enforced() {
    let mut objects = with_policy(web_policy());
    let spec = json!({
        "priority": 1, "tier": "securityops", "appliedTo": [{"podSelector": {}}],
        "ingress": [{"action": "Alow"}],
    });
    objects.policies.policies.insert(0, policy("bad", spec));
    let (policies, rejected) = enforced("b", &objects, PolicyEnforcement::All);
    assert!(
        rejected
            .iter()
            .any(|error| error.contains("ClusterNetworkPolicy bad: spec.ingress[0].action: \"Alow\"")),
        "{rejected:?}"
    );
    let (without, _) = enforced("b", &with_policy(web_policy()), PolicyEnforcement::All);
    assert_eq!(policies.tables.pods.len(), without.tables.pods.len());
}
