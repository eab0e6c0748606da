//! A large set of policies on a Node with the default limit of Pods. Reports its time and asserts none.

use std::time::Instant;

use serde_json::json;

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
