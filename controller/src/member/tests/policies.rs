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

fn imported_policy(snapshot: &mut MemberSnapshot) -> Option<Arc<ClusterNetworkPolicy>> {
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

fn policy_import(name: &str, spec: &Value) -> ResourceImport {
    object(json!({
        "apiVersion": "multicluster.crd.antrea.io/v1alpha1", "kind": "ResourceImport",
        "metadata": { "name": names::policy_import(name), "namespace": LEADER_NS, "uid": "ri" },
        "spec": { "kind": "AntreaClusterNetworkPolicy", "name": name, "clusternetworkpolicy": spec },
    }))
}

fn insert_import(snapshot: &mut MemberSnapshot, spec: &Value) {
    insert(&mut leader(snapshot).imports, policy_import("strict", spec));
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
fn a_policy_is_created_updated_and_withdrawn() {
    let mut snapshot = antrea();
    insert_import(&mut snapshot, &spec("securityops", "Pass"));
    settle(&mut snapshot);
    let policy = imported_policy(&mut snapshot).unwrap();
    assert_eq!(policy.annotations()[names::ANNOTATION_IMPORTED_POLICY], "true");
    assert_eq!(policy.spec, spec("securityops", "Pass"));
    assert!(warning_events(&snapshot).is_empty());
    let mut other = spec("securityops", "Drop");
    other.as_object_mut().unwrap().remove("appliedTo");
    insert_import(&mut snapshot, &other);
    settle(&mut snapshot);
    assert_eq!(
        imported_policy(&mut snapshot).unwrap().spec,
        other,
        "a removed field is removed"
    );
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    assert!(imported_policy(&mut snapshot).is_none());
}

#[test]
fn a_missing_tier_is_reported_until_it_exists() {
    let mut snapshot = antrea();
    insert_import(&mut snapshot, &spec("random", "Pass"));
    settle(&mut snapshot);
    assert!(imported_policy(&mut snapshot).is_none());
    let message = "ACNP Tier random does not exist in importing cluster east";
    assert_eq!(warning_events(&snapshot), [message]);
    assert_issue(&plan(&snapshot), message);
    add_tier(&mut snapshot, "random");
    settle(&mut snapshot);
    assert!(imported_policy(&mut snapshot).is_some() && warning_events(&snapshot).is_empty());
    // The policy moves to a missing Tier and must not stay in the old one.
    insert_import(&mut snapshot, &spec("other", "Pass"));
    settle(&mut snapshot);
    assert!(imported_policy(&mut snapshot).is_none());
    assert_eq!(
        warning_events(&snapshot),
        ["ACNP Tier other does not exist in importing cluster east"]
    );
}

#[test]
fn a_policy_without_a_tier_has_the_default_tier() {
    let mut snapshot = antrea();
    for spec in [json!({ "priority": 1 }), json!({ "priority": 1, "tier": "" })] {
        insert_import(&mut snapshot, &spec);
        assert_eq!(
            warning_events(&snapshot),
            ["ACNP Tier application does not exist in importing cluster east"]
        );
    }
    add_tier(&mut snapshot, "application");
    settle(&mut snapshot);
    assert!(imported_policy(&mut snapshot).is_some());
}

#[test]
fn a_users_own_policy_is_not_changed() {
    let mut snapshot = antrea();
    let own: ClusterNetworkPolicy =
        object(json!({ "metadata": { "name": NAME }, "spec": { "priority": 9 } }));
    insert(policies(&mut snapshot), own.clone());
    insert_import(&mut snapshot, &spec("securityops", "Pass"));
    settle(&mut snapshot);
    let message =
        "Unable to import Antrea ClusterNetworkPolicy which conflicts with existing one in cluster east";
    assert_eq!(warning_events(&snapshot), [message]);
    leader(&mut snapshot).imports = ObjectMap::default();
    settle(&mut snapshot);
    leave(&mut snapshot);
    assert!(
        plan(&snapshot)
            .writes
            .iter()
            .all(|a| a.target.kind != Kind::ClusterNetworkPolicy)
    );
    assert_eq!(imported_policy(&mut snapshot).unwrap().spec, own.spec);
}

#[test]
fn additions_to_a_policy_are_kept_and_contradictions_reverted() {
    let mut snapshot = antrea();
    let mut exported = spec("securityops", "Pass");
    exported["ingress"][0]["newField"] = json!(1);
    insert_import(&mut snapshot, &exported);
    settle(&mut snapshot);
    let change = |snapshot: &mut MemberSnapshot, change: fn(&mut Value)| {
        let mut policy = imported_policy(snapshot).unwrap().as_ref().clone();
        change(&mut policy.spec);
        insert(policies(snapshot), policy);
    };
    // A webhook names the rule; the CRD drops an unknown field.
    change(&mut snapshot, |spec| {
        spec["ingress"][0]["name"] = json!("rule-1");
        spec["ingress"][0].as_object_mut().unwrap().remove("newField");
    });
    assert!(reconcile(&mut snapshot).is_empty());
    // Foreign changes that contradict the import.
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
        assert!(!reconcile(&mut snapshot).is_empty());
        assert_eq!(imported_policy(&mut snapshot).unwrap().spec, exported);
    }
}

#[test]
fn a_cluster_without_antrea_is_reported_once() {
    let mut snapshot = snapshot();
    insert(
        &mut leader(&mut snapshot).imports,
        policy_import("strict", &spec("a", "Pass")),
    );
    insert(
        &mut leader(&mut snapshot).imports,
        policy_import("other", &spec("a", "Pass")),
    );
    settle(&mut snapshot);
    let plan = plan(&snapshot);
    assert_issue(
        &plan,
        "clusternetworkpolicies.crd.antrea.io: this cluster's API server does not serve the kind: 2 replicated policies",
    );
    assert_eq!(plan.issues.len(), 1);
    assert!(plan.warning_events.is_empty());
    // Antrea is installed and removed again.
    let mut snapshot = antrea();
    insert_import(&mut snapshot, &spec("securityops", "Pass"));
    settle(&mut snapshot);
    snapshot.tiers = OptionalKind::Absent;
    settle(&mut snapshot);
    assert!(
        imported_policy(&mut snapshot).is_some(),
        "without the kind Tier the policy is kept"
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
    insert_import(&mut snapshot, &spec("securityops", "Pass"));
    assert!(
        reconcile(&mut snapshot).is_empty() && warning_events(&snapshot).is_empty(),
        "before the list of Tiers"
    );
}

#[test]
fn a_rejection_by_the_api_server_is_reported() {
    let mut snapshot = antrea();
    insert_import(&mut snapshot, &spec("securityops", "Pass"));
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
    assert_issue(&plan(&snapshot), "not imported: denied");
    settle(&mut snapshot);
    insert_import(&mut snapshot, &spec("securityops", "Drop"));
    assert_eq!(
        warning_events(&snapshot),
        ["Failed to update imported Antrea ClusterNetworkPolicy in cluster east"]
    );
    settle(&mut snapshot);
    insert_import(&mut snapshot, &spec("random", "Drop"));
    assert_eq!(
        warning_events(&snapshot),
        [
            "ACNP Tier random does not exist in importing cluster east",
            "Failed to delete imported Antrea ClusterNetworkPolicy that no longer has a valid Tier for cluster east"
        ]
    );
}

#[test]
fn an_invalid_import_is_rejected_alone() {
    let change = |change: fn(&mut ResourceImport)| {
        let mut import = policy_import("strict", &spec("securityops", "Pass"));
        change(&mut import);
        import
    };
    for (bad, message) in [
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
        insert_import(&mut snapshot, &spec("securityops", "Pass"));
        settle(&mut snapshot);
        leader(&mut snapshot).imports = ObjectMap::default();
        insert(&mut leader(&mut snapshot).imports, bad);
        insert(
            &mut leader(&mut snapshot).imports,
            policy_import("good", &spec("securityops", "Pass")),
        );
        assert_issue(&plan(&snapshot), message);
        settle(&mut snapshot);
        assert_eq!(
            policies(&mut snapshot).len(),
            2,
            "{message}: the leader has not withdrawn it"
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
    assert_issue(&plan(&snapshot), "spec.name: \"antrea-mc-A_b\" is not a DNS name");
    // An import for other clusters only.
    let mut snapshot = antrea();
    insert(
        &mut leader(&mut snapshot).imports,
        change(|i| i.spec.cluster_ids = vec!["west".to_owned()]),
    );
    settle(&mut snapshot);
    assert!(imported_policy(&mut snapshot).is_none());
}
