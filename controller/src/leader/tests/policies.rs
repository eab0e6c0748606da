//! Replicated policies.

use serde_json::Value;

use super::*;

fn policy(export: &str, name: &str, spec: &Value, created: &str) -> ResourceExport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceExport",
        "metadata": { "name": export, "namespace": NS, "creationTimestamp": created },
        "spec": { "kind": "AntreaClusterNetworkPolicy", "name": name, "clusterNetworkPolicy": spec },
    }))
}

fn rule(action: &str) -> Value {
    json!({
        "priority": 1, "tier": "securityops", "appliedTo": [{ "namespaceSelector": {} }],
        "ingress": [{ "action": action, "from": [{ "namespaces": { "match": "Self" }, "newField": 1 }] }],
    })
}

fn outcome(snapshot: &LeaderSnapshot, export: &str) -> (String, String) {
    let export = &snapshot.exports[&NamespacedName::new(NS, export)];
    let condition = export.status.clone().unwrap().conditions[0].clone();
    (condition.type_, condition.message)
}

#[test]
fn a_policy_is_replicated_unchanged() {
    let mut snapshot = leader_snapshot();
    insert(
        &mut snapshot.exports,
        policy("strict-export", "strict", &rule("Pass"), NOW),
    );
    settle(&mut snapshot);
    let spec = import(&snapshot, "strict-antreaclusternetworkpolicy");
    assert_eq!(
        spec,
        json!({ "kind": "AntreaClusterNetworkPolicy", "name": "strict", "clusternetworkpolicy": rule("Pass") })
    );
    assert_eq!(outcome(&snapshot, "strict-export").0, "Succeeded");
    insert(
        &mut snapshot.exports,
        policy("strict-export", "strict", &rule("Drop"), NOW),
    );
    settle(&mut snapshot);
    let spec = import(&snapshot, "strict-antreaclusternetworkpolicy");
    assert_eq!(spec["clusternetworkpolicy"], rule("Drop"));
    delete(&mut snapshot.exports, &NamespacedName::new(NS, "strict-export"));
    settle(&mut snapshot);
    assert!(snapshot.imports.is_empty() && snapshot.exports.is_empty());
}

#[test]
fn a_finalizer_is_removed_after_the_import() {
    let mut snapshot = leader_snapshot();
    let mut export = policy("strict-export", "strict", &rule("Pass"), NOW);
    export.metadata.finalizers = Some(vec![names::FINALIZER_RESOURCE_EXPORT.to_owned()]);
    insert(&mut snapshot.exports, export);
    settle(&mut snapshot);
    delete(&mut snapshot.exports, &NamespacedName::new(NS, "strict-export"));
    assert_eq!(reconcile(&mut snapshot).len(), 1);
    assert_eq!((snapshot.imports.len(), snapshot.exports.len()), (0, 1));
    settle(&mut snapshot);
    assert!(snapshot.exports.is_empty());
}

#[test]
fn the_first_exporter_decides_a_policy_until_it_withdraws() {
    let mut snapshot = leader_snapshot();
    insert(
        &mut snapshot.exports,
        policy("b", "strict", &rule("Pass"), "2026-01-01T11:00:00Z"),
    );
    settle(&mut snapshot);
    insert(
        &mut snapshot.exports,
        policy("a", "strict", &rule("Drop"), "2026-01-01T10:00:00Z"),
    );
    insert(
        &mut snapshot.exports,
        policy("c", "strict", &rule("Pass"), "2026-01-01T12:00:00Z"),
    );
    settle(&mut snapshot);
    let action = |w: &LeaderSnapshot| {
        import(w, "strict-antreaclusternetworkpolicy")["clusternetworkpolicy"]["ingress"][0]["action"].clone()
    };
    assert_eq!(action(&snapshot), "Pass");
    let (type_, message) = outcome(&snapshot, "a");
    assert_eq!(type_, "Failure");
    assert!(
        message.contains("conflicts with ResourceExport \"b\", the first"),
        "{message}"
    );
    assert_eq!(outcome(&snapshot, "c").0, "Succeeded");
    for name in ["b", "c"] {
        delete(&mut snapshot.exports, &NamespacedName::new(NS, name));
    }
    settle(&mut snapshot);
    assert_eq!(action(&snapshot), "Drop");
    assert_eq!(outcome(&snapshot, "a").0, "Succeeded");
}

#[test]
fn an_invalid_export_is_rejected_alone() {
    let change = |change: fn(&mut ResourceExport)| {
        let mut export = policy("bad", "bad", &rule("Pass"), NOW);
        change(&mut export);
        export
    };
    for (bad, reason) in [
        (
            change(|e| e.spec.cluster_network_policy = None),
            "spec.clusterNetworkPolicy is missing",
        ),
        (
            change(|e| e.spec.cluster_network_policy = Some(json!([]))),
            "spec.clusterNetworkPolicy is missing",
        ),
        (
            change(|e| e.spec.name = String::new()),
            "spec.name: \"\" is not a DNS name",
        ),
        (
            change(|e| e.spec.name = "A_b".to_owned()),
            "spec.name: \"A_b\" is not a DNS name",
        ),
        (change(|e| e.spec.name = "x".repeat(227)), "is not a DNS name"),
        (
            change(|e| e.spec.cluster_id = "east".to_owned()),
            "spec.clusterID \"east\": policies are exported by",
        ),
        (
            change(|e| e.metadata.labels = Some([("sourceClusterID".to_owned(), "east".to_owned())].into())),
            "spec.clusterID \"east\": policies are exported by",
        ),
    ] {
        let mut snapshot = leader_snapshot();
        insert(&mut snapshot.exports, bad);
        insert(&mut snapshot.exports, policy("good", "good", &rule("Pass"), NOW));
        settle(&mut snapshot);
        assert_eq!(snapshot.imports.len(), 1, "{reason}");
        let (type_, message) = outcome(&snapshot, "bad");
        assert!(
            type_ == "Failure" && message.contains(reason),
            "{reason}: {message}"
        );
        assert_eq!(outcome(&snapshot, "good").0, "Succeeded");
    }
    let mut snapshot = leader_snapshot();
    insert(
        &mut snapshot.exports,
        change(|e| e.spec.cluster_id = "north".to_owned()),
    );
    settle(&mut snapshot);
    assert_eq!(snapshot.imports.len(), 1, "the leader's own");
}

#[test]
fn an_import_of_another_kind_is_left_alone() {
    let mut snapshot = leader_snapshot();
    insert(
        &mut snapshot.exports,
        policy("strict", "strict", &rule("Pass"), NOW),
    );
    settle(&mut snapshot);
    let mut other = snapshot.imports.values().next().unwrap().as_ref().clone();
    other.spec.kind = "ExternalEntity".to_owned();
    insert(&mut snapshot.imports, other);
    settle(&mut snapshot);
    let (type_, message) = outcome(&snapshot, "strict");
    assert!(type_ == "Failure" && message.contains("is taken by"), "{message}");
    assert_eq!(
        snapshot.imports.values().next().unwrap().spec.kind,
        "ExternalEntity"
    );
}
