//! Replicated policies.

use super::*;
use crate::{
    api::network_policy::{ClusterNetworkPolicy, Tier},
    plan::{Kind, Target},
};

const NAME: &str = "antrea-mc-strict";

fn antrea() -> MemberWorld {
    let mut world = world();
    world.policies = Optional::Present(Objects::default());
    world.tiers = Optional::Present(Objects::default());
    add_tier(&mut world, "securityops");
    world
}

fn add_tier(world: &mut MemberWorld, name: &str) {
    let tier: Tier = object(json!({ "metadata": { "name": name } }));
    match &mut world.tiers {
        Optional::Present(tiers) => insert(tiers, tier),
        other => panic!("{other:?}"),
    }
}

fn policies(world: &mut MemberWorld) -> &mut Objects<ClusterNetworkPolicy> {
    match &mut world.policies {
        Optional::Present(policies) => policies,
        other => panic!("{other:?}"),
    }
}

fn there(world: &mut MemberWorld) -> Option<Arc<ClusterNetworkPolicy>> {
    policies(world).get(&(String::new(), NAME.to_owned())).cloned()
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

fn offer(world: &mut MemberWorld, spec: &Value) {
    insert(&mut leader(world).imports, offered("strict", spec));
}

fn remarks(world: &MemberWorld) -> Vec<String> {
    let remarks = plan(world).remarks;
    for remark in &remarks {
        assert_eq!(
            (
                remark.about.to_string().as_str(),
                remark.uid.as_str(),
                remark.reason.as_str()
            ),
            (
                "ResourceImport antrea-multicluster/strict-antreaclusternetworkpolicy in the leader cluster",
                "ri",
                "ACNPImportFailed"
            )
        );
    }
    remarks.into_iter().map(|r| r.message).collect()
}

#[test]
fn a_policy_is_made_changed_and_withdrawn() {
    let mut world = antrea();
    offer(&mut world, &spec("securityops", "Pass"));
    settle(&mut world);
    let policy = there(&mut world).unwrap();
    assert_eq!(policy.annotations()[names::ANNOTATION_IMPORTED_POLICY], "true");
    assert_eq!(policy.spec, spec("securityops", "Pass"));
    assert!(remarks(&world).is_empty());
    let mut other = spec("securityops", "Drop");
    other.as_object_mut().unwrap().remove("appliedTo");
    offer(&mut world, &other);
    settle(&mut world);
    assert_eq!(
        there(&mut world).unwrap().spec,
        other,
        "what is not said any more is gone"
    );
    leader(&mut world).imports = Objects::default();
    settle(&mut world);
    assert!(there(&mut world).is_none());
}

#[test]
fn a_missing_tier_is_told_and_waited_for() {
    let mut world = antrea();
    offer(&mut world, &spec("random", "Pass"));
    settle(&mut world);
    assert!(there(&mut world).is_none());
    let message = "ACNP Tier random does not exist in importing cluster east";
    assert_eq!(remarks(&world), [message]);
    says(&plan(&world), message);
    add_tier(&mut world, "random");
    settle(&mut world);
    assert!(there(&mut world).is_some() && remarks(&world).is_empty());
    // The policy moves to a Tier that is not here: it must not stay in the old one.
    offer(&mut world, &spec("other", "Pass"));
    settle(&mut world);
    assert!(there(&mut world).is_none());
    assert_eq!(
        remarks(&world),
        ["ACNP Tier other does not exist in importing cluster east"]
    );
}

#[test]
fn a_policy_without_a_tier_is_in_the_default_one() {
    let mut world = antrea();
    for spec in [json!({ "priority": 1 }), json!({ "priority": 1, "tier": "" })] {
        offer(&mut world, &spec);
        assert_eq!(
            remarks(&world),
            ["ACNP Tier application does not exist in importing cluster east"]
        );
    }
    add_tier(&mut world, "application");
    settle(&mut world);
    assert!(there(&mut world).is_some());
}

#[test]
fn a_users_own_policy_is_not_touched() {
    let mut world = antrea();
    let own: ClusterNetworkPolicy =
        object(json!({ "metadata": { "name": NAME }, "spec": { "priority": 9 } }));
    insert(policies(&mut world), own.clone());
    offer(&mut world, &spec("securityops", "Pass"));
    settle(&mut world);
    let message =
        "Unable to import Antrea ClusterNetworkPolicy which conflicts with existing one in cluster east";
    assert_eq!(remarks(&world), [message]);
    leader(&mut world).imports = Objects::default();
    settle(&mut world);
    world.cluster_sets = Objects::default();
    assert!(
        plan(&world)
            .actions
            .iter()
            .all(|a| a.target.kind != Kind::ClusterNetworkPolicy)
    );
    assert_eq!(there(&mut world).unwrap().spec, own.spec);
}

#[test]
fn what_others_add_to_a_policy_stays_and_what_contradicts_it_does_not() {
    let mut world = antrea();
    let mut offered = spec("securityops", "Pass");
    offered["ingress"][0]["newField"] = json!(1);
    offer(&mut world, &offered);
    settle(&mut world);
    let change = |world: &mut MemberWorld, change: fn(&mut Value)| {
        let mut policy = there(world).unwrap().as_ref().clone();
        change(&mut policy.spec);
        insert(policies(world), policy);
    };
    // A webhook names the rule; the CRD drops a field it does not know.
    change(&mut world, |spec| {
        spec["ingress"][0]["name"] = json!("rule-1");
        spec["ingress"][0].as_object_mut().unwrap().remove("newField");
    });
    assert!(step(&mut world).is_empty());
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
        change(&mut world, contradict);
        assert!(!step(&mut world).is_empty());
        assert_eq!(there(&mut world).unwrap().spec, offered);
    }
}

#[test]
fn without_antrea_it_is_said_once() {
    let mut world = world();
    insert(
        &mut leader(&mut world).imports,
        offered("strict", &spec("a", "Pass")),
    );
    insert(
        &mut leader(&mut world).imports,
        offered("other", &spec("a", "Pass")),
    );
    settle(&mut world);
    let plan = plan(&world);
    says(
        &plan,
        "clusternetworkpolicies.crd.antrea.io: this cluster does not know the kind: 2 replicated policies",
    );
    assert_eq!(plan.notices.len(), 1);
    assert!(plan.remarks.is_empty());
    // It comes, and goes again.
    let mut world = antrea();
    offer(&mut world, &spec("securityops", "Pass"));
    settle(&mut world);
    world.tiers = Optional::Absent;
    settle(&mut world);
    assert!(
        there(&mut world).is_some(),
        "no Tiers at all say nothing about this one"
    );
    assert_eq!(
        remarks(&world),
        ["Failed to get Tier securityops in member cluster east"]
    );
    for unknown in [Optional::Pending, Optional::Absent] {
        world.policies = unknown;
        settle(&mut world);
    }
    let mut world = antrea();
    settle(&mut world);
    world.tiers = Optional::Pending;
    offer(&mut world, &spec("securityops", "Pass"));
    assert!(
        step(&mut world).is_empty() && remarks(&world).is_empty(),
        "not known yet"
    );
}

#[test]
fn what_the_api_server_refuses_is_told() {
    let mut world = antrea();
    offer(&mut world, &spec("securityops", "Pass"));
    let target = Target {
        side: Side::Local,
        kind: Kind::ClusterNetworkPolicy,
        namespace: String::new(),
        name: NAME.to_owned(),
    };
    world.failing = [(target, "denied".to_owned())].into();
    assert_eq!(
        remarks(&world),
        ["Failed to create imported Antrea ClusterNetworkPolicy in cluster east"]
    );
    says(&plan(&world), "not imported: denied");
    settle(&mut world);
    offer(&mut world, &spec("securityops", "Drop"));
    assert_eq!(
        remarks(&world),
        ["Failed to update imported Antrea ClusterNetworkPolicy in cluster east"]
    );
    settle(&mut world);
    offer(&mut world, &spec("random", "Drop"));
    assert_eq!(
        remarks(&world),
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
        let mut world = antrea();
        offer(&mut world, &spec("securityops", "Pass"));
        settle(&mut world);
        leader(&mut world).imports = Objects::default();
        insert(&mut leader(&mut world).imports, bad);
        insert(
            &mut leader(&mut world).imports,
            offered("good", &spec("securityops", "Pass")),
        );
        says(&plan(&world), why);
        settle(&mut world);
        assert_eq!(
            policies(&mut world).len(),
            2,
            "{why}: the leader has not taken it back"
        );
    }
    let mut world = antrea();
    insert(
        &mut leader(&mut world).imports,
        change(|i| {
            i.spec.name = "A_b".to_owned();
            i.metadata.name = Some(names::policy_import("A_b"));
        }),
    );
    says(&plan(&world), "spec.name: \"antrea-mc-A_b\" is not a DNS name");
    // One that is meant for others.
    let mut world = antrea();
    insert(
        &mut leader(&mut world).imports,
        change(|i| i.spec.cluster_ids = vec!["west".to_owned()]),
    );
    settle(&mut world);
    assert!(there(&mut world).is_none());
}
