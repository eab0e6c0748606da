//! Random objects of policies, as the agent reads them, and the same as input of the evaluator.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use mc_api::{
    label_identity::{LabelKeyFilter, Labels, join_labels, normalize},
    names::imported_service,
    network_policy::{EnforcementAction, ObjectName, parse},
};
use mc_gateway::{
    identity_objects::{IdentityInfo, IdentityObjects, NamespaceInfo},
    objects::{NamedPort, NodeInfo, Objects, PodInfo, RemoteCluster},
    policy::{ContainerPort, Identity, LocalPod, Mode, PolicySet, ServicePeer, ServicePeerPort},
    policy_objects::{Parsed, SliceEndpoints},
    service_objects::{ServiceInfo, ServicePort, SlicePort},
};
use mc_gateway_common::packet::ip::{TCP, UDP};
use mc_tests::rng::Rng;
use serde_json::{Value, json};

pub(crate) const NODE: &str = "here";
/// The cluster of all senders, and one that exports identities as well.
pub(crate) const SENDERS: &str = "west";
const OTHERS: &str = "north";
const NAMESPACES: [&str; 2] = ["shop", "lab"];
const ACCOUNTS: [&str; 2] = ["default", "job"];
/// Pods of the node, by the last byte of their addresses.
pub(crate) const PODS: std::ops::RangeInclusive<u8> = 5..=8;
/// Pods of another node.
const NEIGHBORS: std::ops::RangeInclusive<u8> = 1..=6;
const SERVICES: [&str; 2] = ["web", "dns"];
/// The port of some Services at the addresses of a Node, and the last byte of these.
const NODE_PORT: u8 = 4;
pub(crate) const IDENTITIES: u32 = 8;

/// Objects, and the same as input of the evaluator.
pub(crate) struct World {
    pub(crate) objects: Objects,
    pub(crate) set: PolicySet,
    /// The clusters that export an identity.
    pub(crate) exporters: BTreeMap<u32, BTreeSet<String>>,
}

pub(crate) fn pod_address(v6: bool, last: u8) -> IpAddr {
    if v6 {
        [0xfd01, 0, 0, 0, 0, 0, 0, last.into()].into()
    } else {
        [10, 1, 0, last].into()
    }
}

pub(crate) fn sender_address(v6: bool, last: u8) -> IpAddr {
    if v6 {
        [0xfd02, 0, 0, 0, 0, 0, 0, last.into()].into()
    } else {
        [10, 2, 0, last].into()
    }
}

/// A Pod of another node of this cluster.
pub(crate) fn neighbor_address(v6: bool, last: u8) -> IpAddr {
    if v6 {
        [0xfd01, 0, 0, 0, 0, 0, 1, last.into()].into()
    } else {
        [10, 1, 1, last].into()
    }
}

pub(crate) fn service_address(v6: bool, last: u8) -> IpAddr {
    if v6 {
        [0xfd96, 0, 0, 0, 0, 0, 0, last.into()].into()
    } else {
        [10, 96, 0, last].into()
    }
}

fn labels(rng: &mut Rng) -> Labels {
    let mut labels = Labels::new();
    for key in ["app", "env"] {
        if !rng.one_in(3) {
            labels.insert(key.into(), (*rng.pick(&["a", "b"])).into());
        }
    }
    labels
}

fn selector(rng: &mut Rng) -> Value {
    let (key, value) = (*rng.pick(&["app", "env"]), *rng.pick(&["a", "b"]));
    match rng.index(6) {
        0 => json!({}),
        1 => json!({ "matchExpressions": [{ "key": key, "operator": "NotIn", "values": [value] }] }),
        2 => json!({ "matchExpressions": [{ "key": key, "operator": "Exists" }] }),
        _ => json!({ "matchLabels": { key: value } }),
    }
}

fn peer(rng: &mut Rng) -> Value {
    let pods = selector(rng);
    match rng.index(9) {
        0 | 1 => json!({ "scope": "ClusterSet", "podSelector": pods }),
        6 => json!({ "podSelector": pods, "namespaceSelector": selector(rng) }),
        7 => json!({ "namespaces": { "match": "Self" } }),
        8 => {
            json!({ "serviceAccount": { "name": *rng.pick(&ACCOUNTS), "namespace": *rng.pick(&NAMESPACES) } })
        }
        2 => json!({ "scope": "ClusterSet", "namespaceSelector": selector(rng), "podSelector": pods }),
        3 => json!({ "scope": "ClusterSet", "namespaces": { "match": "Self" } }),
        4 => json!({ "ipBlock": { "cidr": format!("10.2.0.{}/26", 64 * rng.below(4)) } }),
        _ => {
            json!({ "ipBlock": { "cidr": "fd02::/121", "except": [format!("fd02::{:x}/124", 16 * rng.below(8))] } })
        }
    }
}

/// Pods of the own cluster.
fn own_peer(rng: &mut Rng) -> Value {
    let mut peer = peer(rng);
    if let Some(fields) = peer.as_object_mut() {
        fields.remove("scope");
    }
    peer
}

/// A rule for packets of the Pods.
fn egress_rule(rng: &mut Rng) -> Value {
    let action = *rng.pick(&["Allow", "Drop", "Drop", "Drop", "Reject", "Reject", "Pass"]);
    let kind = rng.index(6);
    if kind < 2 {
        let services: Vec<Value> = (0..rng.range(1, 2))
            .map(|_| {
                let scope = *rng.pick(&["Cluster", "ClusterSet"]);
                json!({ "name": *rng.pick(&SERVICES), "namespace": NAMESPACES[0], "scope": scope })
            })
            .collect();
        return json!({ "action": action, "toServices": services });
    }
    if kind < 5 {
        let to: Vec<Value> = (0..rng.range(1, 2)).map(|_| own_peer(rng)).collect();
        let port = json!({ "protocol": *rng.pick(&["TCP", "UDP"]), "port": rng.range(1, 12), "endPort": 40 });
        let ports = [json!([]), json!([]), json!([port]), json!([{ "port": "http" }])];
        return json!({ "action": action, "to": to, "ports": rng.pick(&ports) });
    }
    let blocks = [
        json!({ "ipBlock": { "cidr": format!("10.2.0.{}/25", 128 * rng.below(2)) } }),
        json!({ "ipBlock": { "cidr": "fd96::/125", "except": ["fd96::2/127"] } }),
        json!({ "ipBlock": { "cidr": "10.96.0.0/30" } }),
    ];
    let to: Vec<Value> = (0..rng.below(3)).map(|_| rng.pick(&blocks).clone()).collect();
    let first = rng.range(1, 40);
    let ports =
        json!([{ "protocol": *rng.pick(&["TCP", "UDP"]), "port": first, "endPort": first + rng.below(20) }]);
    json!({ "action": action, "to": to, "ports": ports })
}

fn rule(rng: &mut Rng) -> Value {
    let from: Vec<Value> = (0..rng.below(3)).map(|_| peer(rng)).collect();
    let (mut ports, mut protocols) = (Vec::new(), Vec::new());
    for _ in 0..rng.below(3) {
        let first = rng.range(1, 40);
        let protocol = *rng.pick(&["TCP", "UDP"]);
        ports.push(json!({ "protocol": protocol, "port": first, "endPort": first + rng.below(20) }));
    }
    if rng.one_in(6) {
        protocols.push(json!({ "icmp": { "icmpType": *rng.pick(&[8, 128]) } }));
    }
    let action = *rng.pick(&["Allow", "Allow", "Drop", "Drop", "Reject", "Pass"]);
    json!({ "action": action, "from": from, "ports": ports, "protocols": protocols })
}

fn policy_spec(rng: &mut Rng) -> Value {
    let rules: Vec<Value> = (0..rng.range(1, 4)).map(|_| rule(rng)).collect();
    let egress: Vec<Value> = (0..rng.below(4)).map(|_| egress_rule(rng)).collect();
    json!({
        "tier": *rng.pick(&["emergency", "application", "baseline"]),
        "priority": rng.range(1, 3),
        "appliedTo": [{ "podSelector": selector(rng) }],
        "ingress": rules,
        "egress": egress,
    })
}

pub(crate) fn world(rng: &mut Rng) -> World {
    let node_ips = [false, true].map(|v6| service_address(v6, NODE_PORT));
    let mut set = PolicySet {
        node_ips: node_ips.into(),
        ..PolicySet::default()
    };
    let mut objects = Objects {
        nodes: vec![NodeInfo {
            name: NODE.into(),
            external_ips: node_ips.iter().map(ToString::to_string).collect(),
            ..NodeInfo::default()
        }],
        policy_mode: Some(Mode::All),
        ..Objects::default()
    };
    for name in [OTHERS, SENDERS] {
        objects.remotes.push(Arc::new(RemoteCluster {
            name: name.into(),
            cluster_id: name.into(),
            ..RemoteCluster::default()
        }));
    }
    let all = LabelKeyFilter::default();
    let mut known = IdentityObjects::default();
    for name in NAMESPACES {
        let labels = labels(rng);
        set.namespaces.insert(name.into(), labels.clone());
        known.namespaces.push(Arc::new(NamespaceInfo {
            name: name.into(),
            labels,
        }));
    }
    let here = PODS.map(|last| (NODE, [false, true].map(|v6| pod_address(v6, last))));
    let there = NEIGHBORS.map(|last| ("there", [false, true].map(|v6| neighbor_address(v6, last))));
    for (number, (node, ips)) in here.chain(there).enumerate() {
        let (namespace, labels, account) = (*rng.pick(&NAMESPACES), labels(rng), *rng.pick(&ACCOUNTS));
        // The Service's port, or another one.
        let http = *rng.pick(&[1, 2, 30]);
        objects.pods.push(Arc::new(PodInfo {
            name: format!("{namespace}/pod{number}"),
            instance: 0,
            node: node.into(),
            ips: ips.iter().map(ToString::to_string).collect(),
            labels: join_labels(&labels, &all).into(),
            service_account: account.into(),
            ports: vec![NamedPort {
                name: "http".into(),
                protocol: TCP,
                number: http,
            }],
        }));
        let pod = LocalPod {
            namespace: namespace.into(),
            name: format!("pod{number}"),
            labels: labels.into(),
            service_account: account.into(),
            ips: ips.into(),
            ports: vec![ContainerPort {
                name: "http".into(),
                protocol: TCP,
                number: http,
            }],
        };
        if node == NODE {
            set.local_pods.push(pod.clone());
        }
        set.cluster_pods.push(pod);
    }
    for (last, name) in (1..).zip(SERVICES) {
        // The Service, and that of an import with this name.
        for (last, name) in [(last, name.to_owned()), (last + 4, imported_service(name))] {
            let ips = [false, true].map(|v6| service_address(v6, last));
            let number = u16::from(last);
            let target = *rng.pick(&[number, 30]);
            let node_port = rng.one_in(3).then_some(NODE_PORT);
            // Pods of both Nodes, and an address without a Pod.
            let pods: BTreeSet<u8> = (0..rng.below(4))
                .map(|_| 1 + u8::try_from(rng.below(8)).expect("a byte"))
                .collect();
            let addrs = pods.iter().flat_map(|last| {
                [false, true].map(|v6| {
                    if PODS.contains(last) {
                        pod_address(v6, *last)
                    } else {
                        neighbor_address(v6, *last)
                    }
                })
            });
            let addrs: Vec<IpAddr> = addrs.collect();
            objects.policies.services.push(ServiceInfo {
                namespace: NAMESPACES[0].into(),
                name: name.clone(),
                cluster_ips: ips.iter().map(ToString::to_string).collect(),
                ports: ["TCP", "UDP"]
                    .map(|protocol| ServicePort {
                        port: number.into(),
                        protocol: protocol.into(),
                        name: protocol.into(),
                        node_port: node_port.map(Into::into),
                    })
                    .into(),
                ..ServiceInfo::default()
            });
            objects.policies.endpoints.push(SliceEndpoints {
                namespace: NAMESPACES[0].into(),
                service: name.clone(),
                ports: ["TCP", "UDP"]
                    .map(|protocol| SlicePort {
                        name: protocol.into(),
                        port: Some(target.into()),
                        protocol: protocol.into(),
                    })
                    .into(),
                addresses: addrs.iter().map(ToString::to_string).collect(),
            });
            set.services.push(ServicePeer {
                name: ObjectName::namespaced(NAMESPACES[0], &name),
                ips: ips.into(),
                ports: [TCP, UDP]
                    .map(|protocol| ServicePeerPort {
                        protocol,
                        number,
                        node_port: node_port.map(Into::into),
                        endpoints: addrs.iter().map(|addr| (*addr, target).into()).collect(),
                    })
                    .into(),
            });
        }
    }
    let mut exporters = BTreeMap::new();
    for id in 1..=IDENTITIES {
        let (name, of_namespace, of_pod) = (*rng.pick(&NAMESPACES), labels(rng), labels(rng));
        let label = normalize(name, &of_namespace, &join_labels(&of_pod, &all).into(), &all);
        // An Antrea leader names no clusters: each may be an exporter.
        let named: [Option<&[&str]>; 4] = [Some(&[SENDERS]), Some(&[OTHERS]), Some(&[SENDERS, OTHERS]), None];
        let named = rng.pick(&named);
        let clusters: Option<BTreeSet<String>> =
            named.map(|names| names.iter().map(ToString::to_string).collect());
        exporters.insert(
            id,
            clusters
                .clone()
                .unwrap_or_else(|| [SENDERS.into(), OTHERS.into()].into()),
        );
        known.identities.push(Arc::new(IdentityInfo {
            name: format!("identity{id}"),
            label_name: format!("identity{id}"),
            id,
            label,
            clusters: clusters.map(|names| names.into_iter().collect()),
        }));
        let mut namespace = of_namespace;
        namespace.insert("kubernetes.io/metadata.name".into(), name.into());
        set.identities.push(Identity {
            id,
            namespace: namespace.into(),
            pod: of_pod.into(),
        });
    }
    objects.identities = Some(known);
    for number in 0..rng.range(1, 4) {
        let (mut policy, errors) = parse(ObjectName::cluster(&format!("policy{number}")), &policy_spec(rng));
        if rng.one_in(5) {
            policy.enforcement = EnforcementAction::Audit;
        }
        assert!(errors.is_empty(), "{errors:?}");
        set.policies.push(policy.clone());
        objects.policies.policies.push(Arc::new(Parsed {
            key: policy.object(),
            object: policy,
            errors,
            uid: String::new(),
            generation: 0,
        }));
    }
    World {
        objects,
        set,
        exporters,
    }
}
