//! The status of groups.

use mc_api::{
    network_policy::{ClusterGroup, GroupKind as _, NamespacedGroup},
    node_policy_status::{Enforcement, NodePolicyStatusSpec},
};

use super::*;

/// A Node that enforces every rule, and no groups.
fn enforcing() -> MemberSnapshot {
    let mut snapshot = snapshot();
    snapshot.policies = OptionalKind::Present(ObjectMap::default());
    snapshot.network_policies = OptionalKind::Present(ObjectMap::default());
    snapshot.cluster_groups = OptionalKind::Present(ObjectMap::default());
    snapshot.groups = OptionalKind::Present(ObjectMap::default());
    snapshot.node_policy_statuses = OptionalKind::Present(ObjectMap::default());
    snapshot.tiers = OptionalKind::Present(ObjectMap::default());
    insert(
        &mut snapshot.nodes,
        object::<Node>(json!({ "metadata": { "name": "a", "uid": "uid-a" } })),
    );
    report(&mut snapshot, Enforcement::All);
    settle(&mut snapshot);
    snapshot
}

fn report(snapshot: &mut MemberSnapshot, enforcement: Enforcement) {
    let spec = NodePolicyStatusSpec::bounded(enforcement, String::new(), vec![]);
    insert_report(snapshot, "a", spec);
}

fn add_cluster_group(snapshot: &mut MemberSnapshot, name: &str, spec: &Value) {
    let status = cluster_group(snapshot, name).map_or(Value::Null, |old| old.status.clone());
    let group =
        json!({ "metadata": { "name": name, "uid": format!("uid-{name}") }, "spec": spec, "status": status });
    insert(
        present(&mut snapshot.cluster_groups),
        object::<ClusterGroup>(group),
    );
}

fn add_group(snapshot: &mut MemberSnapshot, namespace: &str, name: &str, spec: &Value) {
    let metadata = json!({ "namespace": namespace, "name": name, "uid": format!("uid-{namespace}-{name}") });
    let group = json!({ "metadata": metadata, "spec": spec });
    insert(present(&mut snapshot.groups), object::<NamespacedGroup>(group));
}

fn cluster_group(snapshot: &MemberSnapshot, name: &str) -> Option<Arc<ClusterGroup>> {
    let groups = snapshot.cluster_groups.objects()?;
    groups.get(&NamespacedName::new("", name)).cloned()
}

/// The condition's status and transition time.
fn computed(snapshot: &MemberSnapshot, name: &str) -> Option<(String, String)> {
    let status = cluster_group(snapshot, name)?.status();
    let [condition] = status.conditions.as_slice() else {
        return None;
    };
    assert_eq!(condition.type_, "GroupMembersComputed");
    let time = condition.last_transition_time.as_ref()?.0.to_string();
    Some((condition.status.clone(), time))
}

fn is_computed(snapshot: &MemberSnapshot, name: &str) -> Option<bool> {
    computed(snapshot, name).map(|(status, _)| status == "True")
}

/// The messages of the Events about groups.
fn messages(snapshot: &MemberSnapshot) -> Vec<String> {
    let events = plan(snapshot).warning_events.into_iter();
    events
        .filter(|event| event.reason == "InvalidGroup")
        .map(|event| format!("{}: {}", event.object, event.message))
        .collect()
}

#[test]
fn a_group_with_a_valid_spec_is_computed() {
    let mut snapshot = enforcing();
    let blocks = json!({ "ipBlocks": [{ "cidr": "10.0.0.0/8" }] });
    for (name, spec) in [
        (
            "pods",
            json!({ "podSelector": { "matchLabels": { "app": "web" } } }),
        ),
        ("blocks", blocks.clone()),
        ("parent", json!({ "childGroups": ["pods", "blocks"] })),
    ] {
        add_cluster_group(&mut snapshot, name, &spec);
    }
    add_group(&mut snapshot, "shop", "blocks", &blocks);
    settle(&mut snapshot);
    for name in ["pods", "blocks", "parent"] {
        assert_eq!(is_computed(&snapshot, name), Some(true), "{name}");
    }
    let groups = snapshot.groups.objects().unwrap();
    let group = groups.get(&NamespacedName::new("shop", "blocks")).unwrap();
    assert_eq!(group.status().conditions[0].status, "True");
    assert_eq!(messages(&snapshot), [""; 0]);
    assert!(plan(&snapshot).writes.is_empty(), "the status is written once");
}

#[test]
fn a_group_is_computed_once_its_child_groups_are() {
    let mut snapshot = enforcing();
    let children = json!({ "childGroups": ["pods"] });
    add_cluster_group(&mut snapshot, "parent", &children);
    add_group(&mut snapshot, "shop", "pods", &json!({ "podSelector": {} }));
    settle(&mut snapshot);
    let (status, since) = computed(&snapshot, "parent").unwrap();
    assert_eq!(status, "False", "a Group of a Namespace is none of its children");
    let missing = "spec.childGroups: \"pods\" does not exist";
    assert_eq!(messages(&snapshot), [format!("ClusterGroup parent: {missing}")]);

    snapshot.now += SignedDuration::from_secs(60);
    add_cluster_group(&mut snapshot, "pods", &children);
    settle(&mut snapshot);
    assert_eq!(
        computed(&snapshot, "parent"),
        Some(("False".to_owned(), since.clone())),
        "a child with child groups"
    );
    add_cluster_group(&mut snapshot, "pods", &json!({ "podSelector": {} }));
    settle(&mut snapshot);
    let (status, changed) = computed(&snapshot, "parent").unwrap();
    assert_eq!(status, "True");
    assert_ne!(changed, since);
    assert_eq!(messages(&snapshot), [""; 0]);
}

#[test]
fn an_event_names_field_and_value_of_an_invalid_group() {
    let mut snapshot = enforcing();
    let block = json!({ "ipBlocks": [{ "cidr": "10.0.0.0/99" }] });
    add_cluster_group(&mut snapshot, "bad", &block);
    add_cluster_group(&mut snapshot, "parent", &json!({ "childGroups": ["bad"] }));
    add_cluster_group(&mut snapshot, "good", &json!({ "podSelector": {} }));
    add_group(&mut snapshot, "shop", "bad", &block);
    settle(&mut snapshot);
    let found = ["bad", "parent", "good"].map(|name| is_computed(&snapshot, name));
    assert_eq!(found, [Some(false), Some(false), Some(true)]);
    let messages = messages(&snapshot);
    let expected = [
        "ClusterGroup bad: spec.ipBlocks[0]",
        "ClusterGroup parent: spec.childGroups",
        "Group shop/bad: spec",
    ];
    assert_eq!(messages.len(), expected.len(), "{messages:?}");
    for (message, start) in messages.iter().zip(expected) {
        assert!(message.starts_with(start), "{message}");
    }
    assert!(messages[0].contains("10.0.0.0/99"), "{messages:?}");
}

#[test]
fn antrea_owns_the_status_where_it_enforces_policies() {
    let mut snapshot = enforcing();
    report(&mut snapshot, Enforcement::ClusterSetOnly);
    add_cluster_group(&mut snapshot, "parent", &json!({ "childGroups": ["absent"] }));
    settle(&mut snapshot);
    assert_eq!(computed(&snapshot, "parent"), None);
    assert_eq!(messages(&snapshot), [""; 0]);
}

#[test]
fn a_list_that_is_not_complete_has_no_effect() {
    let mut snapshot = enforcing();
    add_cluster_group(&mut snapshot, "pods", &json!({ "podSelector": {} }));
    snapshot.cluster_groups = OptionalKind::Pending;
    assert!(plan(&snapshot).writes.is_empty());
}
