//! References that do not resolve, and rules with errors.

use mc_api::network_policy::parse_group;
use serde_json::json;

use super::*;

const POD: &str = "10.1.0.1";

fn set(namespace: Option<&str>, spec: &Value) -> PolicySet {
    let name = match namespace {
        None => ObjectName::cluster("p"),
        Some(namespace) => ObjectName::namespaced(namespace, "p"),
    };
    PolicySet {
        policies: vec![parse(name, spec).0],
        local_pods: vec![pod("shop", "web", POD, &[])],
        identities: vec![identity(1, "shop", &[], &[]), identity(2, "other", &[], &[])],
        ..PolicySet::default()
    }
}

fn issues(set: &PolicySet) -> Vec<String> {
    compile(set).1.iter().map(ToString::to_string).collect()
}

fn letters(set: &PolicySet) -> [char; 4] {
    [1, 2, 0, 99].map(|id| letter(&verdict(set, &packet(POD, id))))
}

#[test]
fn unresolved_references_are_reported() {
    let set = set(
        None,
        &json!({
            "priority": 1, "tier": "absent", "appliedTo": [{ "podSelector": {} }, { "group": "nodes" }],
            "ingress": [
                { "action": "Allow", "ports": [{ "port": "http" }] },
                { "action": "Drop", "from": [{ "group": "absent", "scope": "ClusterSet" }] },
            ],
        }),
    );
    assert_eq!(
        issues(&set),
        [
            "ClusterNetworkPolicy p: appliedTo: \"nodes\" is not a group",
            "ClusterNetworkPolicy p: spec.ingress[1].from[0].group: \"absent\" is not a group",
            "ClusterNetworkPolicy p: spec.tier: \"absent\" is not a Tier, so the policy is enforced in the Tier \
             application",
            "ClusterNetworkPolicy p: spec.ingress[0].ports: \"http\" is not a port of the Pod shop/web and 0 others, so \
             it matches nothing there",
        ]
    );
    assert_eq!(
        letters(&set),
        ['.', '.', '.', 'U'],
        "the absent group could match an unknown source"
    );
}

/// Without its only peer the rule for `Allow` matches nothing, and the later rule drops the packet.
#[test]
fn an_allow_rule_with_an_unsupported_peer_does_not_allow_every_source() {
    let rules = json!([
        { "action": "Allow", "from": [{ "fqdn": "example.com" }] },
        { "action": "Allow", "ports": [{ "port": 90, "endPort": 80 }] },
        { "action": "Allow", "l7Protocols": [{ "http": {} }] },
        { "action": "Drop" },
    ]);
    let set = set(
        None,
        &json!({ "priority": 1, "appliedTo": [{ "podSelector": {} }], "ingress": rules }),
    );
    assert_eq!(letters(&set), ['D'; 4]);
}

#[test]
fn a_drop_rule_with_an_unsupported_peer_is_left_out() {
    let rules = json!([
        { "action": "Drop", "from": [{ "scope": "ClusterSet", "podSelector": {} }, { "fqdn": "example.com" }] },
    ]);
    let spec = json!({ "priority": 1, "appliedTo": [{ "podSelector": {} }], "ingress": rules });
    assert_eq!(letters(&set(None, &spec)), ['.'; 4]);
    let rules =
        json!([{ "action": "Drop", "from": [{ "group": "g" }, { "ipBlock": { "cidr": "0.0.0.0/0" } }] }]);
    let spec = json!({ "priority": 1, "appliedTo": [{ "podSelector": {} }], "ingress": rules });
    let mut set = set(None, &spec);
    let (group, _) = parse_group(ObjectName::cluster("g"), &json!({ "serviceReference": {} }));
    set.groups.push(group);
    assert_eq!(letters(&set), ['.'; 4]);
    assert_eq!(
        issues(&set),
        ["ClusterNetworkPolicy p: spec.ingress[0].from[0].group: \"g\" is a group with an unsupported spec"]
    );
}

#[test]
fn an_unsupported_peer_in_other_clusters_could_match_an_unknown_source() {
    let rules = json!([{ "action": "Allow", "from": [{ "scope": "ClusterSet", "fqdn": "example.com" }] }]);
    let spec = json!({ "priority": 1, "appliedTo": [{ "podSelector": {} }], "ingress": rules });
    assert_eq!(letters(&set(None, &spec)), ['.', '.', '.', 'U']);
}

#[test]
fn a_namespaced_policy_does_not_apply_to_other_namespaces() {
    let rules = json!([{ "action": "Drop" }]);
    let spec = |applied_to: Value| json!({ "priority": 1, "appliedTo": [applied_to], "ingress": rules });
    assert_eq!(
        letters(&set(Some("shop"), &spec(json!({ "podSelector": {} })))),
        ['D'; 4]
    );
    assert_eq!(
        letters(&set(Some("other"), &spec(json!({ "podSelector": {} })))),
        ['.'; 4]
    );
    assert_eq!(
        letters(&set(Some("other"), &spec(json!({ "namespaceSelector": {} })))),
        ['.'; 4]
    );
    let mut by_group = set(Some("other"), &spec(json!({ "group": "g" })));
    let (group, _) = parse_group(
        ObjectName::namespaced("other", "g"),
        &json!({ "namespaceSelector": {} }),
    );
    by_group.groups.push(group);
    assert_eq!(letters(&by_group), ['.'; 4]);
    assert_eq!(
        issues(&by_group),
        [
            "NetworkPolicy other/p: appliedTo: \"g\" has Pods of other Namespaces, to which a namespaced policy does not \
          apply"
        ]
    );
}

/// Groups of another Namespace or of the cluster are not those of a namespaced policy.
#[test]
fn a_namespaced_policy_refers_to_groups_of_its_namespace() {
    let spec = json!({
        "priority": 1, "appliedTo": [{ "podSelector": {} }],
        "ingress": [{ "action": "Drop", "from": [{ "group": "g" }] }],
    });
    let mut set = set(Some("shop"), &spec);
    let blocks = json!({ "ipBlocks": [{ "cidr": "0.0.0.0/0" }] });
    for name in [ObjectName::cluster("g"), ObjectName::namespaced("other", "g")] {
        set.groups.push(parse_group(name, &blocks).0);
    }
    assert_eq!(letters(&set), ['.'; 4]);
    set.groups
        .push(parse_group(ObjectName::namespaced("shop", "g"), &blocks).0);
    assert_eq!(letters(&set), ['D'; 4]);
}

#[test]
fn an_id_of_two_labels_is_unknown() {
    let rules = json!([{ "action": "Allow", "from": [{ "scope": "ClusterSet", "namespaceSelector": {} }] }]);
    let spec = json!({ "priority": 1, "appliedTo": [{ "podSelector": {} }], "ingress": rules });
    let mut set = set(None, &spec);
    set.identities.push(identity(2, "shop", &[], &[]));
    set.identities.push(identity(1, "shop", &[], &[]));
    set.identities.push(identity(0xFF_FFFF, "shop", &[], &[]));
    set.identities.push(identity(0, "shop", &[], &[]));
    assert_eq!(letters(&set), ['A', 'U', '.', 'U']);
    assert_eq!(letter(&verdict(&set, &packet(POD, 0xFF_FFFF))), 'U');
    assert_eq!(
        issues(&set),
        ["LabelIdentity: spec.id: \"2\" is the ID of several labels, so it is unknown"]
    );
}
