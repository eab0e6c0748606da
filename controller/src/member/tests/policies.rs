//! Replicated policies.

use mc_api::network_policy::{ClusterNetworkPolicy, Tier};

use super::*;
use crate::plan::{Kind, ObjectRef};

const NAME: &str = "antrea-mc-strict";

fn antrea() -> MemberSnapshot {
    let mut snapshot = snapshot();
    snapshot.policies = OptionalKind::Present(ObjectMap::default());
    snapshot.tiers = OptionalKind::Present(ObjectMap::default());
    add_tier(&mut snapshot, "securityops");
    snapshot
}

fn add_tier(snapshot: &mut MemberSnapshot, name: &str) {
    let tier: Tier = object(json!({ "metadata": { "name": name } }));
    match &mut snapshot.tiers {
        OptionalKind::Present(tiers) => insert(tiers, tier),
        other => panic!("{other:?}"),
    }
}

fn policies(snapshot: &mut MemberSnapshot) -> &mut ObjectMap<ClusterNetworkPolicy> {
    match &mut snapshot.policies {
        OptionalKind::Present(policies) => policies,
        other => panic!("{other:?}"),
    }
}

fn there(snapshot: &mut MemberSnapshot) -> Option<Arc<ClusterNetworkPolicy>> {
    policies(snapshot)
        .get(&NamespacedName::new("", NAME.to_owned()))
        .cloned()
}

fn spec(tier: &str, action: &str) -> Value {
    json!({
        "priority": 1, "tier": tier, "appliedTo": [{ "namespaceSelector": {} }],
        "ingress": [{ "action": action, "from": [{ "namespaces": { "match": "Self" } }] }],
    })
}

fn offered(name: &str, spec: &Value) -> ResourceImport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
        "metadata": { "name": names::policy_import(name), "namespace": LEADER_NS, "uid": "ri" },
        "spec": { "kind": "AntreaClusterNetworkPolicy", "name": name, "clusternetworkpolicy": spec },
    }))
}

fn offer(snapshot: &mut MemberSnapshot, spec: &Value) {
    insert(&mut leader(snapshot).imports, offered("strict", spec));
}

fn warning_events(snapshot: &MemberSnapshot) -> Vec<String> {
    let warning_events = plan(snapshot).warning_events;
    for warning_event in &warning_events {
        assert_eq!(
            (
                warning_event.object.to_string().as_str(),
                warning_event.uid.as_str(),
                warning_event.reason.as_str()
            ),
            (
                "ResourceImport antrea-multicluster/strict-antreaclusternetworkpolicy in the leader cluster",
                "ri",
                "ACNPImportFailed"
            )
        );
    }
    warning_events.into_iter().map(|r| r.message).collect()
}

#[test]
fn a_policy_is_made_changed_and_withdrawn() {
    let mut snapshot = antrea();
    offer(&mut snapshot, &spec("securityops", "Pass"));
    settle(&mut snapshot);
    let policy = there(&mut snapshot).unwrap();
    assert_eq!(policy.annotations()[names::ANNOTATION_IMPORTED_POLICY], "true");
    assert_eq!(policy.spec, spec("securityops", "Pass"));
    assert!(warning_events(&snapshot).is_empty());
    let mut other = spec("securityops", "Drop");
    other.as_object_mut().unwrap().remove("appliedTo");
    offer(&mut snapshot, &other);
    settle(&mut snapshot);
    assert_eq!(
        there(&mut snapshot).unwrap().spec,
        other,
        "what is not said any more is gone"
    );
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    assert!(there(&mut snapshot).is_none());
}

#[test]
fn a_missing_tier_is_told_and_waited_for() {
    let mut snapshot = antrea();
    offer(&mut snapshot, &spec("random", "Pass"));
    settle(&mut snapshot);
    assert!(there(&mut snapshot).is_none());
    let message = "ACNP Tier random does not exist in importing cluster east";
    assert_eq!(warning_events(&snapshot), [message]);
    says(&plan(&snapshot), message);
    add_tier(&mut snapshot, "random");
    settle(&mut snapshot);
    assert!(there(&mut snapshot).is_some() && warning_events(&snapshot).is_empty());
    // The policy moves to a Tier that is not here: it must not stay in the old one.
    offer(&mut snapshot, &spec("other", "Pass"));
    settle(&mut snapshot);
    assert!(there(&mut snapshot).is_none());
    assert_eq!(
        warning_events(&snapshot),
        ["ACNP Tier other does not exist in importing cluster east"]
    );
}

#[test]
fn a_policy_without_a_tier_is_in_the_default_one() {
    let mut snapshot = antrea();
    for spec in [json!({ "priority": 1 }), json!({ "priority": 1, "tier": "" })] {
        offer(&mut snapshot, &spec);
        assert_eq!(
            warning_events(&snapshot),
            ["ACNP Tier application does not exist in importing cluster east"]
        );
    }
    add_tier(&mut snapshot, "application");
    settle(&mut snapshot);
    assert!(there(&mut snapshot).is_some());
}

#[test]
fn a_users_own_policy_is_not_touched() {
    let mut snapshot = antrea();
    let own: ClusterNetworkPolicy =
        object(json!({ "metadata": { "name": NAME }, "spec": { "priority": 9 } }));
    insert(policies(&mut snapshot), own.clone());
    offer(&mut snapshot, &spec("securityops", "Pass"));
    settle(&mut snapshot);
    let message =
        "Unable to import Antrea ClusterNetworkPolicy which conflicts with existing one in cluster east";
    assert_eq!(warning_events(&snapshot), [message]);
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    snapshot.cluster_sets = ObjectMap::default();
    assert!(
        plan(&snapshot)
            .writes
            .iter()
            .all(|a| a.target.kind != Kind::ClusterNetworkPolicy)
    );
    assert_eq!(there(&mut snapshot).unwrap().spec, own.spec);
}

#[test]
fn what_others_add_to_a_policy_stays_and_what_contradicts_it_does_not() {
    let mut snapshot = antrea();
    let mut offered = spec("securityops", "Pass");
    offered["ingress"][0]["newField"] = json!(1);
    offer(&mut snapshot, &offered);
    settle(&mut snapshot);
    let change = |snapshot: &mut MemberSnapshot, change: fn(&mut Value)| {
        let mut policy = there(snapshot).unwrap().as_ref().clone();
        change(&mut policy.spec);
        insert(policies(snapshot), policy);
    };
    // A webhook names the rule; the CRD drops a field it does not know.
    change(&mut snapshot, |spec| {
        spec["ingress"][0]["name"] = json!("rule-1");
        spec["ingress"][0].as_object_mut().unwrap().remove("newField");
    });
    assert!(step(&mut snapshot).is_empty());
    // Somebody opens what is closed.
    for contradict in [
        (|spec| spec["ingress"][0]["action"] = json!("Allow")) as fn(&mut Value),
        |spec| {
            spec["ingress"]
                .as_array_mut()
                .unwrap()
                .push(json!({ "action": "Allow" }));
        },
        |spec| drop(spec.as_object_mut().unwrap().remove("ingress")),
        |spec| spec["egress"] = json!([{ "action": "Allow" }]),
        |spec| spec["priority"] = json!(2),
    ] {
        change(&mut snapshot, contradict);
        assert!(!step(&mut snapshot).is_empty());
        assert_eq!(there(&mut snapshot).unwrap().spec, offered);
    }
}

#[test]
fn without_antrea_it_is_said_once() {
    let mut snapshot = snapshot();
    insert(
        &mut leader(&mut snapshot).imports,
        offered("strict", &spec("a", "Pass")),
    );
    insert(
        &mut leader(&mut snapshot).imports,
        offered("other", &spec("a", "Pass")),
    );
    settle(&mut snapshot);
    let plan = plan(&snapshot);
    says(
        &plan,
        "clusternetworkpolicies.crd.antrea.io: this cluster's API server does not serve the kind: 2 replicated policies",
    );
    assert_eq!(plan.issues.len(), 1);
    assert!(plan.warning_events.is_empty());
    // It comes, and goes again.
    let mut snapshot = antrea();
    offer(&mut snapshot, &spec("securityops", "Pass"));
    settle(&mut snapshot);
    snapshot.tiers = OptionalKind::Absent;
    settle(&mut snapshot);
    assert!(
        there(&mut snapshot).is_some(),
        "no Tiers at all say nothing about this one"
    );
    assert_eq!(
        warning_events(&snapshot),
        ["Failed to get Tier securityops in member cluster east"]
    );
    for unknown in [OptionalKind::Pending, OptionalKind::Absent] {
        snapshot.policies = unknown;
        settle(&mut snapshot);
    }
    let mut snapshot = antrea();
    settle(&mut snapshot);
    snapshot.tiers = OptionalKind::Pending;
    offer(&mut snapshot, &spec("securityops", "Pass"));
    assert!(
        step(&mut snapshot).is_empty() && warning_events(&snapshot).is_empty(),
        "not known yet"
    );
}

#[test]
fn what_the_api_server_refuses_is_told() {
    let mut snapshot = antrea();
    offer(&mut snapshot, &spec("securityops", "Pass"));
    let target = ObjectRef {
        side: ApiServer::Local,
        kind: Kind::ClusterNetworkPolicy,
        namespace: String::new(),
        name: NAME.to_owned(),
    };
    snapshot.persistent_failures = [(target, "denied".to_owned())].into();
    assert_eq!(
        warning_events(&snapshot),
        ["Failed to create imported Antrea ClusterNetworkPolicy in cluster east"]
    );
    says(&plan(&snapshot), "not imported: denied");
    settle(&mut snapshot);
    offer(&mut snapshot, &spec("securityops", "Drop"));
    assert_eq!(
        warning_events(&snapshot),
        ["Failed to update imported Antrea ClusterNetworkPolicy in cluster east"]
    );
    settle(&mut snapshot);
    offer(&mut snapshot, &spec("random", "Drop"));
    assert_eq!(
        warning_events(&snapshot),
        [
            "ACNP Tier random does not exist in importing cluster east",
            "Failed to delete imported Antrea ClusterNetworkPolicy that no longer has a valid Tier for cluster east"
        ]
    );
}

#[test]
fn a_bad_import_stops_only_itself() {
    let change = |change: fn(&mut ResourceImport)| {
        let mut import = offered("strict", &spec("securityops", "Pass"));
        change(&mut import);
        import
    };
    for (bad, why) in [
        (
            change(|i| i.spec.cluster_network_policy = None),
            "spec.clusternetworkpolicy is missing",
        ),
        (
            change(|i| i.spec.cluster_network_policy = Some(json!("x"))),
            "spec.clusternetworkpolicy is missing",
        ),
        (
            change(|i| i.metadata.name = Some("other".to_owned())),
            "spec.name \"strict\" does not fit",
        ),
    ] {
        let mut snapshot = antrea();
        offer(&mut snapshot, &spec("securityops", "Pass"));
        settle(&mut snapshot);
        leader(&mut snapshot).imports = ObjectMap::default();
        insert(&mut leader(&mut snapshot).imports, bad);
        insert(
            &mut leader(&mut snapshot).imports,
            offered("good", &spec("securityops", "Pass")),
        );
        says(&plan(&snapshot), why);
        settle(&mut snapshot);
        assert_eq!(
            policies(&mut snapshot).len(),
            2,
            "{why}: the leader has not taken it back"
        );
    }
    let mut snapshot = antrea();
    insert(
        &mut leader(&mut snapshot).imports,
        change(|i| {
            i.spec.name = "A_b".to_owned();
            i.metadata.name = Some(names::policy_import("A_b"));
        }),
    );
    says(&plan(&snapshot), "spec.name: \"antrea-mc-A_b\" is not a DNS name");
    // One that is meant for others.
    let mut snapshot = antrea();
    insert(
        &mut leader(&mut snapshot).imports,
        change(|i| i.spec.cluster_ids = vec!["west".to_owned()]),
    );
    settle(&mut snapshot);
    assert!(there(&mut snapshot).is_none());
}
