//! The order of rules, and the parts of a packet that they match.

use mc_api::network_policy::parse_group;
use serde_json::json;

use super::super::model::{ContainerPort, ICMP, ICMPV6, UDP};
use super::super::{Mode, PodSets};
use super::*;

const POD: &str = "10.1.0.1";

fn set(policies: Vec<Policy>) -> PolicySet {
    let mut web = pod("shop", "web", POD, &[("app", "web")]);
    web.ips.push("fd01::1".parse().unwrap());
    web.ports.push(ContainerPort {
        name: "http".to_owned(),
        protocol: TCP,
        number: 8080,
    });
    PolicySet {
        policies,
        tiers: [("last".to_owned(), 254)].into(),
        local_pods: vec![web],
        identities: vec![
            identity(1, "shop", &[("env", "a")], &[]),
            identity(2, "other", &[], &[]),
        ],
        ..PolicySet::default()
    }
}

fn with_rules(rules: &Value) -> PolicySet {
    let spec = json!({ "priority": 1, "appliedTo": [{ "podSelector": {} }], "ingress": rules });
    set(vec![policy(None, "p", &spec)])
}

/// A policy with one rule for every source.
fn one(name: &str, tier: &str, priority: f64, action: &str) -> Policy {
    let spec = json!({
        "tier": tier, "priority": priority,
        "appliedTo": [{ "podSelector": {} }], "ingress": [{ "action": action }],
    });
    policy(None, name, &spec)
}

#[test]
fn tiers_precede_priorities_and_these_the_creation_and_the_name() {
    let first = |policies: &[Policy]| {
        let verdict = verdict(&set(policies.to_vec()), &packet(POD, 1));
        verdict
            .rule
            .unwrap()
            .policy
            .strip_prefix("ClusterNetworkPolicy ")
            .unwrap()
            .to_owned()
    };
    let ordered = [
        one("z", "emergency", 9.0, "Allow"),
        one("y", "securityops", 5.0, "Drop"),
        one("x", "networkops", 1.0, "Drop"),
        one("w", "platform", 1.0, "Drop"),
        one("v", "application", 1.5, "Drop"),
        Policy {
            created: Some("2026-01-01T00:00:00Z".to_owned()),
            ..one("u", "application", 1.75, "Drop")
        },
        Policy {
            created: Some("2026-01-02T00:00:00Z".to_owned()),
            ..one("a", "application", 1.75, "Drop")
        },
        Policy {
            created: Some("2026-01-02T00:00:00Z".to_owned()),
            ..one("b", "application", 1.75, "Drop")
        },
        one("c", "last", 1.0, "Drop"),
        one("d", "baseline", 1.0, "Drop"),
    ];
    for index in 0..ordered.len() {
        let mut rest = ordered[index..].to_vec();
        let expected = rest[0].name.name.clone();
        assert_eq!(first(&rest), expected);
        rest.reverse();
        assert_eq!(first(&rest), expected, "the order of the list is irrelevant");
    }
}

#[test]
fn pass_is_final() {
    let policies = vec![
        one("a", "securityops", 1.0, "Pass"),
        one("b", "application", 1.0, "Drop"),
        one("c", "baseline", 1.0, "Drop"),
    ];
    assert_eq!(letter(&verdict(&set(policies), &packet(POD, 1))), 'P');
}

#[test]
fn services_are_matched() {
    let services = |ports: Value, protocols: Value| {
        with_rules(&json!([{ "action": "Drop", "ports": ports, "protocols": protocols }]))
    };
    let letter = |set: &PolicySet, protocol: u8, port: u16| {
        letter(&verdict(
            set,
            &Packet {
                protocol,
                port,
                ..packet(POD, 1)
            },
        ))
    };
    let range = services(json!([{ "port": 80, "endPort": 90 }]), json!([]));
    for (port, expected) in [(79, '.'), (80, 'D'), (85, 'D'), (90, 'D'), (91, '.')] {
        assert_eq!(letter(&range, TCP, port), expected, "{port}");
        assert_eq!(letter(&range, UDP, port), '.', "{port}");
    }
    let named = services(
        json!([{ "port": "http" }, { "port": "dns", "protocol": "UDP" }]),
        json!([]),
    );
    assert_eq!(
        [
            letter(&named, TCP, 8080),
            letter(&named, UDP, 8080),
            letter(&named, TCP, 80)
        ],
        ['D', '.', '.']
    );
    let all_udp = services(json!([{ "protocol": "UDP" }]), json!([]));
    assert_eq!(
        [
            letter(&all_udp, UDP, 0),
            letter(&all_udp, UDP, 65535),
            letter(&all_udp, TCP, 1)
        ],
        ['D', 'D', '.']
    );
    let echo = services(json!([]), json!([{ "icmp": { "icmpType": 8 } }]));
    for protocol in [ICMP, ICMPV6] {
        let verdicts = [0x0800, 0x08FF, 0x0900, 0x0700].map(|port| letter(&echo, protocol, port));
        assert_eq!(verdicts, ['D', 'D', '.', '.']);
    }
    assert_eq!(letter(&echo, TCP, 0x0800), '.');
    let all = services(json!([]), json!([]));
    for protocol in [TCP, UDP, 132, ICMP, ICMPV6, 0, 47, 255] {
        assert_eq!(letter(&all, protocol, 7), 'D', "{protocol}");
    }
}

#[test]
fn blocks_match_addresses_of_other_clusters() {
    let block = json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.2.0.0/16"] } });
    let set = with_rules(
        &json!([{ "action": "Reject", "from": [block, { "ipBlock": { "cidr": "10.2.3.0/24" } }] }]),
    );
    for (source, expected) in [
        ("10.9.9.9", 'R'),
        ("10.2.0.1", '.'),
        ("10.2.3.1", 'R'),
        ("11.0.0.1", '.'),
        ("fd00::1", '.'),
    ] {
        for identity in [0, 1, 99] {
            let source = source.parse().unwrap();
            let packet = Packet {
                peer: source,
                ..packet(POD, identity)
            };
            assert_eq!(letter(&verdict(&set, &packet)), expected, "{source}");
        }
    }
    let only = PolicySet {
        mode: Mode::ClusterSetOnly,
        ..set
    };
    assert!(compile(&only).0.pods.is_empty());
}

#[test]
fn groups_match_as_their_members() {
    let mut set = with_rules(&json!([
        { "action": "Allow", "from": [{ "group": "pods" }] },
        { "action": "Reject", "from": [{ "scope": "ClusterSet", "group": "pods" }] },
        { "action": "Drop", "from": [{ "group": "all" }] },
    ]));
    for (name, spec) in [
        (
            "pods",
            json!({ "namespaceSelector": { "matchLabels": { "env": "a" } } }),
        ),
        ("blocks", json!({ "ipBlocks": [{ "cidr": "10.200.0.0/16" }] })),
        ("all", json!({ "childGroups": ["blocks", "pods"] })),
    ] {
        let (group, errors) = parse_group(ObjectName::cluster(name), &spec);
        assert_eq!(errors, []);
        set.groups.push(group);
    }
    let verdicts = [1, 2, 0, 99].map(|id| letter(&verdict(&set, &packet(POD, id))));
    assert_eq!(
        verdicts,
        ['R', 'D', 'D', 'D'],
        "without scope a group's Pods are those of the own cluster"
    );
}

#[test]
fn the_same_labels_are_those_of_the_destination() {
    let mut set = with_rules(&json!([{ "action": "Drop", "from": [
        { "scope": "ClusterSet", "namespaces": { "sameLabels": ["env"] } },
    ] }]));
    let verdicts = |set: &PolicySet| [1, 2, 0, 99].map(|id| letter(&verdict(set, &packet(POD, id))));
    assert_eq!(
        verdicts(&set),
        ['.', '.', '.', 'U'],
        "the Namespace of the Pod lacks the label"
    );
    set.namespaces.insert("shop".to_owned(), labels(&[("env", "a")]));
    assert_eq!(verdicts(&set), ['D', '.', '.', 'U']);
}

#[test]
fn both_addresses_of_a_pod_have_one_set() {
    let (tables, _) = compile(&with_rules(&json!([{ "action": "Drop" }])));
    let sets: Vec<_> = tables.pods.values().collect();
    assert_eq!(
        (sets, tables.sets.len()),
        (vec![&PodSets { all: 1, enforced: 1 }; 2], 1)
    );
}

/// A longer prefix of a later rule does not hide an earlier rule; one of an earlier rule hides a later one.
#[test]
fn overlapping_ports_are_flattened() {
    let set = with_rules(&json!([
        { "action": "Reject", "ports": [{ "port": 80 }] },
        { "action": "Allow", "ports": [{ "port": 64, "endPort": 127 }] },
        { "action": "Drop", "ports": [{ "port": 81 }, { "port": 128 }] },
        { "action": "Pass" },
    ]));
    let verdicts = [80, 81, 127, 128, 129].map(|port| {
        letter(&verdict(
            &set,
            &Packet {
                port,
                ..packet(POD, 1)
            },
        ))
    });
    assert_eq!(verdicts, ['R', 'A', 'A', 'D', 'P']);
}
