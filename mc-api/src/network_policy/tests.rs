//! Specs and the errors in them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::label_selector::LabelSelector;

fn errors(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

/// The errors of a `ClusterNetworkPolicy` `p` with one ingress rule, and that rule.
fn ingress(rule: &Value) -> (Vec<String>, Rule) {
    let spec = json!({ "priority": 1, "appliedTo": [{ "podSelector": {} }], "ingress": [rule] });
    let (policy, list) = parse(ObjectName::cluster("p"), &spec);
    let [rule] = &policy.ingress[..] else {
        panic!("{policy:?}")
    };
    (errors(&list), rule.clone())
}

fn selector(selector: &Value) -> LabelSelector {
    LabelSelector::parse(selector).unwrap()
}

#[test]
fn a_policy_of_users_is_parsed() {
    let spec = json!({
        "appliedTo": [{ "podSelector": { "matchLabels": { "app": "db" } } }],
        "priority": 1.5, "tier": "platform",
        "ingress": [
            { "action": "Allow", "name": "clients", "enableLogging": true, "to": [], "toServices": null,
              "from": [{ "scope": "ClusterSet", "podSelector": { "matchLabels": { "app": "client" } } },
                       { "ipBlock": { "cidr": "10.1.2.3/8", "except": ["10.1.0.0/16"] } },
                       { "group": "g" }],
              "ports": [{ "port": 80, "endPort": 90 }, { "protocol": "UDP", "port": "dns" }, { "protocol": "SCTP" }],
              "protocols": [{ "icmp": {} }, { "icmp": { "icmpType": 8, "icmpCode": 0 } }] },
            { "action": "Deny" },
        ],
        "egress": [{ "action": "Reject", "to": [{ "namespaceSelector": {} }] }],
    });
    let (policy, list) = parse(ObjectName::namespaced("prod", "db"), &spec);
    assert_eq!(errors(&list), [""; 0]);
    assert_eq!(policy.object(), "NetworkPolicy prod/db");
    assert_eq!(policy.tier, "platform");
    assert_eq!(policy.priority, Priority::try_new(1.5).unwrap());
    let own = |pods: Value| PodMatch {
        namespaces: NamespaceMatch::Named("prod".to_owned()),
        pods: selector(&pods),
        service_account: None,
    };
    let db = AppliedTo::Pods(own(json!({ "matchLabels": { "app": "db" } })));
    let block = IpBlock {
        cidr: "10.0.0.0/8".parse().unwrap(),
        except: ["10.1.0.0/16".parse().unwrap()].into(),
    };
    let ports = |protocol, first, last| Service::Ports {
        protocol,
        first,
        last,
    };
    let allow = Rule {
        name: Some("clients".to_owned()),
        action: Action::Allow,
        applied_to: [db.clone()].into(),
        peers: Some(vec![
            Peer::Pods {
                scope: Scope::ClusterSet,
                pods: own(json!({ "matchLabels": { "app": "client" } })),
            },
            Peer::Block(block),
            Peer::Group {
                scope: Scope::Cluster,
                name: "g".to_owned(),
            },
        ]),
        services: Some(vec![
            ports(L4Protocol::Tcp, 80, 90),
            Service::Named {
                protocol: L4Protocol::Udp,
                name: "dns".to_owned(),
            },
            ports(L4Protocol::Sctp, 0, 65535),
            Service::Icmp {
                kind: None,
                code: None,
            },
            Service::Icmp {
                kind: Some(8),
                code: Some(0),
            },
        ]),
        realization: Realization::Full,
    };
    assert_eq!(policy.ingress[0], allow);
    let deny = &policy.ingress[1];
    assert_eq!(
        (deny.action, &deny.peers, &deny.services),
        (Action::Drop, &None, &None)
    );
    let all = PodMatch {
        namespaces: NamespaceMatch::Selector(LabelSelector::default()),
        pods: LabelSelector::default(),
        service_account: None,
    };
    let scope = Scope::Cluster;
    assert_eq!(
        policy.egress[0].peers,
        Some(vec![Peer::Pods { scope, pods: all }])
    );
}

#[test]
fn service_accounts_select_pods_in_cluster_scoped_policies() {
    let account = json!({ "serviceAccount": { "name": "job", "namespace": "prod" } });
    let of_account = PodMatch {
        namespaces: NamespaceMatch::Named("prod".to_owned()),
        pods: LabelSelector::default(),
        service_account: Some("job".to_owned()),
    };
    let spec = json!({
        "priority": 1, "appliedTo": [account], "ingress": [{ "action": "Allow", "from": [account] }],
    });
    let (policy, list) = parse(ObjectName::cluster("p"), &spec);
    assert_eq!(list, []);
    let rule = &policy.ingress[0];
    assert_eq!(*rule.applied_to, [AppliedTo::Pods(of_account.clone())]);
    let scope = Scope::Cluster;
    let pods = of_account;
    assert_eq!(rule.peers, Some(vec![Peer::Pods { scope, pods }]));

    let (policy, list) = parse(ObjectName::namespaced("prod", "p"), &spec);
    let texts = errors(&list);
    assert!(
        texts.len() == 2
            && texts
                .iter()
                .all(|text| text.ends_with("is not allowed in a namespaced object")),
        "{texts:?}"
    );
    assert_eq!(*policy.ingress[0].applied_to, [AppliedTo::Unsupported]);
}

#[test]
fn namespaces_relative_to_the_pod_are_parsed() {
    let peers = json!([
        { "scope": "ClusterSet", "namespaces": { "match": "Self" } },
        { "namespaces": { "sameLabels": ["tenant", "env"] }, "podSelector": {} },
        { "scope": "ClusterSet" },
    ]);
    let (list, rule) = ingress(&json!({ "action": "Pass", "from": peers }));
    assert_eq!(list, [""; 0]);
    let namespaces: Vec<_> = rule
        .peers
        .iter()
        .flatten()
        .map(|peer| match peer {
            Peer::Pods { pods, .. } => pods.namespaces.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    let keys = ["env".to_owned(), "tenant".to_owned()].into();
    assert_eq!(
        namespaces,
        [
            NamespaceMatch::Same,
            NamespaceMatch::SameLabels(keys),
            NamespaceMatch::Any
        ]
    );
}

#[test]
fn a_peer_with_an_error_never_makes_a_rule_match_more() {
    let p = "ClusterNetworkPolicy p: spec.ingress[0].from[1]";
    for (peer, error) in [
        (
            json!({ "fqdn": "*.example.com" }),
            ".fqdn: \"*.example.com\" is not supported",
        ),
        (
            json!({ "nodeSelector": {} }),
            ".nodeSelector: \"{}\" is not supported",
        ),
        (
            json!({ "serviceAccount": { "name": "a" } }),
            ".serviceAccount.namespace: \"\" is missing",
        ),
        (
            json!({ "serviceAccount": { "name": "", "namespace": "n" } }),
            ".serviceAccount.name: \"\" is missing",
        ),
        (
            json!({ "serviceAccount": { "name": "a", "namespace": "n", "uid": "u" } }),
            ".serviceAccount.uid: \"u\" is in an unknown field",
        ),
        (
            json!({ "serviceAccount": { "name": "a", "namespace": "n" }, "podSelector": {} }),
            "excludes the field podSelector",
        ),
        (
            json!({ "serviceAccount": { "name": "a", "namespace": "n" }, "scope": "ClusterSet" }),
            "is not allowed with scope ClusterSet",
        ),
        (
            json!({ "newSelector": {} }),
            ".newSelector: \"{}\" is in an unknown field",
        ),
        (
            json!({ "scope": "Cloud" }),
            ".scope: \"Cloud\" is not Cluster or ClusterSet",
        ),
        (json!({ "ipBlock": {} }), ".ipBlock.cidr: \"\" is missing"),
        (
            json!({ "ipBlock": { "cidr": "10.0.0.0/33" } }),
            ".ipBlock.cidr: \"10.0.0.0/33\" is rejected: \"10.0.0.0/33\" is not a CIDR such as 10.10.0.0/16",
        ),
        (
            json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"] } }),
            ".ipBlock.except[0]: \"11.0.0.0/16\" is not inside 10.0.0.0/8",
        ),
        (
            json!({ "ipBlock": { "cidr": "10.0.0.0/8" }, "podSelector": {} }),
            ".ipBlock: \"{\\\"cidr\\\":\\\"10.0.0.0/8\\\"}\" excludes the field podSelector",
        ),
        (
            json!({ "podSelector": { "matchExpressions": [{ "key": "a", "operator": "Like", "values": ["b"] }] } }),
            "is not a label selector: matchExpressions[0].operator \"Like\" is not In, NotIn, Exists or DoesNotExist",
        ),
        (
            json!({ "namespaces": { "match": "Self" }, "namespaceSelector": {} }),
            ".namespaces: \"{\\\"match\\\":\\\"Self\\\"}\" excludes the field namespaceSelector",
        ),
        (
            json!({ "namespaces": { "match": "Other" } }),
            ".namespaces.match: \"Other\" is not supported",
        ),
        (json!({ "namespaces": {} }), ".namespaces.match: \"\" is missing"),
        (
            json!({ "namespaces": { "sameLabels": [5] } }),
            "is not a list of strings",
        ),
        (json!("all"), ": \"all\" is not an object"),
    ] {
        let from = json!([{ "scope": "ClusterSet", "podSelector": {} }, peer]);
        for (action, realization) in [
            ("Allow", Realization::Partial),
            ("Pass", Realization::Partial),
            ("Drop", Realization::None),
            ("Reject", Realization::None),
        ] {
            let (list, rule) = ingress(&json!({ "action": action, "from": from }));
            let [text] = &list[..] else { panic!("{list:?}") };
            assert!(text.starts_with(p) && text.contains(error), "{peer}: {text}");
            assert_eq!(rule.realization, realization, "{peer}");
            let peers = rule.peers.unwrap();
            assert!(
                matches!(peers[..], [Peer::Pods { .. }, Peer::Unsupported { .. }]),
                "{peer}"
            );
        }
        let (_, rule) = ingress(&json!({ "action": "Allow", "from": [peer] }));
        assert!(
            matches!(rule.peers.as_deref(), Some([Peer::Unsupported { .. }])),
            "{peer}: not any source"
        );
    }
}

#[test]
fn a_port_with_an_error_never_makes_a_rule_match_more() {
    for (field, entry, error) in [
        (
            "ports",
            json!({ "port": 90, "endPort": 80 }),
            "ports[0].endPort: \"80\" is smaller than the port 90",
        ),
        (
            "ports",
            json!({ "port": 0 }),
            "ports[0].port: \"0\" is not a port",
        ),
        (
            "ports",
            json!({ "port": 65536 }),
            "ports[0].port: \"65536\" is not a port",
        ),
        (
            "ports",
            json!({ "port": "" }),
            "ports[0].port: \"\" is not a port",
        ),
        (
            "ports",
            json!({ "endPort": 80 }),
            "ports[0].port: \"\" is missing",
        ),
        (
            "ports",
            json!({ "port": "http", "endPort": 80 }),
            "ports[0].endPort: \"80\" excludes the field port",
        ),
        (
            "ports",
            json!({ "protocol": "GRE" }),
            "ports[0].protocol: \"GRE\" is not TCP, UDP or SCTP",
        ),
        (
            "ports",
            json!({ "sourcePort": 53 }),
            "ports[0].sourcePort: \"53\" is not supported",
        ),
        ("ports", json!(80), "ports[0]: \"80\" is not an object"),
        (
            "protocols",
            json!({ "igmp": {} }),
            "protocols[0].igmp: \"{}\" is not supported",
        ),
        ("protocols", json!({}), "protocols[0].icmp: \"\" is missing"),
        (
            "protocols",
            json!({ "icmp": { "icmpType": 256 } }),
            "protocols[0].icmp.icmpType: \"256\" is not between 0 and 255",
        ),
        (
            "protocols",
            json!({ "icmp": { "icmpCode": 1 } }),
            "protocols[0].icmp.icmpType: \"\" is missing",
        ),
    ] {
        for (action, realization) in [("Allow", Realization::Partial), ("Drop", Realization::None)] {
            let (list, rule) = ingress(&json!({ "action": action, field: [entry] }));
            let [text] = &list[..] else { panic!("{list:?}") };
            assert!(text.contains(error), "{entry}: {text}");
            assert_eq!(
                rule.services,
                Some(vec![Service::Unsupported]),
                "{entry}: not all ports"
            );
            assert_eq!(rule.realization, realization, "{entry}");
        }
    }
}

#[test]
fn an_unknown_condition_leaves_out_the_rule() {
    for (rule, error) in [
        (json!({}), "spec.ingress[0].action: \"\" is missing"),
        (
            json!({ "action": "Permit" }),
            "spec.ingress[0].action: \"Permit\" is not Allow, Drop, Reject or Pass",
        ),
        (
            json!({ "action": "Allow", "l7Protocols": [{ "http": {} }] }),
            "spec.ingress[0].l7Protocols: \"[{\\\"http\\\":{}}]\" is not supported",
        ),
        (
            json!({ "action": "Allow", "toServices": [{ "name": "a" }] }),
            "spec.ingress[0].toServices: \"[{\\\"name\\\":\\\"a\\\"}]\" is not supported",
        ),
        (
            json!({ "action": "Allow", "except": 1 }),
            "spec.ingress[0].except: \"1\" is in an unknown field",
        ),
        (
            json!({ "action": "Allow", "from": "all" }),
            "spec.ingress[0].from: \"all\" is not a list",
        ),
        (
            json!({ "action": "Allow", "appliedTo": [{ "podSelector": {} }] }),
            "excludes the field spec.appliedTo",
        ),
        (json!(5), "spec.ingress[0]: \"5\" is not an object"),
    ] {
        let (list, parsed) = ingress(&rule);
        let [text] = &list[..] else { panic!("{list:?}") };
        assert!(text.contains(error), "{rule}: {text}");
        assert_eq!(parsed.realization, Realization::None, "{rule}");
    }
}

#[test]
fn errors_of_a_policy_leave_out_all_its_rules() {
    let rules = json!([{ "action": "Allow" }, { "action": "Drop" }]);
    let one = json!([{ "podSelector": {} }]);
    for (spec, error) in [
        (
            json!({ "priority": 0.5, "appliedTo": one, "ingress": rules }),
            "spec.priority: \"0.5\" is not between 1 and 10000",
        ),
        (
            json!({ "priority": 10001, "appliedTo": one, "ingress": rules }),
            "spec.priority: \"10001\" is not between 1 and 10000",
        ),
        (
            json!({ "appliedTo": one, "ingress": rules }),
            "spec.priority: \"\" is missing",
        ),
        (
            json!({ "priority": 1, "ingress": rules }),
            "spec.ingress[0].appliedTo: \"\" is missing",
        ),
        (
            json!({ "priority": 1, "appliedTo": {}, "ingress": rules }),
            "spec.appliedTo: \"{}\" is not a list",
        ),
    ] {
        let (policy, list) = parse(ObjectName::cluster("p"), &spec);
        assert!(list[0].to_string().contains(error), "{list:?}");
        assert_eq!(policy.ingress.len(), 2);
        assert!(
            policy
                .ingress
                .iter()
                .all(|rule| rule.realization == Realization::None),
            "{spec}"
        );
    }
    for spec in [json!(null), json!([]), json!({ "priority": 1, "ingress": {} })] {
        let (policy, list) = parse(ObjectName::cluster("p"), &spec);
        assert!(policy.ingress.is_empty() && list.len() == 1, "{spec}: {list:?}");
    }
}

#[test]
fn unsupported_targets_select_no_pod() {
    for (entry, error) in [
        (
            json!({ "nodeSelector": {} }),
            "spec.appliedTo[0].nodeSelector: \"{}\" is not supported",
        ),
        (
            json!({ "service": {} }),
            "spec.appliedTo[0].service: \"{}\" is not supported",
        ),
        (json!({}), "spec.appliedTo[0].podSelector: \"\" is missing"),
        (json!({ "podSelector": 5 }), "the selector is not an object"),
        (
            json!({ "group": "g", "podSelector": {} }),
            "spec.appliedTo[0].group: \"g\" excludes the field podSelector",
        ),
    ] {
        let spec = json!({ "priority": 1, "appliedTo": [entry], "ingress": [{ "action": "Allow" }, { "action": "Drop" }] });
        let (policy, list) = parse(ObjectName::cluster("p"), &spec);
        assert!(list[0].to_string().contains(error), "{list:?}");
        assert_eq!(*policy.ingress[0].applied_to, [AppliedTo::Unsupported]);
        let realizations = [policy.ingress[0].realization, policy.ingress[1].realization];
        assert_eq!(realizations, [Realization::Partial, Realization::None]);
    }
}

#[test]
fn a_namespaced_policy_applies_to_its_own_namespace() {
    let spec = json!({
        "priority": 1, "appliedTo": [{ "namespaceSelector": {} }],
        "ingress": [{ "action": "Allow", "from": [{ "namespaces": { "match": "Self" } }] }],
    });
    let (policy, list) = parse(ObjectName::namespaced("n", "p"), &spec);
    assert_eq!(
        errors(&list),
        [
            "NetworkPolicy n/p: spec.appliedTo[0].namespaceSelector: \"{}\" is not allowed in a namespaced object",
            "NetworkPolicy n/p: spec.ingress[0].from[0].namespaces: \"{\\\"match\\\":\\\"Self\\\"}\" is not allowed in a \
             namespaced object",
        ]
    );
    assert_eq!(policy.ingress[0].realization, Realization::Partial);
}

#[test]
fn egress_rules_have_no_peers_in_other_clusters() {
    let spec = json!({
        "priority": 1, "appliedTo": [{ "podSelector": {} }],
        "egress": [
            { "action": "Drop", "to": [{ "scope": "ClusterSet", "podSelector": {} }] },
            { "action": "Allow", "to": [{ "fqdn": "example.com" }] },
            { "action": "Allow", "from": [{ "podSelector": {} }] },
        ],
    });
    let (policy, list) = parse(ObjectName::cluster("p"), &spec);
    let fields: Vec<_> = list
        .iter()
        .map(|error| (error.field.as_str(), &error.reason))
        .collect();
    assert_eq!(
        fields,
        [
            ("spec.egress[0].to[0].scope", &PolicyError::IngressOnly),
            ("spec.egress[1].to[0].fqdn", &PolicyError::Unsupported),
            ("spec.egress[2].from", &PolicyError::Unsupported),
        ]
    );
    let realizations: Vec<_> = policy.egress.iter().map(|rule| rule.realization).collect();
    let (none, partial) = (Realization::None, Realization::Partial);
    assert_eq!(realizations, [none, partial, none]);
}

#[test]
fn services_of_egress_rules_are_those_of_the_own_cluster() {
    let to = |services: Value| {
        json!({
            "priority": 1, "appliedTo": [{ "podSelector": {} }],
            "egress": [{ "action": "Drop", "toServices": services }],
        })
    };
    let service = |name: &str| Peer::Service(ObjectName::namespaced("n", name));
    let (cluster, namespaced) = (ObjectName::cluster("p"), ObjectName::namespaced("n", "p"));
    for (name, services, expected) in [
        (
            &cluster,
            json!([{ "name": "s", "namespace": "n", "scope": "ClusterSet" }, { "name": "s", "namespace": "n" }]),
            vec![service("antrea-mc-s"), service("s")],
        ),
        (
            &namespaced,
            json!([{ "name": "s", "scope": "Cluster" }]),
            vec![service("s")],
        ),
    ] {
        let (policy, list) = parse(name.clone(), &to(services));
        assert_eq!(errors(&list), Vec::<String>::new());
        assert_eq!(policy.egress[0].peers, Some(expected));
    }
    for (services, expected) in [
        (
            json!([{ "name": "s" }]),
            "spec.egress[0].toServices[0].namespace: \"\" is missing",
        ),
        (
            json!([{ "namespace": "n" }]),
            "spec.egress[0].toServices[0].name: \"\" is missing",
        ),
        (
            json!([{ "name": "s", "namespace": "n", "scope": "All" }]),
            "spec.egress[0].toServices[0].scope: \"All\" is not Cluster or ClusterSet",
        ),
    ] {
        let (policy, list) = parse(cluster.clone(), &to(services));
        assert_eq!(errors(&list), [format!("ClusterNetworkPolicy p: {expected}")]);
        assert_eq!(policy.egress[0].realization, Realization::None);
    }
    let mut spec = to(json!([{ "name": "s", "namespace": "n" }]));
    spec["egress"][0]["ports"] = json!([{ "port": 80 }]);
    let (policy, list) = parse(cluster, &spec);
    assert_eq!(list[0].reason, PolicyError::Excludes { other: "ports" });
    assert_eq!(policy.egress[0].realization, Realization::None);
}

#[test]
fn groups_are_parsed() {
    let pods = |namespaces| {
        GroupContents::Pods(PodMatch {
            namespaces,
            pods: LabelSelector::default(),
            service_account: None,
        })
    };
    let block = |cidr: &str| IpBlock {
        cidr: cidr.parse().unwrap(),
        except: [].into(),
    };
    let cluster = ObjectName::cluster("g");
    let own = ObjectName::namespaced("n", "g");
    for (name, spec, contents) in [
        (&cluster, json!({ "podSelector": {} }), pods(NamespaceMatch::Any)),
        (
            &own,
            json!({ "podSelector": {} }),
            pods(NamespaceMatch::Named("n".to_owned())),
        ),
        (
            &cluster,
            json!({ "ipBlocks": [{ "cidr": "10.0.0.0/8" }, { "cidr": "fd00::/8" }] }),
            GroupContents::Blocks(vec![block("10.0.0.0/8"), block("fd00::/8")]),
        ),
        (
            &cluster,
            json!({ "childGroups": ["a", "b"], "ipBlocks": [] }),
            GroupContents::Children(vec!["a".to_owned(), "b".to_owned()]),
        ),
        (&cluster, json!({}), GroupContents::Children(vec![])),
    ] {
        let (group, list) = parse_group(name.clone(), &spec);
        assert_eq!((group.contents, errors(&list)), (contents, vec![]), "{spec}");
    }
    for (spec, error) in [
        (
            json!({ "serviceReference": { "name": "s" } }),
            "ClusterGroup g: spec.serviceReference",
        ),
        (json!({ "ipBlock": { "cidr": "10.0.0.0/8" } }), "spec.ipBlock: "),
        (
            json!({ "podSelector": {}, "ipBlocks": [{ "cidr": "10.0.0.0/8" }] }),
            "excludes the field podSelector or namespaceSelector",
        ),
        (
            json!({ "ipBlocks": [{ "cidr": "x" }] }),
            "spec.ipBlocks[0].cidr: \"x\" is rejected",
        ),
        (
            json!({ "childGroups": [5] }),
            "spec.childGroups: \"[5]\" is not a list of strings",
        ),
        (json!(null), "spec: \"\" is not an object"),
    ] {
        let (group, list) = parse_group(cluster.clone(), &spec);
        assert_eq!(group.contents, GroupContents::Unsupported, "{spec}");
        assert!(list[0].to_string().contains(error), "{list:?}");
    }
}

#[test]
fn tiers_are_parsed() {
    assert_eq!(
        parse_tier("t", &json!({ "priority": 7, "description": "d" })),
        Ok(7)
    );
    for (spec, value) in [
        (json!({ "priority": 0 }), "0"),
        (json!({ "priority": 256 }), "256"),
        (json!({ "priority": "1" }), "1"),
        (json!({}), ""),
        (json!(null), ""),
    ] {
        let error = parse_tier("t", &spec).unwrap_err().to_string();
        assert_eq!(
            error,
            format!("Tier t: spec.priority: {value:?} is not between 1 and 255")
        );
    }
}

#[test]
fn kinds_keep_their_specs() {
    let object = json!({ "metadata": { "name": "x", "namespace": "n" }, "spec": { "any": [1] } });
    let policy: NetworkPolicy = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(
        (policy.kind.as_str(), &policy.spec),
        ("NetworkPolicy", &object["spec"])
    );
    let group: NamespacedGroup = serde_json::from_value(object).unwrap();
    assert_eq!(
        (group.kind.as_str(), group.api_version.as_str()),
        ("Group", "crd.antrea.io/v1beta1")
    );
    let tier: Tier = serde_json::from_value(json!({ "metadata": {} })).unwrap();
    assert_eq!(tier.spec, Value::Null);
}

/// JSON of the fields of policies and groups, nested at random.
fn any_json() -> impl Strategy<Value = Value> {
    const FIELDS: [&str; 26] = [
        "priority",
        "tier",
        "appliedTo",
        "ingress",
        "egress",
        "action",
        "from",
        "to",
        "ports",
        "protocols",
        "scope",
        "podSelector",
        "namespaceSelector",
        "namespaces",
        "match",
        "sameLabels",
        "ipBlock",
        "cidr",
        "except",
        "group",
        "port",
        "endPort",
        "icmp",
        "childGroups",
        "toServices",
        "name",
    ];
    let texts = proptest::sample::select(&["", "Allow", "Drop", "ClusterSet", "Self", "10.0.0.0/8", "x"]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (1..9).prop_map(Value::from),
        texts.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 80, 6, move |inner| {
        let fields = proptest::collection::btree_map(proptest::sample::select(&FIELDS), inner.clone(), 0..6);
        prop_oneof![
            1 => proptest::collection::vec(inner, 0..3).prop_map(Value::from),
            4 => fields.prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

proptest! {
    /// Any input is parsed, and a rule is complete unless an error names its policy.
    #[test]
    fn any_spec_is_parsed(spec in any_json(), rule in any_json(), peer in any_json(), namespaced: bool) {
        let whole = json!({
            "priority": 1, "appliedTo": [{ "podSelector": {} }],
            "ingress": [rule, { "action": "Allow", "from": [peer], "ports": [peer] }],
            "egress": [rule, { "action": "Allow", "to": [peer] }, { "action": "Drop", "toServices": [peer] }],
        });
        let name = if namespaced { ObjectName::namespaced("n", "p") } else { ObjectName::cluster("p") };
        for spec in [&spec, &whole] {
            let (policy, list) = parse(name.clone(), spec);
            let mut rules = policy.ingress.iter().chain(&policy.egress);
            prop_assert!(!list.is_empty() || rules.all(|rule| rule.realization == Realization::Full));
            prop_assert!(list.iter().all(|error| error.field.starts_with("spec")));
            let (group, list) = parse_group(name.clone(), spec);
            prop_assert_eq!(group.contents == GroupContents::Unsupported, !list.is_empty());
            prop_assert_eq!(parse_tier("t", spec).is_ok(), (1..256).any(|p| spec["priority"] == p));
        }
    }
}
