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

fn outcome(world: &LeaderSnapshot, export: &str) -> (String, String) {
    let export = &world.exports[&NamespacedName::new(NS, export)];
    let condition = export.status.clone().unwrap().conditions[0].clone();
    (condition.type_, condition.message)
}

#[test]
fn a_policy_is_passed_on_as_it_is() {
    let mut world = world();
    insert(
        &mut world.exports,
        policy("strict-export", "strict", &rule("Pass"), NOW),
    );
    settle(&mut world);
    let spec = import(&world, "strict-antreaclusternetworkpolicy");
    assert_eq!(
        spec,
        json!({ "kind": "AntreaClusterNetworkPolicy", "name": "strict", "clusternetworkpolicy": rule("Pass") })
    );
    assert_eq!(outcome(&world, "strict-export").0, "Succeeded");
    insert(
        &mut world.exports,
        policy("strict-export", "strict", &rule("Drop"), NOW),
    );
    settle(&mut world);
    let spec = import(&world, "strict-antreaclusternetworkpolicy");
    assert_eq!(spec["clusternetworkpolicy"], rule("Drop"));
    delete(&mut world.exports, &NamespacedName::new(NS, "strict-export"));
    settle(&mut world);
    assert!(world.imports.is_empty() && world.exports.is_empty());
}

#[test]
fn a_finalizer_goes_after_the_import() {
    let mut world = world();
    let mut export = policy("strict-export", "strict", &rule("Pass"), NOW);
    export.metadata.finalizers = Some(vec![names::FINALIZER_RESOURCE_EXPORT.to_owned()]);
    insert(&mut world.exports, export);
    settle(&mut world);
    delete(&mut world.exports, &NamespacedName::new(NS, "strict-export"));
    assert_eq!(step(&mut world).len(), 1);
    assert_eq!((world.imports.len(), world.exports.len()), (0, 1));
    settle(&mut world);
    assert!(world.exports.is_empty());
}

#[test]
fn the_first_to_say_what_a_policy_is_wins_until_it_leaves() {
    let mut world = world();
    insert(
        &mut world.exports,
        policy("b", "strict", &rule("Pass"), "2026-01-01T11:00:00Z"),
    );
    settle(&mut world);
    insert(
        &mut world.exports,
        policy("a", "strict", &rule("Drop"), "2026-01-01T10:00:00Z"),
    );
    insert(
        &mut world.exports,
        policy("c", "strict", &rule("Pass"), "2026-01-01T12:00:00Z"),
    );
    settle(&mut world);
    let action = |w: &LeaderSnapshot| {
        import(w, "strict-antreaclusternetworkpolicy")["clusternetworkpolicy"]["ingress"][0]["action"].clone()
    };
    assert_eq!(action(&world), "Pass");
    let (type_, message) = outcome(&world, "a");
    assert_eq!(type_, "Failure");
    assert!(
        message.contains("conflicts with ResourceExport \"b\", the first"),
        "{message}"
    );
    assert_eq!(outcome(&world, "c").0, "Succeeded");
    for name in ["b", "c"] {
        delete(&mut world.exports, &NamespacedName::new(NS, name));
    }
    settle(&mut world);
    assert_eq!(action(&world), "Drop");
    assert_eq!(outcome(&world, "a").0, "Succeeded");
}

#[test]
fn a_bad_export_stops_only_itself() {
    let change = |change: fn(&mut ResourceExport)| {
        let mut export = policy("bad", "bad", &rule("Pass"), NOW);
        change(&mut export);
        export
    };
    for (bad, why) in [
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
        let mut world = world();
        insert(&mut world.exports, bad);
        insert(&mut world.exports, policy("good", "good", &rule("Pass"), NOW));
        settle(&mut world);
        assert_eq!(world.imports.len(), 1, "{why}");
        let (type_, message) = outcome(&world, "bad");
        assert!(type_ == "Failure" && message.contains(why), "{why}: {message}");
        assert_eq!(outcome(&world, "good").0, "Succeeded");
    }
    let mut world = world();
    insert(
        &mut world.exports,
        change(|e| e.spec.cluster_id = "north".to_owned()),
    );
    settle(&mut world);
    assert_eq!(world.imports.len(), 1, "the leader's own");
}

#[test]
fn a_name_that_is_taken_by_another_kind_is_left_alone() {
    let mut world = world();
    insert(&mut world.exports, policy("strict", "strict", &rule("Pass"), NOW));
    settle(&mut world);
    let mut other = world.imports.values().next().unwrap().as_ref().clone();
    other.spec.kind = "ExternalEntity".to_owned();
    insert(&mut world.imports, other);
    settle(&mut world);
    let (type_, message) = outcome(&world, "strict");
    assert!(type_ == "Failure" && message.contains("is taken by"), "{message}");
    assert_eq!(world.imports.values().next().unwrap().spec.kind, "ExternalEntity");
}
