//! Random sets of policies and packets.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use mc_api::network_policy::{EnforcementAction, Group, parse_group};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::super::model::{ContainerPort, HOST_IDENTITY, ICMP, ICMPV6, SCTP, UDP};
use super::super::{Mode, ServicePeer, ServicePeerPort};
use super::*;

const KEYS: [&str; 3] = ["app", "env", "team"];
const VALUES: [&str; 2] = ["a", "b"];
const ACCOUNTS: [&str; 2] = ["default", "job"];

fn some_labels() -> impl Strategy<Value = Labels> {
    btree_map(
        select(&KEYS).prop_map(str::to_owned),
        select(&VALUES).prop_map(str::to_owned),
        0..=3,
    )
}

fn selector() -> impl Strategy<Value = Value> {
    let expression = (select(&KEYS), 0..4, vec(select(&VALUES), 1..=2)).prop_map(
        |(key, operator, values)| match operator {
            0 => json!({ "key": key, "operator": "In", "values": values }),
            1 => json!({ "key": key, "operator": "NotIn", "values": values }),
            2 => json!({ "key": key, "operator": "Exists" }),
            _ => json!({ "key": key, "operator": "DoesNotExist" }),
        },
    );
    let equal = btree_map(select(&KEYS).prop_map(str::to_owned), select(&VALUES), 0..=1);
    (equal, prop_oneof![3 => Just(vec![]), 1 => vec(expression, 1..=2)])
        .prop_map(|(labels, expressions)| json!({ "matchLabels": labels, "matchExpressions": expressions }))
}

/// An address in 10.0.0.0/24 or `fd00::/120`.
fn address(v6: bool, last: u8) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, last.into()).into()
    } else {
        [10, 0, 0, last].into()
    }
}

fn prefix(v6: bool, last: u8, bits: u8) -> IpNet {
    let length = if v6 { 120 } else { 24 } + bits;
    IpNet::new(address(v6, last), length).unwrap().trunc()
}

fn block() -> impl Strategy<Value = Value> {
    let except = vec((any::<u8>(), 0_u8..=8), 0..=2);
    (any::<bool>(), any::<u8>(), 0_u8..=8, except).prop_map(|(v6, last, bits, except)| {
        let cidr = prefix(v6, last, bits);
        // Moved into the block.
        let inner = except.iter().map(|(low, more)| {
            let moved =
                last & !(0xFF_u32 >> bits).to_le_bytes()[0] | low & (0xFF_u32 >> bits).to_le_bytes()[0];
            prefix(v6, moved, (bits + more).min(8))
        });
        let except: BTreeSet<IpNet> = inner.collect();
        json!({ "cidr": cidr, "except": except })
    })
}

fn scope() -> impl Strategy<Value = Option<&'static str>> {
    select(&[
        Some("ClusterSet"),
        Some("ClusterSet"),
        Some("ClusterSet"),
        Some("Cluster"),
        None,
    ])
}

fn group_name() -> impl Strategy<Value = &'static str> {
    select(&["g0", "g1", "g2", "absent"])
}

fn peer() -> impl Strategy<Value = Value> {
    let pods = (scope(), option::of(selector()), option::of(selector()))
        .prop_map(|(scope, ns, pod)| json!({ "scope": scope, "namespaceSelector": ns, "podSelector": pod }));
    let same = select(vec![
        json!({ "match": "Self" }),
        json!({ "sameLabels": ["env"] }),
        json!({ "sameLabels": ["env", "app"] }),
    ]);
    let relative = (scope(), same, option::of(selector())).prop_map(
        |(scope, namespaces, pod)| json!({ "scope": scope, "namespaces": namespaces, "podSelector": pod }),
    );
    prop_oneof![
        6 => pods,
        3 => relative,
        4 => block().prop_map(|block| json!({ "ipBlock": block })),
        2 => (scope(), group_name()).prop_map(|(scope, name)| json!({ "scope": scope, "group": name })),
        1 => scope().prop_map(|scope| json!({ "scope": scope, "fqdn": "example.com" })),
        2 => service_account(),
    ]
}

fn service_account() -> impl Strategy<Value = Value> {
    (select(&["n0", "n1"]), select(&ACCOUNTS))
        .prop_map(|(namespace, name)| json!({ "serviceAccount": { "name": name, "namespace": namespace } }))
}

fn protocol_name() -> impl Strategy<Value = Option<&'static str>> {
    select(&[None, Some("TCP"), Some("UDP"), Some("SCTP")])
}

fn port() -> impl Strategy<Value = Value> {
    let range = (protocol_name(), 1_u16..40, 0_u16..40).prop_map(
        |(protocol, port, more)| json!({ "protocol": protocol, "port": port, "endPort": port + more }),
    );
    prop_oneof![
        4 => (protocol_name(), 1_u16..40).prop_map(|(protocol, port)| json!({ "protocol": protocol, "port": port })),
        4 => range,
        2 => (protocol_name(), select(&["http", "dns"])).prop_map(|(protocol, name)| {
            json!({ "protocol": protocol, "port": name })
        }),
        1 => protocol_name().prop_map(|protocol| json!({ "protocol": protocol })),
        1 => Just(json!({ "port": 9, "endPort": 8 })),
    ]
}

fn icmp() -> impl Strategy<Value = Value> {
    (0_u8..4, option::of(0_u8..3), 0..3).prop_map(|(kind, code, all)| match all {
        0 => json!({ "icmp": {} }),
        _ => json!({ "icmp": { "icmpType": kind, "icmpCode": code } }),
    })
}

fn applied_to() -> impl Strategy<Value = Value> {
    let entry = prop_oneof![
        3 => Just(json!({ "podSelector": {} })),
        3 => selector().prop_map(|pods| json!({ "podSelector": pods })),
        2 => (selector(), option::of(selector()))
            .prop_map(|(ns, pods)| json!({ "namespaceSelector": ns, "podSelector": pods })),
        1 => group_name().prop_map(|name| json!({ "group": name })),
        1 => service_account(),
    ];
    vec(entry, 1..=2).prop_map(Value::Array)
}

fn rule() -> impl Strategy<Value = Value> {
    let action = select(&["Allow", "Drop", "Reject", "Pass", "Deny"]);
    let services = prop_oneof![
        2 => Just((vec![], vec![])),
        3 => (vec(port(), 0..=3), vec(icmp(), 0..=1)),
    ];
    let from = prop_oneof![1 => Just(vec![]), 5 => vec(peer(), 1..=3)];
    (action, from, services).prop_map(|(action, from, (ports, protocols))| {
        json!({ "action": action, "from": from, "ports": ports, "protocols": protocols })
    })
}

/// A rule for egress: Pods, blocks, Services or all destinations.
fn egress_rule() -> impl Strategy<Value = Value> {
    let action = select(&["Allow", "Drop", "Reject", "Pass"]);
    let to = prop_oneof![
        2 => Just(vec![]),
        3 => vec(block().prop_map(|block| json!({ "ipBlock": block })), 1..=3),
        4 => vec(own_peer(), 1..=3),
        1 => vec(peer(), 1..=2),
    ];
    let peers = (action.clone(), to, vec(port(), 0..=2))
        .prop_map(|(action, to, ports)| json!({ "action": action, "to": to, "ports": ports }));
    let service = (select(&["s0", "s1", "s2"]), select(&["n0", "n1"]))
        .prop_map(|(name, namespace)| json!({ "name": name, "namespace": namespace }));
    let services = (action, vec(service, 1..=3))
        .prop_map(|(action, services)| json!({ "action": action, "toServices": services }));
    prop_oneof![4 => peers, 2 => services]
}

/// Pods of the own cluster.
fn own_peer() -> impl Strategy<Value = Value> {
    peer().prop_map(|mut peer| {
        if let Some(peer) = peer.as_object_mut() {
            peer.remove("scope");
        }
        peer
    })
}

/// Services with addresses and endpoints among those of peers.
fn services() -> impl Strategy<Value = Vec<ServicePeer>> {
    let endpoint = (any::<bool>(), 0_u8..16, 1_u16..40)
        .prop_map(|(v6, last, port)| SocketAddr::new(address(v6, last), port));
    let node_port = option::weighted(0.3, 30_u16..70);
    let port = (
        select(&[TCP, UDP, SCTP]),
        1_u16..40,
        node_port,
        btree_set(endpoint, 0..=3),
    )
        .prop_map(|(protocol, number, node_port, endpoints)| ServicePeerPort {
            protocol,
            number,
            node_port,
            endpoints,
        });
    let ports = vec(port, 0..=3);
    let service = (vec((any::<bool>(), 0_u8..16), 0..=2), ports);
    vec(service, 4).prop_map(|list| {
        let names = ["n0", "n1"]
            .into_iter()
            .flat_map(|namespace| ["s0", "s1"].map(|name| ObjectName::namespaced(namespace, name)));
        let services = names.zip(list).map(|(name, (ips, ports))| ServicePeer {
            name,
            ips: ips.into_iter().map(|(v6, last)| address(v6, last)).collect(),
            ports,
        });
        services.collect()
    })
}

/// Pods of the cluster with addresses among those of peers, some of which have the same one.
fn cluster_pods() -> impl Strategy<Value = Vec<LocalPod>> {
    let pod = (
        select(&["n0", "n1", "n2"]),
        some_labels(),
        0_u8..16,
        select(&ACCOUNTS),
        container_ports(),
    );
    vec(pod, 0..=8).prop_map(|pods| {
        let pods = pods.into_iter().zip(1..);
        pods.map(|((namespace, labels, last, account, ports), index)| LocalPod {
            namespace: namespace.to_owned(),
            name: format!("peer{index}"),
            labels: labels.into(),
            service_account: account.to_owned(),
            ips: vec![address(false, last), address(true, last)],
            ports,
        })
        .collect()
    })
}

fn some_policy() -> impl Strategy<Value = Policy> {
    let tier = select(&[
        None,
        Some("emergency"),
        Some("application"),
        Some("mine"),
        Some("baseline"),
        Some("absent"),
    ]);
    let rules = (
        vec((rule(), applied_to()), 0..=4),
        vec((egress_rule(), applied_to()), 0..=3),
    );
    let namespace = option::weighted(0.3, select(&["n0", "n1"]));
    (
        namespace,
        tier,
        1..4,
        rules,
        applied_to(),
        any::<bool>(),
        option::of(0..2),
    )
        .prop_map(
            |(namespace, tier, priority, rules, applied_to, by_rule, created)| {
                let applied = |rules: Vec<(Value, Value)>| -> Vec<Value> {
                    let applied = rules.into_iter().map(|(mut rule, own)| {
                        if by_rule {
                            rule["appliedTo"] = own;
                        }
                        rule
                    });
                    applied.collect()
                };
                let (ingress, egress) = (applied(rules.0), applied(rules.1));
                let mut spec =
                    json!({ "tier": tier, "priority": priority, "ingress": ingress, "egress": egress });
                if !by_rule {
                    spec["appliedTo"] = applied_to;
                }
                let name = ObjectName {
                    namespace: namespace.map(str::to_owned),
                    name: String::new(),
                };
                let (mut policy, _) = parse(name, &spec);
                policy.created = created.map(|day| format!("2026-01-0{}T00:00:00Z", day + 1));
                policy
            },
        )
}

fn group() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => (option::of(selector()), selector())
            .prop_map(|(ns, pods)| json!({ "namespaceSelector": ns, "podSelector": pods })),
        2 => vec(block(), 1..=2).prop_map(|blocks| json!({ "ipBlocks": blocks })),
        2 => vec(group_name(), 0..=2).prop_map(|children| json!({ "childGroups": children })),
        1 => Just(json!({ "serviceReference": {} })),
    ]
}

/// Groups g0 to g2 of the cluster and of both Namespaces with policies.
fn groups() -> impl Strategy<Value = Vec<Group>> {
    vec(group(), 9).prop_map(|specs| {
        let names = [None, Some("n0"), Some("n1")].into_iter().flat_map(|namespace| {
            ["g0", "g1", "g2"].map(|name| ObjectName {
                namespace: namespace.map(str::to_owned),
                name: name.to_owned(),
            })
        });
        names
            .zip(specs)
            .map(|(name, spec)| parse_group(name, &spec).0)
            .collect()
    })
}

fn container_ports() -> impl Strategy<Value = Vec<ContainerPort>> {
    let port = (select(&["http", "dns"]), select(&[TCP, UDP, SCTP]), 1_u16..40).prop_map(
        |(name, protocol, number)| ContainerPort {
            name: name.to_owned(),
            protocol,
            number,
        },
    );
    vec(port, 0..=3)
}

fn local_pods() -> impl Strategy<Value = Vec<LocalPod>> {
    vec(
        (
            select(&["n0", "n1", "n2"]),
            some_labels(),
            container_ports(),
            select(&ACCOUNTS),
        ),
        1..=5,
    )
    .prop_map(|pods| {
        let pods = pods.into_iter().zip(1_u8..);
        pods.map(|((namespace, labels, ports, account), index)| LocalPod {
            namespace: namespace.to_owned(),
            name: format!("pod{index}"),
            labels: labels.into(),
            service_account: account.to_owned(),
            ips: vec![[10, 9, 0, index].into(), address(true, index)],
            ports,
        })
        .collect()
    })
}

fn some_identities() -> impl Strategy<Value = Vec<Identity>> {
    let identity = (
        0_u32..12,
        select(&["n0", "n1", "n2", "n3"]),
        some_labels(),
        some_labels(),
    );
    vec(identity, 0..=12).prop_map(|list| {
        let of_labels = |(id, namespace, mut labels, pod): (_, &str, Labels, Labels)| {
            labels.insert(NAMESPACE_NAME.to_owned(), namespace.to_owned());
            Identity {
                id,
                namespace: labels.into(),
                pod: pod.into(),
            }
        };
        list.into_iter().map(of_labels).collect()
    })
}

prop_compose! {
    pub(super) fn policy_set()(
        policies in vec((some_policy(), some_enforcement()), 0..=6),
        groups in groups(),
        namespaces in btree_map(select(&["n0", "n1", "n2"]).prop_map(str::to_owned), some_labels(), 0..=3),
        local_pods in local_pods(),
        (cluster_pods, services) in (cluster_pods(), services()),
        (identities, nodes) in (some_identities(), vec((any::<bool>(), 0_u8..16), 0..=2)),
        mode in select(&[Mode::All, Mode::All, Mode::ClusterSetOnly]),
    ) -> PolicySet {
        let policies = policies.into_iter().enumerate().map(|(index, (mut policy, enforcement))| {
            policy.name.name = format!("p{index}");
            Policy { enforcement, ..policy }
        });
        let policies = policies.collect();
        let tiers = [("mine".to_owned(), 120)].into();
        let node_ips = nodes.into_iter().map(|(v6, last)| address(v6, last)).collect();
        PolicySet {
            policies, tiers, groups, namespaces, local_pods, cluster_pods, services, node_ips, identities, mode
        }
    }
}

fn some_enforcement() -> impl Strategy<Value = EnforcementAction> {
    prop_oneof![4 => Just(EnforcementAction::Enforce), 1 => Just(EnforcementAction::Audit)]
}

pub(super) fn some_packet() -> impl Strategy<Value = Packet> {
    let identity = prop_oneof![8 => 0_u32..12, 4 => Just(0), 1 => select(&[99, 0xFF_FFFF])];
    let peer = prop_oneof![any::<u8>(), 0_u8..16];
    let direction = select(&[Direction::Ingress, Direction::Ingress, Direction::Egress]);
    let protocol = select(&[TCP, TCP, TCP, UDP, UDP, SCTP, ICMP, ICMPV6, 0, 47]);
    let port =
        prop_oneof![4 => 0_u16..80, 2 => (0_u16..5).prop_map(|kind| kind << 8 | kind), 1 => any::<u16>()];
    (direction, 1_u8..=6, any::<bool>(), identity, peer, protocol, port).prop_map(
        |(direction, pod, v6, identity, peer, protocol, port)| Packet {
            direction,
            pod: if v6 {
                address(true, pod)
            } else {
                [10, 9, 0, pod].into()
            },
            peer: address(v6, peer),
            identity: match direction {
                Direction::Ingress => identity,
                Direction::Egress => HOST_IDENTITY,
            },
            protocol,
            port,
        },
    )
}

/// A policy for all Pods, whose rules overlap in ports and sources.
pub(super) fn overlapping_policy() -> impl Strategy<Value = Policy> {
    let from = prop_oneof![
        2 => Just(vec![]),
        2 => selector().prop_map(|pods| vec![json!({ "scope": "ClusterSet", "podSelector": pods })]),
        1 => vec(block().prop_map(|block| json!({ "ipBlock": block })), 1..=2),
        1 => selector().prop_map(|pods| vec![json!({ "podSelector": pods })]),
    ];
    let range =
        (1_u16..40, 0_u16..40).prop_map(|(port, more)| json!({ "port": port, "endPort": port + more }));
    let ports = prop_oneof![1 => Just(vec![]), 8 => vec(range, 1..=3)];
    let rule = (select(&["Allow", "Drop", "Reject", "Pass"]), from, ports)
        .prop_map(|(action, from, ports)| json!({ "action": action, "from": from, "ports": ports }));
    vec(rule, 2..=12).prop_map(|rules| {
        let egress: Vec<Value> = rules
            .iter()
            .filter(|rule| {
                rule["from"]
                    .as_array()
                    .is_some_and(|from| from.iter().all(|peer| peer["scope"].is_null()))
            })
            .map(|rule| json!({ "action": rule["action"], "to": rule["from"], "ports": rule["ports"] }))
            .collect();
        let spec = json!({
            "priority": 1, "appliedTo": [{ "podSelector": {} }], "ingress": rules, "egress": egress,
        });
        policy(None, "overlapping", &spec)
    })
}
