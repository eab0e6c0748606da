//! A large set of policies on a Node with the default limit of Pods. Reports its time and asserts none.

use std::time::Instant;

use serde_json::json;

use super::super::{ServicePeer, ServicePeerPort};
use super::*;

/// The default limit of Pods on a Node.
const PODS: u32 = 110;

/// 100 Namespaces with 10 policies and 10 identities each; 10 Pods in each of the first ones.
fn large() -> PolicySet {
    let mut set = PolicySet::default();
    for index in 0_u32..1000 {
        let (namespace, app) = (format!("n{}", index / 10), format!("a{}", index % 10));
        let spec = json!({
            "priority": 1 + index % 10,
            "appliedTo": [{ "podSelector": { "matchLabels": { "app": app } } }],
            "ingress": [
                { "action": "Allow", "ports": [{ "port": 8000, "endPort": 8000 + index }],
                  "from": [{ "scope": "ClusterSet", "podSelector": { "matchLabels": { "app": app } } },
                           { "ipBlock": { "cidr": format!("10.{}.{}.0/24", index / 256, index % 256) } }] },
                { "action": "Drop", "from": [
                    { "scope": "ClusterSet", "namespaceSelector": {
                        "matchExpressions": [{ "key": "team", "operator": "NotIn", "values": [format!("t{}", index % 7)] }] } },
                ] },
            ],
        });
        set.policies
            .push(policy(Some(&namespace), &format!("p{index}"), &spec));
        if index < PODS {
            let ip = format!("10.99.0.{index}");
            let pod = pod(&namespace, &format!("w{index}"), &ip, &[("app", &app)]);
            set.local_pods.push(pod);
        }
        let team = format!("t{}", index / 10 % 7);
        set.identities.push(identity(
            index + 1,
            &namespace,
            &[("team", &team)],
            &[("app", &app)],
        ));
    }
    set
}

#[test]
fn a_thousand_policies_and_identities_compile() {
    let set = large();
    let start = Instant::now();
    let (tables, issues) = compile(&set);
    let elapsed = start.elapsed();
    println!(
        "1,000 policies and 1,000 identities: {elapsed:?}; {} sets, {} entries, {} prefixes",
        tables.sets.len(),
        tables.rules.len(),
        tables.address_classes.len()
    );
    assert_eq!(issues, []);
    assert_eq!((tables.pods.len(), tables.sets.len()), (110, 110));
    assert_eq!(tables.identities.len(), 1001);
    assert_eq!(
        tables.address_classes.len(),
        110,
        "blocks of other Pods do not count"
    );
    for (destination, identity, port) in [
        ("10.99.0.7", 8, 8003),
        ("10.99.0.7", 9, 8003),
        ("10.99.0.99", 1, 80),
        ("10.99.0.99", 0xFF_FFFF, 80),
    ] {
        let packet = Packet {
            port,
            ..packet(destination, identity)
        };
        assert_eq!(look_up(&tables, &packet), evaluate(&set, &packet));
    }
}

/// Nodes with node ports.
const NODES: u16 = 1_000;

/// 1,000 policies for egress, 10,000 Pods and 1,000 Services with ten endpoints each. Every tenth policy ends with a
/// rule that drops every packet.
#[test]
fn egress_to_a_thousand_services_compiles() {
    let mut set = PolicySet::default();
    for index in 0_u32..10_000 {
        let (namespace, app) = (format!("n{}", index / 100), format!("a{}", index % 10));
        let ip = format!(
            "10.{}.{}.{}",
            100 + index / 65_536,
            index / 256 % 256,
            index % 256
        );
        let pod = pod(&namespace, &format!("w{index}"), &ip, &[("app", &app)]);
        if index % 100 == 0 || index < 10 {
            set.local_pods.push(pod.clone());
        }
        set.cluster_pods.push(pod);
    }
    for index in 0_u32..1000 {
        let (namespace, app) = (index / 10, index % 10);
        let mut spec = json!({
            "priority": 1 + index % 10,
            "appliedTo": [{ "podSelector": { "matchLabels": { "app": format!("a{app}") } } }],
            "egress": [
                { "action": "Allow", "ports": [{ "port": 8000, "endPort": 8000 + index }],
                  "to": [{ "podSelector": { "matchLabels": { "app": format!("a{}", (app + 1) % 10) } } }] },
                { "action": "Drop", "to": [{ "podSelector": {} }] },
            ],
        });
        if app == 9 {
            spec["egress"]
                .as_array_mut()
                .unwrap()
                .push(json!({ "action": "Drop" }));
        }
        set.policies.push(policy(
            Some(&format!("n{namespace}")),
            &format!("p{index}"),
            &spec,
        ));
        let endpoints = set
            .cluster_pods
            .iter()
            .filter(|pod| pod.namespace == format!("n{namespace}") && pod.labels["app"] == format!("a{app}"));
        let endpoints = endpoints.map(|pod| (pod.ips[0], 8000).into()).collect();
        set.services.push(ServicePeer {
            name: ObjectName::namespaced(&format!("n{namespace}"), &format!("a{app}")),
            ips: vec![IpAddr::from([
                10,
                96,
                u8::try_from(index / 256).unwrap(),
                u8::try_from(index % 256).unwrap(),
            ])],
            ports: vec![ServicePeerPort {
                protocol: TCP,
                number: 80,
                node_port: Some(30_000 + u16::try_from(index).unwrap()),
                endpoints,
            }],
        });
    }
    set.node_ips = (0..NODES)
        .map(|index| {
            IpAddr::from([
                172,
                16,
                u8::try_from(index / 250).unwrap(),
                u8::try_from(index % 250).unwrap(),
            ])
        })
        .collect();
    let start = Instant::now();
    let (tables, issues) = compile(&set);
    let elapsed = start.elapsed();
    println!(
        "1,000 policies, 10,000 Pods, 1,000 Services with node ports, {NODES} Nodes: {elapsed:?}; {} sets, {} \
         entries, {} prefixes",
        tables.sets.len(),
        tables.rules.len(),
        tables.address_classes.len()
    );
    assert_eq!(issues, []);
    // The Pod w5 of n0 may reach the Service a6 there, and no other one of its Namespace.
    let at_service = |number| IpAddr::from([10, 96, 0, number]);
    let node = IpAddr::from([172, 16, 3, 249]);
    for (peer, port, expected) in [
        (at_service(6), 80, 'A'),
        (at_service(7), 80, 'D'),
        (at_service(6), 81, '.'),
        (at_service(16), 80, '.'),
        (node, 30_006, 'A'),
        (node, 30_007, 'D'),
        (node, 30_016, '.'),
    ] {
        let packet = Packet {
            direction: Direction::Egress,
            peer,
            port,
            ..packet("10.100.0.5", 0)
        };
        let verdict = evaluate(&set, &packet);
        assert_eq!(letter(&verdict), expected, "{packet:?}");
        assert_eq!(look_up(&tables, &packet), verdict);
    }
}
