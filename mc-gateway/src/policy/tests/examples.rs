//! The policies in the documentation of Antrea Multi-cluster, with verdicts by hand.

use mc_api::network_policy::Policy;
use serde_json::json;

use super::super::Mode;
use super::*;

const ADMIN: &str = "10.1.0.1";
const DB: &str = "10.1.0.2";
const WEB: &str = "10.1.0.3";
const TENANT: &str = "10.1.0.4";

/// Sources: five Pods of other clusters, a host, and two unknown ones.
///
/// 1: tenant's client, 2: prod's client, 3: prod's web, 4: admin's client, 5: DNS, 6: shop's client.
const SOURCES: [u32; 9] = [1, 2, 3, 4, 5, 6, 0, 0xFF_FFFF, 99];

fn cluster(policies: Vec<Policy>, mode: Mode) -> PolicySet {
    PolicySet {
        policies,
        namespaces: [
            ("admin".to_owned(), labels(&[("role", "admin")])),
            ("tenant-a".to_owned(), labels(&[("role", "tenant")])),
        ]
        .into(),
        local_pods: vec![
            pod("admin", "console", ADMIN, &[]),
            pod("prod-us-west", "db", DB, &[("app", "db")]),
            pod("prod-us-west", "web", WEB, &[("app", "web")]),
            pod("tenant-a", "app", TENANT, &[("app", "db")]),
        ],
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
    for mode in [Mode::All, Mode::ClusterSetOnly] {
        let set = cluster(vec![isolation("Cluster")], mode);
        assert_eq!(matrix(&set), ["........."; 4]);
        let (tables, issues) = compile(&set);
        assert!(tables.pods.is_empty() && tables.rules.is_empty() && issues.is_empty());
    }
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
