//! The policies in the documentation of Antrea Multi-cluster, with verdicts by hand.

use std::collections::BTreeSet;

use mc_api::network_policy::Policy;
use serde_json::json;

use super::super::model::UDP;
use super::super::{Mode, ServicePeer, ServicePeerPort};
use super::*;

const ADMIN: &str = "10.1.0.1";
const DB: &str = "10.1.0.2";
const WEB: &str = "10.1.0.3";
const TENANT: &str = "10.1.0.4";
/// Pods of other Nodes.
const DNS: &str = "10.1.1.5";
const CLIENT: &str = "10.1.1.6";
const SERVICE: &str = "10.96.0.80";

/// Sources: five Pods of other clusters, a host, and two unknown ones.
///
/// 1: tenant's client, 2: prod's client, 3: prod's web, 4: admin's client, 5: DNS, 6: shop's client.
const SOURCES: [u32; 9] = [1, 2, 3, 4, 5, 6, 0, 0xFF_FFFF, 99];

fn cluster(policies: Vec<Policy>, mode: Mode) -> PolicySet {
    let local_pods = vec![
        pod("admin", "console", ADMIN, &[]),
        pod("prod-us-west", "db", DB, &[("app", "db")]),
        pod("prod-us-west", "web", WEB, &[("app", "web")]),
        pod("tenant-a", "app", TENANT, &[("app", "db")]),
    ];
    let others = [
        pod("kube-system", "coredns", DNS, &[("k8s-app", "kube-dns")]),
        pod("prod-us-west", "client", CLIENT, &[("app", "client")]),
    ];
    PolicySet {
        policies,
        cluster_pods: local_pods.iter().cloned().chain(others).collect(),
        services: vec![ServicePeer {
            name: ObjectName::namespaced("svcNamespace", "antrea-mc-secured-service"),
            ips: vec![SERVICE.parse().unwrap()],
            ports: [(TCP, 80), (UDP, 53)]
                .map(|(protocol, number)| ServicePeerPort {
                    protocol,
                    number,
                    node_port: None,
                    endpoints: BTreeSet::new(),
                })
                .into(),
        }],
        local_pods,
        namespaces: [
            ("admin".to_owned(), labels(&[("role", "admin")])),
            ("tenant-a".to_owned(), labels(&[("role", "tenant")])),
        ]
        .into(),
        identities: vec![
            identity(1, "tenant-a", &[("role", "tenant")], &[("app", "client")]),
            identity(2, "prod-us-west", &[], &[("app", "client")]),
            identity(3, "prod-us-west", &[], &[("app", "web")]),
            identity(4, "admin", &[("role", "admin")], &[("app", "client")]),
            identity(5, "kube-system", &[], &[("k8s-app", "kube-dns")]),
            identity(6, "shop", &[], &[("app", "client")]),
        ],
        mode,
        ..PolicySet::default()
    }
}

/// One row of verdicts for each Pod, one letter for each sender in the own cluster: the Pods, DNS, a client, a host.
fn local_matrix(set: &PolicySet) -> [String; 4] {
    [ADMIN, DB, WEB, TENANT].map(|pod| {
        let senders = [ADMIN, DB, WEB, TENANT, DNS, CLIENT, "192.0.2.1"];
        let verdicts = senders.map(|sender| {
            let packet = Packet {
                peer: sender.parse().unwrap(),
                ..packet(pod, 0)
            };
            letter(&verdict(set, &packet))
        });
        verdicts.iter().collect()
    })
}

/// One row of verdicts for each Pod, one letter for each of [`SOURCES`].
fn matrix(set: &PolicySet) -> [String; 4] {
    [ADMIN, DB, WEB, TENANT].map(|destination| {
        let verdicts = SOURCES.map(|source| letter(&verdict(set, &packet(destination, source))));
        verdicts.iter().collect()
    })
}

fn isolation(scope: &str) -> Policy {
    let spec = json!({
        "priority": 1, "tier": "securityops",
        "appliedTo": [{ "namespaceSelector": {} }],
        "ingress": [
            { "action": "Pass", "from": [
                { "scope": scope, "namespaces": { "match": "Self" } },
                { "scope": scope, "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } } },
            ] },
            { "action": "Drop", "from": [{ "scope": scope, "namespaceSelector": {} }] },
        ],
    });
    policy(None, "strict-namespace-isolation", &spec)
}

#[test]
fn isolation_without_scope_concerns_the_own_cluster_only() {
    let set = cluster(vec![isolation("Cluster")], Mode::All);
    assert_eq!(matrix(&set), ["........."; 4]);
    let expected = [
        "PDDDPD.", // admin
        "DPPDPP.", // db in prod-us-west
        "DPPDPP.", // web in prod-us-west
        "DDDPPD.", // tenant-a
    ];
    assert_eq!(local_matrix(&set), expected);
    // Antrea enforces it.
    let set = cluster(vec![isolation("Cluster")], Mode::ClusterSetOnly);
    assert_eq!(
        (matrix(&set), local_matrix(&set)),
        (
            ["........."; 4].map(str::to_owned),
            ["......."; 4].map(str::to_owned)
        )
    );
    let (tables, issues) = compile(&set);
    assert!(tables.pods.is_empty() && tables.rules.is_empty() && issues.is_empty());
}

#[test]
fn service_accounts_select_pods_of_the_own_cluster_only() {
    let account = json!({ "serviceAccount": { "name": "job", "namespace": "prod-us-west" } });
    let spec = json!({
        "priority": 1, "tier": "securityops",
        "appliedTo": [account],
        "ingress": [
            { "action": "Allow", "from": [account] },
            { "action": "Drop", "from": [{ "scope": "ClusterSet", "namespaceSelector": {} }] },
        ],
    });
    let mut set = cluster(vec![policy(None, "jobs", &spec)], Mode::All);
    let of_others = |pod: &&mut LocalPod| pod.namespace != "kube-system" && pod.name != "db";
    // The console has an account of the same name in its own Namespace.
    for pods in [&mut set.local_pods, &mut set.cluster_pods] {
        for pod in pods.iter_mut().filter(of_others) {
            pod.service_account = "job".to_owned();
        }
    }
    assert_eq!(local_matrix(&set), [".......", ".......", "DDADDA.", "......."]);
    assert_eq!(matrix(&set), [".........", ".........", "DDDDDD.UU", "........."]);
    let (_, issues) = compile(&set);
    assert_eq!(issues, []);
}

#[test]
fn peers_of_the_cluster_set_include_those_of_the_own_cluster() {
    let set = cluster(vec![isolation("ClusterSet")], Mode::All);
    let expected = ["PDDDPD.", "DPPDPP.", "DPPDPP.", "DDDPPD."];
    assert_eq!(local_matrix(&set), expected);
    let set = cluster(vec![isolation("ClusterSet")], Mode::ClusterSetOnly);
    assert_eq!(local_matrix(&set), ["......."; 4], "Antrea enforces it");
}

#[test]
fn tenants_have_no_access_to_a_service_of_the_cluster_set() {
    let spec = |to: Value| {
        json!({
            "priority": 1, "tier": "securityops",
            "appliedTo": [{ "podSelector": { "matchLabels": { "app": "db" } } }],
            "egress": [{ "action": "Drop", "toServices": [to] }],
        })
    };
    let to = |addr: &str, pod: &str, protocol, port| Packet {
        direction: Direction::Egress,
        peer: addr.parse().unwrap(),
        protocol,
        port,
        ..packet(pod, 0)
    };
    for service in [
        json!({ "name": "secured-service", "namespace": "svcNamespace", "scope": "ClusterSet" }),
        json!({ "name": "antrea-mc-secured-service", "namespace": "svcNamespace" }),
    ] {
        let policy = policy(None, "acnp-drop-tenant-to-secured-mc-service", &spec(service));
        let set = cluster(vec![policy.clone()], Mode::All);
        for (packet, expected) in [
            (to(SERVICE, DB, TCP, 80), 'D'),
            (to(SERVICE, DB, UDP, 53), 'D'),
            (to(SERVICE, DB, TCP, 53), '.'),
            (to(SERVICE, WEB, TCP, 80), '.'),
            (to("10.96.0.81", DB, TCP, 80), '.'),
        ] {
            assert_eq!(letter(&verdict(&set, &packet)), expected, "{packet:?}");
        }
        assert_eq!(letter(&verdict(&set, &packet(DB, 1))), '.', "egress only");
        let (tables, issues) = compile(&cluster(vec![policy], Mode::ClusterSetOnly));
        assert!(tables.egress_pods.is_empty() && issues.is_empty());
    }
    let absent = spec(json!({ "name": "other", "namespace": "svcNamespace" }));
    let set = cluster(vec![policy(None, "absent", &absent)], Mode::All);
    let (tables, issues) = compile(&set);
    assert!(tables.egress_pods.is_empty());
    let texts: Vec<_> = issues.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "ClusterNetworkPolicy absent: spec.egress[0].toServices: \"svcNamespace/other\" is not a Service with an address"
        ]
    );
}

#[test]
fn isolation_in_the_cluster_set_separates_namespaces_of_all_clusters() {
    for mode in [Mode::All, Mode::ClusterSetOnly] {
        let set = cluster(vec![isolation("ClusterSet")], mode);
        let expected = [
            "DDDPPD.UU", // admin
            "DPPDPD.UU", // db in prod-us-west
            "DPPDPD.UU", // web in prod-us-west
            "PDDDPD.UU", // tenant-a
        ];
        assert_eq!(matrix(&set), expected);
        let dropped = verdict(&set, &packet(ADMIN, 1)).rule.unwrap();
        assert_eq!(
            &*dropped.policy,
            "ClusterNetworkPolicy strict-namespace-isolation"
        );
        assert_eq!(dropped.index, 1);
    }
}

#[test]
fn tenants_have_no_access_to_the_admin_namespace() {
    let spec = json!({
        "appliedTo": [{ "namespaceSelector": { "matchLabels": { "role": "admin" } } }],
        "priority": 1, "tier": "securityops",
        "ingress": [{ "action": "Deny", "from": [
            { "scope": "ClusterSet", "namespaceSelector": { "matchLabels": { "role": "tenant" } } },
        ] }],
    });
    for mode in [Mode::All, Mode::ClusterSetOnly] {
        let set = cluster(
            vec![policy(None, "drop-tenant-access-to-admin-namespace", &spec)],
            mode,
        );
        assert_eq!(matrix(&set), ["D......UU", ".........", ".........", "........."]);
    }
}

#[test]
fn only_clients_of_the_namespace_reach_the_database() {
    let spec = json!({
        "appliedTo": [{ "podSelector": { "matchLabels": { "app": "db" } } }],
        "priority": 1, "tier": "application",
        "ingress": [
            { "action": "Allow", "from": [
                { "scope": "ClusterSet", "podSelector": { "matchLabels": { "app": "client" } } },
            ] },
            { "action": "Deny" },
        ],
    });
    let policy = policy(
        Some("prod-us-west"),
        "db-svc-allow-ingress-from-client-only",
        &spec,
    );
    let set = cluster(vec![policy.clone()], Mode::All);
    // The closing rule matches every source, also hosts and unknown ones.
    assert_eq!(matrix(&set), [".........", "DADDDDDDD", ".........", "........."]);
    let denied = verdict(&set, &packet(DB, 99)).rule.unwrap();
    assert_eq!(
        (&*denied.policy, denied.index),
        (
            "NetworkPolicy prod-us-west/db-svc-allow-ingress-from-client-only",
            1
        )
    );
    // Antrea enforces the closing rule.
    let set = cluster(vec![policy], Mode::ClusterSetOnly);
    assert_eq!(matrix(&set), [".........", ".A.....UU", ".........", "........."]);
}
